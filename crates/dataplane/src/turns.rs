//! Selects the command that the core works on next.
//!
//! Commands wait by lane: one for each volume, and one for all strangers, whose volume is not known or not
//! proved yet. Lanes with commands take turns (deficit round robin), so that a volume's part of the
//! processor does not depend on how many commands its neighbours have sent, over how many connections, or
//! how cheap they are. In the strangers' lane sources take turns in the same way.
//!
//! - TURN-1: commands of a volume, or of a source of strangers, leave in the order of their coming, each
//!   once.
//! - TURN-2: in a turn a lane may spend [`QUANTUM_UNITS`], and so may a source in its own; what it lacks for
//!   its next command it keeps for its next turn. A lane without commands keeps nothing.
//! - TURN-3: a lane whose first command comes waits for one turn of each other lane, and no longer.
//! - TURN-4: strangers get as much as one volume, however many they are. One of them waits for one turn of
//!   each other source that has commands, and no longer.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use slab::Slab;

/// Units that a lane may spend in a turn. A command without data costs one unit, about a microsecond: long
/// enough that replies to one host leave together, short enough that no host notices the wait.
pub(crate) const QUANTUM_UNITS: u32 = 16;

/// The lane of a volume, by number. Numbers are reused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LaneId(usize);

/// The lane of all strangers: the first one.
const STRANGERS: usize = 0;

/// The lane in which a command waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Lane {
    /// Among those of its volume.
    Volume(LaneId),
    /// Among those of its source.
    Stranger(IpAddr),
}

/// The waiting commands, in the order in which they leave.
trait Queue {
    type Item;
    /// The cost of the next one.
    fn next_units(&mut self) -> Option<u32>;
    fn pop(&mut self) -> Option<(Self::Item, u32)>;
    fn is_empty(&self) -> bool;
}

type Line<T> = VecDeque<(T, u32)>;

impl<T> Queue for Line<T> {
    type Item = T;

    fn next_units(&mut self) -> Option<u32> {
        self.front().map(|(_, units)| *units)
    }

    fn pop(&mut self) -> Option<(T, u32)> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        VecDeque::is_empty(self)
    }
}

struct Turn<Q> {
    queue: Q,
    /// Units that it may spend.
    credit: u32,
}

/// Queues that take turns.
struct Round<Q> {
    turns: Slab<Turn<Q>>,
    /// Those that are not empty, in turn; the first has credit for its turn.
    order: VecDeque<usize>,
}

impl<Q: Queue> Round<Q> {
    fn new() -> Self {
        Self { turns: Slab::new(), order: VecDeque::new() }
    }

    fn add(&mut self, queue: Q) -> usize {
        self.turns.insert(Turn { queue, credit: 0 })
    }

    fn remove(&mut self, key: usize) -> Q {
        self.order.retain(|other| *other != key);
        self.turns.remove(key).queue
    }

    /// Lets a command into the queue `key`.
    fn push(&mut self, key: usize, push: impl FnOnce(&mut Q)) {
        let turn = &mut self.turns[key];
        if turn.queue.is_empty() {
            turn.credit = QUANTUM_UNITS;
            self.order.push_back(key);
        }
        push(&mut turn.queue);
    }

    /// Brings the first lane or source that may pay for its next command to the front (TURN-2).
    fn settle(&mut self) -> Option<u32> {
        loop {
            let turn = &mut self.turns[*self.order.front()?];
            let units = turn.queue.next_units()?;
            if turn.credit >= units {
                return Some(units);
            }
            turn.credit += QUANTUM_UNITS;
            self.order.rotate_left(1);
        }
    }

    /// The next command, what it costs, and the queue if that is empty now.
    fn pop(&mut self) -> Option<(Q::Item, u32, Option<usize>)> {
        self.settle()?;
        let key = *self.order.front()?;
        let turn = &mut self.turns[key];
        let (command, units) = turn.queue.pop()?;
        turn.credit -= units;
        let is_empty = turn.queue.is_empty();
        if is_empty {
            self.order.pop_front();
        }
        Some((command, units, is_empty.then_some(key)))
    }
}

