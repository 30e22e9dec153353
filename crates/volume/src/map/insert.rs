//! What puts entries into a map, and splits nodes that are full.

use std::rc::Rc;

use layout::Mapping;

use super::Map;
use super::leaf::{Inserted, Leaf};
use super::node::{Body, Child, Inner, Node, Tally};

struct Outcome {
    replaced: Option<Mapping>,
    /// A new sibling above, and the lower bound of its keys.
    split: Option<(u64, Rc<Node>)>,
}

impl Map {
    /// Makes `key` lead to `mapping`, and returns what it led to before. The path to it is loaded.
    pub(crate) fn insert(&mut self, key: u64, mapping: Mapping) -> Option<Mapping> {
        self.insert_with_metadata(key, mapping, &[])
    }

    /// As [`Map::insert`], for a block with metadata.
    pub(crate) fn insert_with_metadata(
        &mut self,
        key: u64,
        mapping: Mapping,
        metadata: &[u8],
    ) -> Option<Mapping> {
        let Some(root) = &mut self.root else {
            let leaf = Body::Leaf(Leaf::single(key, mapping, metadata));
            let leaf = Node::new_dirty(leaf, &self.tally);
            self.root = Some(Child::InMemory(leaf));
            self.entries = 1;
            return None;
        };
        let node = root.node_mut().expect("the path is loaded");
        let level = node.level() + 1;
        let outcome = insert_below(node, key, (mapping, metadata), &self.tally);
        if let Some((upper_key, upper)) = outcome.split {
            let lower = self.root.take().expect("just used");
            let inner = Inner::new(level, vec![0, upper_key], vec![lower, Child::InMemory(upper)]);
            let node = Node::new_dirty(Body::Inner(inner), &self.tally);
            self.root = Some(Child::InMemory(node));
        }
        self.entries += u64::from(outcome.replaced.is_none());
        outcome.replaced
    }
}

/// A block, and its metadata.
type Entry<'a> = (Mapping, &'a [u8]);

fn insert_below(this: &mut Rc<Node>, key: u64, entry: Entry<'_>, tally: &Rc<Tally>) -> Outcome {
    match &mut Node::make_mut(this, tally).body {
        Body::Leaf(leaf) => insert_into_leaf(leaf, key, entry, tally),
        Body::Inner(inner) => {
            let index = inner.find(key);
            let child = &mut inner.children.get_mut()[index];
            if child.is_absent() {
                let low = inner.keys[index];
                let leaf = Leaf::single(key, entry.0, entry.1);
                let path = Node::new_path(inner.level - 1, low, leaf, tally);
                *child = Child::InMemory(path);
                return Outcome { replaced: None, split: None };
            }
            let child = child.node_mut().expect("the path is loaded");
            let Outcome { replaced, split } = insert_below(child, key, entry, tally);
            let split = split.and_then(|(upper_key, upper)| {
                let upper = inner.insert(index + 1, upper_key, Child::InMemory(upper))?;
                let lower_bound = upper.keys[0];
                Some((lower_bound, Node::new_dirty(Body::Inner(upper), tally)))
            });
            Outcome { replaced, split }
        }
    }
}

fn insert_into_leaf(leaf: &mut Leaf, key: u64, entry: Entry<'_>, tally: &Rc<Tally>) -> Outcome {
    let (mapping, metadata) = entry;
    match leaf.insert(key, mapping, metadata) {
        Inserted::Replaced(old) => return Outcome { replaced: Some(old), split: None },
        Inserted::Added => return Outcome { replaced: None, split: None },
        Inserted::Full => {}
    }
    let mut upper = leaf.split(key);
    // The halves of a leaf of distant keys may each still be too wide for one more: the part with
    // room takes the key, and an empty one takes any.
    let into_upper = !leaf.is_empty() && (upper.is_empty() || key >= upper.key(0));
    let target = if into_upper { &mut upper } else { &mut *leaf };
    let inserted = target.insert(key, mapping, metadata);
    assert!(inserted == Inserted::Added, "half a leaf has room for one more");
    let upper_key = upper.key(0);
    Outcome { replaced: None, split: Some((upper_key, Node::new_dirty(Body::Leaf(upper), tally))) }
}
