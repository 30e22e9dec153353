//! Rounds: whoever waits gets a quantum in each, and sends when it has what its request costs.
//!
//! - R1: what a flow has waited for is not lost, whatever its requests cost; a flow that does not wait
//!   is given one quantum and no more. Unused quota is carried by `bucket.rs`.
//! - R2: no round is walked through in which nobody could send: a flow that cannot pay waits for the
//!   round in which it can. Small quotas and large requests cost no more than others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::FlowId;
use crate::bucket::fine;
use crate::parked::{Entry, Parked};

/// What a flow may send, and what it waits to send, in fine parts.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    deficit: i64,
    /// The round that `deficit` speaks of.
    round: u64,
    /// What it gets in a round.
    quantum: i64,
    /// What its oldest request costs.
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
    /// What has come in since the last time; the deficit speaks of `round` from now on.
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
        // Without a quota it gets what nobody else wants, slowly.
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
        // R1: it has waited till now.
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

    /// R2: goes on to the next round in which somebody can pay.
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
