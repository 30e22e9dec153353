//! Chooses the address of one place that a host is told.
//!
//! A server that is in several networks has an address in each. A host is told the one that is nearest to the address at which
//! it asked: it reaches that one already, and its neighbours by the same way.

use std::net::{IpAddr, SocketAddr};

/// The one of `places` that shares most leading bits with the address `asked`, the first of those that share as many;
/// one of the other family only where there is none of its own. `None` if there is no place.
#[must_use]
pub fn nearest<T>(asked: IpAddr, places: &[(SocketAddr, T)]) -> Option<&(SocketAddr, T)> {
    // Of equals `max_by_key` takes the last.
    places.iter().rev().max_by_key(|(address, _)| shared_bits(asked, address.ip()))
}

/// `None` for addresses of different families, which is less than none that is shared.
fn shared_bits(one: IpAddr, other: IpAddr) -> Option<u32> {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            Some((one.to_bits() ^ other.to_bits()).leading_zeros())
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            Some((one.to_bits() ^ other.to_bits()).leading_zeros())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(asked: &str, addresses: &[&str]) -> Option<String> {
        let place = |address: &&str| (SocketAddr::new(address.parse().expect("an IP"), 1), ());
        let places: Vec<_> = addresses.iter().map(place).collect();
        nearest(asked.parse().expect("an IP"), &places)
            .map(|(address, ())| address.ip().to_string())
    }

    #[test]
    fn a_host_is_told_the_address_in_its_network() {
        let all = ["192.0.2.7", "10.78.0.1", "10.77.0.1", "2001:db8::7"];
        assert_eq!(told("10.77.0.1", &all).as_deref(), Some("10.77.0.1"));
        assert_eq!(told("10.78.0.9", &all).as_deref(), Some("10.78.0.1"), "of a neighbour there");
        assert_eq!(told("2001:db8::99", &all).as_deref(), Some("2001:db8::7"));
    }

    #[test]
    fn what_is_as_near_is_told_in_order() {
        assert_eq!(told("127.0.0.1", &["192.0.2.7", "203.0.113.7"]).as_deref(), Some("192.0.2.7"));
        assert_eq!(told("::1", &["192.0.2.7", "10.0.0.7"]).as_deref(), Some("192.0.2.7"));
        assert_eq!(told("::1", &["192.0.2.7", "fd00::7"]).as_deref(), Some("fd00::7"));
        assert_eq!(told("::1", &[]), None);
    }
}
