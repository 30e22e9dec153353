//! The power of a machine: it goes for all of its disks at once, at a given request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Power {
    On,
    /// Requests fail.
    Failing,
    /// Requests wait.
    Silent,
}

/// When the power is to go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// After so many requests.
    pub(crate) requests: u64,
    /// Reads count, too.
    pub(crate) count_reads: bool,
    /// Requests wait from then on instead of failing.
    pub(crate) silently: bool,
}

/// The power of all disks of a machine: it goes for all of them at once.
#[derive(Default)]
struct Countdown {
    plan: Option<Plan>,
    is_off: bool,
}

/// Power supply that the disks of a machine share.
#[derive(Clone, Default)]
pub(crate) struct Supply(Arc<(Mutex<Countdown>, Condvar)>);

impl Supply {
    fn lock(&self) -> MutexGuard<'_, Countdown> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches it on, to go off by `plan`.
    pub(crate) fn arm(&self, plan: Option<Plan>) {
        *self.lock() = Countdown { plan, is_off: false };
    }

    pub(crate) fn is_off(&self) -> bool {
        self.lock().is_off
    }

    /// Waits until the power is off, at most for so long; whether it is.
    pub(crate) fn wait_until_off(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut countdown = self.lock();
        while !countdown.is_off {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.0.1.wait_timeout(countdown, left);
            countdown = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        countdown.is_off
    }

    /// Counts a request; in what state the power is when it arrives, and whether it goes with this one.
    pub(crate) fn arrives(&self, is_read: bool) -> (Power, bool) {
        let mut countdown = self.lock();
        let off = match countdown.plan {
            Some(plan) if plan.silently => Power::Silent,
            _ => Power::Failing,
        };
        if countdown.is_off {
            return (off, false);
        }
        let Some(plan) = &mut countdown.plan else { return (Power::On, false) };
        if !is_read || plan.count_reads {
            if plan.requests == 0 {
                countdown.is_off = true;
                self.0.1.notify_all();
                return (off, true);
            }
            plan.requests -= 1;
        }
        (Power::On, false)
    }

    /// Cuts the power now.
    pub(crate) fn cut(&self) {
        self.lock().is_off = true;
        self.0.1.notify_all();
    }
}
