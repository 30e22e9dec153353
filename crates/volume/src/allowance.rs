//! Limits the blocks that the volumes of one tenant hold together on one core.
//!
//! - ALLOWANCE-1: a write that adds blocks takes them from what is left before it does anything, and is
//!   refused if that is too little. Nothing is taken for blocks that it replaces.
//! - ALLOWANCE-2: what is left is recomputed by [`Allowance::set`] only, from what the volumes hold and what
//!   writes under way will add. Between two counts nothing is given back.
//! - ALLOWANCE-3: a write that is in the map and not answered yet is counted in both, and so for too much:
//!   what is used never makes the limit more.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::Device;
use units::LbaRange;

use crate::{Volume, VolumeError};

/// Blocks that a group of volumes may still add; shared by them.
#[derive(Debug)]
pub struct Allowance {
    limit: Cell<u64>,
    left: Cell<u64>,
    /// Taken by writes under way.
    under_way: Cell<u64>,
}

impl Default for Allowance {
    /// One without a limit.
    fn default() -> Self {
        let [limit, left] = [u64::MAX; 2].map(Cell::new);
        Self { limit, left, under_way: Cell::new(0) }
    }
}

impl Allowance {
    /// The most blocks that the volumes may hold. They may hold more already.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.get()
    }

    /// Blocks that the volumes hold (`held`), plus those that writes under way will add.
    #[must_use]
    pub fn used(&self, held: u64) -> u64 {
        held + self.under_way.get()
    }

    /// Sets the limit; `held` is what the volumes hold now. If that is more, nothing is left.
    pub fn set(&self, limit: u64, held: u64) {
        self.limit.set(limit);
        self.left.set(limit.saturating_sub(self.used(held)));
    }

    /// ALLOWANCE-1. `None`: there is not enough left.
    pub(crate) fn take(self: &Rc<Self>, blocks: u64) -> Option<Taken> {
        let left = self.left.get().checked_sub(blocks)?;
        self.left.set(left);
        self.under_way.set(self.under_way.get() + blocks);
        Some(Taken { from: self.clone(), blocks })
    }
}

/// Blocks that a write under way may add; from its end on they are counted where they are held.
#[derive(Debug)]
pub(crate) struct Taken {
    from: Rc<Allowance>,
    blocks: u64,
}

impl Taken {
    /// Gives them back to what is left, for a write that was never begun. No count comes between (ALLOWANCE-2): the caller has
    /// taken them in the same step.
    pub(crate) fn give_back(self) {
        self.from.left.set(self.from.left.get() + self.blocks);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.from.under_way.set(self.from.under_way.get() - self.blocks);
    }
}

impl<D: Device> Volume<D> {
    /// Bounds what it may hold, together with all others that have the same allowance. Not kept on the
    /// device.
    pub fn set_allowance(&self, allowance: Rc<Allowance>) {
        self.state().allowance.replace(Some(allowance));
    }

    /// The allowance that bounds it.
    #[must_use]
    pub fn allowance(&self) -> Option<Rc<Allowance>> {
        self.state().allowance.borrow().clone()
    }

    /// ALLOWANCE-1, for a write of `range`, whose map is loaded.
    pub(crate) fn take_allowance(&self, range: LbaRange) -> Result<Option<Taken>, VolumeError> {
        let allowance = self.state().allowance.borrow();
        let Some(allowance) = &*allowance else { return Ok(None) };
        allowance.take(self.added(range)).map(Some).ok_or(VolumeError::AllowanceSpent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_never_exceeds_the_limit() {
        let allowance = Rc::new(Allowance::default());
        assert!(allowance.take(1).is_some(), "nothing was said");
        allowance.set(10, 4);
        let one = allowance.take(4).expect("six are left");
        assert!(allowance.take(3).is_none());
        let two = allowance.take(2).expect("two are left");
        // Recomputed while both are under way: neither is held yet.
        allowance.set(10, 4);
        assert!(allowance.take(1).is_none());
        drop(one);
        allowance.set(10, 8);
        assert!(allowance.take(1).is_none(), "held now");
        drop(two);
        assert!(allowance.take(1).is_none(), "nothing comes back by itself (ALLOWANCE-2)");
        // The second failed: it is not among what is held.
        allowance.set(10, 8);
        assert!(allowance.take(2).is_some());
        allowance.set(3, 8);
        assert!(allowance.take(1).is_none());
        // Held, and not answered yet: that it is counted twice leaves no more afterwards.
        allowance.set(10, 9);
        let last = allowance.take(1).expect("one is left");
        allowance.set(allowance.limit(), 10);
        drop(last);
        allowance.set(allowance.limit(), 10);
        assert!(allowance.take(1).is_none());
    }
}
