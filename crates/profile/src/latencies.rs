//! Latencies of one drive, with percentiles that are shown only if there are enough requests.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longer latencies count as this one: 1000 s.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Digits that are kept: a bucket is at most 0.1 % wide.
const DIGITS: u8 = 3;
/// Requests that must lie beyond a percentile for it to be shown.
const BEYOND_MIN: u64 = 10;

/// A percentile by its number of nines: 2 is 99 %, 3 is 99.9 %.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nines(u32);

/// The percentiles of a profile: 99 % to 99.9999 %.
pub const NINES: [Nines; 5] = [Nines(2), Nines(3), Nines(4), Nines(5), Nines(6)];

impl Nines {
    /// The number of nines.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0
    }

    /// One request of so many lies beyond it.
    fn one_in(self) -> u64 {
        10u64.pow(self.0)
    }

    /// Requests that a sample needs to carry it.
    #[must_use]
    pub fn requests_min(self) -> u64 {
        self.one_in() * BEYOND_MIN
    }

    /// `99.9 %`.
    #[must_use]
    pub fn label(self) -> String {
        let fraction = "9".repeat((self.0 as usize).saturating_sub(2));
        if fraction.is_empty() { "99 %".to_owned() } else { format!("99.{fraction} %") }
    }

    /// The name of the field in JSON: `p99_9_ns`.
    #[must_use]
    pub fn field(self) -> String {
        let fraction = "9".repeat((self.0 as usize).saturating_sub(2));
        if fraction.is_empty() { "p99_ns".to_owned() } else { format!("p99_{fraction}_ns") }
    }
}

/// Latencies in nanoseconds. Percentiles are off by less than 0.1 %; mean, least and largest are exact.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "Saved", try_from = "Saved")]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
}

/// Latencies as they are saved: each bucket that holds any, by a value in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    buckets: Vec<(u64, u64)>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS)
            .expect("the bounds are constant and valid");
        Self { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Latencies {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.max(1));
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the latencies of `other`: the result is as if all had been recorded here.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The mean.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_ns as f64 / self.count() as f64)
    }

    /// The least.
    #[must_use]
    pub fn min_ns(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.min_ns)
    }

    /// The largest.
    #[must_use]
    pub fn max_ns(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max_ns)
    }

    /// The percentile, if there are enough requests to carry it.
    #[must_use]
    pub fn nines(&self, nines: Nines) -> Option<u64> {
        (self.missing(nines) == 0).then(|| self.at_rank(self.rank(nines)))
    }

    /// Requests that are missing before the percentile can be shown.
    #[must_use]
    pub fn missing(&self, nines: Nines) -> u64 {
        nines.requests_min().saturating_sub(self.count())
    }

    /// The percentile, however few requests there are: for thresholds, not for reports.
    #[must_use]
    pub fn estimate(&self, nines: Nines) -> Option<u64> {
        (self.count() > 0).then(|| self.at_rank(self.rank(nines)))
    }

    /// The median.
    #[must_use]
    pub fn median(&self) -> Option<u64> {
        (self.count() > 0).then(|| self.at_rank(self.count().div_ceil(2)))
    }

    /// The bounds within which the percentile of the drive lies with a probability of 99 %, by the order of the
    /// sample alone: as if all requests were independent.
    #[must_use]
    pub fn bounds(&self, nines: Nines) -> Option<(u64, u64)> {
        /// Standard deviations on each side that hold 99 % of a normal distribution.
        const SIGMAS: f64 = 2.576;
        self.nines(nines)?;
        let beyond = self.count() as f64 / nines.one_in() as f64;
        let step = (SIGMAS * beyond.sqrt()).ceil() as u64;
        let rank = self.rank(nines);
        let low = rank.saturating_sub(step).max(1);
        let high = rank.saturating_add(step).min(self.count());
        Some((self.at_rank(low), self.at_rank(high)))
    }

    /// The smallest rank (1 is the least latency) that has the percentile's share of requests up to it.
    fn rank(&self, nines: Nines) -> u64 {
        (self.count() - self.count() / nines.one_in()).max(1)
    }

    /// The latency with this rank. The search begins at the end that is nearer in requests: a percentile of many nines lies a
    /// few buckets below the largest latency, and most of the tens of thousands of buckets below it were never touched.
    fn at_rank(&self, rank: u64) -> u64 {
        if rank > self.count() / 2 { self.rank_from_top(rank) } else { self.rank_from_bottom(rank) }
    }

    fn rank_from_top(&self, rank: u64) -> u64 {
        let (histogram, mut bucket) = (&self.histogram, self.histogram.max());
        let mut behind = histogram.count_at(bucket);
        while self.count() - behind >= rank {
            bucket = histogram.lowest_equivalent(bucket) - 1;
            behind += histogram.count_at(bucket);
        }
        histogram.median_equivalent(bucket).clamp(self.min_ns, self.max_ns)
    }

    fn rank_from_bottom(&self, rank: u64) -> u64 {
        let mut seen = 0;
        for step in self.histogram.iter_recorded() {
            seen += step.count_since_last_iteration();
            if seen >= rank {
                let middle = self.histogram.median_equivalent(step.value_iterated_to());
                return middle.clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }
}

impl From<Latencies> for Saved {
    fn from(latencies: Latencies) -> Self {
        let steps = latencies.histogram.iter_recorded();
        let buckets = steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Self {
            count: latencies.count(),
            sum_ns: latencies.sum_ns,
            min_ns: latencies.min_ns().unwrap_or(0),
            max_ns: latencies.max_ns,
            buckets,
        }
    }
}

/// A saved histogram that contradicts itself.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BadLatencies {
    /// The buckets do not add up.
    #[error("the buckets of a histogram hold {held} requests, but {count} are said to be there")]
    Count {
        /// Requests in the buckets.
        held: u64,
        /// Requests that the head names.
        count: u64,
    },
    /// The extremes are impossible.
    #[error("a histogram's least and largest latency are {min_ns} ns and {max_ns} ns")]
    Extremes {
        /// The least.
        min_ns: u64,
        /// The largest.
        max_ns: u64,
    },
}

