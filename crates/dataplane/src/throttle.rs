//! Who guesses is put off.
//!
//! - B1: of IPv6 the network of 64 bits counts: one host has all of its addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use units::{Duration, Instant};

/// Failures that an address may have in a [`PERIOD`].
const FAILURES_MAX: u32 = 8;
const PERIOD: Duration = Duration::from_secs(10);
/// Addresses that are remembered; of more, those that failed longest ago are forgotten.
const ADDRESSES_MAX: usize = 1024;

/// Failed authentications by address.
#[derive(Default)]
pub(crate) struct Throttle {
    /// Failures, and when the first of them was.
    failures: BTreeMap<IpAddr, (u32, Instant)>,
    /// All failures so far.
    total: u64,
}

impl Throttle {
    /// Notes a failure.
    pub(crate) fn note(&mut self, address: IpAddr, now: Instant) {
        self.total += 1;
        let address = source(address);
        if self.failures.len() >= ADDRESSES_MAX && !self.failures.contains_key(&address) {
            let oldest = self.failures.iter().min_by_key(|(_, (_, since))| *since);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.failures.remove(&oldest);
            }
        }
        let (count, since) = self.failures.entry(address).or_insert((0, now));
        if now.since(*since) > PERIOD {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
    }

    /// Failures so far, of all addresses.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Whether the address has to wait.
    pub(crate) fn puts_off(&self, address: IpAddr, now: Instant) -> bool {
        self.failures
            .get(&source(address))
            .is_some_and(|(count, since)| *count >= FAILURES_MAX && now.since(*since) <= PERIOD)
    }
}

/// Whose address it is (B1).
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn another_address_of_one_network_is_no_other_host() {
        let mut throttle = Throttle::default();
        let now = Instant(0) + Duration::from_secs(100);
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for host in 0..FAILURES_MAX {
            throttle.note(address(&format!("2001:db8::{host:x}")), now);
        }
        assert!(throttle.puts_off(address("2001:db8::ffff"), now));
        assert!(!throttle.puts_off(address("2001:db8:0:1::1"), now));
        assert_eq!(throttle.total(), u64::from(FAILURES_MAX));
    }

    #[test]
    fn who_fails_often_waits_and_nobody_else_does() {
        let mut throttle = Throttle::default();
        let now = Instant(0) + Duration::from_secs(100);
        for _ in 0..FAILURES_MAX {
            assert!(!throttle.puts_off(address(1), now));
            throttle.note(address(1), now);
        }
        assert!(throttle.puts_off(address(1), now));
        assert!(!throttle.puts_off(address(2), now));
        let later = now + PERIOD + Duration::from_nanos(1);
        assert!(!throttle.puts_off(address(1), later));
        throttle.note(address(1), later);
        assert!(!throttle.puts_off(address(1), later), "counted anew");
    }

    #[test]
    fn memory_is_bounded() {
        let mut throttle = Throttle::default();
        for number in 0..5000 {
            throttle.note(address(number), Instant(u64::from(number)));
        }
        assert_eq!(throttle.failures.len(), ADDRESSES_MAX);
        assert!(throttle.failures.contains_key(&address(4999)));
    }
}
