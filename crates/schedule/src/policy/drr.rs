//! Deficit Round Robin (Shreedhar and Varghese, SIGCOMM '95; Decibel, section 3.2): each flow gets its
//! quota, unused quota is carried for a while, and what is left goes round in proportion to quotas.
//!
//! - DRR-1: what a flow asks for within its quota goes before anything beyond anybody's quota, and
//!   does not wait for the ceiling: quotas add up to no more than that.
//! - DRR-2: beyond quotas, rounds follow each other as fast as requests and the ceiling allow, so that
//!   nothing is left unused.
//! - DRR-3: turns are taken by deficits both within and beyond quotas, so that shares hold also where
//!   the device does less than its ceiling says.
//! - DRR-4: what is taken beyond a quota is not held against the taker when others want theirs again.

mod rounds;

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use units::{Duration, Instant};

use self::rounds::Rounds;
use super::{FlowId, Next, Policy};
use crate::bucket::{Bucket, Carried};
use crate::parked::STALE_MAX;
use crate::sabotage::{Sabotage, broken};

/// Unused quota that a flow keeps.
const QUOTA_CARRIED: Carried =
    Carried { least: Duration::from_millis(10), most: Duration::from_millis(100) };
/// Unused ceiling that is kept: how long a core may be busy elsewhere before the device idles for it.
const CEILING_CARRIED: Carried =
    Carried { least: Duration::from_millis(1), most: Duration::from_millis(20) };
/// The flow with the largest quota may send two to four blocks in a turn: short turns, low latency.
/// As a power of two of fine parts.
const QUANTUM_BITS: u32 = 34;
/// Bits behind the point of a rate.
const RATE_BITS: u32 = 16;

/// The tier of a request with respect to its flow's quota.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tier {
    Within = 0,
    Beyond = 1,
}

const TIERS: usize = 2;

#[derive(Debug)]
struct Flow {
    quota: Bucket,
    /// Blocks a second, with [`RATE_BITS`] bits behind the point.
    rate: u64,
    /// The cost of its request, and the request's tier.
    offered: Option<(u64, Tier)>,
    /// Its entry in `returns`; others of it are stale.
    returns_at: Option<Instant>,
}

/// The number of rates of each power of two.
#[derive(Debug)]
struct Magnitudes {
    counts: [u32; u64::BITS as usize],
    /// A bit for each that there is.
    present: u64,
}

pub(super) struct DeficitRoundRobin {
    ceiling: Bucket,
    tiers: [Rounds; TIERS],
    flows: Vec<Flow>,
    magnitudes: Magnitudes,
    /// When flows that wait beyond their quota are within it again.
    returns: BinaryHeap<Reverse<(Instant, FlowId)>>,
}

impl Flow {
    fn new(now: Instant) -> Self {
        let quota = Bucket::new(0.0, QUOTA_CARRIED, now);
        Self { quota, rate: 0, offered: None, returns_at: None }
    }
}

impl Magnitudes {
    fn change(&mut self, before: u64, after: u64) {
        if let Some(bit) = before.checked_ilog2() {
            self.counts[bit as usize] -= 1;
            if self.counts[bit as usize] == 0 {
                self.present &= !(1 << bit);
            }
        }
        if let Some(bit) = after.checked_ilog2() {
            self.counts[bit as usize] += 1;
            self.present |= 1 << bit;
        }
    }

    /// The quantum of a flow in a round: its part of the largest flow's.
    fn quantum(&self, rate: u64) -> i64 {
        let largest_bits = u64::BITS - self.present.leading_zeros();
        match QUANTUM_BITS.checked_sub(largest_bits) {
            Some(up) => (rate << up) as i64,
            None => (rate >> (largest_bits - QUANTUM_BITS)) as i64,
        }
    }
}

