//! Progress of long work, in lines that come seldom enough to be read.

use std::time::Duration;

use crate::percent;

/// Work that is done sooner says nothing.
const FIRST_AFTER: Duration = Duration::from_secs(2);
const NEXT_AFTER: Duration = Duration::from_secs(2);

/// Says when a line about the progress of some work is due, and which.
#[derive(Clone, Debug)]
pub struct Progress {
    what: String,
    due: Duration,
}

impl Progress {
    /// Progress of `what`, such as "reading the device".
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), due: FIRST_AFTER }
    }

    /// The line that is due `elapsed` after the beginning, with `done` of `total` behind it.
    pub fn line(&mut self, elapsed: Duration, done: u64, total: u64) -> Option<String> {
        if elapsed < self.due {
            return None;
        }
        self.due = elapsed + NEXT_AFTER;
        let share = if total > 0 { done as f64 / total as f64 } else { 1.0 };
        Some(format!("{}: {} after {} s", self.what, percent(share), elapsed.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_work_is_silent_and_long_work_is_heard_every_two_seconds() {
        let mut progress = Progress::new("reading");
        let said: Vec<(u64, String)> = (0..70)
            .filter_map(|tenth| {
                let elapsed = Duration::from_millis(tenth * 100);
                progress.line(elapsed, tenth, 100).map(|line| (tenth, line))
            })
            .collect();
        let at: Vec<u64> = said.iter().map(|(tenth, _)| *tenth).collect();
        assert_eq!(at, [20, 40, 60]);
        assert_eq!(said[0].1, "reading: 20.0 % after 2 s");
    }
}
