//! Time, tasks, and all of a core's world in one.

use std::future::Future;

use units::{Duration, Instant};

use crate::Network;

/// Time on this core.
pub trait Clock {
    /// Now. Never goes back. Cheap: may be as old as the current turn of the core's loop.
    fn now(&self) -> Instant;

    /// The time of day: since 1970, UTC. May jump, as it does when the system's clock is set.
    fn unix_time(&self) -> Duration;

    /// Waits until `deadline`; at once if it has passed.
    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static;

    /// Keeps the core busy until `deadline`, which is some microseconds away at most, so that what follows happens
    /// then, wherever in its loop the core was. Does nothing where time stands still while a task runs.
    fn spin_until(&self, _deadline: Instant) {}
}

/// More tasks on this core.
pub trait Spawn {
    /// Runs `task` on this core, after the caller next waits. It ends by itself.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Like [`Spawn::spawn`], but polls `task` once before it returns, so that work which never
    /// waits costs no trip through the ready queue.
    fn spawn_now(&self, task: impl Future<Output = ()> + 'static);
}

/// Random bytes, fit for keys.
pub trait Entropy {
    /// Fills `bytes`.
    fn fill_random(&self, bytes: &mut [u8]);
}

/// Work that takes so long that it must not hold up a core.
pub trait Offload {
    /// Does `work` elsewhere, and says what came of it. If the future is dropped the work is done
    /// all the same.
    fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static;
}

/// The services of a core for the code that runs on it. Cheap to clone.
pub trait World: Clock + Spawn + Network + Entropy + Offload + Clone + 'static {}

impl<W: Clock + Spawn + Network + Entropy + Offload + Clone + 'static> World for W {}
