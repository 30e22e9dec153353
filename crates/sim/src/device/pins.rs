//! Blocks that are lent for reading in place. A write to them breaks the contract, and ends the run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use units::PbaRange;

/// Number of readers of each block.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Rc<RefCell<BTreeMap<u64, u32>>>);

impl Pins {
    /// Pins blocks that hold `bytes`.
    pub(super) fn pin(&self, range: PbaRange, bytes: Vec<u8>) -> Pinned {
        for block in range.start.0..range.end().0 {
            *self.0.borrow_mut().entry(block).or_default() += 1;
        }
        Pinned { pins: self.clone(), range, bytes }
    }

    /// Panics if blocks in `range`, which are about to change, are pinned.
    pub(super) fn assert_free(&self, range: PbaRange) {
        let pins = self.0.borrow();
        let pinned = pins.range(range.start.0..range.end().0).next();
        assert!(pinned.is_none(), "block {pinned:?} of {range} changes while it is pinned");
    }
}

/// Blocks as they were when they were pinned.
pub(super) struct Pinned {
    pins: Pins,
    range: PbaRange,
    bytes: Vec<u8>,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = self.pins.0.borrow_mut();
        for block in self.range.start.0..self.range.end().0 {
            let count = pins.get_mut(&block).expect("it was pinned");
            *count -= 1;
            if *count == 0 {
                pins.remove(&block);
            }
        }
    }
}
