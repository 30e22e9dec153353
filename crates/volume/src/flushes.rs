//! The flushes of a device, whichever of its shards asks: one after the other.
//!
//! A flush covers what all shards had written when it began, and one that fails concerns them all. A core hears of that when it
//! comes to it, which may be late. So none begins before it is known what came of the one before:
//!
//! - V1: one is under way at a time. Whoever asks meanwhile shares the next one with all others that do, and one of them makes it.
//! - V2: what came of it is known to all at once. One that succeeded thus began when all failures before were known.
//! - V3: one of which nobody says how it ended has failed.
//!
//! There is no I/O here: that is for whoever has the [`Turn`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::sabotage::{Sabotage, broken};

/// Shared by the shards of a device, on all cores: cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flushes {
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
    pub(crate) fn next(&self) -> u64 {
        self.lock().begun + 1
    }

    /// Whether the flush with this number has ended, well or not.
    pub(crate) fn has_ended(&self, number: u64) -> bool {
        self.lock().ended >= number
    }

    /// How many have failed.
    pub(crate) fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// Waits for the end of the flush with this number, or for the turn to make it: then the caller does (V1).
    pub(crate) fn poll_turn(&self, number: u64, context: &mut Context<'_>) -> Poll<Option<Turn>> {
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
pub(crate) struct Turn {
    flushes: Flushes,
    number: u64,
    succeeded: bool,
}

impl Turn {
    /// What came of it.
    pub(crate) fn end(mut self, succeeded: bool) {
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

    /// Who asks, and how often it was woken.
    fn asker() -> (Arc<Wakes>, Waker) {
        let wakes = Arc::<Wakes>::default();
        (wakes.clone(), Waker::from(wakes))
    }

    fn poll(flushes: &Flushes, number: u64, waker: &Waker) -> Poll<Option<Turn>> {
        flushes.poll_turn(number, &mut Context::from_waker(waker))
    }

    /// V1: those who ask while one is under way get the next one together, and each is woken once, however often it looked.
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

    /// V2, V3: a failure is known before the next one begins, be it that nobody said how it ended.
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
