//! Time as logic sees it: handed in by a clock, real or simulated.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since an arbitrary start of the world that made it. Only a clock makes one.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates: a deadline of `Duration::MAX` means "never".
    fn add(self, after: Duration) -> Self {
        let after_ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(after_ns))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
