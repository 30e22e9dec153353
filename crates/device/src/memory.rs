//! Zero-filled memory that is not resident before it is written.

use std::ffi::c_void;
use std::ops::Range;
use std::{ptr, slice};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a huge page on all common machines.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// An exclusively owned part of an anonymous private mapping.
pub(crate) struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: it is the only way to its bytes, as a `Box<[u8]>` is to its own.
unsafe impl Send for Memory {}
// SAFETY: what is done through a shared reference is either to tell an address, or as safe as its caller promises.
unsafe impl Sync for Memory {}

impl Memory {
    /// `count` pieces of `len` bytes, a multiple of the huge page, with one mapping behind them, so
    /// that neighbours share the kernel's bookkeeping.
    pub(crate) fn pieces(count: usize, len: usize) -> Result<Vec<Self>, Errno> {
        assert!(len.is_multiple_of(HUGE_PAGE));
        let total = count.checked_mul(len).ok_or(Errno::NOMEM)?;
        let mapped = total.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let base = base.cast::<u8>();
        let head = base.align_offset(HUGE_PAGE);
        // SAFETY: `head` is below the huge page that was added, so all of it lies in the mapping.
        let (start, end) = unsafe { (base.add(head), base.add(head + total)) };
        // SAFETY: both parts lie outside of what the pieces will own, and inside of the mapping.
        unsafe {
            unmap(base, head);
            unmap(end, HUGE_PAGE - head);
            // A hint: fewer page faults and misses where the kernel grants it.
            let _ = madvise(start.cast(), total, Advice::LinuxHugepage);
        }
        let piece = |n| {
            // SAFETY: piece n of count, so within the mapping; no two pieces overlap.
            let base = unsafe { start.add(n * len) };
            Self { base, len }
        };
        Ok((0..count).map(piece).collect())
    }

    /// The bytes in `range`.
    ///
    /// # Safety
    /// They do not change meanwhile.
    pub(crate) unsafe fn get(&self, range: &Range<usize>) -> &[u8] {
        let start = self.at(range);
        // SAFETY: mapped and zero-filled by the kernel, ours, and unchanged, as the caller
        // promises.
        unsafe { slice::from_raw_parts(start, range.len()) }
    }

    /// The bytes in `range`, mutably. Other bytes may have readers.
    ///
    /// # Safety
    /// There is no other reference to bytes in `range` meanwhile.
    #[expect(clippy::mut_from_ref, reason = "stripe.rs decides which bytes may be changed")]
    pub(crate) unsafe fn get_mut(&self, range: &Range<usize>) -> &mut [u8] {
        let start = self.at(range);
        // SAFETY: as for `get`; and there is no other reference, as the caller promises.
        unsafe { slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Returns a pointer to the bytes in `range`. They stay there until this is dropped.
    pub(crate) fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "outside of the memory");
        // SAFETY: within the mapping, or at its end.
        unsafe { self.base.add(range.start) }
    }

    /// Makes `range`, whole pages, zeroes, and gives the memory back.
    ///
    /// # Safety
    /// As for [`Memory::get_mut`].
    pub(crate) unsafe fn discard(&self, range: &Range<usize>) {
        // SAFETY: as the caller promises.
        let part = unsafe { self.get_mut(range) };
        let (start, len) = (part.as_mut_ptr().cast::<c_void>(), part.len());
        // SAFETY: the part is ours, and has no other owner; for private anonymous memory the advice
        // means that it reads as zeroes from now on.
        let discarded = unsafe { madvise(start, len, Advice::LinuxDontNeed) };
        if discarded.is_err() {
            part.fill(0);
        }
    }
}

/// # Safety
/// The bytes are a whole number of pages of a mapping, and are not used any more.
unsafe fn unmap(base: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: as the caller promises. It can fail only where there is nothing to unmap, or no
        // memory to split the mapping; then the pages stay, unused.
        let _ = unsafe { munmap(base.cast(), len) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the piece is ours and is going away.
        unsafe { unmap(self.base, self.len) };
    }
}
