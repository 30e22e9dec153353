//! Strict Time Sharing (Decibel, section 3.2): a fixed quota for each epoch; what is not used is lost, but for
//! what a few requests cost.
//!
//! - STS-1: over any time a flow gets at most its quota, but for one request more than fits: that is paid
//!   for in later epochs. So a quota below one request an epoch works. While a request whose turn has come waits for
//!   room at the device, its quota goes on coming in, for up to one request.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use units::{Duration, Instant};

use super::{FlowId, Next, Policy};
use crate::UNITS_PER_BLOCK;
use crate::bucket::Carried;
use crate::parked::{Entry, Parked};
use crate::sabotage::{Sabotage, broken};

/// Short, so that the quota of a volume that bursts does not come to the device all at once.
const EPOCH_NS: u64 = 100_000;
/// Unused quota is lost after an epoch; with a quota of less than a few requests, after several.
const CARRIED: Carried =
    Carried { least: Duration::from_nanos(EPOCH_NS), most: Duration::from_millis(100) };

#[derive(Clone, Debug, Default)]
struct Flow {
    /// Units for an epoch.
    quota: f64,
    /// The credit that is left; below zero, the amount taken in advance.
    credit: f64,
    /// The epoch that `credit` speaks of.
    epoch: u64,
    /// The cost of its request.
    offered: Option<u64>,
    /// Its entry's, if it has an offer.
    number: u32,
}

pub(super) struct StrictTimeSharing {
    start: Instant,
    flows: Vec<Flow>,
    /// Flows with credit, in turn.
    ready: VecDeque<Entry>,
    parked: Parked,
}

impl Flow {
    /// Brings the credit up to `epoch`.
    fn enter(&mut self, epoch: u64) {
        let passed = epoch.saturating_sub(self.epoch) as f64;
        self.epoch = self.epoch.max(epoch);
        let most = CARRIED.units(self.quota / EPOCH_NS as f64);
        let most = if broken(Sabotage::KeepUnused) { f64::MAX } else { most };
        self.credit = (self.credit + passed * self.quota).min(most);
    }

    /// The epoch in which there will be credit.
    fn epoch_with_credit(&self) -> u64 {
        if self.quota <= 0.0 {
            return u64::MAX;
        }
        // At the first epoch whose credit is above zero.
        let epochs = (-self.credit).max(0.0) / self.quota + 1.0;
        self.epoch.saturating_add(epochs as u64)
    }
}

impl StrictTimeSharing {
    pub(super) fn new(now: Instant) -> Self {
        Self { start: now, flows: Vec::new(), ready: VecDeque::new(), parked: Parked::default() }
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.0.saturating_sub(self.start.0) / EPOCH_NS
    }

    fn flow(&mut self, flow: FlowId) -> &mut Flow {
        &mut self.flows[flow.0 as usize]
    }

    /// Takes a flow's offer out of its line.
    fn unqueue(&mut self, flow: FlowId) {
        let this = self.flow(flow);
        this.number = this.number.wrapping_add(1);
        let flows = &self.flows;
        self.parked.sweep(flows.len(), |entry| is_live(flows, entry));
        if self.ready.len() > 2 * flows.len() {
            self.ready.retain(|entry| is_live(flows, *entry));
        }
    }

    /// Puts a flow with an offer where it waits for its turn.
    fn queue(&mut self, flow: FlowId, now: Instant) {
        let epoch = self.epoch(now);
        let this = self.flow(flow);
        this.enter(epoch);
        let entry = Entry { flow, number: this.number };
        if this.credit > 0.0 {
            self.ready.push_back(entry);
        } else {
            let turn = this.epoch_with_credit();
            self.parked.park(entry, turn);
        }
    }
}

impl Policy for StrictTimeSharing {
    fn set_flow(&mut self, flow: FlowId, quota: f64, now: Instant) {
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, Flow::default);
        }
        let epoch = self.epoch(now);
        let this = self.flow(flow);
        this.enter(epoch);
        this.quota = quota * UNITS_PER_BLOCK as f64 * EPOCH_NS as f64 / 1e9;
        // A new quota counts from now on: also for one that waits.
        if this.offered.is_some() {
            self.unqueue(flow);
            self.queue(flow, now);
        }
    }

    fn remove_flow(&mut self, flow: FlowId) {
        self.unqueue(flow);
        let number = self.flow(flow).number;
        *self.flow(flow) = Flow { number, ..Flow::default() };
    }

    fn set_ceiling(&mut self, _: f64, _: Instant) {}

    fn offer(&mut self, flow: FlowId, units: u64, _: u64, now: Instant) {
        self.flow(flow).offered = Some(units);
        self.queue(flow, now);
    }

    fn next(&mut self, now: Instant) -> Next {
        let epoch = self.epoch(now);
        while let Some(entry) = self.parked.pop(epoch) {
            if is_live(&self.flows, entry) {
                self.queue(entry.flow, now);
            }
        }
        while let Some(entry) = self.ready.pop_front() {
            if !is_live(&self.flows, entry) {
                continue;
            }
            let this = self.flow(entry.flow);
            let units = this.offered.take().expect("a live entry has an offer");
            this.number = this.number.wrapping_add(1);
            this.credit -= units as f64;
            return Next::Flow(entry.flow);
        }
        let flows = &self.flows;
        match self.parked.first_turn(|entry| is_live(flows, entry)) {
            Some(turn) => {
                let after_ns = turn.saturating_mul(EPOCH_NS);
                Next::WaitUntil(Instant(self.start.0.saturating_add(after_ns)))
            }
            None => Next::Nothing,
        }
    }

    fn take_at_once(&mut self, flow: FlowId, units: u64, now: Instant) -> bool {
        let epoch = self.epoch(now);
        let this = self.flow(flow);
        this.enter(epoch);
        if broken(Sabotage::ForgetDebt) {
            this.credit = this.credit.max(0.0);
        }
        let is_open = this.credit > 0.0;
        if is_open && !broken(Sabotage::FreeAtOnce) {
            this.credit -= units as f64;
        }
        is_open
    }
}

