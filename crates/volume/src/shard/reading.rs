//! Reads under way, and blocks that are looked at where they lie.

use std::ops::Deref;
use std::rc::Rc;

use io_traits::{BufferSlice, Device};
use situations::{Situation, situation};
use units::PbaRange;

use super::Inner;
use crate::read::{Ahead, Room};
use crate::sabotage::{Sabotage, broken};

impl<D: Device> Inner<D> {
    /// A read begins: blocks that it finds in the map are not reused until the guard is dropped.
    pub(crate) fn begin_read(&self) -> ReadGuard<D, &Self> {
        ReadGuard { epoch: self.epochs.borrow_mut().begin_read(), inner: self }
    }

    /// As [`Inner::begin_read`], for a read that outlives the call.
    pub(crate) fn begin_long_read(self: &Rc<Self>) -> ReadGuard<D, Rc<Self>> {
        ReadGuard { epoch: self.epochs.borrow_mut().begin_read(), inner: self.clone() }
    }

    /// Returns whether the device lies in memory, and lends it. Then nothing is read ahead.
    pub(crate) fn is_lent(&self) -> bool {
        self.ahead.is_none()
    }

    /// Room to read ahead, if that is of use. After its end, a successor may write what was read here.
    pub(crate) fn room_ahead(&self) -> Option<&Rc<Room>> {
        self.ahead.as_ref().filter(|_| !self.life.has_ended())
    }

    /// Changes what was read ahead of each volume, if anything was.
    pub(super) fn change_ahead(&self, change: impl Fn(&mut Ahead)) {
        if self.ahead.as_ref().is_some_and(|room| room.is_in_use()) {
            self.volumes.all().values().for_each(|state| change(&mut state.ahead.borrow_mut()));
        }
    }

    /// The blocks in `range`, which the map has just led to, where they lie: if the device lends them. A read of its
    /// own keeps them from being reused until the last slice is dropped.
    pub(crate) fn pin(self: &Rc<Self>, range: PbaRange) -> Option<BufferSlice> {
        self.begin_long_read().pin(range).ok()
    }
}

impl<D: Device> ReadGuard<D, Rc<Inner<D>>> {
    /// The blocks in `range`, to which the map led when the read began, where they lie: if the device lends them. The
    /// read goes on until the last slice is dropped.
    pub(crate) fn pin(self, range: PbaRange) -> Result<BufferSlice, Self> {
        // After its end, a successor may own the blocks, and does not know of this shard's readers.
        if self.inner.life.has_ended() {
            return Err(self);
        }
        let Some(blocks) = self.inner.device.pin(range) else { return Err(self) };
        situation(Situation::BlocksAreLent);
        if broken(Sabotage::PinWithoutRead) {
            return Ok(blocks);
        }
        Ok(BufferSlice::pinned(Rc::new(Pinned { blocks, _reading: self })))
    }
}

/// Keeps blocks from being reused while a read is under way.
pub(crate) struct ReadGuard<D: Device, R: Deref<Target = Inner<D>>> {
    inner: R,
    epoch: u64,
}

impl<D: Device, R: Deref<Target = Inner<D>>> Drop for ReadGuard<D, R> {
    fn drop(&mut self) {
        let mut pool = self.inner.pool.borrow_mut();
        self.inner.epochs.borrow_mut().end_read(self.epoch, |run| pool.release(run));
        drop(pool);
        self.inner.notify_space();
    }
}

/// Blocks of the device that are lent to a reader. They are released before they may be reused.
struct Pinned<D: Device> {
    blocks: BufferSlice,
    _reading: ReadGuard<D, Rc<Inner<D>>>,
}

impl<D: Device> AsRef<[u8]> for Pinned<D> {
    fn as_ref(&self) -> &[u8] {
        self.blocks.as_bytes()
    }
}
