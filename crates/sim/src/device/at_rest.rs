//! Inspection and damage of a disk without a request.

use std::collections::BTreeSet;
use std::rc::Rc;

use units::{Pba, PbaRange};

use super::{Defect, SimDevice};

impl SimDevice {
    /// Flips one bit at rest.
    pub fn flip_bit(&self, pba: Pba, bit: usize) {
        let mut disk = self.state.disk.borrow_mut();
        disk.settle();
        disk.flip_bit(pba.0, bit);
    }

    /// Returns the number of clones of this device, itself included.
    #[must_use]
    pub fn handles(&self) -> usize {
        Rc::strong_count(&self.state)
    }

    /// Flips one bit at rest, and returns what the block should hold.
    pub fn rot_at_rest(&self, pba: Pba, bit: usize) -> Vec<u8> {
        self.world.note(format_args!("disk: {} rots", pba.0));
        self.state.disk.borrow_mut().settle();
        let intended = self.peek(pba);
        self.flip_bit(pba, bit);
        intended
    }

    /// Puts something else into a block at rest: what an earlier write left there, as if the last one had been lost.
    pub fn replace(&self, pba: Pba, bytes: &[u8]) {
        self.world.note(format_args!("disk: {} is replaced", pba.0));
        let mut disk = self.state.disk.borrow_mut();
        disk.settle();
        disk.replace(pba.0, bytes);
    }

    /// The blocks of writes that no flush covers, completed or not.
    #[must_use]
    pub fn unflushed_blocks(&self) -> BTreeSet<Pba> {
        self.state.disk.borrow().unflushed_blocks().map(Pba).collect()
    }

    /// Loses what the last power cut left of a block's unflushed writes. `before` is the disk as it was when the power went.
    pub fn lose_unflushed(&self, pba: Pba, before: &SimDevice) {
        self.world.note(format_args!("disk: {} is lost", pba.0));
        self.state.disk.borrow_mut().lose(pba.0, &before.state.disk.borrow());
    }

    /// Replaces the block by bytes that no request wrote.
    pub fn spoil(&self, pba: Pba) {
        self.world.note(format_args!("disk: {} is spoilt", pba.0));
        self.state.disk.borrow_mut().spoil(std::iter::once(pba.0));
    }

    /// Makes every read of this block fail until it is written again.
    pub fn make_unreadable(&self, pba: Pba) {
        self.state.disk.borrow_mut().unreadable.insert(pba.0);
    }

    /// From now on these blocks fail whatever is asked of them, also behind a power cut.
    pub fn break_blocks(&self, range: PbaRange, defect: Defect) {
        self.world.note(format_args!("disk: {defect:?} fail at {range}"));
        let mut disk = self.state.disk.borrow_mut();
        // What is there already was taken.
        disk.settle();
        disk.defects.add(range, defect);
    }

    /// All that was broken works again, as on a new device with everything copied that was taken.
    pub fn mend_blocks(&self) {
        self.world.note(format_args!("disk: mended"));
        self.state.disk.borrow_mut().defects.clear();
        self.state.triggers.stop_failing_reads();
    }

    /// Returns the content of a block of the medium, even if it cannot be read.
    #[must_use]
    pub fn peek(&self, pba: Pba) -> Vec<u8> {
        self.state.disk.borrow().block(pba.0)
    }

    /// The blocks that hold anything but zeroes, in order.
    #[must_use]
    pub fn written_blocks(&self) -> Vec<Pba> {
        let mut disk = self.state.disk.borrow_mut();
        disk.settle();
        disk.written_blocks().map(Pba).collect()
    }
}
