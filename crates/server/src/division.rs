//! One division of tenants' space among cores, as values: the core that is asked or told next, and the
//! consequences of its answer. The task that divides carries the messages (`allowance.rs`).
//!
//! - DIVISION-1: first each core is asked what it holds and may, then those are told that may less, then those that may
//!   more. An answer is due before the next question. Cores go on writing all the time: only what a core has said
//!   after it was lowered says what it may hold.
//! - DIVISION-2: cores are raised by no more than what the bound leaves beside the limits of all, as they were found to
//!   be. So no division makes all limits together more than the bound, whenever it ends (TENANT-ALLOWANCE-1).

use std::collections::VecDeque;

use dataplane::Allotment;
use typed_index_collections::TiVec;
use units::CoreIndex;

/// A question to a core, which is an order if there are limits: by tenant, so many blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Order {
    pub(super) core: CoreIndex,
    pub(super) limits: Vec<(usize, u64)>,
}

/// The result of a division for one tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Divided {
    /// The space that its volumes held when it began.
    pub(super) used: u64,
    /// The space that they could still add.
    pub(super) left: u64,
    /// The space that the cores may hold since.
    pub(super) given: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Asking,
    Lowering,
    Raising,
}

/// A division under way.
#[derive(Debug)]
pub(super) struct Division {
    /// By tenant.
    bounds: Vec<u64>,
    /// The last answer of each core, by core and tenant.
    parts: TiVec<CoreIndex, Vec<Allotment>>,
    /// The limits that are equal parts of what was left when it began, by core and tenant.
    wanted: TiVec<CoreIndex, Vec<u64>>,
    phase: Phase,
    /// Orders of this phase.
    orders: VecDeque<Order>,
    divided: Vec<Divided>,
}

impl Division {
    /// Divides these bounds, by tenant, among so many cores.
    pub(super) fn new(bounds: Vec<u64>, cores: usize) -> Self {
        let orders = (0..cores).map(|core| Order { core: CoreIndex(core), limits: Vec::new() });
        Self {
            bounds,
            parts: vec![Vec::new(); cores].into(),
            wanted: vec![Vec::new(); cores].into(),
            phase: Phase::Asking,
            orders: orders.collect(),
            divided: Vec::new(),
        }
    }

    /// The next question or order. Its answer is for [`Division::answered`], before the next (DIVISION-1). `None`: it is
    /// done.
    pub(super) fn next(&mut self) -> Option<Order> {
        loop {
            if let Some(order) = self.orders.pop_front() {
                return Some(order);
            }
            self.orders = match self.phase {
                Phase::Asking => {
                    self.phase = Phase::Lowering;
                    self.plan();
                    self.lower()
                }
                Phase::Lowering => {
                    self.phase = Phase::Raising;
                    self.raise()
                }
                Phase::Raising => return None,
            };
        }
    }

    /// A core has said what it holds and may.
    pub(super) fn answered(&mut self, core: CoreIndex, parts: Vec<Allotment>) {
        if self.phase == Phase::Lowering && broken(Sabotage::TrustOrders) {
            // What it was told, and not what it found.
            for (part, wanted) in self.parts[core].iter_mut().zip(&self.wanted[core]) {
                part.limit = part.limit.min(*wanted);
            }
            return;
        }
        self.parts[core] = parts;
    }

    /// The result of the division.
    pub(super) fn outcome(self) -> Vec<Divided> {
        self.divided
    }

    /// Equal parts of what is left.
    fn plan(&mut self) {
        for (tenant, bound) in self.bounds.iter().enumerate() {
            let used: Vec<u64> = self.parts.iter().map(|core| core[tenant].used).collect();
            let sum = used.iter().sum();
            let left = bound.saturating_sub(sum);
            self.divided.push(Divided { used: sum, left, given: 0 });
            shares(&used, left).zip(&mut self.wanted).for_each(|(share, core)| core.push(share));
        }
    }

    fn lower(&self) -> VecDeque<Order> {
        let cores = self.parts.iter_enumerated().zip(&self.wanted);
        let orders = cores.map(|((core, parts), wanted)| {
            let raises = broken(Sabotage::RaiseBeforeLowered);
            let limits = changes(parts, wanted, |limit, wanted| wanted < limit || raises);
            Order { core, limits: limits.collect() }
        });
        orders.filter(|order| !order.limits.is_empty()).collect()
    }

    /// DIVISION-2.
    fn raise(&mut self) -> VecDeque<Order> {
        let mut spare = Vec::new();
        for (tenant, (bound, divided)) in self.bounds.iter().zip(&mut self.divided).enumerate() {
            divided.given = self.parts.iter().map(|core| core[tenant].limit).sum();
            spare.push(bound.saturating_sub(divided.given));
        }
        let mut orders = VecDeque::new();
        for ((core, parts), wanted) in self.parts.iter_enumerated().zip(&self.wanted) {
            let mut limits = Vec::new();
            for (tenant, wanted) in changes(parts, wanted, |limit, wanted| wanted > limit) {
                let before = parts[tenant].limit;
                let mut more = wanted - before;
                if !broken(Sabotage::RaiseAsPlanned) {
                    more = more.min(spare[tenant]);
                }
                if !broken(Sabotage::SpareForEach) {
                    spare[tenant] = spare[tenant].saturating_sub(more);
                }
                // An order would make what the core holds its limit, which may be less.
                if more == 0 && !broken(Sabotage::RaiseByNothing) {
                    continue;
                }
                self.divided[tenant].given += more;
                limits.push((tenant, before + more));
            }
            if !limits.is_empty() {
                orders.push_back(Order { core, limits });
            }
        }
        orders
    }
}

/// The limits by which each core gets an equal part of what is left, beside what it has `used`.
fn shares(used: &[u64], left: u64) -> impl Iterator<Item = u64> {
    let count = used.len().max(1) as u64;
    let odd = left % count;
    let share = move |(used, core): (&u64, u64)| used + left / count + u64::from(core < odd);
    used.iter().zip(0..).map(share)
}

/// The tenants whose limits are to be others, with these.
fn changes(
    parts: &[Allotment],
    wanted: &[u64],
    is_one: impl Fn(u64, u64) -> bool,
) -> impl Iterator<Item = (usize, u64)> {
    let both = parts.iter().zip(wanted).enumerate();
    let one = both.filter(move |(_, (part, wanted))| is_one(part.limit, **wanted));
    one.map(|(tenant, (_, wanted))| (tenant, *wanted))
}

mutation_points::mutations! {
    if test;
    /// Ways to break a division, which the tests must notice.
    #[cfg_attr(not(test), allow(dead_code, reason = "chosen by tests only"))]
    enum Sabotage {
        /// DIVISION-2: limits are raised by what was planned, not by what the lowered ones left.
        RaiseAsPlanned,
        /// DIVISION-1: limits are raised along with those that are lowered.
        RaiseBeforeLowered,
        /// DIVISION-1: a core that was lowered is taken to hold no more than it was told.
        TrustOrders,
        /// DIVISION-2: what is spare is given to each core that wants more.
        SpareForEach,
        /// DIVISION-2: a core that holds more than its limit is told what it holds, and may keep that if something is
        /// given back.
        RaiseByNothing,
    }

    /// Breaks the divisions of this thread so from now on, or no more.
    fn sabotage;
    /// Returns whether this promise is broken.
    fn broken;
}

#[cfg(test)]
mod tests;
