//! A rate limit that is exact over time.

use units::{Duration, Instant};

use crate::UNITS_PER_BLOCK;

/// Rate that is let together before a caller is woken, so that a timer does not cost a request.
const BATCH_NS: u64 = 20_000;

/// Slow rates are carried for longer, until there are so many blocks: a few requests of either kind
/// must find room while one of the other kind waits.
const BLOCKS_CARRIED: f64 = 32.0;

/// The time for which unused quota is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// For high rates.
    pub(crate) least: Duration,
    /// For low rates.
    pub(crate) most: Duration,
}

impl Carried {
    /// The units that are kept of a rate of `rate` units a nanosecond.
    pub(crate) fn units(self, rate: f64) -> f64 {
        let [least, most] = [self.least, self.most].map(|time| rate * time.as_nanos() as f64);
        least.max(most.min(BLOCKS_CARRIED * UNITS_PER_BLOCK as f64))
    }
}

/// Levels are counted in 2^-16 of a unit, so that what comes in a nanosecond at the slowest rates is
/// not lost to rounding, and integers do.
const FINE_BITS: u32 = 16;
/// The rate has so many bits more.
const RATE_BITS: u32 = 16;
/// No request is counted as more than a tebibyte.
const UNITS_MAX: u64 = UNITS_PER_BLOCK << 28;

/// `units` in the parts in which levels are counted.
pub(crate) fn fine(units: u64) -> i64 {
    (units.min(UNITS_MAX) << FINE_BITS) as i64
}

/// Tokens that come at a steady rate. A request may overdraw: the next ones wait for it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// Fine parts a nanosecond, with [`RATE_BITS`] bits behind the point.
    rate: u64,
    /// Fine parts.
    level: i64,
    /// Most that it holds.
    capacity: i64,
    filled_at: Instant,
}

impl Bucket {
    /// A full bucket that fills with `blocks_per_second`, and holds what is `carried`, and at least a
    /// block.
    pub(crate) fn new(blocks_per_second: f64, carried: Carried, now: Instant) -> Self {
        let mut bucket = Self { rate: 0, level: 0, capacity: 0, filled_at: now };
        bucket.set_rate(blocks_per_second, carried, now);
        bucket.level = bucket.capacity;
        bucket
    }

    /// Changes the rate; what has come in stays.
    pub(crate) fn set_rate(&mut self, blocks_per_second: f64, carried: Carried, now: Instant) {
        self.fill(now);
        let units_a_ns = blocks_per_second.max(0.0) * UNITS_PER_BLOCK as f64 / 1e9;
        self.rate = (units_a_ns * (1_u64 << (FINE_BITS + RATE_BITS)) as f64) as u64;
        let block = if self.rate > 0 { UNITS_PER_BLOCK as f64 } else { 0.0 };
        self.capacity = fine(carried.units(units_a_ns).max(block) as u64);
        self.level = self.level.min(self.capacity);
    }

    fn fill(&mut self, now: Instant) {
        let passed_ns = now.0.saturating_sub(self.filled_at.0);
        self.filled_at = self.filled_at.max(now);
        let came = (u128::from(passed_ns) * u128::from(self.rate)) >> RATE_BITS;
        let came = i64::try_from(came).unwrap_or(i64::MAX);
        self.level = self.level.saturating_add(came).min(self.capacity);
    }

