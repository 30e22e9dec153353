//! Who makes room when there are as many connections as there may be.
//!
//! - W1: a host that has been let into a volume stays. Of all others, discovery included, the source that has most
//!   makes room, with its oldest; for one of a source that has fewer.
//! - W2: so who floods a core from one source is in his own way, and in nobody else's.
//! - W3: connections that are on their way out count for [`LEAVING_MAX`] at most.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use io_traits::{Device, World};

use crate::connection::Connection;
use crate::core::Core;
use crate::throttle::source;

/// Connections that were ended and are not gone yet, beyond those that there may be.
const LEAVING_MAX: usize = 64;

/// Which of `strangers`, oldest first, makes room for one from `newcomer`.
fn who_makes_room(strangers: &[IpAddr], newcomer: IpAddr) -> Option<usize> {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for address in strangers {
        *counts.entry(source(*address)).or_default() += 1;
    }
    let (crowd, most) = counts.iter().max_by_key(|(_, count)| **count)?;
    let own = counts.get(&source(newcomer)).copied().unwrap_or(0);
    // Taking turns would help nobody.
    let is_fairer = own + 1 < *most || (own == 0 && *most > 1);
    let oldest = || strangers.iter().position(|address| source(*address) == *crowd);
    if is_fairer { oldest() } else { None }
}

impl<W: World, D: Device> Core<W, D> {
    /// Whether there is room for a connection from `newcomer`, perhaps since another was ended for it.
    pub(crate) fn has_room_for(&self, newcomer: IpAddr) -> bool {
        let max = self.options().connections_max;
        if self.connections() < max {
            return true;
        }
        let mut open = self.all_connections();
        open.retain(|connection| connection.is_open());
        if open.len() < max || self.connections() >= max + LEAVING_MAX {
            return self.connections() < max + LEAVING_MAX;
        }
        open.retain(|connection| !connection.is_let_in());
        open.sort_by_key(|connection| connection.life.id.number);
        let addresses: Vec<IpAddr> = open.iter().map(|stranger| stranger.peer().ip()).collect();
        let found = who_makes_room(&addresses, newcomer).map(|index| open.swap_remove(index));
        found.is_some_and(|stranger: Rc<Connection<W, D>>| {
            stranger.note_end("others wanted to connect, and its source has most connections");
            stranger.cut();
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn v4(number: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(number))
    }

    #[test]
    fn the_oldest_of_the_source_that_has_most_makes_room() {
        let strangers = [v4(2), v4(1), v4(1), v4(3), v4(1)];
        assert_eq!(who_makes_room(&strangers, v4(9)), Some(1));
        assert_eq!(who_makes_room(&strangers, v4(2)), Some(1));
        assert_eq!(who_makes_room(&strangers, v4(1)), None, "it has most itself");
        assert_eq!(who_makes_room(&[], v4(1)), None, "all have been let in");
    }

    #[test]
    fn equals_do_not_displace_each_other() {
        let strangers = [v4(1), v4(1), v4(2), v4(2)];
        assert_eq!(who_makes_room(&strangers, v4(1)), None);
        assert_eq!(
            who_makes_room(&[v4(1), v4(1), v4(2)], v4(2)),
            None,
            "it would be the other way round"
        );
        assert_eq!(who_makes_room(&[v4(1), v4(2)], v4(3)), None);
        assert!(who_makes_room(&strangers, v4(3)).is_some());
    }

    /// All of an IPv6 network are one source (B1 of `throttle.rs`).
    #[test]
    fn addresses_of_one_network_are_one_crowd() {
        let host = |n: u128| IpAddr::V6(std::net::Ipv6Addr::from_bits((7 << 64) | n));
        let strangers: Vec<IpAddr> = (0..100).map(host).collect();
        assert_eq!(who_makes_room(&strangers, host(1000)), None);
        assert_eq!(who_makes_room(&strangers, v4(1)), Some(0));
    }
}
