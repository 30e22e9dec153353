//! Inserts entries into a map, and splits full nodes.

use std::rc::Rc;

use layout::Mapping;
use situations::{Phase, Situation, during_if, situation, situation_during};

use super::Map;
use super::leaf::{Inserted, Leaf};
use super::node::{Body, Child, Inner, Node, NodeCounters};
use crate::sabotage::{Sabotage, broken};

struct Outcome {
    replaced: Option<Mapping>,
    /// A new sibling above, and the lower bound of its keys.
    split: Option<(u64, Rc<Node>)>,
}

impl Map {
    /// Makes `key` lead to `mapping`, and returns what it led to before. The path to it is loaded.
    pub fn insert(&mut self, key: u64, mapping: Mapping) -> Option<Mapping> {
        self.insert_with_metadata(key, mapping, &[])
    }

    /// As [`Map::insert`], for a block with metadata.
    pub fn insert_with_metadata(
        &mut self,
        key: u64,
        mapping: Mapping,
        metadata: &[u8],
    ) -> Option<Mapping> {
        let Some(root) = &mut self.root else {
            let leaf = Body::Leaf(Leaf::single(key, mapping, metadata));
            let leaf = Node::new_dirty(leaf, &self.counters);
            self.root = Some(Child::InMemory(leaf));
            self.entries = 1;
            self.note_insert(key);
            return None;
        };
        let node = root.node_mut().expect("the path is loaded");
        let level = node.level() + 1;
        let _tall = during_if(Phase::ThreeLevels, || level > 2);
        let outcome = insert_below(node, key, (mapping, metadata), &self.counters);
        if let Some((upper_key, upper)) = outcome.split {
            let lower = self.root.take().expect("just used");
            let inner = Inner::new(level, vec![0, upper_key], vec![lower, Child::InMemory(upper)]);
            let node = Node::new_dirty(Body::Inner(inner), &self.counters);
            self.root = Some(Child::InMemory(node));
        }
        if outcome.replaced.is_none() {
            self.entries += 1;
            self.note_insert(key);
        }
        outcome.replaced
    }
}

impl Map {
    /// Makes the nodes in memory that lead to `key` dirty, so that the next snapshot rewrites them.
    pub fn rewrite(&mut self, key: u64) {
        let mut next = self.root.as_mut().and_then(Child::node_mut);
        while let Some(node) = next {
            next = match &mut Node::make_mut(node, &self.counters).body {
                Body::Leaf(_) => None,
                Body::Inner(inner) => {
                    let index = inner.find(key);
                    inner.children.get_mut()[index].node_mut()
                }
            };
        }
    }
}

/// A block, and its metadata.
type Entry<'a> = (Mapping, &'a [u8]);

fn insert_below(
    this: &mut Rc<Node>,
    key: u64,
    entry: Entry<'_>,
    counters: &Rc<NodeCounters>,
) -> Outcome {
    match &mut Node::make_mut(this, counters).body {
        Body::Leaf(leaf) => insert_into_leaf(leaf, key, entry, counters),
        Body::Inner(inner) => {
            let index = inner.find(key);
            let child = &mut inner.children.get_mut()[index];
            if child.is_absent() {
                situation(Situation::AbsentChildFilled);
                let low = inner.keys[index];
                let leaf = Leaf::single(key, entry.0, entry.1);
                let path = Node::new_path(inner.level - 1, low, leaf, counters);
                *child = Child::InMemory(path);
                return Outcome { replaced: None, split: None };
            }
            let index = if inner.level == 1 { share(inner, index, key, counters) } else { index };
            let child = inner.children.get_mut()[index].node_mut().expect("the path is loaded");
            let Outcome { replaced, split } = insert_below(child, key, entry, counters);
            let split = split.and_then(|(upper_key, upper)| {
                let upper = inner.insert(index + 1, upper_key, Child::InMemory(upper))?;
                let second = broken(Sabotage::InnerSplitBoundTooHigh) && upper.keys.len() > 1;
                let lower_bound = upper.keys[usize::from(second)];
                situation(Situation::InnerNodeSplits);
                Some((lower_bound, Node::new_dirty(Body::Inner(upper), counters)))
            });
            Outcome { replaced, split }
        }
    }
}

/// Moves entries between the leaf that is to take `key`, if it is full, and a neighbour with room.
/// Leaves are thus fuller than if each full one were split. Returns the index of the leaf that
/// takes the key then.
///
/// What goes in at either end of a leaf goes in in order, and is for [`Leaf::split`] to deal with.
fn share(inner: &mut Inner, index: usize, key: u64, counters: &Rc<NodeCounters>) -> usize {
    let children = inner.children.get_mut();
    let Some(Body::Leaf(leaf)) = children[index].node().map(|node| &node.body) else {
        return index;
    };
    if leaf.has_room_for(key) || !leaf.search(key).is_err_and(|at| at > 0 && at < leaf.len()) {
        return index;
    }
    for lower in [Some(index), index.checked_sub(1)].into_iter().flatten() {
        let Some([a, b]) = children.get_mut(lower..lower + 2) else { continue };
        let (Some(a), Some(b)) = (a.node_mut(), b.node_mut()) else { continue };
        let (Body::Leaf(lower_leaf), Body::Leaf(upper_leaf)) = (&a.body, &b.body) else { continue };
        if let Some(parts) = Leaf::spread(&[lower_leaf, upper_leaf], 2) {
            let bound = parts[1].key(0);
            for (node, part) in [a, b].into_iter().zip(parts) {
                Node::make_mut(node, counters).body = Body::Leaf(part);
            }
            if !broken(Sabotage::ShareKeepsBound) {
                inner.set_bound(lower + 1, bound);
            }
            situation_during(Phase::ThreeLevels, Situation::LeavesShareInThreeLevels);
            return if key < bound { lower } else { lower + 1 };
        }
    }
    index
}

fn insert_into_leaf(
    leaf: &mut Leaf,
    key: u64,
    entry: Entry<'_>,
    counters: &Rc<NodeCounters>,
) -> Outcome {
    let (mapping, metadata) = entry;
    match leaf.insert(key, mapping, metadata) {
        Inserted::Replaced(old) => return Outcome { replaced: Some(old), split: None },
        Inserted::Added => return Outcome { replaced: None, split: None },
        Inserted::Full => {}
    }
    let mut upper = leaf.split(key);
    situation_during(Phase::ThreeLevels, Situation::LeafSplitsInThreeLevels);
    // The halves of a leaf of distant keys may each still be too wide for one more: the part with
    // room takes the key, and an empty one takes any.
    let into_upper = !leaf.is_empty() && (upper.is_empty() || key >= upper.key(0));
    let target = if into_upper { &mut upper } else { &mut *leaf };
    let inserted = target.insert(key, mapping, metadata);
    assert!(inserted == Inserted::Added, "half a leaf has room for one more");
    let upper_key = upper.key(0) + u64::from(broken(Sabotage::SplitBoundTooHigh));
    Outcome {
        replaced: None,
        split: Some((upper_key, Node::new_dirty(Body::Leaf(upper), counters))),
    }
}
