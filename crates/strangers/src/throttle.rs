//! Rate-limits failed authentications per source and target: an NVMe subsystem, or the volume of an iSCSI target.
//!
//! - THROTTLE-1: failures are counted per source, not per address ([`source`]).
//! - THROTTLE-2: failures are counted per pair of source and target. Guessing at one volume thus does not block other hosts
//!   of the same address or network from other volumes, up to a larger number of failures of the source as a whole. The
//!   queues of one NVMe controller fail together where their host has a wrong token: that counts once.
//! - THROTTLE-3: memory is bounded; a new entry evicts the one whose first failure is the oldest.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use units::{Duration, Instant};

use crate::source;

/// Failures that a source may have at a target in a [`PERIOD`]. After a token is replaced, all programs of a host that have
/// the old one fail, up to six times each, and must not delay those that have the new one. 256 bits cannot be guessed in any
/// number of attempts: the limit bounds the cost of the attempts.
const FAILURES_MAX: u32 = 32;
/// Failures that a source may have at all targets in a [`PERIOD`].
const FAILURES_OF_SOURCE_MAX: u32 = 256;
const PERIOD: Duration = Duration::from_secs(10);
/// Entries in each table: sources, and pairs of source and target (THROTTLE-3).
const REMEMBERED_MAX: usize = 1024;

/// Failures of each key, and the time of the first of them in its [`PERIOD`].
struct Failures<K> {
    max: u32,
    counts: BTreeMap<K, (u32, Instant)>,
}

impl<K: Copy + Ord> Failures<K> {
    fn new(max: u32) -> Self {
        Self { max, counts: BTreeMap::new() }
    }

    fn note(&mut self, key: K, now: Instant) {
        if self.counts.len() >= REMEMBERED_MAX && !self.counts.contains_key(&key) {
            let oldest = self.counts.iter().min_by_key(|(_, (_, since))| *since);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.counts.remove(&oldest);
            }
        }
        let (count, since) = self.counts.entry(key).or_insert((0, now));
        if now.since(*since) > PERIOD {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
    }

    fn are_too_many(&self, key: K, now: Instant) -> bool {
        let count = self.counts.get(&key);
        count.is_some_and(|(count, since)| *count >= self.max && now.since(*since) <= PERIOD)
    }
}

/// Failed authentications (THROTTLE-2), by the keys of their targets.
pub struct Throttle<K> {
    at_targets: Failures<(IpAddr, K)>,
    of_sources: Failures<IpAddr>,
    /// All failures so far.
    total: u64,
    /// Hosts that disconnected before completing authentication.
    unfinished: u64,
    /// Attempts refused by the rate limit so far.
    put_off: u64,
}

impl<K: Copy + Ord> Default for Throttle<K> {
    fn default() -> Self {
        Self {
            at_targets: Failures::new(FAILURES_MAX),
            of_sources: Failures::new(FAILURES_OF_SOURCE_MAX),
            total: 0,
            unfinished: 0,
            put_off: 0,
        }
    }
}

impl<K: Copy + Ord> Throttle<K> {
    /// Counts a failure that is part of an attempt which was noted before.
    pub fn note_further(&mut self) {
        self.total += 1;
    }

    /// Notes a failure of `address` at `target`.
    pub fn note(&mut self, address: IpAddr, target: K, now: Instant) {
        self.total += 1;
        let source = source(address);
        self.at_targets.note((source, target), now);
        self.of_sources.note(source, now);
    }

    /// Failures so far, of all addresses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts a host that disconnected before it sent a proof. This is not a failure: it tests no guess.
    pub fn note_unfinished(&mut self) {
        self.unfinished += 1;
    }

    /// Hosts that disconnected before completing authentication.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Attempts refused by the rate limit so far.
    #[must_use]
    pub fn put_off(&self) -> u64 {
        self.put_off
    }

    /// Returns whether an attempt from `address` at `target` is refused, and counts a refusal.
    pub fn is_rate_limited(&mut self, address: IpAddr, target: K, now: Instant) -> bool {
        let is_limited = self.is_closed(address, target, now);
        self.put_off += u64::from(is_limited);
        is_limited
    }

    /// Returns whether attempts from `address` at `target` are refused now; counts nothing.
    #[must_use]
    pub fn is_closed(&self, address: IpAddr, target: K, now: Instant) -> bool {
        let source = source(address);
        self.at_targets.are_too_many((source, target), now)
            || self.of_sources.are_too_many(source, now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use core::net::Ipv4Addr;

    use super::*;

    const NOW: Instant = Instant(100_000_000_000);

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn another_address_of_one_network_is_no_other_host() {
        let mut throttle = Throttle::default();
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for host in 0..FAILURES_MAX {
            throttle.note(address(&format!("2001:db8::{host:x}")), 1, NOW);
        }
        assert!(throttle.is_rate_limited(address("2001:db8::ffff"), 1, NOW));
        assert!(!throttle.is_rate_limited(address("2001:db8:0:1::1"), 1, NOW));
        assert_eq!(throttle.total(), u64::from(FAILURES_MAX));
        assert_eq!(throttle.put_off(), 1);
    }

    #[test]
    fn repeated_failures_delay_that_source_only() {
        let mut throttle = Throttle::default();
        for _ in 0..FAILURES_MAX {
            assert!(!throttle.is_rate_limited(address(1), 1, NOW));
            throttle.note(address(1), 1, NOW);
        }
        assert!(throttle.is_rate_limited(address(1), 1, NOW));
        assert!(!throttle.is_rate_limited(address(2), 1, NOW));
        assert!(!throttle.is_rate_limited(address(1), 2, NOW), "it did not guess at that");
        let later = NOW + PERIOD + Duration::from_nanos(1);
        assert!(!throttle.is_rate_limited(address(1), 1, later));
        throttle.note(address(1), 1, later);
        assert!(!throttle.is_rate_limited(address(1), 1, later), "the count started again");
    }

    #[test]
    fn failures_at_many_targets_add_up() {
        let mut throttle = Throttle::default();
        for n in 0..FAILURES_OF_SOURCE_MAX {
            assert!(!throttle.is_rate_limited(address(1), 200, NOW), "after {n}");
            throttle.note(address(1), (n % 100) as u8, NOW);
        }
        assert!(throttle.is_rate_limited(address(1), 200, NOW));
        assert!(!throttle.is_rate_limited(address(2), 200, NOW));
    }

    #[test]
    fn memory_is_bounded() {
        let mut throttle = Throttle::default();
        for number in 0..5000 {
            throttle.note(address(number), 1, Instant(u64::from(number)));
        }
        assert_eq!(throttle.of_sources.counts.len(), REMEMBERED_MAX);
        assert_eq!(throttle.at_targets.counts.len(), REMEMBERED_MAX);
        assert!(throttle.of_sources.counts.contains_key(&address(4999)));
    }
}
