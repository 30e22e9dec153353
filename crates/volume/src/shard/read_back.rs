//! The result of reading a shard back, beside the state itself.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeSet;

use super::repersist::Unflushed;
use super::{Loss, Mended};

/// Damage that was met, what was done about it, and what is not known to be durable.
#[derive(Default)]
pub(super) struct ReadBack {
    /// It may go on without what is damaged (LOSS-2).
    allows_data_loss: Cell<bool>,
    /// Extents are claimed as they are found in use: the table of them is damaged.
    rebuilds_extents: Cell<bool>,
    /// Extents without a block in use go to any shard that claims them: a newer root may be lost (ROLLBACK-2).
    is_root_rolled_back: Cell<bool>,
    /// Records were replayed.
    has_replayed: Cell<bool>,
    /// Damage that was made good.
    mended: RefCell<Vec<Mended>>,
    /// Damage accepted as lost.
    losses: RefCell<Vec<Loss>>,
    /// Lost volumes that records of the journal concern.
    passed_over: RefCell<BTreeSet<u32>>,
    /// State that it relied on, until a start has made that durable.
    unflushed: RefCell<Option<Unflushed>>,
}

impl ReadBack {
    pub(super) fn allows_data_loss(&self) -> bool {
        self.allows_data_loss.get()
    }

    pub(super) fn allow_data_loss(&self, allows: bool) {
        self.allows_data_loss.set(allows);
    }

    pub(super) fn rebuilds_extents(&self) -> bool {
        self.rebuilds_extents.get()
    }

    pub(super) fn rebuild_extents(&self) {
        self.rebuilds_extents.set(true);
    }

    pub(super) fn is_root_rolled_back(&self) -> bool {
        self.is_root_rolled_back.get()
    }

    pub(super) fn set_root_rolled_back(&self, is_rolled_back: bool) {
        self.is_root_rolled_back.set(is_rolled_back);
    }

    pub(super) fn has_replayed(&self) -> bool {
        self.has_replayed.get()
    }

    pub(super) fn note_replay(&self) {
        self.has_replayed.set(true);
    }

    pub(super) fn mended(&self) -> Ref<'_, [Mended]> {
        Ref::map(self.mended.borrow(), Vec::as_slice)
    }

    pub(super) fn note_mended(&self, mended: Mended) {
        self.mended.borrow_mut().push(mended);
    }

    pub(super) fn losses(&self) -> Ref<'_, [Loss]> {
        Ref::map(self.losses.borrow(), Vec::as_slice)
    }

    pub(super) fn note_loss(&self, loss: Loss) {
        self.losses.borrow_mut().push(loss);
    }

    /// Numbers of the volumes given to [`ReadBack::pass_over`].
    pub(super) fn passed_over(&self) -> Ref<'_, BTreeSet<u32>> {
        self.passed_over.borrow()
    }

    /// A record concerns a lost volume.
    pub(super) fn pass_over(&self, volume: u32) {
        self.passed_over.borrow_mut().insert(volume);
    }

    pub(super) fn is_unflushed(&self) -> bool {
        self.unflushed.borrow().is_some()
    }

    pub(super) fn set_unflushed(&self, unflushed: Option<Unflushed>) {
        self.unflushed.replace(unflushed);
    }

    pub(super) fn take_unflushed(&self) -> Option<Unflushed> {
        self.unflushed.take()
    }
}
