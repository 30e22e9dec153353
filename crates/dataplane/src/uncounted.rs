//! Requests that are not counted, so that it can be measured what counting them costs.
//!
//! Without the feature `uncounted` all are counted, and the compiler removes every trace.

#[cfg(feature = "uncounted")]
thread_local! {
    static COUNTS: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// Sets if requests of this thread's volumes are counted and timed from now on. None may be under way.
#[cfg(feature = "uncounted")]
pub fn count_requests(count: bool) {
    COUNTS.set(count);
}

/// Returns true if requests are counted.
#[cfg(feature = "uncounted")]
pub(crate) fn counts() -> bool {
    COUNTS.get()
}

/// Returns true if requests are counted.
#[cfg(not(feature = "uncounted"))]
#[inline(always)]
pub(crate) const fn counts() -> bool {
    true
}
