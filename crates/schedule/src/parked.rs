//! Flows that wait for a turn that has a number: a round, or an epoch.

use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Reverse;

use crate::FlowId;

/// Flows by the number of their turn; equal ones in the order of coming.
///
/// Nearly all wait for the very next turn, and have a queue of their own: they cost no comparison.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// The turn that `next` waits for.
    next_turn: u64,
    next: VecDeque<FlowId>,
    later: BinaryHeap<Reverse<(u64, u64, FlowId)>>,
    arrivals: u64,
}

impl Parked {
    /// Parks `flow` until `turn`.
    pub(crate) fn park(&mut self, flow: FlowId, turn: u64) {
        if self.next.is_empty() {
            self.next_turn = turn;
        }
        if turn == self.next_turn {
            self.next.push_back(flow);
        } else {
            self.arrivals += 1;
            self.later.push(Reverse((turn, self.arrivals, flow)));
        }
    }

    /// The earliest turn that a flow waits for.
    pub(crate) fn first_turn(&self) -> Option<u64> {
        let later = self.later.peek().map(|Reverse((turn, ..))| *turn);
        let next = (!self.next.is_empty()).then_some(self.next_turn);
        later.into_iter().chain(next).min()
    }

    /// Takes out a flow whose turn is `turn` or an earlier one.
    pub(crate) fn pop(&mut self, turn: u64) -> Option<FlowId> {
        let next = (!self.next.is_empty()).then_some(self.next_turn);
        if let Some(Reverse((later, ..))) = self.later.peek()
            && *later <= turn
            && next.is_none_or(|next| *later < next)
        {
            return self.later.pop().map(|Reverse((.., flow))| flow);
        }
        if next.is_some_and(|next| next <= turn) { self.next.pop_front() } else { None }
    }

    /// Forgets a flow.
    pub(crate) fn remove(&mut self, flow: FlowId) {
        self.next.retain(|other| *other != flow);
        self.later.retain(|Reverse((.., other))| *other != flow);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn flows_come_out_by_turn_and_then_in_order() {
        let mut parked = Parked::default();
        for (flow, turn) in [(1, 5), (2, 3), (3, 5), (4, 9), (5, 3)] {
            parked.park(FlowId(flow), turn);
        }
        assert_eq!(parked.first_turn(), Some(3));
        assert_eq!(parked.pop(2), None);
        parked.remove(FlowId(3));
        let all: Vec<u32> = core::iter::from_fn(|| parked.pop(9)).map(|flow| flow.0).collect();
        assert_eq!(all, [2, 5, 1, 4]);
        assert_eq!(parked.first_turn(), None);
    }
}
