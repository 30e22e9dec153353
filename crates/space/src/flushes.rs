//! Serializes the flushes of a device across its shards.
//!
//! A flush covers all writes of all shards that completed before it began, and a failed one
//! concerns all of them. A core may learn of a failure late. So no flush begins before the outcome
//! of the previous one is known:
//!
//! - FLUSH-1: one flush is under way at a time. Tasks that ask meanwhile share the next one, and one of
//!   them makes it.
//! - FLUSH-2: all tasks learn the outcome at once. So a flush that succeeded began when all failures
//!   before it were known.
//! - FLUSH-3: a flush that is dropped without an outcome has failed.
//!
//! This module does no I/O: the holder of the [`Turn`] does.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use crate::sabotage::{Sabotage, broken};
use crate::sync::{Arc, Mutex, MutexGuard};

/// Shared by the shards of a device, on all cores: cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Flushes {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Flushes that have begun, which are numbered from 1 on, and the last of them that has ended.
    begun: u64,
    ended: u64,
    failures: u64,
    /// Those that wait for the end of the one under way. At most the committer and the background loop of each shard.
    waiting: Vec<Waker>,
}

impl Flushes {
    /// The number of the next flush to begin: what is complete by now it covers.
    pub fn next(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Returns whether the flush with this number has ended, well or not.
    pub fn has_ended(&self, number: u64) -> bool {
        self.lock().ended >= number
    }

    /// Number of flushes that failed.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// Waits for the end of the flush with this number, or for the turn to make it: then the caller does (FLUSH-1).
    pub fn poll_turn(&self, number: u64, context: &mut Context<'_>) -> Poll<Option<Turn>> {
        let mut state = self.lock();
        if state.ended >= number {
            return Poll::Ready(None);
        }
        if state.ended == state.begun || broken(Sabotage::FlushBeforeKnown) {
            state.begun += 1;
            let number = state.begun;
            return Poll::Ready(Some(Turn { flushes: self.clone(), number, succeeded: false }));
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves it whole: nothing in between can fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn to flush the device. Ends when it is dropped.
#[derive(Debug)]
pub struct Turn {
    flushes: Flushes,
    number: u64,
    succeeded: bool,
}

impl Turn {
    /// Ends the flush with its outcome.
    pub fn end(mut self, succeeded: bool) {
        self.succeeded = succeeded;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.flushes.lock();
            state.ended = state.ended.max(self.number);
            state.failures += u64::from(!self.succeeded);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waker, and the number of times it was woken.
    fn asker() -> (Arc<Wakes>, Waker) {
        let wakes = Arc::<Wakes>::default();
        (wakes.clone(), Waker::from(wakes))
    }

    fn poll(flushes: &Flushes, number: u64, waker: &Waker) -> Poll<Option<Turn>> {
        flushes.poll_turn(number, &mut Context::from_waker(waker))
    }

    /// FLUSH-1: tasks that ask while a flush is under way share the next one, and each is woken once,
    /// however often it polled.
    #[test]
    fn who_asks_meanwhile_shares_the_next_one() {
        let flushes = Flushes::default();
        let ((_, first), (wakes, second), (others, third)) = (asker(), asker(), asker());
        let number = flushes.next();
        let Poll::Ready(Some(turn)) = poll(&flushes, number, &first) else { panic!("it is free") };
        let next = flushes.next();
        assert_eq!(next, number + 1, "what is complete by now the one under way need not cover");
        assert!(poll(&flushes, next, &second).is_pending());
        assert!(poll(&flushes, next, &second).is_pending());
        assert!(poll(&flushes, next, &third).is_pending());
        turn.end(true);
        assert_eq!((wakes.0.load(Ordering::Relaxed), others.0.load(Ordering::Relaxed)), (1, 1));
        assert!(flushes.has_ended(number) && !flushes.has_ended(next));
        let Poll::Ready(Some(turn)) = poll(&flushes, next, &third) else { panic!("it is free") };
        assert!(poll(&flushes, next, &second).is_pending());
        turn.end(true);
        assert!(matches!(poll(&flushes, next, &second), Poll::Ready(None)));
        assert_eq!((flushes.next(), flushes.failures()), (next + 1, 0));
    }

    /// FLUSH-2, FLUSH-3: a failure is known before the next flush begins, also if the turn was dropped
    /// without an outcome.
    #[test]
    fn a_failure_is_known_before_the_next_one_begins() {
        let flushes = Flushes::default();
        let (_, waker) = asker();
        for failures in 0..4 {
            let Poll::Ready(Some(turn)) = poll(&flushes, flushes.next(), &waker) else {
                panic!("it is free")
            };
            let next = flushes.next();
            assert!(poll(&flushes, next, &waker).is_pending());
            match failures % 2 {
                0 => turn.end(false),
                _ => drop(turn),
            }
            assert_eq!(flushes.failures(), failures + 1);
        }
    }
}
