//! Rounds: whoever waits gets a quantum in each, and sends when it has what its request costs.
//!
//! - R1: an unused quantum is carried, up to [`CARRIED_ROUNDS`] or what the oldest request costs.
//! - R2: no round is walked through in which nobody could send: a flow that cannot pay waits for the
//!   round in which it can. Small quotas and large requests cost no more than others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::FlowId;
use crate::parked::Parked;

/// Rounds' worth that an idle flow keeps.
const CARRIED_ROUNDS: f64 = 4.0;

/// What a flow may send, and what it waits to send.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    deficit: f64,
    /// The round that `deficit` speaks of.
    round: u64,
    /// What it gets in a round.
    quantum: f64,
    /// What its oldest request costs.
    units: f64,
}

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// By flow.
    accounts: Vec<Account>,
    round: u64,
    /// Flows that can pay, in turn.
    current: VecDeque<FlowId>,
    parked: Parked,
}

impl Account {
    /// Brings the deficit up to `round`.
    fn enter(&mut self, round: u64) {
        let passed = round.saturating_sub(self.round) as f64;
        self.round = round;
        // R1.
        let most = (self.quantum * CARRIED_ROUNDS).max(self.units).max(self.deficit);
        self.deficit = (self.deficit + passed * self.quantum).min(most);
    }

    /// Rounds until it can pay.
    fn rounds_to_wait(&self) -> u64 {
        let missing = self.units - self.deficit;
        if missing <= 0.0 {
            return 0;
        }
        // Without a quota it gets what nobody else wants, slowly.
        let rounds = missing / self.quantum.max(1.0);
        (rounds as u64).saturating_add(1)
    }
}

impl Rounds {
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty() && self.parked.first_turn().is_none()
    }

    /// Takes in a flow whose oldest request costs `units`, and which gets `quantum` in a round.
    pub(super) fn queue(&mut self, flow: FlowId, units: u64, quantum: f64) {
        let index = flow.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        let account = &mut self.accounts[index];
        account.units = units as f64;
        account.quantum = quantum;
        self.queue_again(flow);
    }

    fn queue_again(&mut self, flow: FlowId) {
        let account = &mut self.accounts[flow.0 as usize];
        account.enter(self.round);
        match account.rounds_to_wait() {
            0 => self.current.push_back(flow),
            wait => self.parked.park(flow, self.round.saturating_add(wait)),
        }
    }

    /// Takes a flow out that waits, or not.
    pub(super) fn remove(&mut self, flow: FlowId) {
        self.current.retain(|other| *other != flow);
        self.parked.remove(flow);
    }

    /// Forgets what a flow had.
    pub(super) fn forget(&mut self, flow: FlowId) {
        self.remove(flow);
        if let Some(account) = self.accounts.get_mut(flow.0 as usize) {
            *account = Account { round: self.round, ..Account::default() };
        }
    }

    /// Takes out the flow whose turn it is, and what its request costs off its account.
    pub(super) fn take(&mut self) -> Option<FlowId> {
        while self.current.is_empty() {
            self.round = self.parked.first_turn()?;
            while let Some(flow) = self.parked.pop(self.round) {
                self.queue_again(flow);
            }
        }
        let flow = self.current.pop_front()?;
        let account = &mut self.accounts[flow.0 as usize];
        account.deficit -= account.units;
        Some(flow)
    }
}
