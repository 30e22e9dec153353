//! Timers of one core, in the order in which they fire.

use std::collections::BTreeMap;
use std::task::Waker;

use units::Instant;

/// Names a timer: its deadline, and a number that tells equal deadlines apart, oldest first.
pub(crate) type TimerId = (Instant, u64);

#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<TimerId, Waker>,
    next_number: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerId {
        let id = (deadline, self.next_number);
        self.next_number += 1;
        self.waiting.insert(id, waker);
        id
    }

    /// Updates the waker of a timer; returns false if the timer no longer waits.
    pub(crate) fn update(&mut self, id: TimerId, waker: &Waker) -> bool {
        match self.waiting.get_mut(&id) {
            Some(known) => {
                known.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, id: TimerId) {
        self.waiting.remove(&id);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Takes out the next timer whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
