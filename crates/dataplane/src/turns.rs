//! Whose command the core works on next.
//!
//! Commands wait by lane: one for each volume, and [`STRANGER_LANES`] for those who have not said, or not proved, which they
//! want, by their source.
//! Lanes with commands take turns (deficit round robin), so that what a volume gets of the processor
//! does not depend on how many commands its neighbours have sent, over how many connections, or how
//! cheap they are.
//!
//! - T1: commands of a lane leave in the order of their coming, each once.
//! - T2: in a turn a lane may spend [`QUANTUM_UNITS`]; what it lacks for its next command it keeps for
//!   its next turn. A lane that falls empty keeps nothing.
//! - T3: a lane whose first command comes waits for one turn of each other lane, and no longer.
//! - T4: strangers of one source get a quarter of what a volume gets, and keep nobody waiting but those who share
//!   their lane.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use slab::Slab;

use crate::throttle::source;

/// What a lane may spend in a turn. A command without data costs one unit, about a microsecond: long
/// enough that replies to one host leave together, short enough that nobody notices the wait.
pub(crate) const QUANTUM_UNITS: u32 = 16;

/// What strangers of one lane may spend in a turn (T4).
const STRANGERS_QUANTUM_UNITS: u32 = 4;
/// Lanes of strangers: the first ones.
const STRANGER_LANES: u64 = 16;

/// A lane, by number. Numbers are reused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LaneId(usize);

impl LaneId {
    /// The lane of whoever comes from `address` and has not said, or not proved, for which volume.
    pub(crate) fn of_stranger(address: IpAddr) -> Self {
        let mut hasher = DefaultHasher::new();
        source(address).hash(&mut hasher);
        Self((hasher.finish() % STRANGER_LANES) as usize)
    }

    fn quantum_units(self) -> u32 {
        let is_of_strangers = (self.0 as u64) < STRANGER_LANES;
        if is_of_strangers { STRANGERS_QUANTUM_UNITS } else { QUANTUM_UNITS }
    }
}

struct Line<T> {
    waiting: VecDeque<(T, u32)>,
    /// Units that it may spend.
    credit: u32,
}

/// Commands that wait for the processor.
pub(crate) struct Turns<T> {
    lanes: Slab<Line<T>>,
    /// Lanes with commands, in turn; the first has credit for its turn.
    order: VecDeque<LaneId>,
}

impl<T> Default for Turns<T> {
    /// With the strangers' lanes, which stay.
    fn default() -> Self {
        let mut turns = Self { lanes: Slab::new(), order: VecDeque::new() };
        for _ in 0..STRANGER_LANES {
            turns.add_lane();
        }
        turns
    }
}

impl<T> Turns<T> {
    pub(crate) fn add_lane(&mut self) -> LaneId {
        LaneId(self.lanes.insert(Line { waiting: VecDeque::new(), credit: 0 }))
    }

    /// Removes a lane; returns what waited there.
    pub(crate) fn remove_lane(&mut self, lane: LaneId) -> impl Iterator<Item = T> + use<T> {
        self.order.retain(|other| *other != lane);
        self.lanes.remove(lane.0).waiting.into_iter().map(|(command, _)| command)
    }

    /// Whether no command waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Takes in a command that costs `units`, at least one. Of a volume that is gone they wait among strangers'.
    pub(crate) fn push(&mut self, lane: LaneId, command: T, units: u32) {
        let lane = if self.lanes.contains(lane.0) { lane } else { LaneId(0) };
        let line = &mut self.lanes[lane.0];
        if line.waiting.is_empty() {
            line.credit = lane.quantum_units();
            self.order.push_back(lane);
        }
        line.waiting.push_back((command, units.max(1)));
    }