    /// Returns true if a request may leave now.
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.level > 0
    }

    /// Makes it full, or pays what is overdrawn: for [`Sabotage`](crate::sabotage::Sabotage).
    pub(crate) fn forgive(&mut self, fills: bool) {
        self.level = if fills { self.capacity } else { self.level.max(0) };
    }

    pub(crate) fn take(&mut self, units: u64) {
        self.level = self.level.saturating_sub(fine(units));
    }

    /// When the next request may leave.
    pub(crate) fn opens_at(&self) -> Instant {
        if self.rate == 0 {
            return Instant(u64::MAX);
        }
        let missing = self.level.min(0).unsigned_abs();
        let wait_ns = match missing.checked_shl(RATE_BITS).filter(|m| m >> RATE_BITS == missing) {
            Some(missing) => missing / self.rate,
            None => {
                let wait_ns = (u128::from(missing) << RATE_BITS) / u128::from(self.rate);
                u64::try_from(wait_ns).unwrap_or(u64::MAX)
            }
        };
        Instant(self.filled_at.0.saturating_add(wait_ns).saturating_add(BATCH_NS + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARRIED: Carried =
        Carried { least: Duration::from_millis(1), most: Duration::from_millis(1) };

    /// A rate of one unit a nanosecond, in blocks a second.
    const UNIT_A_NS: f64 = 1e9 / UNITS_PER_BLOCK as f64;

    fn blocks(carried: Carried, blocks_per_second: f64) -> f64 {
        carried.units(blocks_per_second / UNIT_A_NS) / UNITS_PER_BLOCK as f64
    }

    #[test]
    fn slow_rates_are_kept_for_longer() {
        let carried = Carried { least: Duration::from_millis(1), most: Duration::from_millis(20) };
        for (rate, kept) in [(500.0, 10.0), (1_600.0, 32.0), (30_000.0, 32.0), (64_000.0, 64.0)] {
            assert!((blocks(carried, rate) - kept).abs() < 1e-6, "{rate}: {kept}");
        }
    }

    #[test]
    fn no_request_is_counted_as_more_than_a_tebibyte() {
        assert_eq!(fine(3), 3 << 16);
        assert_eq!(fine(UNITS_MAX), fine(u64::MAX));
        assert_eq!(fine(u64::MAX), 1 << 60);
    }

    #[test]
    fn levels_are_exact_to_the_nanosecond() {
        let mut bucket = Bucket::new(UNIT_A_NS, CARRIED, Instant(0));
        bucket.take(1_000_000);
        assert!(!bucket.is_open(Instant(0)), "it held a millisecond's worth");
        bucket.take(500);
        assert_eq!(bucket.opens_at(), Instant(500 + BATCH_NS + 1));
        assert!(!bucket.is_open(Instant(500)));
        assert!(bucket.is_open(Instant(501)));
        assert_eq!(bucket.opens_at(), Instant(501 + BATCH_NS + 1));
        // As long as it may be: it is full, and no more.
        assert!(bucket.is_open(Instant(u64::MAX)));
        bucket.take(1_000_000);
        assert!(!bucket.is_open(Instant(u64::MAX)));
    }

    /// So much that the time cannot be computed in 64 bits.
    #[test]
    fn a_large_debt_is_paid_in_its_time() {
        let mut bucket = Bucket::new(UNIT_A_NS, CARRIED, Instant(0));
        let debt = 100_000 * UNITS_PER_BLOCK;
        bucket.take(1_000_000 + debt);
        assert_eq!(bucket.opens_at(), Instant(debt + BATCH_NS + 1));
    }

    #[test]
    fn a_block_is_held_at_any_rate_and_none_without() {
        let mut bucket = Bucket::new(10.0, CARRIED, Instant(0));
        bucket.take(UNITS_PER_BLOCK);
        assert_eq!(bucket.opens_at(), Instant(BATCH_NS + 1));
        let mut bucket = Bucket::new(0.0, CARRIED, Instant(0));
        assert!(!bucket.is_open(Instant(1 << 60)));
        assert_eq!(bucket.opens_at(), Instant(u64::MAX));
    }

    #[test]
    fn another_rate_keeps_what_has_come_in_and_adds_nothing() {
        let mut bucket = Bucket::new(UNIT_A_NS, CARRIED, Instant(0));
        bucket.take(400_000);
        bucket.set_rate(2.0 * UNIT_A_NS, CARRIED, Instant(100_000));
        bucket.take(700_000);
        assert!(!bucket.is_open(Instant(100_000)), "600 000 were left, and 100 000 came");
        // It fills to what the lower rate may hold.
        bucket.set_rate(0.5 * UNIT_A_NS, CARRIED, Instant(100_000_000));
        bucket.take(500_000);
        assert!(!bucket.is_open(Instant(100_000_000)));
        assert!(bucket.is_open(Instant(100_000_002)));
    }

    #[test]
    fn it_lets_its_rate_through_and_no_more() {
        let mut bucket = Bucket::new(100_000.0, CARRIED, Instant(0));
        let (mut now, mut blocks) = (Instant(0), 0_u64);
        while now < Instant(1_000_000_000) {
            if bucket.is_open(now) {
                bucket.take(UNITS_PER_BLOCK);
                blocks += 1;
                assert!(blocks < 1_000_000, "without end");
            } else {
                let next = bucket.opens_at();
                assert!(next > now);
                now = next;
            }
        }
        assert!((99_900..=100_110).contains(&blocks), "{blocks}");
    }

    /// A nanosecond brings less than a level can tell apart, and all of them together a block.
    #[test]
    fn looking_often_does_not_slow_the_slowest_rates() {
        let mut bucket = Bucket::new(1.0, CARRIED, Instant(0));
        bucket.take(2 * UNITS_PER_BLOCK);
        let opened = (0..2_000_000_000).step_by(500).map(Instant).find(|now| bucket.is_open(*now));
        let opened = opened.expect("some day").0;
        assert!((1_000_000_000..1_001_000_000).contains(&opened), "{opened}");
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
