//! The time of day, which never goes back: what was granted until a time is not granted again by a clock that is set back.
//!
//! - TIME-OF-DAY-1: it goes on at least as fast as the machine's boot clock, which cannot be set and counts while the machine
//!   sleeps.
//! - TIME-OF-DAY-2: a clock that is set forward is followed, and also by [`not_before`] what an earlier process has seen.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Time of day less time since the boot, in nanoseconds: the largest that was seen.
static OFFSET: OnceLock<AtomicU64> = OnceLock::new();

fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time of day for which the clocks stand: the later of the one that can be set, and the one before and what has passed
/// since.
fn later(offset: &AtomicU64, wall: Duration, since_boot: Duration) -> Duration {
    let found = nanos(wall.saturating_sub(since_boot));
    let offset = offset.fetch_max(found, Ordering::Relaxed).max(found);
    since_boot + Duration::from_nanos(offset)
}

/// The time of day, since 1970 UTC.
#[must_use]
pub fn unix_time() -> Duration {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    later(OFFSET.get_or_init(AtomicU64::default), wall, since_boot())
}

/// Returns how far [`unix_time`] is ahead of the clock of the machine, which was set back.
#[must_use]
pub fn clock_behind() -> Duration {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    unix_time().saturating_sub(wall)
}

/// Has [`unix_time`] be at least `time` from now on: an earlier process has seen it. Returns how far the clock of the
/// machine is behind that.
pub fn not_before(time: Duration) -> Duration {
    let now = unix_time();
    later(OFFSET.get_or_init(AtomicU64::default), time, since_boot());
    time.saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Method: clocks are numbers; one is set back by a day, and then forward.
    #[test]
    fn a_clock_that_is_set_back_takes_nothing_back() {
        let (offset, boot, wall) = (AtomicU64::default(), HOUR, HOUR * 500_000);
        assert_eq!(later(&offset, wall, boot), wall);
        assert_eq!(later(&offset, wall - HOUR * 24, boot + HOUR), wall + HOUR, "it goes on");
        assert_eq!(
            later(&offset, wall + HOUR * 9, boot + HOUR * 2),
            wall + HOUR * 9,
            "set forward"
        );
        assert_eq!(later(&offset, wall, boot + HOUR * 3), wall + HOUR * 10);
    }
}
