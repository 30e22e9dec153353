//! Deficit Round Robin (Shreedhar and Varghese, SIGCOMM '95; Decibel, section 3.2): each flow gets its
//! quota, unused quota is carried for a while, and what is left goes round in proportion to quotas.
//!
//! - D1: what a flow asks for within its quota goes before anything beyond anybody's quota, and does
//!   not wait for the ceiling: quotas add up to no more than that.
//! - D2: beyond quotas, rounds follow each other as fast as requests and the ceiling allow, so that
//!   nothing is left unused.
//! - D3: turns are taken by deficits both within and beyond quotas, so that shares hold also where the
//!   device does less than its ceiling says.
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
use crate::{CLASSES, Cost, Quota, UNITS_PER_BLOCK};

/// Unused quota that a flow keeps.
const QUOTA_CARRIED: Carried =
    Carried { least: Duration::from_millis(10), most: Duration::from_millis(100) };
/// Unused ceiling that is kept: how long a core may be busy elsewhere before the device idles for it.
const CEILING_CARRIED: Carried =
    Carried { least: Duration::from_millis(1), most: Duration::from_millis(20) };
/// Blocks that the flow with the largest quota may send in a turn: short turns, low latency.
const QUANTUM_BLOCKS: f64 = 4.0;

/// Where a request stands to its flow's quota.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Tier {
    Within = 0,
    Beyond = 1,
}

const TIERS: usize = 2;

#[derive(Debug)]
struct Flow {
    /// Blocks a second.
    rates: [f64; CLASSES],
    quotas: [Bucket; CLASSES],
    offered: Option<(Cost, Tier)>,
    /// Whether `returns` knows of it.
    returns: bool,
}

struct Class {
    ceiling: Bucket,
    tiers: [Rounds; TIERS],
}

pub(super) struct DeficitRoundRobin {
    classes: [Class; CLASSES],
    /// The class that is looked at first.
    first_class: usize,
    flows: Vec<Flow>,
    /// Units of quantum for a block a second of quota.
    scale: f64,
    /// When flows that wait beyond their quota are within it again.
    returns: BinaryHeap<Reverse<(Instant, FlowId)>>,
}

impl Flow {
    fn new(now: Instant) -> Self {
        Self {
            rates: [0.0; CLASSES],
            quotas: [(); CLASSES].map(|()| Bucket::new(0.0, QUOTA_CARRIED, now)),
            offered: None,
            returns: false,
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
            scale: 0.0,
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
        if tier == Tier::Beyond && !this.returns && this.rates[class] > 0.0 {
            this.returns = true;
            self.returns.push(Reverse((quota.opens_at(), flow)));
        }
        let quantum = this.rates[class] * self.scale;
        self.classes[class].tiers[tier as usize].queue(flow, units, quantum);
    }

    fn unqueue(&mut self, flow: FlowId) {
        if let Some((cost, tier)) = self.flows[flow.0 as usize].offered {
            self.classes[cost.class].tiers[tier as usize].remove(flow);
        }
    }

    fn requeue(&mut self, flow: FlowId, now: Instant) {
        if let Some((cost, _)) = self.flows[flow.0 as usize].offered {
            self.unqueue(flow);
            self.queue(flow, cost, now);
        }
    }

    fn rescale(&mut self) {
        let largest = self.flows.iter().flat_map(|flow| flow.rates).fold(1.0, f64::max);
        self.scale = QUANTUM_BLOCKS * UNITS_PER_BLOCK as f64 / largest;
    }

    /// Moves flows whose time has come from beyond their quota to within.
    fn let_return(&mut self, now: Instant) {
        while let Some(Reverse((at, flow))) = self.returns.peek().copied()
            && at <= now
        {
            self.returns.pop();
            self.flows[flow.0 as usize].returns = false;
            if matches!(self.flows[flow.0 as usize].offered, Some((_, Tier::Beyond))) {
                self.requeue(flow, now);
            }
        }
    }

    /// Takes the next request of a class and tier.
    fn take(&mut self, class: usize, tier: Tier) -> Option<FlowId> {
        let Class { ceiling, tiers } = &mut self.classes[class];
        let flow = tiers[tier as usize].take()?;
        let this = &mut self.flows[flow.0 as usize];
        let (cost, _) = this.offered.take().expect("it waited");
        this.quotas[class].take(cost.units);
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
        let this = &mut self.flows[index];
        this.rates = quota.per_second;
        for (bucket, rate) in this.quotas.iter_mut().zip(quota.per_second) {
            bucket.set_rate(rate, now);
        }
        self.rescale();
        // A new quota counts from now on: also for one that waits.
        self.returns.retain(|Reverse((_, other))| *other != flow);
        self.flows[index].returns = false;
        self.requeue(flow, now);
    }

    fn remove_flow(&mut self, flow: FlowId) {
        for rounds in self.classes.iter_mut().flat_map(|class| &mut class.tiers) {
            rounds.forget(flow);
        }
        self.returns.retain(|Reverse((_, other))| *other != flow);
        self.flows[flow.0 as usize] = Flow::new(Instant(0));
        self.rescale();
    }

    fn set_ceiling(&mut self, ceiling: Quota, now: Instant) {
        for (class, rate) in self.classes.iter_mut().zip(ceiling.per_second) {
            class.ceiling.set_rate(rate, now);
        }
    }

    fn offer(&mut self, flow: FlowId, cost: Cost, _: u64, now: Instant) {
        self.queue(flow, cost, now);
    }

    fn next(&mut self, now: Instant) -> Next {
        self.let_return(now);
        let order = [self.first_class, (self.first_class + 1) % CLASSES];
        for class in order {
            if let Some(flow) = self.take(class, Tier::Within) {
                self.first_class = (class + 1) % CLASSES;
                return Next::Flow(flow);
            }
        }
        let mut opens_at = self.returns.peek().map(|Reverse((at, _))| *at);
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
