//! The clock that leases and fences are reckoned by on a machine.

use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was started, by `CLOCK_BOOTTIME`: nobody sets it, and it goes on while the machine is suspended,
/// which `CLOCK_MONOTONIC` does not.
///
/// The machine may have been started just now: no duration can be taken from a time, as that would stop at the start and so mean
/// another duration. Compare `now` with `then + duration`.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct BootTime(pub(crate) Duration);

impl BootTime {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // The kernel's nanoseconds are below 10^9, and neither is negative.
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub for BootTime {
    type Output = Duration;

    /// The time from `earlier` to here; none if it is the later one.
    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
