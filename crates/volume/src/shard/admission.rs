//! Blocks set aside, and the queue of requests that wait for some.

use std::cell::Cell;

use local_sync::{Acquire, Notified, Notify, Semaphore};

use super::waiting::Waits;

/// A shard's blocks that are neither free for all nor in use, and the requests that find none. The rules are those of
/// `space.rs`.
pub(super) struct Admission {
    /// Blocks set aside for map nodes that operations under way will make dirty.
    reserved: Cell<u64>,
    /// Blocks of data deallocated, less those that writes have added since (SPACE-8).
    deallocated: Cell<u64>,
    /// Requests that wait, of which one at a time has the turn (SPACE-4).
    waiting: Cell<u32>,
    turns: Semaphore,
    /// Blocks or credit came back.
    freed: Notify,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self {
            reserved: Cell::new(0),
            deallocated: Cell::new(0),
            waiting: Cell::new(0),
            turns: Semaphore::new(1),
            freed: Notify::new(),
        }
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.get()
    }

    pub(super) fn reserve(&self, blocks: u64) {
        self.reserved.set(self.reserved.get() + blocks);
    }

    /// Gives back what was reserved. Those that wait are told by [`Admission::tell`].
    pub(super) fn give_back(&self, blocks: u64) {
        let left = self.reserved.get().checked_sub(blocks);
        self.reserved.set(left.expect("an operation gives back what it reserved, once"));
    }

    /// Returns whether so many blocks of data were deallocated and not written since (SPACE-8).
    pub(super) fn is_refill(&self, data: u64) -> bool {
        data > 0 && data <= self.deallocated.get()
    }

    /// Notes that a map has lost so many blocks by a deallocation (SPACE-8).
    pub(super) fn note_deallocated(&self, blocks: u64) {
        self.deallocated.set(self.deallocated.get() + blocks);
    }

    /// Notes that a write has added so many blocks to a map (SPACE-8).
    pub(super) fn note_added(&self, blocks: u64) {
        self.deallocated.set(self.deallocated.get().saturating_sub(blocks));
    }

    /// Returns whether a request waits: later ones queue behind it.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Counts a request that waits, for as long as it does.
    pub(super) fn wait(&self) -> Waits<'_> {
        Waits::new(&self.waiting)
    }

    /// The turn of a request that waits.
    pub(super) fn turn(&self) -> Acquire {
        self.turns.acquire(1)
    }

    /// Waits until something comes back after this call.
    pub(super) fn freed(&self) -> Notified {
        self.freed.notified()
    }

    /// Tells the requests that wait that something came back.
    pub(super) fn tell(&self) {
        if self.is_awaited() {
            self.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_counts_as_refilled_as_was_deallocated() {
        let admission = Admission::new();
        assert!(!admission.is_refill(1) && !admission.is_refill(0));
        admission.note_deallocated(3);
        assert!(admission.is_refill(3) && !admission.is_refill(4));
        admission.note_added(2);
        assert!(admission.is_refill(1) && !admission.is_refill(2));
        admission.note_added(7);
        admission.note_deallocated(1);
        assert!(admission.is_refill(1), "what was never deallocated is no debt");
    }

    #[test]
    #[should_panic(expected = "an operation gives back what it reserved, once")]
    fn nothing_is_given_back_twice() {
        let admission = Admission::new();
        admission.reserve(2);
        admission.give_back(2);
        admission.give_back(1);
    }
}