impl DeficitRoundRobin {
    pub(super) fn new(ceiling: f64, now: Instant) -> Self {
        Self {
            ceiling: Bucket::new(ceiling, CEILING_CARRIED, now),
            tiers: Default::default(),
            flows: Vec::new(),
            magnitudes: Magnitudes { counts: [0; u64::BITS as usize], present: 0 },
            returns: BinaryHeap::new(),
        }
    }

    /// Puts a flow's request where it waits for its turn.
    fn queue(&mut self, flow: FlowId, units: u64, now: Instant) {
        let this = &mut self.flows[flow.0 as usize];
        let tier = if this.quota.is_open(now) { Tier::Within } else { Tier::Beyond };
        this.offered = Some((units, tier));
        if tier == Tier::Beyond && this.returns_at.is_none() && !broken(Sabotage::NoReturn) {
            let at = this.quota.opens_at();
            this.returns_at = Some(at);
            self.returns.push(Reverse((at, flow)));
        }
        let quantum = self.magnitudes.quantum(this.rate);
        self.tiers[tier as usize].queue(flow, units, quantum);
    }

    fn requeue(&mut self, flow: FlowId, now: Instant) {
        if let Some((units, tier)) = self.flows[flow.0 as usize].offered {
            self.tiers[tier as usize].remove(flow);
            self.queue(flow, units, now);
        }
    }

    fn set_rate(&mut self, flow: FlowId, rate: u64) {
        let before = core::mem::replace(&mut self.flows[flow.0 as usize].rate, rate);
        self.magnitudes.change(before, rate);
    }

    /// Forgets when a flow returns; its entry is stale from now on.
    fn forget_return(&mut self, flow: FlowId) {
        let flows = &mut self.flows;
        flows[flow.0 as usize].returns_at = None;
        if self.returns.len() > 2 * flows.len() + STALE_MAX {
            let is_live = |at, flow: FlowId| flows[flow.0 as usize].returns_at == Some(at);
            self.returns.retain(|Reverse((at, flow))| is_live(*at, *flow));
        }
    }

    /// Moves flows whose time has come from beyond their quota to within. Returns when the next
    /// does.
    fn let_return(&mut self, now: Instant) -> Option<Instant> {
        loop {
            let Reverse((at, flow)) = *self.returns.peek()?;
            let this = &mut self.flows[flow.0 as usize];
            let is_live = this.returns_at == Some(at);
            if is_live && at > now {
                return Some(at);
            }
            self.returns.pop();
            if is_live {
                this.returns_at = None;
                if matches!(this.offered, Some((_, Tier::Beyond))) {
                    self.requeue(flow, now);
                }
            }
        }
    }

    /// Takes the next request of a tier.
    fn take(&mut self, tier: Tier) -> Option<FlowId> {
        let flow = self.tiers[tier as usize].take()?;
        let this = &mut self.flows[flow.0 as usize];
        let (units, _) = this.offered.take().expect("it waited");
        if tier == Tier::Within || broken(Sabotage::BeyondIsHeldAgainst) {
            this.quota.take(units);
        }
        self.ceiling.take(units);
        Some(flow)
    }
}

