//! Requests for checkpoints, numbered in their order.

use std::cell::Cell;

use local_sync::{Notified, Notify};

use super::waiting::Waits;

/// The last request, the one that the running checkpoint serves, and the last that one has served.
#[derive(Default)]
pub(super) struct CheckpointRequests {
    asked: Cell<u64>,
    started: Cell<u64>,
    done: Cell<u64>,
    /// Callers that wait for one.
    waiting: Cell<u32>,
    /// A checkpoint is over, or none will come.
    changed: Notify,
}

impl CheckpointRequests {
    /// Returns whether a checkpoint is under way.
    pub(super) fn is_under_way(&self) -> bool {
        self.started.get() > self.done.get()
    }

    /// Returns whether one is wanted, or under way.
    pub(super) fn is_coming(&self) -> bool {
        self.is_wanted() || self.is_under_way()
    }

    /// Returns whether a request is not served yet.
    pub(super) fn is_wanted(&self) -> bool {
        self.asked.get() > self.done.get()
    }

    /// The request for a checkpoint that begins from now on, and whether it is a new one.
    pub(super) fn ask(&self) -> (u64, bool) {
        let request = self.done.get().max(self.started.get()) + 1;
        (request, self.asked.replace(self.asked.get().max(request)) < request)
    }

    pub(super) fn is_served(&self, request: u64) -> bool {
        self.done.get() >= request
    }

    /// Begins the checkpoint that serves all requests so far. Returns the last of them.
    pub(super) fn start(&self) -> u64 {
        let request = self.asked.get().max(self.done.get() + 1);
        self.started.set(request);
        request
    }

    /// The checkpoint that was started is durable.
    pub(super) fn serve(&self, request: u64) {
        assert_eq!(request, self.started.get(), "one checkpoint is under way at a time");
        self.done.set(request);
    }

    /// Returns whether a caller waits for one.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.get() > 0
    }

    /// Counts a caller that waits, for as long as it does.
    pub(super) fn wait(&self) -> Waits<'_> {
        Waits::new(&self.waiting)
    }

    /// Waits for the next [`CheckpointRequests::notify`].
    pub(super) fn changed(&self) -> Notified {
        self.changed.notified()
    }

    /// Wakes all tasks that wait for a checkpoint.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }
}

/// Space that the running checkpoint gives back when it is durable.
#[derive(Default)]
pub(super) struct GivesBack {
    /// Blocks of the checkpoint before.
    pub(super) superseded: Cell<u64>,
    /// Reclaimed blocks.
    pub(super) reclaimed: Cell<u64>,
    /// Extents.
    pub(super) extents: Cell<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_serves_what_was_asked_before_it_began() {
        let requests = CheckpointRequests::default();
        assert!(!requests.is_coming());
        assert_eq!(requests.ask(), (1, true));
        assert_eq!(requests.ask(), (1, false), "one checkpoint serves both");
        assert!(requests.is_wanted() && !requests.is_under_way());
        let started = requests.start();
        assert!(requests.is_under_way());
        assert_eq!(requests.ask(), (2, true), "the one under way may lack what is asked for");
        requests.serve(started);
        assert!(requests.is_served(1) && !requests.is_served(2));
        assert!(requests.is_wanted() && !requests.is_under_way());
    }

    #[test]
    fn a_checkpoint_without_a_request_serves_the_next_one() {
        let requests = CheckpointRequests::default();
        let started = requests.start();
        assert!(requests.is_coming() && !requests.is_wanted());
        requests.serve(started);
        assert!(!requests.is_coming() && requests.is_served(started));
    }
}
