//! Memory of a device that readers access in place, by the rules of [`pins`] (PIN-1 to PIN-3).

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use pins::Pins;
use units::BLOCK_SIZE;

use crate::memory::Memory;

/// Bytes under one lock. Divides the engine's extent of 128 MiB.
pub(crate) const STRIPE_LEN: usize = 32 << 20;

/// A part of a device. On cache lines of its own, so that cores do not share one over their locks.
#[repr(align(128))]
pub(crate) struct Stripe {
    memory: Memory,
    pins: Pins,
}

impl Stripe {
    /// A stripe of such memory, [`STRIPE_LEN`] long.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, pins: Pins::new(STRIPE_LEN / BLOCK_SIZE) }
    }

    /// To copy from it.
    pub(crate) fn read(&self) -> Reading<'_> {
        Reading { stripe: self, _reading: self.pins.read() }
    }

    /// To change it.
    pub(crate) fn write(&self) -> Writing<'_> {
        Writing { stripe: self, writing: self.pins.write() }
    }

    /// Says that the bytes in `range` will be pinned soon, and where they lie.
    pub(crate) fn will_pin(&self, range: &Range<usize>) -> *const [u8] {
        if let Some(counts) = self.pins.near(blocks(range)) {
            checksum::prefetch(counts);
        }
        std::ptr::slice_from_raw_parts(self.memory.at(range), range.len())
    }
}

/// A stripe that is not being changed.
pub(crate) struct Reading<'a> {
    stripe: &'a Stripe,
    _reading: pins::Reading<'a>,
}

impl Reading<'_> {
    pub(crate) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        // SAFETY: changes need the exclusive lock (PIN-3).
        unsafe { self.stripe.memory.get(range) }
    }
}

/// A stripe that one changes.
pub(crate) struct Writing<'a> {
    stripe: &'a Stripe,
    writing: pins::Writing<'a>,
}

impl Writing<'_> {
    /// The bytes in `range`, unless they have a reader.
    pub(crate) fn bytes(&mut self, range: &Range<usize>) -> Option<&mut [u8]> {
        // SAFETY: the range has no reader, gets none while this lives (PIN-1), and this has the
        // exclusive lock (PIN-3).
        self.writing.is_free(blocks(range)).then(|| unsafe { self.stripe.memory.get_mut(range) })
    }

    /// Makes `range`, whole pages, zeroes, and gives the memory back. `false`: it has a reader.
    pub(crate) fn discard(&mut self, range: &Range<usize>) -> bool {
        let is_free = self.writing.is_free(blocks(range));
        if is_free {
            // SAFETY: as for its bytes.
            unsafe { self.stripe.memory.discard(range) };
        }
        is_free
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
        let may_look = stripe.pins.pin(blocks(&range));
        // Dropped if not, which undoes the count.
        let pinned = Self { stripe: stripe.clone(), range, start };
        may_look.then_some(pinned)
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the stripe's memory, which it keeps alive; and it is not written (PIN-1).
        unsafe { slice::from_raw_parts(self.start, self.range.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.stripe.pins.unpin(blocks(&self.range));
    }
}
