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
            && next.is_none_or(|next| *later < next)
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
