//! Limit of the log lines about unauthenticated peers.
//!
//! - QUIET-1: of each source at most [`LINES_MAX`] lines are written in a [`PERIOD`]; of the others it is said
//!   how many they were when the period is over.
//! - QUIET-2: [`SOURCES_MAX`] sources are told apart in a period. All others are one, so that the log is bounded
//!   however many addresses a peer has.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use units::{Duration, Instant};

use crate::source;

/// Enough for a host that is set up wrongly to be noticed, and understood.
const LINES_MAX: u32 = 16;
const PERIOD: Duration = Duration::from_secs(10);
const SOURCES_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// The source that lines are about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum PeerSource {
    /// One source.
    One(IpAddr),
    /// Sources that were too many to be told apart (QUIET-2).
    Many,
}

impl fmt::Display for PeerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(source) => source.fmt(f),
            Self::Many => f.pad("many"),
        }
    }
}

/// Lines that were left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeftOut {
    /// The source that they were about.
    pub source: PeerSource,
    /// Number of lines.
    pub lines: u64,
}

/// Lines about unauthenticated peers, by source.
#[derive(Default)]
pub struct Quiet {
    sources: BTreeMap<PeerSource, Lines>,
}

impl Quiet {
    /// Returns true if a line about `address` may be written now; counts it.
    #[must_use]
    pub fn allows(&mut self, address: IpAddr, now: Instant) -> bool {
        let mut key = PeerSource::One(source(address));
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&key) {
            key = PeerSource::Many;
        }
        let fresh = Lines { since: now, written: 0, left_out: 0 };
        let lines = self.sources.entry(key).or_insert(fresh);
        if lines.written < LINES_MAX {
            lines.written += 1;
            return true;
        }
        lines.left_out += 1;
        false
    }

    /// Returns the lines left out in periods that are over. To be called now and then: a source has no new period
    /// before.
    #[must_use]
    pub fn over(&mut self, now: Instant) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        self.sources.retain(|source, lines| {
            let goes_on = now.since(lines.since) < PERIOD;
            if !goes_on && lines.left_out > 0 {
                left_out.push(LeftOut { source: *source, lines: lines.left_out });
            }
            goes_on
        });
        left_out
    }

    /// Returns true if no period goes on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn each_source_has_some_lines_and_what_is_left_out_is_counted() {
        let mut quiet = Quiet::default();
        let written = (0..100).filter(|_| quiet.allows(v4(1), NOW)).count();
        assert_eq!(written, LINES_MAX as usize);
        assert!(quiet.allows(v4(2), NOW), "another source is heard");
        assert_eq!(quiet.over(NOW), [], "the period goes on");
        let later = NOW + PERIOD;
        let lines = 100 - u64::from(LINES_MAX);
        assert_eq!(quiet.over(later), [LeftOut { source: PeerSource::One(v4(1)), lines }]);
        assert!(quiet.allows(v4(1), later), "a new period");
        assert_eq!(quiet.over(later + PERIOD), [], "nothing was left out");
        assert!(quiet.is_empty());
    }

    #[test]
    fn many_addresses_write_no_more_than_a_few() {
        let mut quiet = Quiet::default();
        let network = |n: u128| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8 << 96) | (n << 64)));
        let written = (0..100_000).filter(|n| quiet.allows(network(*n), NOW)).count();
        assert_eq!(written, SOURCES_MAX + LINES_MAX as usize);
        let lines = 100_000 - written as u64;
        assert_eq!(quiet.over(NOW + PERIOD), [LeftOut { source: PeerSource::Many, lines }]);
        // Addresses of one network are one source.
        let hosts = (0..100_u128).map(|n| IpAddr::V6(Ipv6Addr::from_bits((7 << 64) | n)));
        assert_eq!(hosts.filter(|host| quiet.allows(*host, NOW)).count(), LINES_MAX as usize);
    }
}