impl Policy for DeficitRoundRobin {
    fn set_flow(&mut self, flow: FlowId, quota: f64, now: Instant) {
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || Flow::new(now));
        }
        self.flows[index].quota.set_rate(quota, QUOTA_CARRIED, now);
        if broken(Sabotage::RefillByQuota) {
            self.flows[index].quota.forgive(true);
        }
        self.set_rate(flow, (quota * f64::from(1 << RATE_BITS)) as u64);
        // A new quota counts from now on: also for one that waits.
        self.forget_return(flow);
        self.requeue(flow, now);
    }

    fn remove_flow(&mut self, flow: FlowId) {
        self.tiers.iter_mut().for_each(|rounds| rounds.forget(flow));
        self.set_rate(flow, 0);
        self.forget_return(flow);
        self.flows[flow.0 as usize] = Flow::new(Instant(0));
    }

    fn set_ceiling(&mut self, ceiling: f64, now: Instant) {
        self.ceiling.set_rate(ceiling, CEILING_CARRIED, now);
        if broken(Sabotage::RefillByCeiling) {
            self.ceiling.forgive(true);
        }
    }

    fn offer(&mut self, flow: FlowId, units: u64, _: u64, now: Instant) {
        self.queue(flow, units, now);
    }

    fn next(&mut self, now: Instant) -> Next {
        let returns_at = self.let_return(now);
        if let Some(flow) = self.take(Tier::Within) {
            return Next::Flow(flow);
        }
        if self.tiers[Tier::Beyond as usize].is_empty() {
            return Next::Nothing;
        }
        if self.ceiling.is_open(now) {
            return self.take(Tier::Beyond).map_or(Next::Nothing, Next::Flow);
        }
        let opens_at = self.ceiling.opens_at();
        Next::WaitUntil(returns_at.map_or(opens_at, |at| at.min(opens_at)))
    }

    /// DRR-1, DRR-3: within its quota, and while no flow waits there are no turns.
    fn take_at_once(&mut self, flow: FlowId, units: u64, now: Instant) -> bool {
        let quota = &mut self.flows[flow.0 as usize].quota;
        if broken(Sabotage::ForgetDebt) {
            quota.forgive(false);
        }
        let is_open = quota.is_open(now);
        if is_open && !broken(Sabotage::FreeAtOnce) {
            quota.take(units);
        }
        if is_open && !broken(Sabotage::UnchargedAtOnce) {
            self.ceiling.take(units);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UNITS_PER_BLOCK;

    const BLOCK: i64 = (UNITS_PER_BLOCK << 16) as i64;
    const SECOND: u64 = 1_000_000_000;

    fn magnitudes(rates: &[u64]) -> Magnitudes {
        let mut all = Magnitudes { counts: [0; u64::BITS as usize], present: 0 };
        rates.iter().for_each(|rate| all.change(0, *rate));
        all
    }

    #[test]
    fn the_largest_quota_gets_two_to_four_blocks_and_others_their_part() {
        for bits in 1..u64::BITS {
            let largest = 3 << (bits - 1);
            let all = magnitudes(&[largest, largest / 2]);
            let quantum = all.quantum(largest);
            assert!((2 * BLOCK..4 * BLOCK).contains(&quantum), "{bits} bits: {quantum}");
            assert_eq!(quantum, 3 * BLOCK, "{bits} bits");
            let half = if bits == 1 { BLOCK } else { 3 * BLOCK / 2 };
            assert_eq!(all.quantum(largest / 2), half, "{bits} bits");
        }
        assert_eq!(magnitudes(&[5]).quantum(0), 0);
    }

    #[test]
    fn the_largest_is_the_largest_that_is_left() {
        let mut all = magnitudes(&[1 << 20, 1 << 20, 1 << 10, 1]);
        assert_eq!(all.quantum(1 << 20), 2 * BLOCK);
        all.change(1 << 20, 0);
        assert_eq!(all.quantum(1 << 20), 2 * BLOCK, "the other of the two is still there");
        all.change(1 << 20, 1 << 9);
        assert_eq!(all.quantum(1 << 10), 2 * BLOCK);
        all.change(1 << 9, 0);
        all.change(1 << 10, 0);
        assert_eq!(all.quantum(1), 2 * BLOCK);
        all.change(1, 1 << 40);
        assert_eq!(all.quantum(1 << 40), 2 * BLOCK);
    }

    fn policy(ceiling: f64, quotas: &[f64]) -> DeficitRoundRobin {
        let mut policy = DeficitRoundRobin::new(ceiling, Instant(0));
        for (flow, quota) in quotas.iter().enumerate() {
            policy.set_flow(FlowId(flow as u32), *quota, Instant(0));
        }
        policy
    }

    /// Counts what leaves of `flows`, all of which always want a block, until `end`.
    fn serve(
        policy: &mut DeficitRoundRobin,
        flows: core::ops::Range<u32>,
        now: u64,
        end: u64,
    ) -> Vec<u64> {
        let mut served = alloc::vec![0; flows.end as usize];
        let mut now = Instant(now);
        for flow in flows.map(FlowId) {
            if policy.flows[flow.0 as usize].offered.is_none() {
                policy.offer(flow, UNITS_PER_BLOCK, 0, now);
            }
        }
        while now < Instant(end) {
            match policy.next(now) {
                Next::Flow(flow) => {
                    served[flow.0 as usize] += 1;
                    policy.offer(flow, UNITS_PER_BLOCK, 0, now);
                }
                Next::WaitUntil(at) => now = at,
                Next::Nothing => panic!("all always wait"),
            }
        }
        served
    }

    #[test]
    fn what_is_left_is_divided_by_quotas() {
        let mut policy = policy(40_000.0, &[100.0, 300.0]);
        let served = serve(&mut policy, 0..2, 0, SECOND);
        assert!((38_000..42_000).contains(&(served[0] + served[1])), "{served:?}");
        let part = served[1] as f64 / served[0] as f64;
        assert!((2.9..3.1).contains(&part), "{served:?}");
    }

    #[test]
    fn another_ceiling_holds_from_then_on() {
        let mut policy = policy(40_000.0, &[100.0]);
        serve(&mut policy, 0..1, 0, SECOND);
        policy.set_ceiling(10_000.0, Instant(SECOND));
        let served = serve(&mut policy, 0..1, SECOND, 2 * SECOND)[0];
        assert!((9_900..10_500).contains(&served), "{served}");
        policy.set_ceiling(20_000.0, Instant(2 * SECOND));
        let served = serve(&mut policy, 0..1, 2 * SECOND, 3 * SECOND)[0];
        assert!((19_900..20_500).contains(&served), "{served}");
    }

    /// Without a quota a flow gets what is left, and is not within a quota at any time.
    #[test]
    fn a_flow_without_a_quota_gets_what_is_left() {
        let mut policy = policy(1_000.0, &[0.0, 900.0]);
        let served = serve(&mut policy, 0..1, 0, SECOND);
        assert!((990..1_100).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn a_flow_has_one_return_while_it_waits_beyond_its_quota() {
        let mut policy = policy(1e6, &[1_000.0, 1_000.0]);
        let (flow, now) = (FlowId(0), Instant(SECOND));
        policy.offer(flow, UNITS_PER_BLOCK, 0, now);
        assert_eq!(policy.returns.len(), 0, "it is within");
        // More than is carried: the next one is beyond.
        policy.flows[0].quota.take(1_000 * UNITS_PER_BLOCK);
        assert_eq!(policy.next(now), Next::Flow(flow));
        for _ in 0..3 {
            policy.offer(flow, UNITS_PER_BLOCK, 0, now);
            assert_eq!(policy.returns.len(), 1);
            assert_eq!(policy.next(now), Next::Flow(flow));
        }
    }

    /// Stale returns may be two for each flow, and so many more.
    #[test]
    fn stale_returns_are_swept_out_and_live_ones_stay() {
        const FLOWS: usize = 10;
        let mut policy = policy(1.0, &[1_000.0; FLOWS]);
        for flow in 0..FLOWS {
            policy.flows[flow].quota.take(1_000 * UNITS_PER_BLOCK);
            policy.offer(FlowId(flow as u32), UNITS_PER_BLOCK, 0, Instant(0));
        }
        let most = 2 * FLOWS + STALE_MAX;
        while policy.returns.len() <= most {
            let before = policy.returns.len();
            policy.set_flow(FlowId(0), 1_000.0, Instant(0));
            assert_eq!(policy.returns.len(), before + 1, "of the last one, too, there is an entry");
        }
        policy.set_flow(FlowId(0), 1_000.0, Instant(0));
        assert_eq!(policy.returns.len(), FLOWS, "one of each that waits");
    }
}
