//! Nodes in memory that go, because they can be read back.
//!
//! - EVICT-1: a node goes only if its place holds it as it is: it is not dirty, and the write that put
//!   it there is over. Everything below it is gone before.
//! - EVICT-2: a node whose keys a request under way relies on does not go (NODE-4).
//! - EVICT-3: what was looked at since the clock's hand last came by stays until it comes again,
//!   unless that would take long.

use std::rc::Rc;

use situations::{Situation, situation, situation_if};

use super::Map;
use super::node::{Body, Child, Node};
use crate::sabotage::{Sabotage, broken};

/// Children looked at before what was used lately goes, too (EVICT-3). Some tens of microseconds.
const STEPS_MAX: u64 = 8192;

/// The clock's hand on its way.
pub struct Sweep {
    /// Bytes that are to be freed, and that were.
    wanted: u64,
    /// Bytes that it has freed so far.
    pub freed: u64,
    /// Nodes that went.
    pub nodes: u64,
    steps: u64,
}

impl Sweep {
    /// A sweep that is to free so many bytes.
    pub fn new(wanted: u64) -> Self {
        Self { wanted, freed: 0, nodes: 0, steps: 0 }
    }

    /// Returns true if it has freed enough, or has been all around.
    pub fn is_over(&self) -> bool {
        self.freed >= self.wanted || self.steps > 2 * STEPS_MAX
    }

    /// Returns the child to keep in place of the node, if the node is to be evicted.
    fn takes(&mut self, node: &Rc<Node>, pinned: impl FnOnce() -> bool) -> Option<Child> {
        let gone = match node.stored_at() {
            Some(place) => Child::on_disk(place),
            None if broken(Sabotage::EvictDirty) && node.level() == 0 => Child::Absent,
            None if broken(Sabotage::EvictUnwritten) => Child::on_disk(node.placed.get()?),
            None => return None,
        };
        let used = node.take_recent() && self.steps <= STEPS_MAX;
        // What someone else holds would not be free: an older version, or a write under way.
        let held = Rc::strong_count(node) > 1 && !broken(Sabotage::EvictUnwritten);
        let free = broken(Sabotage::EvictPinned) && node.level() == 0;
        if used || held {
            return None;
        }
        if pinned() && !free {
            situation(Situation::PinnedNodeStays);
            return None;
        }
        situation_if(Situation::InnerNodeEvicted, || node.level() > 0);
        self.freed += node.len_bytes();
        self.nodes += 1;
        Some(gone)
    }
}

impl Map {
    /// The hand goes over the tree from the key `from` on. Returns the key where it stopped; `None` if
    /// it came to the end. `pinned` says whether keys are relied on.
    pub fn sweep(
        &mut self,
        from: u64,
        sweep: &mut Sweep,
        pinned: &dyn Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        sweep.steps += 1;
        let root = self.root.as_mut()?;
        let before = sweep.nodes;
        let stopped = sweep_below(root, (0, u64::MAX), from, sweep, pinned);
        self.may_miss |= sweep.nodes > before;
        stopped
    }
}

fn sweep_below(
    child: &mut Child,
    span: (u64, u64),
    from: u64,
    sweep: &mut Sweep,
    pinned: &dyn Fn(u64, u64) -> bool,
) -> Option<u64> {
    let Child::InMemory(node) = child else { return None };
    if let Body::Inner(inner) = &node.body {
        let mut children = inner.children.borrow_mut();
        for index in inner.find(from)..children.len() {
            sweep.steps += 1;
            let span = match broken(Sabotage::SweepForgetsParent) {
                true => inner.span(index, (span.0, span.0)),
                false => inner.span(index, span),
            };
            let stopped = sweep_below(&mut children[index], span, from, sweep, pinned);
            if stopped.is_some() {
                return stopped;
            }
            if sweep.is_over() {
                return Some(span.1);
            }
        }
        if children.iter().any(|child| child.node().is_some()) {
            return None;
        }
    }
    let gone = sweep.takes(node, || pinned(span.0, span.1))?;
    *child = gone;
    None
}
