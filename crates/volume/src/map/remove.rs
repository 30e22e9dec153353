//! Taking entries out of a tree: nodes empty, merge and go.

use std::rc::Rc;

use layout::{INNER_CAPACITY, Mapping};

use super::Missing;
use super::node::{Body, Dirty, Home, Inner, Node, retire};

/// A leaf with fewer entries looks for a neighbour to merge with.
const LEAF_LOW: usize = 64;

pub(super) fn give_up_below(
    this: &mut Rc<Node>,
    missing: Missing,
    dirty: &Dirty,
    retired: &mut Vec<Rc<Home>>,
) {
    let Body::Inner(inner) = &mut Node::make_mut(this, dirty).body else { return };
    let index = inner.find(missing.key);
    let child = &mut inner.children[index];
    let gone = match child.node.get_mut() {
        Some(node) => {
            give_up_below(node, missing, dirty, retired);
            node.is_empty()
        }
        None => child.on_disk == missing.pointer,
    };
    if gone {
        retire(inner.vacate(index), dirty, retired);
    }
}

pub(super) fn remove_below(
    this: &mut Rc<Node>,
    start: u64,
    end: u64,
    out: &mut Vec<(u64, Mapping)>,
    dirty: &Dirty,
    retired: &mut Vec<Rc<Home>>,
) {
    match &mut Node::make_mut(this, dirty).body {
        Body::Leaf(leaf) => leaf.remove_range(start, end, out),
        Body::Inner(inner) => {
            let index = inner.find(start);
            let child = inner.children[index].node.get_mut().expect("the path is loaded");
            remove_below(child, start, end, out, dirty, retired);
            if child.is_empty() {
                retire(inner.vacate(index), dirty, retired);
            } else if index + 1 < inner.children.len() && merge(inner, index, dirty) {
                retire(inner.remove(index + 1), dirty, retired);
            } else if index > 0 && merge(inner, index - 1, dirty) {
                retire(inner.remove(index), dirty, retired);
            }
        }
    }
}

/// Moves all of child `index + 1` into child `index`, if both are loaded, one of them is nearly
/// empty and the sum leaves room.
fn merge(inner: &mut Inner, index: usize, dirty: &Dirty) -> bool {
    let upper_key = inner.keys[index + 1];
    let (lower, upper) = inner.children.split_at_mut(index + 1);
    let (Some(lower), Some(upper)) = (lower[index].node.get_mut(), upper[0].node.get()) else {
        return false;
    };
    match (&lower.body, &upper.body) {
        (Body::Leaf(a), Body::Leaf(b)) if a.len().min(b.len()) < LEAF_LOW => {
            let mut merged = a.clone();
            if !merged.try_merge(b) {
                return false;
            }
            Node::make_mut(lower, dirty).body = Body::Leaf(merged);
            true
        }
        (Body::Inner(a), Body::Inner(b))
            if a.keys.len().min(b.keys.len()) < INNER_CAPACITY / 4
                && a.keys.len() + b.keys.len() < INNER_CAPACITY * 3 / 4 =>
        {
            let upper = upper.clone();
            let (Body::Inner(b), Body::Inner(a)) =
                (&upper.body, &mut Node::make_mut(lower, dirty).body)
            else {
                unreachable!("matched above");
            };
            a.keys.push(upper_key);
            a.keys.extend_from_slice(&b.keys[1..]);
            a.children.extend(b.children.iter().cloned());
            true
        }
        _ => false,
    }
}