impl TryFrom<Saved> for Latencies {
    type Error = BadLatencies;

    fn try_from(saved: Saved) -> Result<Self, BadLatencies> {
        let held = saved.buckets.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
        if held != saved.count {
            return Err(BadLatencies::Count { held, count: saved.count });
        }
        if saved.count > 0 && saved.min_ns > saved.max_ns {
            return Err(BadLatencies::Extremes { min_ns: saved.min_ns, max_ns: saved.max_ns });
        }
        let mut latencies = Self::default();
        for (ns, count) in saved.buckets {
            latencies.histogram.saturating_record_n(ns.max(1), count);
        }
        latencies.sum_ns = saved.sum_ns;
        latencies.min_ns = if saved.count > 0 { saved.min_ns } else { u64::MAX };
        latencies.max_ns = saved.max_ns;
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use random::Rng;

    use super::*;

    /// Method: random latencies over five decades are recorded, sorted, and the value at the exact rank is compared.
    #[test]
    fn percentiles_are_within_a_thousandth_of_the_exact_ones() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut latencies = Latencies::default();
            let count = 1000 + rng.below(30_000);
            let mut exact: Vec<u64> = (0..count)
                .map(|_| (10f64.powf(3.0 + 5.0 * rng.unit())) as u64)
                .inspect(|ns| latencies.record(*ns))
                .collect();
            exact.sort_unstable();
            for nines in NINES {
                let rank = (count - count / 10u64.pow(nines.count())) as usize;
                let (found, true_value) = (latencies.estimate(nines).unwrap(), exact[rank - 1]);
                let off = (found as f64 / true_value as f64 - 1.0).abs();
                assert!(off < 1e-3, "seed {seed}, {}: {found}, not {true_value}", nines.label());
            }
            assert_eq!(latencies.max_ns(), exact.last().copied());
            assert_eq!(latencies.min_ns(), exact.first().copied());
        }
    }

    #[test]
    fn a_rank_is_found_from_either_end() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut latencies = Latencies::default();
            let count = 1 + rng.below(300);
            (0..count).for_each(|_| latencies.record(10f64.powf(13.0 * rng.unit()) as u64));
            for rank in 1..=count {
                let both = (latencies.rank_from_top(rank), latencies.rank_from_bottom(rank));
                assert_eq!(both.0, both.1, "seed {seed}, rank {rank} of {count}");
            }
        }
    }

    #[test]
    fn a_percentile_that_the_sample_cannot_carry_is_not_shown() {
        let mut latencies = Latencies::default();
        (0..9_999).for_each(|ns| latencies.record(ns));
        assert_eq!((latencies.missing(NINES[1]), latencies.nines(NINES[1])), (1, None));
        assert_eq!(latencies.missing(NINES[4]), 10_000_000 - 9_999);
        latencies.record(9_999);
        assert!(latencies.nines(NINES[1]).is_some());
        assert_eq!(latencies.nines(NINES[2]), None);
    }

    #[test]
    fn saved_latencies_are_the_same_and_merging_them_is_exact() {
        let mut rng = Rng::new(7);
        let [mut one, mut two, mut whole] = [(); 3].map(|()| Latencies::default());
        for n in 0..20_000 {
            let ns = 50_000 + rng.below(1 << (1 + n % 30));
            if n % 3 == 0 { &mut one } else { &mut two }.record(ns);
            whole.record(ns);
        }
        let text = serde_json::to_string(&one).unwrap();
        let mut read: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        read.merge(&two);
        assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&whole).unwrap());
        let wrong = text.replacen("\"count\":", "\"count\":1", 1);
        assert!(serde_json::from_str::<Latencies>(&wrong).is_err());
    }

    #[test]
    fn bounds_enclose_the_percentile() {
        let mut latencies = Latencies::default();
        (0..100_000).for_each(|n| latencies.record(10f64.powf(3.0 + f64::from(n) / 25e3) as u64));
        let (low, high) = latencies.bounds(NINES[1]).unwrap();
        let at = latencies.nines(NINES[1]).unwrap();
        // 100 requests lie beyond, so the rank is sure to 26: a quarter of a percent of the latency.
        assert!(low < at && at < high && high - low < at / 100, "{low} {at} {high}");
        assert_eq!(latencies.bounds(NINES[4]), None);
    }

    #[test]
    fn labels_have_as_many_nines() {
        assert_eq!(NINES.map(Nines::label)[..2], ["99 %", "99.9 %"]);
        assert_eq!(NINES[4].label(), "99.9999 %");
        assert_eq!((NINES[0].field(), NINES[2].field()), ("p99_ns".into(), "p99_99_ns".into()));
    }
}
