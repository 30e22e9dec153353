//! A time of the clock by which leases and fences are measured.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Time since the machine was started, as `CLOCK_BOOTTIME` counts it: it cannot be set, and it goes on while the machine is
/// suspended, which `CLOCK_MONOTONIC` does not.
///
/// The machine may have been started just now: subtracting a duration would stop at the start and so mean another duration.
/// Compare `now` with `then + duration`.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct BootTime(pub Duration);

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub for BootTime {
    type Output = Duration;

    /// Returns the time from `earlier` to here; none if `earlier` is the later one.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
