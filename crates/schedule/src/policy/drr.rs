//! Deficit Round Robin (Shreedhar and Varghese, SIGCOMM '95; Decibel, section 3.2): each flow gets its
//! quota, unused quota is carried for a while, and what is left goes round in proportion to quotas.
//!
//! - D1: what a flow asks for within its quota goes before anything beyond anybody's quota, and does
//!   not wait for the ceiling: quotas add up to no more than that.
//! - D2: beyond quotas, rounds follow each other as fast as requests and the ceiling allow, so that
//!   nothing is left unused.
//! - D3: turns are taken by deficits both within and beyond quotas, so that shares hold also where the
//!   device does less than its ceiling says.
//! - D4: what is taken beyond a quota is not held against the taker when others want theirs again.
//!
//! Reads and writes are apart in all of this.

mod rounds;

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use units::{Duration, Instant};

use self::rounds::Rounds;
use super::{FlowId, Next, Policy};
use crate::bucket::{Bucket, Carried};
use crate::parked::STALE_MAX;
use crate::{CLASSES, Cost, Quota};

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

/// Where a request stands to its flow's quota.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tier {
    Within = 0,
    Beyond = 1,
}

const TIERS: usize = 2;

#[derive(Debug)]
struct Flow {
    quotas: [Bucket; CLASSES],
    /// Blocks a second, with [`RATE_BITS`] bits behind the point.
    rates: [u64; CLASSES],
    offered: Option<(Cost, Tier)>,
    /// Its entry in `returns`; others of it are stale.
    returns_at: Option<Instant>,
}

struct Class {
    ceiling: Bucket,
    tiers: [Rounds; TIERS],
}

/// How many rates there are of each power of two.
#[derive(Debug)]
struct Magnitudes {
    counts: [u32; u64::BITS as usize],
    /// A bit for each that there is.
    present: u64,
}

pub(super) struct DeficitRoundRobin {
    classes: [Class; CLASSES],
    /// The class that is looked at first.
    first_class: usize,
    flows: Vec<Flow>,
    magnitudes: Magnitudes,
    /// When flows that wait beyond their quota are within it again.
    returns: BinaryHeap<Reverse<(Instant, FlowId)>>,
}

impl Flow {
    fn new(now: Instant) -> Self {
        Self {
            rates: [0; CLASSES],
            quotas: [(); CLASSES].map(|()| Bucket::new(0.0, QUOTA_CARRIED, now)),
            offered: None,
            returns_at: None,
        }
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

    /// What a flow gets in a round: its part of what the largest gets.
    fn quantum(&self, rate: u64) -> i64 {
        let largest_bits = u64::BITS - self.present.leading_zeros();
        match QUANTUM_BITS.checked_sub(largest_bits) {
            Some(up) => (rate << up) as i64,
            None => (rate >> (largest_bits - QUANTUM_BITS)) as i64,
        }
    }
}

impl DeficitRoundRobin {
    pub(super) fn new(ceiling: Quota, now: Instant) -> Self {
        let class = |rate| Class {
            ceiling: Bucket::new(rate, CEILING_CARRIED, now),
            tiers: Default::default(),
        };
        Self {
            classes: ceiling.per_second.map(class),
            first_class: 0,
            flows: Vec::new(),
            magnitudes: Magnitudes { counts: [0; u64::BITS as usize], present: 0 },
            returns: BinaryHeap::new(),
        }
    }

    /// Puts a flow's request where it waits for its turn.
    fn queue(&mut self, flow: FlowId, cost: Cost, now: Instant) {
        let this = &mut self.flows[flow.0 as usize];
        let Cost { class, units } = cost;
        let quota = &mut this.quotas[class];
        let tier = if quota.is_open(now) { Tier::Within } else { Tier::Beyond };
        this.offered = Some((cost, tier));
        if tier == Tier::Beyond && this.returns_at.is_none() && this.rates[class] > 0 {
            let at = quota.opens_at();
            this.returns_at = Some(at);
            self.returns.push(Reverse((at, flow)));
        }
        let quantum = self.magnitudes.quantum(this.rates[class]);
        self.classes[class].tiers[tier as usize].queue(flow, units, quantum);
    }

    fn requeue(&mut self, flow: FlowId, now: Instant) {
        if let Some((cost, tier)) = self.flows[flow.0 as usize].offered {
            self.classes[cost.class].tiers[tier as usize].remove(flow);
            self.queue(flow, cost, now);
        }
    }

    fn set_rates(&mut self, flow: FlowId, rates: [u64; CLASSES]) {
        let before = core::mem::replace(&mut self.flows[flow.0 as usize].rates, rates);
        for (before, after) in before.into_iter().zip(rates) {
            self.magnitudes.change(before, after);
        }
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

    /// Takes the next request of a class and tier.
    fn take(&mut self, class: usize, tier: Tier) -> Option<FlowId> {
        let Class { ceiling, tiers } = &mut self.classes[class];
        let flow = tiers[tier as usize].take()?;
        let this = &mut self.flows[flow.0 as usize];
        let (cost, _) = this.offered.take().expect("it waited");
        if tier == Tier::Within {
            this.quotas[class].take(cost.units);
        }
        ceiling.take(cost.units);
        Some(flow)
    }
}

impl Policy for DeficitRoundRobin {
    fn set_flow(&mut self, flow: FlowId, quota: Quota, now: Instant) {
        let index = flow.0 as usize;
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || Flow::new(now));
        }
        for (bucket, rate) in self.flows[index].quotas.iter_mut().zip(quota.per_second) {
            bucket.set_rate(rate, QUOTA_CARRIED, now);
        }
        let fixed = |rate: f64| (rate * f64::from(1 << RATE_BITS)) as u64;
        self.set_rates(flow, quota.per_second.map(fixed));
        // A new quota counts from now on: also for one that waits.
        self.forget_return(flow);
        self.requeue(flow, now);
    }

    fn remove_flow(&mut self, flow: FlowId) {
        for rounds in self.classes.iter_mut().flat_map(|class| &mut class.tiers) {
            rounds.forget(flow);
        }
        self.set_rates(flow, [0; CLASSES]);
        self.forget_return(flow);
        self.flows[flow.0 as usize] = Flow::new(Instant(0));
    }

    fn set_ceiling(&mut self, ceiling: Quota, now: Instant) {
        for (class, rate) in self.classes.iter_mut().zip(ceiling.per_second) {
            class.ceiling.set_rate(rate, CEILING_CARRIED, now);
        }
    }

    fn offer(&mut self, flow: FlowId, cost: Cost, _: u64, now: Instant) {
        self.queue(flow, cost, now);
    }

    fn next(&mut self, now: Instant) -> Next {
        let returns_at = self.let_return(now);
        let order = [self.first_class, (self.first_class + 1) % CLASSES];
        for class in order {
            if let Some(flow) = self.take(class, Tier::Within) {
                self.first_class = (class + 1) % CLASSES;
                return Next::Flow(flow);
            }
        }
        let mut opens_at = returns_at;
        let mut waits = false;
        for class in order {
            if self.classes[class].tiers[Tier::Beyond as usize].is_empty() {
                continue;
            }
            if self.classes[class].ceiling.is_open(now) {
                self.first_class = (class + 1) % CLASSES;
                return self.take(class, Tier::Beyond).map_or(Next::Nothing, Next::Flow);
            }
            waits = true;
            let at = self.classes[class].ceiling.opens_at();
            opens_at = Some(opens_at.map_or(at, |other| other.min(at)));
        }
        opens_at.filter(|_| waits).map_or(Next::Nothing, Next::WaitUntil)
    }
}
