//! Rounds: each waiting flow gets a quantum in each, and sends when its deficit covers the cost of its
//! request.
//!
//! - ROUND-1: the deficit of a waiting flow is not lost, whatever its requests cost; a flow that does
//!   not wait is given one quantum and no more. Unused quota is carried by `bucket.rs`.
//! - ROUND-2: rounds in which no flow could send are skipped: a flow that cannot pay waits for the round
//!   in which it can. Small quotas and large requests cost no more than others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::FlowId;
use crate::bucket::fine;
use crate::parked::{Entry, Parked};

/// The deficit of a flow and the cost of its oldest request, in fine parts.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    deficit: i64,
    /// The round that `deficit` speaks of.
    round: u64,
    /// Its quantum in each round.
    quantum: i64,
    /// The cost of its oldest request.
    cost: i64,
    /// Its entry's, if it waits.
    number: u32,
    waits: bool,
}

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// By flow.
    accounts: Vec<Account>,
    round: u64,
    /// Flows that can pay, in turn.
    current: VecDeque<Entry>,
    parked: Parked,
    /// Flows that wait.
    waiting: usize,
}

impl Account {
    /// The quanta of the rounds since the last time; from now on the deficit is that of `round`.
    fn came(&mut self, round: u64) -> i64 {
        let passed = round.saturating_sub(self.round);
        self.round = round;
        i64::try_from(passed).unwrap_or(i64::MAX).saturating_mul(self.quantum)
    }

    /// Brings the deficit of a flow that did not wait up to `round`.
    fn join(&mut self, round: u64) {
        let came = self.came(round);
        self.deficit = self.deficit.saturating_add(came).min(self.quantum.max(self.deficit));
    }

    /// The same of a flow that has waited.
    fn enter(&mut self, round: u64) {
        let came = self.came(round);
        let most = self.cost.saturating_add(self.quantum).max(self.deficit);
        self.deficit = self.deficit.saturating_add(came).min(most);
    }

    /// Rounds until it can pay.
    fn rounds_to_wait(&self) -> u64 {
        let missing = self.cost - self.deficit;
        if missing <= 0 { 0 } else { ((missing - 1) / self.quantum) as u64 + 1 }
    }
}

impl Rounds {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Takes in a flow that does not wait. Its oldest request costs `units`, and it gets `quantum` in
    /// a round, in fine parts.
    pub(super) fn queue(&mut self, flow: FlowId, units: u64, quantum: i64) {
        let index = flow.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        let account = &mut self.accounts[index];
        account.cost = fine(units);
        // Without a quota it gets the capacity that no other flow wants, slowly.
        account.quantum = quantum.max(fine(1));
        account.join(self.round);
        account.waits = true;
        self.waiting += 1;
        self.queue_again(flow);
    }

    fn queue_again(&mut self, flow: FlowId) {
        let account = &mut self.accounts[flow.0 as usize];
        account.enter(self.round);
        let entry = Entry { flow, number: account.number };
        match account.rounds_to_wait() {
            0 => self.current.push_back(entry),
            wait => self.parked.park(entry, self.round.saturating_add(wait)),
        }
    }

    /// Takes a flow out that waits, or not.
    pub(super) fn remove(&mut self, flow: FlowId) {
        let Some(account) = self.accounts.get_mut(flow.0 as usize) else { return };
        if !core::mem::take(&mut account.waits) {
            return;
        }
        // ROUND-1: it has waited till now.
        account.enter(self.round);
        account.number = account.number.wrapping_add(1);
        self.waiting -= 1;
        let accounts = &self.accounts;
        self.parked.sweep(accounts.len(), |entry| is_live(accounts, entry));
        if self.current.len() > 2 * accounts.len() {
            self.current.retain(|entry| is_live(accounts, *entry));
        }
    }

    /// Forgets what a flow had.
    pub(super) fn forget(&mut self, flow: FlowId) {
        self.remove(flow);
        if let Some(account) = self.accounts.get_mut(flow.0 as usize) {
            let number = account.number;
            *account = Account { round: self.round, number, ..Account::default() };
        }
    }

    /// Takes out the flow whose turn it is, and what its request costs off its account.
    pub(super) fn take(&mut self) -> Option<FlowId> {
        if self.waiting == 0 {
            return None;
        }
        loop {
            let Some(entry) = self.current.pop_front() else {
                self.begin_round();
                continue;
            };
            if !is_live(&self.accounts, entry) {
                continue;
            }
            let account = &mut self.accounts[entry.flow.0 as usize];
            account.deficit -= account.cost;
            account.waits = false;
            account.number = account.number.wrapping_add(1);
            self.waiting -= 1;
            return Some(entry.flow);
        }
    }

    /// ROUND-2: goes on to the next round in which a flow can pay.
    fn begin_round(&mut self) {
        let accounts = &self.accounts;
        let turn = self.parked.first_turn(|entry| is_live(accounts, entry));
        self.round = turn.expect("who waits is in line or parked");
        while let Some(entry) = self.parked.pop(self.round) {
            if is_live(&self.accounts, entry) {
                self.queue_again(entry.flow);
            }
        }
    }
}

