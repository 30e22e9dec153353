//! Lines of the log about what may come again and again: one of each cause is written in a while.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strangers::{Repeats, source};

/// Lines by their causes.
pub(crate) struct Lines<K> {
    told: Repeats<K>,
    begun: Instant,
}

impl<K: Clone + Ord> Lines<K> {
    pub(crate) fn new() -> Self {
        Self { told: Repeats::default(), begun: Instant::now() }
    }

    /// Returns the line to write of `text`, if it is the first of its cause of late; it tells how many were left out before.
    pub(crate) fn line(&mut self, cause: K, text: &str) -> Option<String> {
        self.line_at(self.begun.elapsed(), cause, text)
    }

    fn line_at(&mut self, age: Duration, cause: K, text: &str) -> Option<String> {
        let now = units::Instant(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        let over = self.told.over(now);
        let left_out = over.into_iter().find(|(key, _)| *key == cause).map(|(_, count)| count);
        self.told.allows(cause, now).then(|| match left_out {
            Some(count) => format!("{text} (and {count} more times before)"),
            None => text.to_owned(),
        })
    }
}

/// Lines about clients that were refused, by their source and the reason.
pub(crate) struct Refusals(Mutex<Lines<(IpAddr, String)>>);

impl Refusals {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Lines::new()))
    }

    /// The client at `peer` was refused.
    pub(crate) fn note(&self, peer: SocketAddr, reason: &str) {
        let cause = (source(peer.ip()), reason.to_owned());
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lines.line(cause, reason) {
            Some(line) => tracing::info!("client {peer} was refused: {line}"),
            None => tracing::debug!("client {peer} was refused: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: the tries of half a minute, ten a second, and one of another cause.
    #[test]
    fn each_cause_is_told_once_in_a_while() {
        let mut lines = Lines::new();
        let pause = Duration::from_millis(100);
        let mut written: Vec<String> =
            (0..300).filter_map(|n| lines.line_at(pause * n, 24, "no files")).collect();
        written.extend(lines.line_at(pause * 299, 103, "other"));
        let again = "no files (and 99 more times before)";
        assert_eq!(written, ["no files", again, again, "other"]);
    }
}