fn is_live(flows: &[Flow], entry: Entry) -> bool {
    let flow = &flows[entry.flow.0 as usize];
    flow.offered.is_some() && flow.number == entry.number
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: FlowId = FlowId(0);
    const B: FlowId = FlowId(1);

    fn policy(quotas: &[f64]) -> StrictTimeSharing {
        let mut policy = StrictTimeSharing::new(Instant(0));
        for (flow, quota) in quotas.iter().enumerate() {
            policy.set_flow(FlowId(flow as u32), *quota, Instant(0));
        }
        policy
    }

    /// Counts the blocks that leave at once.
    fn at_once(policy: &mut StrictTimeSharing, flow: FlowId, now: Instant) -> u32 {
        let mut blocks = 0;
        while policy.take_at_once(flow, UNITS_PER_BLOCK, now) {
            blocks += 1;
            assert!(blocks < 10_000, "without end");
        }
        blocks
    }

    /// Unused quota is lost after an epoch, or, of low quotas, beyond a few requests.
    #[test]
    fn unused_quota_is_kept_for_an_epoch_or_a_few_requests() {
        for (quota, kept) in [(1e6, 100), (640_000.0, 64), (1_000.0, 32), (100.0, 10), (10.0, 1)] {
            let mut policy = policy(&[quota]);
            let now = Instant(10_000_000_000);
            assert_eq!(at_once(&mut policy, A, now), kept, "{quota} blocks a second");
            assert_eq!(at_once(&mut policy, A, now), 0);
        }
    }

    /// A quota of a block an epoch: one leaves in each, and none in the first, which begins with none.
    #[test]
    fn a_request_leaves_when_there_is_credit() {
        let epoch = |number: u64| Instant(number * EPOCH_NS);
        let mut policy = policy(&[10_000.0, 0.0]);
        assert!(!policy.take_at_once(A, UNITS_PER_BLOCK, epoch(0)));
        policy.offer(A, UNITS_PER_BLOCK, 0, epoch(0));
        for number in 1..100 {
            assert_eq!(policy.next(epoch(number - 1)), Next::WaitUntil(epoch(number)));
            assert_eq!(policy.next(epoch(number)), Next::Flow(A));
            policy.offer(A, UNITS_PER_BLOCK, 0, epoch(number));
        }
        policy.remove_flow(A);
        assert_eq!(policy.next(epoch(100)), Next::Nothing);
        policy.offer(B, 1, 0, epoch(100));
        assert_eq!(policy.next(epoch(1 << 40)), Next::WaitUntil(Instant(u64::MAX)), "no quota");
    }

    /// The number of a flow is used again: the new one does not have the place of the old.
    #[test]
    fn a_removed_flow_leaves_no_place_behind() {
        let mut policy = policy(&[10_000.0, 10_000.0]);
        let now = Instant(10 * EPOCH_NS);
        policy.offer(A, UNITS_PER_BLOCK, 0, now);
        policy.offer(B, UNITS_PER_BLOCK, 1, now);
        policy.remove_flow(A);
        policy.set_flow(A, 10_000.0, now);
        policy.offer(A, UNITS_PER_BLOCK, 2, now);
        assert_eq!(policy.next(now), Next::Flow(B));
        let next = Instant(11 * EPOCH_NS);
        assert_eq!(policy.next(now), Next::WaitUntil(next), "the new one has no credit yet");
        assert_eq!(policy.next(next), Next::Flow(A));
        assert_eq!(policy.next(next), Next::Nothing);
    }

    /// Stale places in the line of those with credit may be two for each flow, and one more.
    #[test]
    fn stale_places_are_swept_out_and_live_ones_stay() {
        const FLOWS: usize = 5;
        let mut policy = policy(&[10_000.0; FLOWS]);
        let now = Instant(10 * EPOCH_NS);
        (0..FLOWS as u32).for_each(|flow| policy.offer(FlowId(flow), UNITS_PER_BLOCK, 0, now));
        for places in FLOWS + 1..=2 * FLOWS + 1 {
            policy.set_flow(A, 10_000.0, now);
            assert_eq!(policy.ready.len(), places);
        }
        policy.set_flow(A, 10_000.0, now);
        assert_eq!(policy.ready.len(), FLOWS);
        for flow in [1, 2, 3, 4, 0] {
            assert_eq!(policy.next(now), Next::Flow(FlowId(flow)));
        }
        assert_eq!(policy.next(now), Next::Nothing);
    }
}
