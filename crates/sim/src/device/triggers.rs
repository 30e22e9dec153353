//! What happens when certain blocks are written: what chance would hardly hit.

use std::cell::RefCell;
use std::collections::BTreeSet;

use units::{Pba, PbaRange};

use super::SimDevice;

/// Blocks whose next write brings something about.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    /// The power goes.
    crash: RefCell<BTreeSet<u64>>,
    /// The flush that should cover the write fails.
    failed_flush: RefCell<BTreeSet<u64>>,
}

impl Triggers {
    /// Whether the power goes when a write of `range` is asked for.
    pub(super) fn crashes(&self, range: PbaRange) -> bool {
        self.crash.borrow().range(range.start.0..range.end().0).next().is_some()
    }

    /// Whether a flush that should cover these blocks fails, for once.
    pub(super) fn fails_flush(&self, covered: impl Iterator<Item = u64>) -> bool {
        let mut failed = self.failed_flush.borrow_mut();
        let fails = !failed.is_empty() && { covered }.any(|block| failed.contains(&block));
        if fails {
            failed.clear();
        }
        fails
    }
}

impl SimDevice {
    /// Cuts the power when one of these blocks is to be written next, before it is.
    pub fn crash_at_write_of(&self, places: impl IntoIterator<Item = Pba>) {
        *self.state.triggers.crash.borrow_mut() = places.into_iter().map(|pba| pba.0).collect();
    }

    /// Fails the next flush that should cover a write of one of these blocks. Nothing of what it should have covered gets
    /// on the medium.
    pub fn fail_flush_of(&self, places: impl IntoIterator<Item = Pba>) {
        let places = places.into_iter().map(|pba| pba.0).collect();
        *self.state.triggers.failed_flush.borrow_mut() = places;
    }
}
