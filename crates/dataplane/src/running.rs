//! The time for which a core has run.
//!
//! - RUNNING-1: what a peer has to do in time is judged by this clock. It stands still while the core does not run, as its
//!   process or its machine is stopped or starved: a late look gives all peers the time that was lost.
//! - RUNNING-2: what came meanwhile is read before it is missed: behind a late look at the clock the core waits for [`CATCH_UP`]
//!   before it judges.

use std::cell::Cell;

use units::{Duration, Instant};

/// The time between two looks at deadlines. Coarse on purpose: they are seconds, and an idle core sleeps.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// For so long what has come is read, when a tick was late (RUNNING-2).
pub(crate) const CATCH_UP: Duration = Duration::from_millis(50);

/// A clock that counts the time for which its core runs.
pub(crate) struct RunningClock {
    /// The last tick by the world's clock.
    ticked: Cell<Instant>,
    /// The last tick by this clock.
    reached: Cell<Instant>,
}

impl RunningClock {
    pub(crate) fn new(now: Instant) -> Self {
        Self { ticked: Cell::new(now), reached: Cell::new(now) }
    }

    /// The time, at `now` by the world's clock. Never goes back.
    pub(crate) fn time(&self, now: Instant) -> Instant {
        self.reached.get() + now.since(self.ticked.get()).min(TICK)
    }

    /// A tick is over. To be called every [`TICK`]: what passes beyond is not counted (RUNNING-1).
    pub(crate) fn tick(&self, now: Instant) {
        self.reached.set(self.time(now));
        self.ticked.set(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_core_did_not_run_is_not_counted() {
        let clock = RunningClock::new(Instant(7));
        let mut now = Instant(7);
        for _ in 0..4 {
            now = now + TICK;
            clock.tick(now);
        }
        assert_eq!(clock.time(now), Instant(7) + TICK * 4);
        now = now + Duration::from_secs(100);
        assert_eq!(clock.time(now), Instant(7) + TICK * 5);
        clock.tick(now);
        assert_eq!(clock.time(now), Instant(7) + TICK * 5);
        assert_eq!(clock.time(now + TICK / 2), Instant(7) + TICK * 11 / 2);
    }
}
