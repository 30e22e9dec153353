//! Waiting for what is about to happen in another process.

use std::time::{Duration, Instant};

/// Longest wait for what is about to happen. Reached only when something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until something holds.
///
/// # Panics
/// It does not within [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