/// Commands of strangers, by source. Of a source without commands nothing is left.
struct Strangers<T> {
    keys: BTreeMap<IpAddr, usize>,
    round: Round<(IpAddr, Line<T>)>,
}

impl<T> Queue for (IpAddr, Line<T>) {
    type Item = T;

    fn next_units(&mut self) -> Option<u32> {
        self.1.next_units()
    }

    fn pop(&mut self) -> Option<(T, u32)> {
        self.1.pop()
    }

    fn is_empty(&self) -> bool {
        Queue::is_empty(&self.1)
    }
}

impl<T> Strangers<T> {
    fn push(&mut self, source: IpAddr, command: T, units: u32) {
        let new = || self.round.add((source, Line::new()));
        let key = *self.keys.entry(source).or_insert_with(new);
        self.round.push(key, |(_, line)| line.push_back((command, units)));
    }
}

impl<T> Queue for Strangers<T> {
    type Item = T;

    fn next_units(&mut self) -> Option<u32> {
        self.round.settle()
    }

    fn pop(&mut self) -> Option<(T, u32)> {
        let (command, units, empty) = self.round.pop()?;
        if let Some(key) = empty {
            let (source, _) = self.round.turns.remove(key).queue;
            self.keys.remove(&source);
        }
        Some((command, units))
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

enum Waiting<T> {
    Strangers(Strangers<T>),
    Volume(Line<T>),
}

impl<T> Queue for Waiting<T> {
    type Item = T;

    fn next_units(&mut self) -> Option<u32> {
        match self {
            Self::Strangers(strangers) => strangers.next_units(),
            Self::Volume(line) => line.next_units(),
        }
    }

    fn pop(&mut self) -> Option<(T, u32)> {
        match self {
            Self::Strangers(strangers) => strangers.pop(),
            Self::Volume(line) => line.pop(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Strangers(strangers) => strangers.is_empty(),
            Self::Volume(line) => Queue::is_empty(line),
        }
    }
}

/// Commands that wait for the processor.
pub(crate) struct Turns<T> {
    round: Round<Waiting<T>>,
}

impl<T> Default for Turns<T> {
    /// With the strangers' lane, which stays.
    fn default() -> Self {
        let mut round = Round::new();
        let strangers = Strangers { keys: BTreeMap::new(), round: Round::new() };
        assert_eq!(round.add(Waiting::Strangers(strangers)), STRANGERS, "it is the first");
        Self { round }
    }
}

impl<T> Turns<T> {
    pub(crate) fn add_lane(&mut self) -> LaneId {
        LaneId(self.round.add(Waiting::Volume(Line::new())))
    }

    /// Removes a lane, and returns what waited there.
    pub(crate) fn remove_lane(&mut self, lane: LaneId) -> impl Iterator<Item = T> + use<T> {
        let Waiting::Volume(line) = self.round.remove(lane.0) else {
            unreachable!("strangers have the first lane, volumes the others")
        };
        line.into_iter().map(|(command, _)| command)
    }

    /// Returns true if no command waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.round.order.is_empty()
    }

    /// Takes in a command that costs `units`, at least one. That of a volume which is gone is dropped.
    pub(crate) fn push(&mut self, lane: Lane, command: T, units: u32) {
        let units = units.max(1);
        let key = match lane {
            Lane::Stranger(_) => STRANGERS,
            Lane::Volume(LaneId(key)) if self.round.turns.contains(key) => key,
            Lane::Volume(_) => return,
        };
        self.round.push(key, |waiting| match (waiting, lane) {
            (Waiting::Strangers(strangers), Lane::Stranger(source)) => {
                strangers.push(source, command, units);
            }
            (Waiting::Volume(line), Lane::Volume(_)) => line.push_back((command, units)),
            _ => unreachable!("strangers have the first lane, volumes the others"),
        });
    }

    /// Takes out the command that is next, and says what it costs.
    pub(crate) fn pop(&mut self) -> Option<(T, u32)> {
        self.round.pop().map(|(command, units, _)| (command, units))
    }
}

#[cfg(test)]
mod tests;
