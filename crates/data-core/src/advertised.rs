//! The addresses at which hosts reach the portals.

use std::net::IpAddr;
use std::str::FromStr;

/// Most addresses of a server: a bound on what a typing mistake can ask for.
const ADDRESSES_MAX: usize = 64;

/// Addresses that hosts are told: at least one, of which the first is told where none is nearer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Advertised {
    /// The one that is told where none is nearer.
    pub first: IpAddr,
    /// All others.
    pub more: Vec<IpAddr>,
}

/// Why a text is no list of addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseAdvertisedError {
    /// A part is no address.
    #[error("`{0}` is no IP address; list addresses as 192.0.2.7 or 192.0.2.7,10.0.0.7")]
    NotAnAddress(String),
    /// An address is repeated.
    #[error("{0} is listed twice")]
    Twice(IpAddr),
    /// The list is too long.
    #[error("more than {ADDRESSES_MAX} addresses are listed")]
    TooMany,
}

impl Advertised {
    /// All of them, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        [self.first].into_iter().chain(self.more.iter().copied())
    }
}

impl FromStr for Advertised {
    type Err = ParseAdvertisedError;

    fn from_str(text: &str) -> Result<Self, ParseAdvertisedError> {
        let mut all = Vec::new();
        for part in text.split(',') {
            let address = part.trim().parse::<IpAddr>().map(|address| address.to_canonical());
            let address = address
                .map_err(|_| ParseAdvertisedError::NotAnAddress(part.to_owned()))?
                .to_canonical();
            if all.contains(&address) {
                return Err(ParseAdvertisedError::Twice(address));
            }
            if all.len() == ADDRESSES_MAX {
                return Err(ParseAdvertisedError::TooMany);
            }
            all.push(address);
        }
        let first = all.remove(0);
        Ok(Self { first, more: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart() {
        let list: Advertised = "192.0.2.7, 2001:db8::7,::ffff:10.0.0.7".parse().expect("a list");
        let all: Vec<String> = list.iter().map(|address| address.to_string()).collect();
        assert_eq!(all, ["192.0.2.7", "2001:db8::7", "10.0.0.7"]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (text, part) in [("", "``"), ("192.0.2.7,", "``"), ("flash-1", "flash-1")] {
            let error = text.parse::<Advertised>().expect_err(text).to_string();
            assert!(error.starts_with(part) || error.contains(part), "{text}: {error}");
        }
        let twice = "192.0.2.7,192.0.2.7".parse::<Advertised>();
        assert_eq!(twice, Err(ParseAdvertisedError::Twice([192, 0, 2, 7].into())));
        let many: Vec<String> = (0..=ADDRESSES_MAX).map(|n| format!("10.0.0.{n}")).collect();
        let many = many.join(",").parse::<Advertised>();
        assert_eq!(many, Err(ParseAdvertisedError::TooMany));
    }
}
