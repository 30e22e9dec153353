//! Counts of readers that access blocks of memory in place, on any core, and writers that keep off what they read.
//!
//! - PIN-1: a reader that pins a block counts itself, and then checks if the memory is being written;
//!   a writer marks the memory as being written, and then checks the counts. So at least one of the
//!   two sees the other: a reader gives way and reads a copy, a writer fails. No pinned byte is
//!   changed.
//! - PIN-2: a reader that unpins a block has made its last access before: a writer that finds the
//!   block free sees that.
//! - PIN-3: copies from the memory and writes to it are made under its lock.
//!
//! Absent from this crate: the memory itself. It is apart from `device` so that a model checker can look at all of it.

mod sync;

use std::ops::Range;
use std::sync::PoisonError;

use crate::sync::{
    AtomicBool, AtomicU16, OnceLock, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard, fence,
};

/// Readers of one block at a time; more of them read copies. Far from what a count can hold, since threads may look at
/// it before any of them adds to it.
const PINS_MAX: u16 = 256;

/// The readers and the writer of some blocks of memory.
#[derive(Debug)]
pub struct Pins {
    blocks: usize,
    lock: RwLock<()>,
    is_written: AtomicBool,
    /// Number of readers of each block, allocated by the first pin.
    counts: OnceLock<Box<[AtomicU16]>>,
}

/// Nothing changes the memory while this lives (PIN-3).
#[derive(Debug)]
pub struct Reading<'a>(#[allow(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

/// Nothing else changes the memory while this lives, and no copy is made of it (PIN-3).
#[derive(Debug)]
pub struct Writing<'a> {
    pins: &'a Pins,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Pins {
    /// Makes the counts of so many blocks, none of which is read or written.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let (lock, is_written) = (RwLock::new(()), AtomicBool::new(false));
        Self { blocks, lock, is_written, counts: OnceLock::new() }
    }

    /// Waits until the memory may be copied from.
    pub fn read(&self) -> Reading<'_> {
        // A panic while a lock was held leaves bytes, and any bytes are a device's contents.
        Reading(self.lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until blocks that have no reader may be changed.
    pub fn write(&self) -> Writing<'_> {
        let lock = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.is_written.store(true, Ordering::Relaxed);
        // PIN-1: before the counts are looked at.
        fence(Ordering::SeqCst);
        Writing { pins: self, _lock: lock }
    }

    /// Counts a reader of `blocks`; returns whether it may access them. In any case [`Pins::unpin`] is to follow.
    #[must_use]
    pub fn pin(&self, blocks: Range<usize>) -> bool {
        let mut are_few = true;
        for count in &self.counts()[blocks] {
            are_few &= count.fetch_add(1, Ordering::SeqCst) < PINS_MAX;
        }
        // The model takes sequentially consistent accesses for acquire and release: without this it would report what the
        // accesses above and below rule out. So it does not show that they are needed; PIN-1 needs both.
        #[cfg(feature = "loom")]
        fence(Ordering::SeqCst);
        are_few && !self.is_written.load(Ordering::SeqCst)
    }

    /// A reader of `blocks` has made its last access (PIN-2).
    pub fn unpin(&self, blocks: Range<usize>) {
        for count in &self.counts()[blocks] {
            count.fetch_sub(1, Ordering::Release);
        }
    }

    /// The counts of `blocks`, to have them brought into the processor's caches, if anything was ever pinned. They are not shown.
    #[must_use]
    pub fn near(&self, blocks: Range<usize>) -> Option<&[impl Sized]> {
        self.counts.get().map(|counts| &counts[blocks])
    }

    fn counts(&self) -> &[AtomicU16] {
        if let Some(counts) = self.counts.get() {
            return counts;
        }
        // Under the lock, so that a writer either is not there yet or sees them: PIN-1 is about their contents only.
        let _reading = self.read();
        self.counts.get_or_init(|| (0..self.blocks).map(|_| AtomicU16::new(0)).collect())
    }
}

impl Writing<'_> {
    /// Returns whether `blocks` have no reader. They get none while this lives (PIN-1).
    #[must_use]
    pub fn is_free(&self, blocks: Range<usize>) -> bool {
        let Some(counts) = self.pins.counts.get() else { return true };
        counts[blocks].iter().all(|count| count.load(Ordering::Acquire) == 0)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // A thread that sees this sees the written bytes.
        self.pins.is_written.store(false, Ordering::Release);
    }
}
