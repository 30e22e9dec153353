//! Events that are triggered by writes of certain blocks: chance would hardly hit them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use units::{Pba, PbaRange};

use super::SimDevice;

/// Blocks whose next write brings something about.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    /// The power goes.
    crash: RefCell<BTreeSet<u64>>,
    /// The flush that should cover the write fails.
    failed_flush: RefCell<BTreeSet<u64>>,
    /// The power goes so many events after such a write is asked for, once so many others were.
    doomed: RefCell<BTreeSet<u64>>,
    writes_left: Cell<u64>,
    events_left: Cell<u64>,
    /// Writes take so many times as long.
    slow: RefCell<BTreeSet<u64>>,
    times: Cell<u32>,
    /// Number of reads of a block that fail.
    deaf: RefCell<BTreeMap<u64, u32>>,
}

impl Triggers {
    /// Returns true if the power fails when a write of `range` is issued.
    pub(super) fn crashes(&self, range: PbaRange) -> bool {
        self.crash.borrow().range(range.start.0..range.end().0).next().is_some()
    }

    /// In how many events the power goes because a write of `range` is asked for.
    pub(super) fn dooms(&self, range: PbaRange) -> Option<u64> {
        let mut doomed = self.doomed.borrow_mut();
        doomed.range(range.start.0..range.end().0).next()?;
        if let Some(left) = self.writes_left.get().checked_sub(1) {
            self.writes_left.set(left);
            return None;
        }
        doomed.clear();
        Some(self.events_left.get())
    }

    /// Returns the factor by which a write of `range` takes longer than usual.
    pub(super) fn slowness(&self, range: PbaRange) -> u32 {
        let slow = self.slow.borrow();
        let is_slow = slow.range(range.start.0..range.end().0).next().is_some();
        if is_slow { self.times.get() } else { 1 }
    }

    /// Returns true if a read of `range` fails; counts it.
    pub(super) fn fails_read(&self, range: PbaRange) -> bool {
        let mut deaf = self.deaf.borrow_mut();
        let mut fails = false;
        for (_, left) in deaf.range_mut(range.start.0..range.end().0) {
            fails |= *left > 0;
            *left = left.saturating_sub(1);
        }
        fails
    }

    pub(super) fn stop_failing_reads(&self) {
        self.deaf.borrow_mut().clear();
    }

    /// Returns true if a flush that should cover these blocks fails, once.
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
    /// Cuts the power a while after a write of `range` is asked for, if that is wanted. Returns whether that is to be when it
    /// is about to be done.
    pub(super) fn note_doom(&self, range: PbaRange) -> bool {
        match self.state.triggers.dooms(range) {
            Some(u64::MAX) => return true,
            Some(events) => self.crash_at_event(self.events() + events),
            None => {}
        }
        false
    }

    /// Cuts the power when one of these blocks is to be written next, before it is.
    pub fn crash_at_write_of(&self, places: impl IntoIterator<Item = Pba>) {
        *self.state.triggers.crash.borrow_mut() = places.into_iter().map(|pba| pba.0).collect();
    }

    /// Cuts the power `events` events after a write of one of these blocks was asked for, when `writes` of them went before;
    /// right before the write is done if that is `u64::MAX`.
    pub fn crash_after_write_of(
        &self,
        places: impl IntoIterator<Item = Pba>,
        writes: u64,
        events: u64,
    ) {
        let triggers = &self.state.triggers;
        *triggers.doomed.borrow_mut() = places.into_iter().map(|pba| pba.0).collect();
        triggers.writes_left.set(writes);
        triggers.events_left.set(events);
    }

    /// From now on writes of these blocks take `times` as long as others.
    pub fn slow_down(&self, places: impl IntoIterator<Item = Pba>, times: u32) {
        *self.state.triggers.slow.borrow_mut() = places.into_iter().map(|pba| pba.0).collect();
        self.state.triggers.times.set(times);
    }

    /// Fails the next `times` reads of these blocks.
    pub fn fail_reads_of(&self, range: PbaRange, times: u32) {
        self.world.note(format_args!("disk: the next {times} reads of {range} fail"));
        let blocks = range.start.0..range.end().0;
        self.state.triggers.deaf.borrow_mut().extend(blocks.map(|block| (block, times)));
    }

    /// Fails the next flush that should cover a write of one of these blocks. Nothing of what it should have covered gets
    /// on the medium.
    pub fn fail_flush_of(&self, places: impl IntoIterator<Item = Pba>) {
        let places = places.into_iter().map(|pba| pba.0).collect();
        *self.state.triggers.failed_flush.borrow_mut() = places;
    }
}
