//! Input of a socket that is to be fetched: bytes, or connections.
//!
//! - ARRIVAL-1: input that the ring has reported is fetched until nothing is left; only then the ring is asked
//!   again.
//! - ARRIVAL-2: a task that has fetched its part waits for the core's next turn, so that other tasks get
//!   theirs.

use std::cell::Cell;
use std::task::{Context, Poll, ready};

use uring::{Arrival, Errno, Fd, Ring, Watch};

use crate::handle::CoreState;

/// Tells whether something is to be fetched from a socket (ARRIVAL-1).
pub(crate) struct Arrivals {
    watch: Watch,
    /// The ring has reported input, and not all of it may have been fetched.
    may_be_left: bool,
}

impl Arrivals {
    /// Watches for what comes to `fd`, and for what is there already.
    pub(crate) fn new(ring: &Ring, fd: &Fd) -> Self {
        Self { watch: ring.watch(fd), may_be_left: false }
    }

    /// Returns true if more may be there than was fetched.
    pub(crate) fn may_be_left(&self) -> bool {
        self.may_be_left
    }

    /// Waits until something may be there to be fetched. Not to be asked again once it has failed.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Arrival, Errno>> {
        if self.may_be_left {
            return Poll::Ready(Ok(Arrival::Some));
        }
        let arrival = ready!(self.watch.poll(context))?;
        self.may_be_left = true;
        Poll::Ready(Ok(arrival))
    }

    /// Notes that all reported input was fetched.
    pub(crate) fn all_fetched(&mut self) {
        self.may_be_left = false;
    }
}

/// Tells whether a task has had its part of the core's turn (ARRIVAL-2).
#[derive(Default)]
pub(crate) struct Part {
    is_had: Cell<bool>,
}

impl Part {
    /// Notes whether it was had.
    pub(crate) fn set_had(&self, is_had: bool) {
        self.is_had.set(is_had);
    }

    /// Waits for the next turn, if it was.
    pub(crate) fn poll(&self, core: &CoreState, context: &Context<'_>) -> Poll<()> {
        if self.is_had.take() {
            core.wake_next_turn(context);
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
