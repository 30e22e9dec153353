//! Flows that wait for a turn that has a number: a round, or an epoch.

use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;

use crate::FlowId;

/// Entries that are gone may be as many as flows, and so many more, before they are swept out.
pub(crate) const STALE_MAX: usize = 64;

/// A flow's place in a line. To leave the line is to be given another number: the entry is stale
/// then, and dropped when its turn comes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Entry {
    pub(crate) flow: FlowId,
    pub(crate) number: u32,
}

/// Flows by the number of their turn; equal ones in the order of coming.
///
/// Nearly all wait for the very next turn, and have a queue of their own: they cost no comparison.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// The turn that `next` waits for.
    next_turn: u64,
    next: VecDeque<Entry>,
    later: BinaryHeap<Reverse<(u64, u64, Entry)>>,
    arrivals: u64,
}

impl Parked {
    /// Parks a flow until `turn`.
    pub(crate) fn park(&mut self, entry: Entry, turn: u64) {
        if self.next.is_empty() {
            self.next_turn = turn;
        }
        if turn == self.next_turn {
            self.next.push_back(entry);
        } else {
            self.arrivals += 1;
            self.later.push(Reverse((turn, self.arrivals, entry)));
        }
    }

    /// The earliest turn that a flow waits for. `is_live` tells entries that are not stale.
    pub(crate) fn first_turn(&mut self, is_live: impl Fn(Entry) -> bool) -> Option<u64> {
        while self.next.front().is_some_and(|entry| !is_live(*entry)) {
            self.next.pop_front();
        }
        while self.later.peek().is_some_and(|Reverse((.., entry))| !is_live(*entry)) {
            self.later.pop();
        }
        let later = self.later.peek().map(|Reverse((turn, ..))| *turn);
        let next = (!self.next.is_empty()).then_some(self.next_turn);
        later.into_iter().chain(next).min()
    }

    /// Takes out an entry, perhaps a stale one, whose turn is `turn` or an earlier one.
    pub(crate) fn pop(&mut self, turn: u64) -> Option<Entry> {
        let next = (!self.next.is_empty()).then_some(self.next_turn);
        if let Some(Reverse((later, ..))) = self.later.peek()
            && *later <= turn
            // What came before `next` waited for that turn, too, is here.
            && next.is_none_or(|next| *later <= next)
        {
            return self.later.pop().map(|Reverse((.., entry))| entry);
        }
        if next.is_some_and(|next| next <= turn) { self.next.pop_front() } else { None }
    }

    /// Sweeps stale entries out if there are more than `flows` explain.
    pub(crate) fn sweep(&mut self, flows: usize, is_live: impl Fn(Entry) -> bool) {
        let most = 2 * flows + STALE_MAX;
        if self.next.len() > most {
            self.next.retain(|entry| is_live(*entry));
        }
        if self.later.len() > most {
            self.later.retain(|Reverse((.., entry))| is_live(*entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn entry(flow: u32) -> Entry {
        Entry { flow: FlowId(flow), number: 0 }
    }

    #[test]
    fn flows_come_out_by_turn_and_then_in_order() {
        let mut parked = Parked::default();
        for (flow, turn) in [(1, 5), (2, 3), (3, 5), (4, 9), (5, 3)] {
            parked.park(entry(flow), turn);
        }
        assert_eq!(parked.first_turn(|_| true), Some(3));
        assert_eq!(parked.pop(2), None);
        let all: Vec<u32> = core::iter::from_fn(|| parked.pop(9)).map(|e| e.flow.0).collect();
        assert_eq!(all, [2, 5, 1, 3, 4]);
        assert_eq!(parked.first_turn(|_| true), None);
    }

    fn flows(parked: &mut Parked, turn: u64) -> Vec<u32> {
        core::iter::from_fn(|| parked.pop(turn)).map(|entry| entry.flow.0).collect()
    }

    #[test]
    fn equal_turns_keep_their_order_when_they_become_the_next() {
        let mut parked = Parked::default();
        for (flow, turn) in [(9, 5), (8, 7), (7, 7), (6, 9)] {
            parked.park(entry(flow), turn);
        }
        assert_eq!(flows(&mut parked, 4), []);
        assert_eq!(flows(&mut parked, 5), [9]);
        // The next turn is now 7, for which two wait already.
        parked.park(entry(5), 7);
        parked.park(entry(4), 6);
        assert_eq!(parked.first_turn(|_| true), Some(6));
        assert_eq!(flows(&mut parked, 7), [4, 8, 7, 5]);
        assert_eq!(flows(&mut parked, 8), []);
        assert_eq!(flows(&mut parked, 9), [6]);
    }

    #[test]
    fn the_first_turn_is_that_of_a_live_entry() {
        let mut parked = Parked::default();
        for (flow, turn) in [(1, 5), (2, 5), (3, 3), (4, 8)] {
            parked.park(entry(flow), turn);
        }
        let first = |parked: &mut Parked, live: &[u32]| {
            parked.first_turn(|entry| live.contains(&entry.flow.0))
        };
        assert_eq!(first(&mut parked, &[1, 2, 3, 4]), Some(3));
        assert_eq!(first(&mut parked, &[1, 2, 4]), Some(5));
        assert_eq!(first(&mut parked, &[2, 4]), Some(5));
        assert_eq!(first(&mut parked, &[4]), Some(8));
        assert_eq!(first(&mut parked, &[]), None);
    }

    /// As many stale entries are left as flows explain, in either queue, and a live one always.
    #[test]
    fn stale_entries_are_swept_when_flows_do_not_explain_them() {
        const FLOWS: usize = 100;
        let most = 2 * FLOWS + STALE_MAX;
        for turn in [0, 1] {
            let mut parked = Parked::default();
            // With an entry for turn 0 those for turn 1 wait apart.
            parked.park(entry(0), 0);
            let count = |parked: &Parked| [parked.next.len(), parked.later.len()][turn as usize];
            while count(&parked) < most {
                parked.park(entry(1), turn);
            }
            let is_live = |entry: Entry| entry.flow.0 != 1;
            parked.sweep(FLOWS, is_live);
            assert_eq!(count(&parked), most);
            parked.park(entry(2), turn);
            parked.sweep(FLOWS, is_live);
            assert_eq!(flows(&mut parked, 1), [0, 2]);
        }
    }

    #[test]
    fn stale_entries_are_no_turn_and_do_not_pile_up() {
        let mut parked = Parked::default();
        for n in 0..10_000 {
            parked.park(Entry { flow: FlowId(0), number: n }, u64::from(n % 7));
            parked.sweep(1, |entry| entry.number == n);
        }
        assert!(parked.next.len() + parked.later.len() <= 2 * (2 + STALE_MAX));
        assert_eq!(parked.first_turn(|entry| entry.number == 9_999), Some(9_999 % 7));
        assert_eq!(parked.first_turn(|_| false), None);
    }
}
