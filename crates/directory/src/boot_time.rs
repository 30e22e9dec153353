//! The clock of the machine by which leases and fences are measured.

use std::time::Duration;

use cluster::BootTime;
use rustix::time::{ClockId, clock_gettime};

/// Reads `CLOCK_BOOTTIME`.
pub trait BootClock {
    /// Returns the time of this moment.
    #[must_use]
    fn now() -> Self;
}

impl BootClock for BootTime {
    fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // The kernel's nanoseconds are below 10^9, and neither is negative.
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }
}
