//! The space of a thin device: of the file system that a sparse file lies in, or of a thin pool.
//!
//! - SPACE-BELOW-1: a write that finds no space marks the device as full, for all cores. New data is refused from then
//!   on, so that what is freed is left to the writes that give space back (checkpoints).
//! - SPACE-BELOW-2: a file holds space back behind its end, which no reader sees, for exactly these writes. It is given up
//!   when one of them fails for want of space, and taken again before data is taken again.
//! - SPACE-BELOW-3: the device is full until the space to be held back can be taken again, with a margin. Otherwise it
//!   would go back and forth between the two states. It is tried at once, and once more whenever the file system has some
//!   more free than when it refused: what it says to be free may be of no use.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate, fstat, fstatvfs, ftruncate};
use rustix::io::Errno;
use units::BLOCK_SIZE;

/// Such a part of a file is held back: a map node has room for at least twice as many blocks, so the
/// largest checkpoint fits.
const HELD_PART: u64 = 128;
/// The least and the most that is held back.
const HELD_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// Such a part of what is held back, and so many bytes at least, are taken besides before data is taken again (SPACE-BELOW-3).
const MARGIN_PART: u64 = 16;
const MARGIN_BYTES_MIN: u64 = 1 << 20;

/// The state of the space below a device, shared by all that have the device open.
#[derive(Debug)]
pub(crate) struct SpaceBelow {
    is_file: bool,
    /// Bytes of the file, which never change while it is open here.
    len_bytes: u64,
    full: AtomicBool,
    needed: AtomicBool,
    /// True while space is held back.
    holds: AtomicBool,
    /// The least that the file system said to be free since it last refused the space; the largest number if it did not.
    free_when_refused: AtomicU64,
}

impl SpaceBelow {
    pub(crate) fn new(is_file: bool, blocks: u64) -> Self {
        let len_bytes = blocks * BLOCK_SIZE as u64;
        let [full, needed, holds] = [const { AtomicBool::new(false) }; 3];
        let free_when_refused = AtomicU64::new(u64::MAX);
        Self { is_file, len_bytes, full, needed, holds, free_when_refused }
    }

    /// Returns whether space can be taken ahead of use.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn note_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn note_needed(&self) {
        self.note_full();
        self.needed.store(true, Ordering::Relaxed);
    }

    /// Gives up what is held back if that is needed (SPACE-BELOW-2), and else takes it again; returns whether the device is
    /// full. May wait for the file system.
    pub(crate) fn look(&self, fd: BorrowedFd<'_>) -> bool {
        if self.needed.swap(false, Ordering::Relaxed) {
            self.give_up(fd);
        } else if self.may_have_room(fd) && self.hold(fd) {
            self.full.store(false, Ordering::Relaxed);
            self.free_when_refused.store(u64::MAX, Ordering::Relaxed);
        }
        self.is_full()
    }

    /// Bytes to be held back, and the margin.
    fn wanted(&self) -> (u64, u64) {
        let usual = (self.len_bytes / HELD_PART).clamp(*HELD_BYTES.start(), *HELD_BYTES.end());
        (usual, (usual / MARGIN_PART).max(MARGIN_BYTES_MIN))
    }

    /// Returns whether more is free than when the file system refused (SPACE-BELOW-3).
    fn may_have_room(&self, fd: BorrowedFd<'_>) -> bool {
        if self.free_when_refused.load(Ordering::Relaxed) == u64::MAX {
            return true;
        }
        let Some(free) = free_bytes(fd) else { return true };
        let lowest = self.free_when_refused.fetch_min(free, Ordering::Relaxed).min(free);
        free - lowest >= self.wanted().1
    }

    /// Takes the space to be held back, of a full device with a margin behind it (SPACE-BELOW-3). A thin pool is tried by the
    /// next write.
    pub(crate) fn hold(&self, fd: BorrowedFd<'_>) -> bool {
        if !self.is_file {
            return true;
        }
        let (usual, margin) = self.wanted();
        let (end, holds) = (self.end(fd), self.holds.load(Ordering::Relaxed));
        let (start, len) = match (self.is_full(), holds) {
            (false, _) => (end, usual),
            (true, false) => (end, usual + margin),
            (true, true) => (end + usual, margin),
        };
        let free = free_bytes(fd);
        let taken = fallocate(fd, FallocateFlags::KEEP_SIZE, start, len);
        if !matches!(taken, Err(Errno::NOSPC | Errno::DQUOT)) {
            self.holds.store(true, Ordering::Relaxed);
            return true;
        }
        self.free_when_refused.store(free.unwrap_or(u64::MAX), Ordering::Relaxed);
        if !holds {
            // Of what was taken in part.
            self.give_up(fd);
        }
        false
    }

    /// Returns the end of the file: nothing that it holds, also of one that has grown, is touched.
    fn end(&self, fd: BorrowedFd<'_>) -> u64 {
        fstat(fd).map_or(self.len_bytes, |found| found.st_size.unsigned_abs())
    }

    /// A file that is cut off at its end loses what lies behind.
    fn give_up(&self, fd: BorrowedFd<'_>) {
        self.holds.store(false, Ordering::Relaxed);
        if self.is_file {
            // The next look tries again.
            let _ = ftruncate(fd.as_fd(), self.end(fd));
        }
    }
}

/// Bytes that the file system says to be free.
fn free_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let found = fstatvfs(fd).ok()?;
    Some(found.f_bfree.saturating_mul(found.f_frsize))
}
