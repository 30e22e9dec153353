//! Neighbours become one leaf fewer when what they hold fits: trees from which entries go stay nearly as full as those
//! that are filled. Two become one in `remove.rs`.

use std::ops::Range;
use std::rc::Rc;

use situations::{Phase, Situation, situation_during};
use smallvec::SmallVec;

use super::leaf::Leaf;
use super::node::{Body, Inner, Node, NodeCounters, NodeLocation, retire};
use crate::sabotage::{Sabotage, broken};

/// Leaves at most of which there is one fewer then: as long as there are as many in memory that a checkpoint writes anyway,
/// they are three quarters full.
const LEAVES_MAX: usize = 5;

/// Spreads the entries of the leaf at `index`, which some were taken out of, and of its neighbours over one leaf fewer, if
/// there is room. Besides the leaf at most one becomes dirty by that: so much a removal has set aside.
pub(super) fn fold(
    inner: &mut Inner,
    index: usize,
    counters: &Rc<NodeCounters>,
    retired: &mut Vec<Rc<NodeLocation>>,
) {
    for count in 3..=LEAVES_MAX {
        for from in (index + 1).saturating_sub(count)..=index {
            if fold_these(inner, from..from + count, counters) {
                situation_during(Phase::ThreeLevels, Situation::LeavesFoldInThreeLevels);
                return retire(inner.remove(from + count - 1), counters, retired);
            }
        }
    }
}

/// Leaves nothing that is needed in the last one of `range`.
fn fold_these(inner: &mut Inner, range: Range<usize>, counters: &Rc<NodeCounters>) -> bool {
    let children = inner.children.get_mut();
    let Some(window) = children.get_mut(range.clone()) else { return false };
    let mut leaves: SmallVec<[&Leaf; LEAVES_MAX]> = SmallVec::new();
    let mut clean = 0;
    for child in window.iter() {
        let Some(node) = child.node() else { return false };
        let Body::Leaf(leaf) = &node.body else { return false };
        clean += usize::from(!Node::is_free_to_change(node));
        leaves.push(leaf);
    }
    if clean > 1 {
        return false;
    }
    let parts = Leaf::spread(&leaves, leaves.len() - 1);
    drop(leaves);
    let Some(parts) = parts else { return false };
    let bounds: SmallVec<[u64; LEAVES_MAX]> = parts.iter().map(|part| part.key(0)).collect();
    for (child, part) in window.iter_mut().zip(parts) {
        let node = child.node_mut().expect("looked at");
        Node::make_mut(node, counters).body = Body::Leaf(part);
    }
    if broken(Sabotage::FoldKeepsBounds) {
        return true;
    }
    for (place, bound) in bounds.into_iter().enumerate().skip(1) {
        inner.set_bound(range.start + place, bound);
    }
    true
}
