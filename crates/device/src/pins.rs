//! Memory of a device that readers access in place.
//!
//! - P1: a reader that pins a block counts itself, and then checks if the stripe is being written;
//!   a writer marks the stripe as being written, and then checks the counts. So at least one of the
//!   two sees the other: a reader gives way and reads a copy, a writer fails. No pinned byte is
//!   changed.
//! - P2: a reader that unpins a block has made its last access before: a writer that finds the
//!   block free sees that.
//! - P3: copies from the stripe and writes to it are made under its lock.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use units::BLOCK_SIZE;

use crate::memory::Memory;

/// Bytes under one lock. Divides the engine's extent of 128 MiB.
pub(crate) const STRIPE_LEN: usize = 32 << 20;
/// Readers of one block at a time; more of them read copies. Far from what a count can hold, since threads may look at
/// it before any of them adds to it.
const PINS_MAX: u16 = 256;

/// A part of a device. On cache lines of its own, so that cores do not share one over their locks.
#[repr(align(128))]
pub(crate) struct Stripe {
    memory: Memory,
    lock: RwLock<()>,
    is_written: AtomicBool,
    /// Number of readers of each block, allocated by the first pin in this stripe.
    pins: OnceLock<Box<[AtomicU16]>>,
}

impl Stripe {
    /// A stripe of such memory, [`STRIPE_LEN`] long.
    pub(crate) fn new(memory: Memory) -> Self {
        let (lock, is_written) = (RwLock::new(()), AtomicBool::new(false));
        Self { memory, lock, is_written, pins: OnceLock::new() }
    }

    /// To copy from it.
    pub(crate) fn read(&self) -> Reading<'_> {
        // A panic while a lock was held leaves bytes, and any bytes are a device's contents.
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        Reading { stripe: self, _lock: lock }
    }

    /// To change it.
    pub(crate) fn write(&self) -> Writing<'_> {
        let lock = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.is_written.store(true, Ordering::Relaxed);
        // P1: before the counts are looked at.
        fence(Ordering::SeqCst);
        Writing { stripe: self, _lock: lock }
    }

    /// Says that the bytes in `range` will be pinned soon, and where they lie.
    pub(crate) fn will_pin(&self, range: &Range<usize>) -> *const [u8] {
        if let Some(pins) = self.pins.get() {
            checksum::prefetch(&pins[blocks(range)]);
        }
        std::ptr::slice_from_raw_parts(self.memory.at(range), range.len())
    }

    /// Returns whether the bytes in `range` have no reader.
    fn is_free(&self, range: &Range<usize>) -> bool {
        let Some(pins) = self.pins.get() else { return true };
        pins[blocks(range)].iter().all(|pins| pins.load(Ordering::Acquire) == 0)
    }

    fn pins(&self) -> &[AtomicU16] {
        if let Some(pins) = self.pins.get() {
            return pins;
        }
        // Under the lock, so that a writer either is not there yet or sees them: P1 is about their contents only.
        let _reading = self.read();
        self.pins.get_or_init(|| (0..STRIPE_LEN / BLOCK_SIZE).map(|_| AtomicU16::new(0)).collect())
    }

    /// Counts a reader of the bytes in `range`; returns whether it may read them.
    fn pin(&self, range: &Range<usize>) -> bool {
        let mut are_few = true;
        for pins in &self.pins()[blocks(range)] {
            are_few &= pins.fetch_add(1, Ordering::SeqCst) < PINS_MAX;
        }
        are_few && !self.is_written.load(Ordering::SeqCst)
    }

    fn unpin(&self, range: &Range<usize>) {
        for pins in &self.pins()[blocks(range)] {
            pins.fetch_sub(1, Ordering::Release);
        }
    }
}

/// A stripe that is not being changed.
pub(crate) struct Reading<'a> {
    stripe: &'a Stripe,
    _lock: RwLockReadGuard<'a, ()>,
}

impl Reading<'_> {
    pub(crate) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        // SAFETY: changes need the exclusive lock (P3).
        unsafe { self.stripe.memory.get(range) }
    }
}

/// A stripe that one changes.
pub(crate) struct Writing<'a> {
    stripe: &'a Stripe,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Writing<'_> {
    /// The bytes in `range`, unless they have a reader.
    pub(crate) fn bytes(&mut self, range: &Range<usize>) -> Option<&mut [u8]> {
        // SAFETY: the range has no reader, gets none while this lives (P1), and this has the
        // exclusive lock (P3).
        self.stripe.is_free(range).then(|| unsafe { self.stripe.memory.get_mut(range) })
    }

    /// Makes `range`, whole pages, zeroes, and gives the memory back. `false`: it has a reader.
    pub(crate) fn discard(&mut self, range: &Range<usize>) -> bool {
        let is_free = self.stripe.is_free(range);
        if is_free {
            // SAFETY: as for its bytes.
            unsafe { self.stripe.memory.discard(range) };
        }
        is_free
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // A thread that sees this sees the written bytes.
        self.stripe.is_written.store(false, Ordering::Release);
    }
}

fn blocks(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_SIZE..range.end.div_ceil(BLOCK_SIZE)
}

/// Whole blocks of a stripe that stay as they are until this is dropped.
pub(crate) struct Pinned {
    stripe: Arc<Stripe>,
    range: Range<usize>,
    start: *const u8,
}

impl Pinned {
    /// Pins the bytes in `range`, unless the stripe is being written, or there are too many readers.
    pub(crate) fn new(stripe: &Arc<Stripe>, range: Range<usize>) -> Option<Self> {
        let start = stripe.memory.at(&range).cast_const();
        let may_look = stripe.pin(&range);
        // Dropped if not, which undoes the count.
        let pinned = Self { stripe: stripe.clone(), range, start };
        may_look.then_some(pinned)
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the stripe's memory, which it keeps alive; and it is not written (P1).
        unsafe { slice::from_raw_parts(self.start, self.range.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.stripe.unpin(&self.range);
    }
}
