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

#[cfg(test)]
mod tests {
    use super::*;

    /// `/proc/uptime` tells the same clock, in hundredths of a second.
    #[test]
    fn the_time_is_that_since_the_machine_was_started() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("/proc/uptime");
            let seconds = text.split(' ').next().and_then(|first| first.parse().ok());
            Duration::from_secs_f64(seconds.expect("it begins with seconds"))
        };
        let (before, now, after) = (uptime(), BootTime::now(), uptime());
        let hundredth = Duration::from_millis(10);
        assert!(before <= now.0 && now.0 <= after + hundredth, "{before:?} {now:?} {after:?}");
    }
}
