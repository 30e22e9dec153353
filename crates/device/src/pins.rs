//! Memory of a device that readers look at where it lies.
//!
//! - P1: a block is pinned under the lock of its stripe for reading, and changed under that for writing, by one who
//!   has found there that it is not pinned. So nobody changes what somebody looks at.
//! - P2: who lets go of a block has looked at it for the last time before: a writer that finds it free sees that.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

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
    pub(crate) memory: RwLock<Memory>,
    /// How many readers look at each block: from when the first does in this stripe.
    pins: OnceLock<Box<[AtomicU16]>>,
}

impl Stripe {
    /// A stripe of such memory, [`STRIPE_LEN`] long.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory: RwLock::new(memory), pins: OnceLock::new() }
    }

    /// Whether nobody looks at the bytes in `range`. To be asked under the lock for writing (P1).
    pub(crate) fn is_free(&self, range: &Range<usize>) -> bool {
        let Some(pins) = self.pins.get() else { return true };
        pins[blocks(range)].iter().all(|pins| pins.load(Ordering::Acquire) == 0)
    }

    /// Says that the bytes in `range` will be pinned soon.
    pub(crate) fn will_pin(&self, range: &Range<usize>) {
        if let Some(pins) = self.pins.get() {
            checksum::prefetch(&pins[blocks(range)]);
        }
    }

    fn pins(&self) -> &[AtomicU16] {
        let none = || (0..STRIPE_LEN / BLOCK_SIZE).map(|_| AtomicU16::new(0)).collect();
        self.pins.get_or_init(none)
    }

    fn unpin(&self, range: &Range<usize>) {
        for pins in &self.pins()[blocks(range)] {
            pins.fetch_sub(1, Ordering::Release);
        }
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
    /// Pins the bytes in `range`, unless they are being written, or there are too many readers.
    pub(crate) fn new(stripe: &Arc<Stripe>, range: Range<usize>) -> Option<Self> {
        let memory = stripe.memory.try_read().ok()?;
        let start = memory.at(&range).cast_const();
        let pins = &stripe.pins()[blocks(&range)];
        if pins.iter().any(|pins| pins.load(Ordering::Relaxed) >= PINS_MAX) {
            return None;
        }
        for pins in pins {
            pins.fetch_add(1, Ordering::Relaxed);
        }
        drop(memory);
        Some(Self { stripe: stripe.clone(), range, start })
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the stripe's memory, which it keeps alive; and nobody writes there (P1).
        unsafe { slice::from_raw_parts(self.start, self.range.len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.stripe.unpin(&self.range);
    }
}
