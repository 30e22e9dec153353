//! The space of a thin device: of the file system that a sparse file lies in, or of a thin pool.
//!
//! - S1: a write that finds no space marks the device as full, for all cores. New data is refused from then
//!   on, so that what is freed is left to the writes that give space back (checkpoints).
//! - S2: a file holds space back behind its end, which no reader sees, for exactly these writes. It is given up when
//!   one of them fails for want of space, and taken again before data is taken again.
//! - S3: the device is full until the space to be held back can be taken again, with a margin. Otherwise it
//!   would go back and forth between the two states.

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
/// Such a part of what is held back, and so many bytes, have to be free besides before data is taken again (S3).
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
    /// Bytes that the file system said to be free when it had no space; the largest number while it has.
    free_when_full: AtomicU64,
}

impl SpaceBelow {
    pub(crate) fn new(is_file: bool, blocks: u64) -> Self {
        let len_bytes = blocks * BLOCK_SIZE as u64;
        let [full, needed, holds] = [const { AtomicBool::new(false) }; 3];
        let free_when_full = AtomicU64::new(u64::MAX);
        Self { is_file, len_bytes, full, needed, holds, free_when_full }
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

    /// Gives up what is held back if that is needed (S2), and else takes it again; returns whether the device is full.
    /// May wait for the file system.
    pub(crate) fn look(&self, fd: BorrowedFd<'_>) -> bool {
        self.note_free(fd);
        if self.needed.swap(false, Ordering::Relaxed) {
            self.give_up(fd);
        } else if self.hold(fd) {
            self.full.store(false, Ordering::Relaxed);
            self.free_when_full.store(u64::MAX, Ordering::Relaxed);
        }
        self.is_full()
    }

    /// Remembers what is free at the first look that finds no space.
    fn note_free(&self, fd: BorrowedFd<'_>) {
        if self.free_when_full.load(Ordering::Relaxed) == u64::MAX
            && let Ok(found) = fstatvfs(fd)
        {
            let free = found.f_bfree.saturating_mul(found.f_frsize);
            self.free_when_full.store(free, Ordering::Relaxed);
        }
    }

    /// Takes the space to be held back, of a full device if the file system has a margin besides (S3). A thin pool
    /// is tried by the next write.
    pub(crate) fn hold(&self, fd: BorrowedFd<'_>) -> bool {
        if !self.is_file {
            return true;
        }
        let usual = (self.len_bytes / HELD_PART).clamp(*HELD_BYTES.start(), *HELD_BYTES.end());
        let Some(held) = self.held_now(fd, usual) else { return false };
        let taken = fallocate(fd, FallocateFlags::KEEP_SIZE, self.end(fd), held);
        let is_refused = matches!(taken, Err(Errno::NOSPC | Errno::DQUOT));
        if is_refused {
            // Of what was taken in part.
            self.give_up(fd);
        }
        self.holds.store(!is_refused, Ordering::Relaxed);
        !is_refused
    }

    /// Bytes to be held back now; `None` while a full device stays full (S3). What a file system says to be free is compared
    /// with what it said when it had nothing: a part of that may be of no use.
    fn held_now(&self, fd: BorrowedFd<'_>, usual: u64) -> Option<u64> {
        if !self.is_full() {
            return Some(usual);
        }
        let Ok(found) = fstatvfs(fd) else { return Some(usual) };
        let free = found.f_bfree.saturating_mul(found.f_frsize);
        let holds = self.holds.load(Ordering::Relaxed);
        let lowest = match holds {
            true => self.free_when_full.fetch_min(free, Ordering::Relaxed).min(free),
            false => self.free_when_full.load(Ordering::Relaxed).min(free),
        };
        let margin = (usual / MARGIN_PART).max(MARGIN_BYTES_MIN);
        let wanted = if holds { margin } else { usual + margin };
        (free - lowest >= wanted).then_some(usual)
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