    /// Takes out the command that is next, and says what it costs.
    pub(crate) fn pop(&mut self) -> Option<(T, u32)> {
        loop {
            let lane = *self.order.front()?;
            let line = &mut self.lanes[lane.0];
            let (_, units) = line.waiting.front()?;
            if line.credit < *units {
                // T2.
                line.credit += lane.quantum_units();
                self.order.rotate_left(1);
                continue;
            }
            line.credit -= units;
            let next = line.waiting.pop_front();
            if line.waiting.is_empty() {
                self.order.pop_front();
            }
            return next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each lane spends until `units` are spent, all having more than they get.
    fn spend(costs: &[u32], units: u32) -> Vec<u32> {
        let mut turns = Turns::default();
        let lanes: Vec<LaneId> = costs.iter().map(|_| turns.add_lane()).collect();
        let mut spent = vec![0; costs.len()];
        for (n, (lane, cost)) in lanes.iter().zip(costs).enumerate() {
            (0..units).for_each(|_| turns.push(*lane, n, *cost));
        }
        while spent.iter().sum::<u32>() < units {
            let (lane, cost) = turns.pop().expect("more waits");
            spent[lane] += cost;
        }
        spent
    }

    #[test]
    fn lanes_get_equal_parts_whatever_their_commands_cost() {
        let spent = spend(&[1, 3, 65, 7, 1], 20_000);
        for spent in &spent {
            assert!((3_800..=4_200).contains(spent), "{spent:?}");
        }
    }

    /// T3.
    #[test]
    fn whoever_comes_waits_for_one_turn_of_each_other() {
        let mut turns = Turns::default();
        let (crowd, late) = ([(); 3].map(|()| turns.add_lane()), turns.add_lane());
        for lane in crowd {
            (0..1000).for_each(|_| turns.push(lane, "crowd", 1));
        }
        assert!((0..20).all(|_| turns.pop() == Some(("crowd", 1))));
        turns.push(late, "late", 1);
        let before = std::iter::from_fn(|| turns.pop()).take_while(|(who, _)| *who != "late");
        assert!(before.count() <= 3 * QUANTUM_UNITS as usize);
    }

    /// T4.
    #[test]
    fn strangers_of_one_source_keep_no_other_waiting() {
        let address = |n| IpAddr::V4(std::net::Ipv4Addr::from_bits(n));
        let (crowd, other) = (LaneId::of_stranger(address(1)), LaneId::of_stranger(address(2)));
        assert_ne!(crowd, other);
        let mut turns = Turns::default();
        let volume = turns.add_lane();
        (0..10_000).for_each(|_| turns.push(crowd, "crowd", 5));
        (0..10_000).for_each(|_| turns.push(volume, "volume", 1));
        turns.push(other, "other", 5);
        let popped = std::iter::from_fn(|| turns.pop()).take(5_000);
        let popped: Vec<(&str, u32)> = popped.collect();
        let waited: u32 =
            popped.iter().take_while(|(who, _)| *who != "other").map(|(_, units)| units).sum();
        assert!(waited <= 2 * (QUANTUM_UNITS + 2 * STRANGERS_QUANTUM_UNITS), "{waited}");
        let of =
            |wanted| popped.iter().filter(|(who, _)| *who == wanted).map(|(_, u)| u).sum::<u32>();
        let part = f64::from(of("crowd")) / f64::from(of("crowd") + of("volume"));
        assert!((0.18..0.22).contains(&part), "{part}");
    }

    /// T1.
    #[test]
    fn commands_of_a_lane_keep_their_order_and_those_of_a_lane_that_goes_are_returned() {
        let mut turns = Turns::default();
        let (stays, goes) = (turns.add_lane(), turns.add_lane());
        for n in 0..100 {
            turns.push(if n % 2 == 0 { stays } else { goes }, n, n % 40);
        }
        assert!(turns.remove_lane(goes).eq((1..100).step_by(2)));
        turns.push(goes, 100, 1);
        let left: Vec<u32> = std::iter::from_fn(|| turns.pop()).map(|(n, _)| n).collect();
        let (of_strangers, of_lane): (Vec<u32>, _) = left.into_iter().partition(|n| *n == 100);
        assert_eq!((of_strangers.len(), turns.is_empty()), (1, true));
        assert!(of_lane.into_iter().eq((0..100).step_by(2)));
    }
}
