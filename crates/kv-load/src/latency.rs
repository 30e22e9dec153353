//! Latencies: recorded by each thread for itself, merged exactly.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest latency that is told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);
/// Digits that are kept: values are off by less than 0.1 %.
pub(crate) const DIGITS: u8 = 3;
/// Latencies at most: more than any run has, and few enough for sums.
const COUNT_MAX: u64 = 1 << 48;

/// Latencies in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new(DIGITS)
    }
}

impl Latencies {
    pub(crate) fn new(digits: u8) -> Self {
        let longest = LONGEST.as_nanos() as u64;
        Self(
            Histogram::new_with_bounds(1, longest, digits).expect("bounds and digits are in range"),
        )
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the latencies of `other`: the result is as if all had been recorded here.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// The counts of which these consist, each with a latency that it is the count of: from these, [`Self::from_counts`] makes
    /// the same latencies.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        self.0
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
            .collect()
    }

    /// Makes latencies of counts; `None`: they are none of ours.
    pub(crate) fn from_counts(digits: u8, counts: &[(u64, u64)]) -> Option<Self> {
        let mut latencies = Self::new(digits);
        let mut sum = 0u64;
        for (latency, count) in counts {
            sum = sum.checked_add(*count).filter(|sum| *sum <= COUNT_MAX)?;
            latencies.0.record_n(*latency, *count).ok()?;
        }
        Some(latencies)
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a share of `percent` does not exceed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The figures that are reported.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let at = |percent| self.0.value_at_percentile(percent);
        Summary {
            count: self.count(),
            mean_ns: self.0.mean() as u64,
            min_ns: if self.count() == 0 { 0 } else { self.0.min() },
            p50_ns: at(50.0),
            p90_ns: at(90.0),
            p95_ns: at(95.0),
            p99_ns: at(99.0),
            p999_ns: at(99.9),
            max_ns: self.0.max(),
        }
    }
}

/// Figures of latencies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Summary {
    /// Number of latencies.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Least.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_is_exact() {
        let (mut one, mut two, mut whole) =
            (Latencies::default(), Latencies::default(), Latencies::default());
        for n in 1..=10_000u64 {
            let latency = Duration::from_nanos(n * n);
            if n % 3 == 0 { &mut one } else { &mut two }.record(latency);
            whole.record(latency);
        }
        one.merge(&two);
        assert_eq!(one.summary(), whole.summary());
        let p99 = one.percentile(99.0).as_nanos() as f64;
        assert!((p99 / 9900f64.powi(2) - 1.0).abs() < 0.002, "{p99}");
    }
}
