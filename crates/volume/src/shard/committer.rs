//! The hand-over between requests and the committer.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use super::commit::DetachedWrite;
use crate::io::IoSlot;

/// The committer's way to be woken, its work beside the journal, and slots for device requests that are used again.
#[derive(Default)]
pub(super) struct Committer {
    waker: RefCell<Option<Waker>>,
    /// It was woken since it last ran.
    is_woken: Cell<bool>,
    idle_slots: RefCell<Vec<Box<dyn IoSlot>>>,
    /// Data writes whose request was dropped.
    detached: RefCell<Vec<DetachedWrite>>,
    /// Operations queued whose outcome is open.
    unfinished: Cell<u64>,
}

impl Committer {
    /// It runs, and is woken by `context` from now on.
    pub(super) fn runs(&self, context: &Context<'_>) {
        self.is_woken.set(false);
        match &mut *self.waker.borrow_mut() {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    pub(super) fn wake(&self) {
        if !self.is_woken.replace(true)
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    pub(super) fn idle_slot(&self) -> Option<Box<dyn IoSlot>> {
        self.idle_slots.borrow_mut().pop()
    }

    pub(super) fn return_slot(&self, slot: Box<dyn IoSlot>) {
        self.idle_slots.borrow_mut().push(slot);
    }

    /// Hands it data writes that are to be seen through.
    pub(super) fn detach(&self, write: DetachedWrite) {
        self.detached.borrow_mut().push(write);
        self.wake();
    }

    pub(super) fn has_detached(&self) -> bool {
        !self.detached.borrow().is_empty()
    }

    pub(super) fn take_detached(&self) -> Vec<DetachedWrite> {
        self.detached.take()
    }

    /// Those taken that are still under way.
    pub(super) fn put_back_detached(&self, writes: Vec<DetachedWrite>) {
        self.detached.borrow_mut().extend(writes);
    }

    pub(super) fn unfinished(&self) -> u64 {
        self.unfinished.get()
    }

    pub(super) fn begin_operation(&self) {
        self.unfinished.set(self.unfinished.get() + 1);
    }

    /// The operation has its outcome.
    pub(super) fn finish_operation(&self) {
        let left = self.unfinished.get().checked_sub(1);
        self.unfinished.set(left.expect("an operation has one outcome"));
    }
}
