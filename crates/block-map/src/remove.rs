//! Taking entries out of a tree: nodes empty, merge and go.

use std::rc::Rc;

use layout::Mapping;
use situations::{Phase, Situation, situation, situation_during};

use super::Missing;
use super::capacity::inner_capacity;
use super::fold::fold;
use super::leaf::Leaf;
use super::node::{Body, Inner, Node, NodeCounters, NodeLocation, retire};
use crate::sabotage::{Sabotage, broken};

pub(super) fn give_up_below(
    this: &mut Rc<Node>,
    missing: Missing,
    counters: &Rc<NodeCounters>,
    retired: &mut Vec<Rc<NodeLocation>>,
) {
    let Body::Inner(inner) = &mut Node::make_mut(this, counters).body else { return };
    let index = inner.find(missing.key);
    let child = &mut inner.children.get_mut()[index];
    let gone = match child.node_mut() {
        Some(node) => {
            give_up_below(node, missing, counters, retired);
            node.is_empty()
        }
        None => child.missing() == Some(missing.pointer),
    };
    if gone {
        retire(inner.vacate(index), counters, retired);
    }
}

pub(super) fn remove_below(
    this: &mut Rc<Node>,
    start: u64,
    end: u64,
    out: &mut Vec<(u64, Mapping)>,
    counters: &Rc<NodeCounters>,
    retired: &mut Vec<Rc<NodeLocation>>,
) {
    match &mut Node::make_mut(this, counters).body {
        Body::Leaf(leaf) => leaf.remove_range(start, end, out),
        Body::Inner(inner) => {
            let index = inner.find(start);
            let children = inner.children.get_mut();
            let child = children[index].node_mut().expect("the path is loaded");
            remove_below(child, start, end, out, counters, retired);
            if child.is_empty() {
                note_empty(inner.level);
                retire(inner.vacate(index), counters, retired);
            } else if index + 1 < inner.keys.len() && merge(inner, index, counters) {
                retire(inner.remove(index + 1), counters, retired);
            } else if index > 0 && merge(inner, index - 1, counters) {
                retire(inner.remove(index), counters, retired);
            } else if inner.level == 1 {
                fold(inner, index, counters, retired);
            }
        }
    }
}

/// A child of a node of this level lost all that it had.
fn note_empty(level: u8) {
    match level {
        1 => situation_during(Phase::ThreeLevels, Situation::LeafGoesInThreeLevels),
        _ => situation(Situation::InnerNodeGoes),
    }
}

/// Moves all of child `index + 1` into child `index`, if both are loaded and the sum leaves room.
fn merge(inner: &mut Inner, index: usize, counters: &Rc<NodeCounters>) -> bool {
    let upper_key = inner.keys[index + 1];
    let (lower, upper) = inner.children.get_mut().split_at_mut(index + 1);
    let (Some(lower), Some(upper)) = (lower[index].node_mut(), upper[0].node()) else {
        return false;
    };
    match (&lower.body, &upper.body) {
        (Body::Leaf(a), Body::Leaf(b)) => {
            let Some(merged) = Leaf::merged(a, b) else { return false };
            Node::make_mut(lower, counters).body = Body::Leaf(merged);
            situation_during(Phase::ThreeLevels, Situation::LeavesMergeInThreeLevels);
            true
        }
        (Body::Inner(a), Body::Inner(b))
            if a.keys.len().min(b.keys.len()) < inner_capacity() / 4
                && a.keys.len() + b.keys.len() < inner_capacity() * 3 / 4 =>
        {
            let upper = upper.clone();
            let (Body::Inner(b), Body::Inner(a)) =
                (&upper.body, &mut Node::make_mut(lower, counters).body)
            else {
                unreachable!("matched above");
            };
            let more = b.keys.len();
            a.keys.reserve_exact(more);
            a.keys.push(upper_key + u64::from(broken(Sabotage::MergeBoundTooHigh)));
            a.keys.extend_from_slice(&b.keys[1..]);
            let children = a.children.get_mut();
            children.reserve_exact(more);
            children.extend(b.children.borrow().iter().cloned());
            situation(Situation::InnerNodesMerge);
            true
        }
        _ => false,
    }
}
