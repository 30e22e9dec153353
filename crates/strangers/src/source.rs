//! As whose an address counts.

use core::net::{IpAddr, Ipv6Addr};

/// All that counts as one: of IPv6 the network of 64 bits, since one host has all of its addresses.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let host = |n: u128| IpAddr::V6(Ipv6Addr::from_bits((7 << 64) | n));
        assert_eq!(source(host(1)), source(host(1000)));
        assert_ne!(source(host(1)), source(IpAddr::V6(Ipv6Addr::from_bits(8 << 64))));
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().expect("an address");
        assert_eq!(source(mapped), source("192.0.2.1".parse().expect("an address")));
    }
}