fn is_live(accounts: &[Account], entry: Entry) -> bool {
    let account = &accounts[entry.flow.0 as usize];
    account.waits && account.number == entry.number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UNITS_PER_BLOCK;

    const QUANTUM: i64 = (UNITS_PER_BLOCK << 16) as i64;
    const A: FlowId = FlowId(0);
    const B: FlowId = FlowId(1);

    /// Queues a request of so many blocks of a flow that gets one a round.
    fn queue(rounds: &mut Rounds, flow: FlowId, blocks: u64) {
        rounds.queue(flow, blocks * UNITS_PER_BLOCK, QUANTUM);
    }

    #[test]
    fn a_request_leaves_in_the_first_round_that_pays_for_it() {
        let block = UNITS_PER_BLOCK;
        for (units, round) in
            [(1, 1), (block - 1, 1), (block, 1), (block + 1, 2), (7 * block, 7), (7 * block + 1, 8)]
        {
            let mut rounds = Rounds::default();
            assert_eq!((rounds.take(), rounds.is_empty()), (None, true));
            rounds.queue(A, units, QUANTUM);
            assert!(!rounds.is_empty());
            assert_eq!((rounds.take(), rounds.round), (Some(A), round), "{units} units");
            assert_eq!((rounds.take(), rounds.is_empty()), (None, true));
            // What it did not use is left of it.
            let left = round as i64 * QUANTUM - fine(units);
            assert_eq!(rounds.accounts[0].deficit, left, "{units} units");
        }
    }

    #[test]
    fn without_a_quantum_it_gets_the_least() {
        let mut rounds = Rounds::default();
        rounds.queue(A, 3, 0);
        assert_eq!((rounds.take(), rounds.round), (Some(A), 3));
    }

    /// ROUND-1: a flow that was away for a hundred rounds pays for one block of ten, and waits for nine.
    #[test]
    fn a_flow_that_did_not_wait_has_one_quantum() {
        let mut rounds = Rounds::default();
        queue(&mut rounds, A, 1);
        queue(&mut rounds, B, 1);
        assert_eq!([rounds.take(), rounds.take()], [Some(A), Some(B)]);
        for _ in 0..100 {
            queue(&mut rounds, B, 1);
            assert_eq!(rounds.take(), Some(B));
        }
        let round = rounds.round;
        queue(&mut rounds, A, 10);
        let mut turns_of_b = 0;
        queue(&mut rounds, B, 1);
        while rounds.take() == Some(B) {
            turns_of_b += 1;
            queue(&mut rounds, B, 1);
        }
        assert_eq!(rounds.round, round + 9);
        assert!((8..=9).contains(&turns_of_b), "{turns_of_b}");
    }

    /// ROUND-1: a flow that leaves its line for another keeps what it has waited for.
    #[test]
    fn what_was_waited_for_is_kept() {
        let mut rounds = Rounds::default();
        queue(&mut rounds, A, 10);
        for _ in 0..4 {
            queue(&mut rounds, B, 1);
            assert_eq!(rounds.take(), Some(B));
        }
        assert_eq!(rounds.round, 4);
        rounds.remove(A);
        assert!(rounds.is_empty());
        rounds.remove(A);
        rounds.remove(FlowId(7));
        assert!(rounds.is_empty(), "to remove what does not wait changes nothing");
        queue(&mut rounds, A, 10);
        assert_eq!((rounds.take(), rounds.round), (Some(A), 10));
    }

    /// The number of a flow is used again: the new one has neither the account nor the place of the old.
    #[test]
    fn a_forgotten_flow_leaves_nothing_behind() {
        let mut rounds = Rounds::default();
        queue(&mut rounds, A, 10);
        for _ in 0..9 {
            queue(&mut rounds, B, 1);
            assert_eq!(rounds.take(), Some(B));
        }
        rounds.forget(A);
        assert!(rounds.is_empty());
        queue(&mut rounds, A, 2);
        assert_eq!((rounds.take(), rounds.round), (Some(A), 11), "it began in round 9");

        // A place in the line: the first of two that can pay.
        let mut rounds = Rounds::default();
        queue(&mut rounds, A, 0);
        queue(&mut rounds, B, 0);
        rounds.forget(A);
        queue(&mut rounds, A, 0);
        assert_eq!([rounds.take(), rounds.take()], [Some(B), Some(A)]);
    }

    /// Stale places in the line of those that can pay may be two for each flow.
    #[test]
    fn stale_places_are_swept_out_and_live_ones_stay() {
        const FLOWS: u32 = 5;
        let mut rounds = Rounds::default();
        (0..FLOWS).for_each(|flow| queue(&mut rounds, FlowId(flow), 0));
        assert_eq!(rounds.current.len(), FLOWS as usize);
        while rounds.current.len() <= 2 * FLOWS as usize {
            let before = rounds.current.len();
            rounds.remove(A);
            assert_eq!(rounds.current.len(), before);
            queue(&mut rounds, A, 0);
        }
        rounds.remove(A);
        assert_eq!(rounds.current.len(), FLOWS as usize - 1);
        let left: Vec<_> = core::iter::from_fn(|| rounds.take()).map(|flow| flow.0).collect();
        assert_eq!(left, [1, 2, 3, 4]);
    }
}
