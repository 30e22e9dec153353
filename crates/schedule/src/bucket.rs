//! A rate limit that is exact over time.

use units::{Duration, Instant};

use crate::UNITS_PER_BLOCK;

/// Rate that is let together before a caller is woken, so that a timer does not cost a request.
const BATCH: Duration = Duration::from_micros(20);

/// Slow rates are carried for longer, until there are so many blocks: a few requests of either kind
/// must find room while one of the other kind waits.
const BLOCKS_CARRIED: f64 = 32.0;

/// How long what is not used is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// Of high rates.
    pub(crate) least: Duration,
    /// Of low rates.
    pub(crate) most: Duration,
}

impl Carried {
    /// What is kept of `rate` units a nanosecond.
    pub(crate) fn units(self, rate: f64) -> f64 {
        let [least, most] = [self.least, self.most].map(|time| rate * time.as_nanos() as f64);
        least.max(most.min(BLOCKS_CARRIED * UNITS_PER_BLOCK as f64))
    }
}

/// Tokens that come at a steady rate. A request may overdraw: the next ones wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// Units a nanosecond.
    rate: f64,
    level: f64,
    /// Most that it holds.
    capacity: f64,
    carried: Carried,
    filled_at: Instant,
}

impl Bucket {
    /// A full bucket that fills with `blocks_per_second`, and holds what is `carried`, and at least a
    /// block.
    pub(crate) fn new(blocks_per_second: f64, carried: Carried, now: Instant) -> Self {
        let mut bucket = Self { rate: 0.0, level: 0.0, capacity: 0.0, carried, filled_at: now };
        bucket.set_rate(blocks_per_second, now);
        bucket.level = bucket.capacity;
        bucket
    }

    /// Changes the rate; what has come in stays.
    pub(crate) fn set_rate(&mut self, blocks_per_second: f64, now: Instant) {
        self.fill(now);
        self.rate = blocks_per_second.max(0.0) * UNITS_PER_BLOCK as f64 / 1e9;
        let block = if self.rate > 0.0 { UNITS_PER_BLOCK as f64 } else { 0.0 };
        self.capacity = self.carried.units(self.rate).max(block);
        self.level = self.level.min(self.capacity);
    }

    fn fill(&mut self, now: Instant) {
        let passed_ns = now.0.saturating_sub(self.filled_at.0);
        self.filled_at = self.filled_at.max(now);
        self.level = (self.level + passed_ns as f64 * self.rate).min(self.capacity);
    }

    /// Whether a request may leave now.
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.level > 0.0
    }

    pub(crate) fn take(&mut self, units: u64) {
        self.level -= units as f64;
    }

    /// When the next request may leave.
    pub(crate) fn opens_at(&self) -> Instant {
        if self.rate <= 0.0 {
            return Instant(u64::MAX);
        }
        let wait_ns = (-self.level).max(0.0) / self.rate + BATCH.as_nanos() as f64;
        self.filled_at + Duration::from_nanos(wait_ns as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARRIED: Carried =
        Carried { least: Duration::from_millis(1), most: Duration::from_millis(1) };

    #[test]
    fn it_lets_its_rate_through_and_no_more() {
        let mut bucket = Bucket::new(100_000.0, CARRIED, Instant(0));
        let (mut now, mut blocks) = (Instant(0), 0_u64);
        while now < Instant(1_000_000_000) {
            if bucket.is_open(now) {
                bucket.take(UNITS_PER_BLOCK);
                blocks += 1;
            } else {
                let next = bucket.opens_at();
                assert!(next > now);
                now = next;
            }
        }
        assert!((99_900..=100_110).contains(&blocks), "{blocks}");
    }

    #[test]
    fn a_request_larger_than_the_bucket_is_paid_for_afterwards() {
        let mut bucket = Bucket::new(10.0, CARRIED, Instant(0));
        assert!(bucket.is_open(Instant(0)));
        bucket.take(11 * UNITS_PER_BLOCK);
        assert!(!bucket.is_open(Instant(900_000_000)));
        assert!(bucket.is_open(Instant(1_100_000_000)));
    }
}
