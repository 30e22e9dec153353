//! The monotonic clock, which the kernel's tracer uses, too.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
#[inline]
#[must_use]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
