//! The search for the highest rate at which a latency target is kept.
//!
//! The rate doubles until the target is missed (or halves until it is kept), then the range between the last rate
//! that kept it and the first that missed it is divided until it is narrow enough.

/// A search: ask [`Self::next`] for a rate, measure, tell [`Self::on_result`].
#[derive(Clone, Debug)]
pub struct PeakSearch {
    kept: Option<f64>,
    missed: Option<f64>,
    next: f64,
    /// The range is narrow enough if its ends differ by this share.
    tolerance: f64,
    left: u32,
}

/// Measurements at most. From 1000 a second, 20 doublings alone lead to a billion.
const STEPS_MAX: u32 = 40;
/// A server that misses the target at this rate does not keep it at all.
const RATE_MIN: f64 = 1.0;

impl PeakSearch {
    /// Begins at the rate `first`.
    #[must_use]
    pub fn new(first: f64, tolerance: f64) -> Self {
        Self { kept: None, missed: None, next: first.max(RATE_MIN), tolerance, left: STEPS_MAX }
    }

    /// The next rate to measure; `None`: the search is over.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        let is_narrow = match (self.kept, self.missed) {
            (Some(kept), Some(missed)) => missed / kept <= 1.0 + self.tolerance,
            (None, Some(missed)) => missed <= RATE_MIN,
            _ => false,
        };
        (!is_narrow && self.left > 0).then_some(self.next)
    }

    /// Takes in whether the target was kept at the rate that `next` gave.
    pub fn on_result(&mut self, kept: bool) {
        self.left = self.left.saturating_sub(1);
        if kept {
            self.kept = Some(self.kept.map_or(self.next, |rate| rate.max(self.next)));
        } else {
            self.missed = Some(self.missed.map_or(self.next, |rate| rate.min(self.next)));
        }
        self.next = match (self.kept, self.missed) {
            // The middle by ratio, since the tolerance is one.
            (Some(kept), Some(missed)) => (kept * missed).sqrt(),
            (Some(kept), None) => 2.0 * kept,
            (None, Some(missed)) => (missed / 2.0).max(RATE_MIN),
            (None, None) => self.next,
        };
    }

    /// The highest rate that kept the target.
    #[must_use]
    pub fn peak(&self) -> Option<f64> {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a server that serves `capacity` a second, one at a time: its mean latency is 1 / (capacity - rate).
    fn search(first: f64, capacity: f64, target_s: f64) -> (Option<f64>, u32) {
        let mut search = PeakSearch::new(first, 0.02);
        let mut steps = 0;
        while let Some(rate) = search.next() {
            search.on_result(rate < capacity && 1.0 / (capacity - rate) <= target_s);
            steps += 1;
        }
        (search.peak(), steps)
    }

    #[test]
    fn the_peak_is_found_from_below_and_from_above() {
        for first in [1.0, 1000.0, 9000.0, 1e6] {
            let (peak, steps) = search(first, 10_000.0, 0.001);
            let peak = peak.expect("a peak");
            assert!((9000.0 / 1.02..=9000.0).contains(&peak), "from {first}: {peak}");
            assert!(steps <= 25, "from {first}: {steps}");
        }
    }

    #[test]
    fn a_target_that_cannot_be_kept_ends_the_search() {
        assert_eq!(search(1000.0, 10_000.0, 0.0).0, None);
    }

    #[test]
    fn a_server_without_limit_ends_the_search() {
        let (peak, steps) = search(1000.0, f64::INFINITY, 1.0);
        assert!(peak.is_some_and(|peak| peak > 1e9));
        assert_eq!(steps, STEPS_MAX);
    }
}
