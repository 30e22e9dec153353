//! The discovery logs that hosts read: one for all that see the same, and no more than so much memory takes.
//!
//! A host reads its log piece by piece, so it is kept between two commands. Discovery needs no
//! authentication, and there may be thousands of hosts and volumes.

use std::collections::VecDeque;
use std::rc::Rc;

use nvme_target::DiscoveryLog;

/// Entries that all logs have together, but for the last one: 32 MiB.
const ENTRIES_MAX: usize = 4 << 20;
/// Size of a log besides its entries, in entries.
const OVERHEAD: usize = 16;
/// Logs that a new one is compared with. Hosts that see the same mostly come one behind the other.
const COMPARED_MAX: usize = 8;

/// Logs, the one that was used last behind.
pub(super) struct Logs {
    kept: VecDeque<Rc<DiscoveryLog>>,
    entries_max: usize,
}

impl Default for Logs {
    fn default() -> Self {
        Self { kept: VecDeque::new(), entries_max: ENTRIES_MAX }
    }
}

impl Logs {
    /// Keeps `log`, or one that is the same, for weak references to it. Drops the logs that were not used for
    /// longest if all are too large together.
    pub(super) fn keep(&mut self, log: DiscoveryLog) -> Rc<DiscoveryLog> {
        // Hosts that have gone refer to none.
        self.kept.retain(|kept| Rc::weak_count(kept) > 0);
        let latest = self.kept.iter().rev().take(COMPARED_MAX);
        let same = latest.into_iter().find(|kept| is_same(kept, &log)).cloned();
        if let Some(same) = same {
            self.note_use(&same);
            return same;
        }
        let log = Rc::new(log);
        self.kept.push_back(log.clone());
        let mut entries: usize = self.kept.iter().map(|kept| size(kept)).sum();
        while entries > self.entries_max && self.kept.len() > 1 {
            entries -= self.kept.pop_front().map_or(0, |dropped| size(&dropped));
        }
        log
    }

    /// A host reads on in `log`.
    pub(super) fn note_use(&mut self, log: &Rc<DiscoveryLog>) {
        if let Some(place) = self.kept.iter().rposition(|kept| Rc::ptr_eq(kept, log))
            && let Some(log) = self.kept.remove(place)
        {
            self.kept.push_back(log);
        }
    }
}

fn size(log: &DiscoveryLog) -> usize {
    log.entries.len() + OVERHEAD
}

/// Returns true if two logs have the same entries at the same places in memory, and the same generation.
fn is_same(one: &DiscoveryLog, other: &DiscoveryLog) -> bool {
    let mut pairs = one.entries.iter().zip(&other.entries);
    one.genctr == other.genctr
        && one.entries.len() == other.entries.len()
        && pairs.all(|(one, other)| Rc::ptr_eq(one, other))
}

#[cfg(test)]
mod tests {
    use std::rc::Weak;

    use nvme_wire::Nqn;
    use nvme_wire::discovery::{DiscoveryLogEntry, SUBTYPE_NVM};

    use super::*;

    /// Entries of `count` volumes, and logs with room for so many.
    fn with_room_for(entries_max: usize, count: u8) -> (Logs, Vec<Rc<DiscoveryLogEntry>>) {
        let portal = "192.0.2.7:4420".parse().expect("an address");
        let entry =
            |n| Rc::new(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &Nqn::from_uuid(&[n; 16]), portal));
        (Logs { kept: VecDeque::new(), entries_max }, (0..count).map(entry).collect())
    }

    fn log(genctr: u64, entries: &[Rc<DiscoveryLogEntry>]) -> DiscoveryLog {
        DiscoveryLog { genctr, entries: entries.to_vec() }
    }

    #[test]
    fn hosts_that_see_the_same_have_one_log() {
        let (mut logs, entries) = with_room_for(1000, 4);
        let first = logs.keep(log(0, &entries));
        let _host = Rc::downgrade(&first);
        assert!(Rc::ptr_eq(&first, &logs.keep(log(0, &entries))));
        for other in [log(1, &entries), log(0, &entries[..3]), log(0, &with_room_for(0, 4).1)] {
            assert!(!Rc::ptr_eq(&first, &logs.keep(other)));
        }
    }

    /// Method: a thousand hosts of which each sees something else read, and one of them again and again.
    #[test]
    fn what_was_not_used_for_longest_goes_when_all_are_too_much() {
        let (mut logs, entries) = with_room_for(10 * (4 + OVERHEAD), 4);
        let mut hosts: Vec<Weak<DiscoveryLog>> = Vec::new();
        for genctr in 0..1000 {
            hosts.push(Rc::downgrade(&logs.keep(log(genctr, &entries))));
            let busy = hosts[0].upgrade().expect("it is used");
            logs.note_use(&busy);
        }
        let kept = hosts.iter().filter(|host| host.upgrade().is_some()).count();
        assert_eq!((kept, logs.kept.len()), (10, 10));
        assert!(hosts[991..].iter().all(|host| host.upgrade().is_some()), "the latest");
    }

    #[test]
    fn of_hosts_that_have_gone_nothing_stays_and_a_log_too_long_is_read_all_the_same() {
        let (mut logs, entries) = with_room_for(50, 100);
        for genctr in 0..10 {
            logs.keep(log(genctr, &entries[..4]));
            assert_eq!(logs.kept.len(), 1);
        }
        let host = Rc::downgrade(&logs.keep(log(0, &entries)));
        assert_eq!(host.upgrade().map(|log| log.entries.len()), Some(100));
    }
}
