//! Changes of the same blocks, one after the other.
//!
//! - ORDER-1: of two changes whose blocks overlap, the one that came later starts when the earlier one has ended. So
//!   a block that is read, changed and written is not changed in between, and what a lost connection makes the client
//!   send again does not undo a later write.
//! - ORDER-2: changes that do not overlap do not wait for each other.
//!
//! All changes that have not ended are looked at. The window bounds their number.

use std::collections::BTreeMap;
use std::ops::Range;

/// The number of a change, in the order in which changes came.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Ticket(u64);

struct Entry<T> {
    bytes: Range<u64>,
    /// Earlier changes, not ended yet, with which it overlaps.
    waits_for: usize,
    /// The change itself, until it starts.
    waiting: Option<T>,
}

/// The changes that have not ended.
pub(crate) struct Order<T> {
    entries: BTreeMap<Ticket, Entry<T>>,
    next: u64,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), next: 0 }
    }
}

impl<T> Order<T> {
    /// Takes in a change of `bytes`, the range of whole blocks. It is handed back if it may start at once.
    pub(crate) fn begin(&mut self, bytes: Range<u64>, change: T) -> (Ticket, Option<T>) {
        let ticket = Ticket(self.next);
        self.next += 1;
        let overlaps = |entry: &&Entry<T>| overlap(&entry.bytes, &bytes);
        let waits_for = self.entries.values().filter(overlaps).count();
        let (waiting, starts) =
            if waits_for > 0 { (Some(change), None) } else { (None, Some(change)) };
        self.entries.insert(ticket, Entry { bytes, waits_for, waiting });
        (ticket, starts)
    }

    /// A change has ended; those that may start now.
    pub(crate) fn end(&mut self, ticket: Ticket) -> Vec<(Ticket, T)> {
        let ended = self.entries.remove(&ticket).expect("a change ends once");
        assert!(ended.waiting.is_none(), "a change that ends has started");
        let mut start = Vec::new();
        for (later, entry) in self.entries.range_mut(ticket..) {
            if !overlap(&entry.bytes, &ended.bytes) {
                continue;
            }
            entry.waits_for -= 1;
            if entry.waits_for == 0 {
                start.extend(entry.waiting.take().map(|change| (*later, change)));
            }
        }
        start
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_later_of_two_overlapping_changes_waits_and_others_do_not() {
        let mut order = Order::default();
        let (first, starts) = order.begin(0..8, 'a');
        assert_eq!(starts, Some('a'));
        let (second, starts) = order.begin(4..12, 'b');
        assert_eq!(starts, None);
        // It overlaps with the one that waits, not with the one that runs.
        let (third, starts) = order.begin(8..16, 'c');
        assert_eq!(starts, None);
        assert_eq!(order.begin(16..20, 'd').1, Some('d'));
        assert_eq!(order.end(first), [(second, 'b')]);
        assert_eq!(order.end(second), [(third, 'c')]);
        assert_eq!(order.end(third), []);
    }

    proptest! {
        /// ORDER-1 and ORDER-2, and each change starts once. Method: changes come and end at random; whatever runs is
        /// compared with what came before it and has not ended.
        #[test]
        fn changes_start_in_order_where_they_overlap(
            ranges in prop::collection::vec((0_u64..40, 1_u64..12), 1..60),
            picks in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 200),
        ) {
            let mut order = Order::default();
            let (mut coming, mut open, mut running) =
                (ranges.into_iter().enumerate(), BTreeMap::new(), BTreeMap::new());
            let mut started = Vec::new();
            for (comes, pick) in picks {
                if comes {
                    let Some((index, (start, len))) = coming.next() else { continue };
                    let (ticket, starts) = order.begin(start..start + len, index);
                    open.insert(ticket, start..start + len);
                    running.extend(starts.map(|index| (ticket, index)));
                    started.extend(starts);
                } else if !running.is_empty() {
                    let ticket = *running.keys().nth(pick.index(running.len())).expect("in it");
                    running.remove(&ticket);
                    open.remove(&ticket);
                    for (ticket, index) in order.end(ticket) {
                        running.insert(ticket, index);
                        started.push(index);
                    }
                }
                for (ticket, bytes) in &open {
                    let earlier = open.range(..*ticket).any(|(_, other)| overlap(other, bytes));
                    prop_assert_eq!(running.contains_key(ticket), !earlier);
                }
            }
            let count = started.len();
            started.sort_unstable();
            started.dedup();
            prop_assert_eq!(started.len(), count);
        }
    }
}
