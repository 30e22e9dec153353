//! Maps: B+ trees from a 64-bit key to a block and its checksum, copied on write.
//!
//! Volume maps, a shard's extent table and its volume table are all maps. A change needs the nodes
//! on its path in memory, and then is one synchronous step; [`Missing`] says what to load first.
//! Node sharing is explained in `node.rs`, what a node looks like on the device in `layout`.

mod capacity;
mod count;
mod descent;
mod evict;
mod fold;
mod hints;
mod insert;
mod keys;
mod leaf;
mod metadata;
mod node;
mod remove;
mod run;
mod sabotage;
mod site;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use io_traits::Buffer;
use layout::Mapping;
use situations::{Phase, Situation, during_if, situation, situation_if};
use units::{LbaRange, MetadataSize, Pba};

#[cfg(feature = "small-structures")]
pub use capacity::{NodeCapacity, set_node_capacity};
pub use capacity::{is_small, leaf_capacity};
use count::Count;
use descent::{look_up, with_leaf};
pub use evict::Sweep;
pub use leaf::Leaf;
use node::retire;
pub use node::{Body, Child, Inner, NODE_BYTES_MAX, Node, NodeCounters, NodeLocation};
use remove::{give_up_below, remove_below};
pub use run::Run;
#[cfg(not(feature = "sabotage"))]
use sabotage::Sabotage;
use sabotage::broken;
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use site::{LeafBody, LeafSite};

/// The locations of the blocks around a range, and of the first that a map has within it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Neighbours {
    /// The block before it.
    pub before: Option<Pba>,
    /// Its own first block.
    pub own: Option<Pba>,
    /// The block behind it.
    pub behind: Option<Pba>,
}

/// The identity of a tree and the kind of its leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tree {
    /// Volume number, or which table.
    pub number: u32,
    /// Metadata of each block that it leads to.
    pub metadata: MetadataSize,
}

impl From<u32> for Tree {
    /// One without metadata.
    fn from(number: u32) -> Self {
        Self { number, metadata: MetadataSize::None }
    }
}

/// A node that must be loaded before the question can be answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Missing {
    /// Its location.
    pub pointer: Mapping,
    /// A key that leads to it.
    pub key: u64,
    /// Its level, if it has a parent to tell.
    pub level: Option<u8>,
}

/// A B+ tree.
#[derive(Debug)]
pub struct Map {
    tree: Tree,
    root: Option<Child>,
    /// Homes of nodes that left the tree since the last snapshot.
    retired: Vec<Rc<NodeLocation>>,
    counters: Rc<NodeCounters>,
    entries: u64,
    /// A count of entries that is in progress.
    count: Option<Count>,
    /// True if nodes may be missing: some are on the device alone, or were.
    may_miss: bool,
}

/// A tree as it was at one instant, to be written out.
#[derive(Debug)]
pub struct MapSnapshot {
    /// Number of the tree.
    pub tree: u32,
    /// Its root.
    pub root: Option<Child>,
    /// Homes of nodes that have left it since the snapshot before.
    pub retired: Vec<Rc<NodeLocation>>,
    /// Entries that it has.
    pub entries: u64,
}

impl Map {
    /// An empty tree.
    pub fn new(tree: impl Into<Tree>, counters: Rc<NodeCounters>) -> Self {
        let tree = tree.into();
        Self {
            tree,
            root: None,
            retired: Vec::new(),
            counters,
            entries: 0,
            count: None,
            may_miss: false,
        }
    }

    /// A tree on the device, nothing of it loaded.
    pub fn on_disk(
        tree: impl Into<Tree>,
        root: Mapping,
        entries: u64,
        counters: Rc<NodeCounters>,
    ) -> Self {
        let (tree, root) = (tree.into(), Some(Child::on_disk(root)));
        Self { tree, root, retired: Vec::new(), counters, entries, count: None, may_miss: true }
    }

    /// Its identity.
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// The counters of nodes that it shares with others.
    pub fn counters(&self) -> &Rc<NodeCounters> {
        &self.counters
    }

    /// Entries that it has.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Tells a tree whose number of entries was not known how many it has. All of it is loaded.
    pub fn set_entries(&mut self, entries: u64) {
        self.entries = entries;
        self.count = None;
    }

    /// Returns true if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Returns true if nodes may be missing in memory.
    pub fn may_miss(&self) -> bool {
        self.may_miss
    }

    /// Pointer to the root on the device, if the tree is neither empty nor dirty.
    pub fn root_pointer(&self) -> Option<Mapping> {
        self.root.as_ref().and_then(Child::pointer)
    }

    /// Returns true if a node of it is nowhere on the device yet.
    pub fn is_dirty(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.pointer().is_none()) || !self.retired.is_empty()
    }

    /// Levels of the tree, as far as known: the root may not be loaded yet.
    pub fn height(&self) -> u64 {
        let root = self.root.as_ref();
        root.map_or(0, |root| root.node().map_or(4, |node| u64::from(node.level()) + 1))
    }

    /// The tree as it is now; later changes copy the nodes that they touch.
    pub fn snapshot(&mut self) -> MapSnapshot {
        MapSnapshot {
            tree: self.tree.number,
            root: self.root.as_ref().map(Child::without_clean),
            retired: std::mem::take(&mut self.retired),
            entries: self.entries,
        }
    }

    /// Returns the mapping of `key`.
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<Mapping>, Missing> {
        match &self.root {
            Some(root) => look_up(root, key, None),
            None => Ok(None),
        }
    }

    /// Returns the locations of the blocks around `range`, as far as one leaf in memory has them.
    pub fn neighbours(&self, range: LbaRange) -> Neighbours {
        let leaf = |leaf: &Leaf| leaf.neighbours(range);
        let found = self.root.as_ref().and_then(|root| with_leaf(root, range.start.0, leaf));
        found.unwrap_or_default()
    }

    /// Calls `visit` for each entry with a key in `start..end`, in order.
    pub fn for_each(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(u64, Mapping),
    ) -> Result<(), Missing> {
        self.for_each_with_metadata(start, end, |key, mapping, _| visit(key, mapping))
    }

    /// As [`Map::for_each`], with the metadata of each block.
    pub fn for_each_with_metadata(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(u64, Mapping, &[u8]),
    ) -> Result<(), Missing> {
        self.walk_leaves(start, end, |leaf| {
            let from = leaf.search(start).unwrap_or_else(|index| index);
            let to = leaf.search(end).unwrap_or_else(|index| index);
            (from..to).for_each(|index| {
                visit(leaf.key(index), leaf.mapping(index), leaf.metadata(index));
            });
            false
        })
        .map(drop)
    }

    /// The first key in `start..end`.
    pub fn first_key(&self, start: u64, end: u64) -> Result<Option<u64>, Missing> {
        let mut found = None;
        self.walk_leaves(start, end, |leaf| {
            let index = leaf.search(start).unwrap_or_else(|index| index);
            found = (index < leaf.len()).then(|| leaf.key(index)).filter(|key| *key < end);
            found.is_some()
        })?;
        Ok(found)
    }

    /// Checks that every node that a change of `start..end` touches is in memory.
    pub fn touch(&self, start: u64, end: u64) -> Result<(), Missing> {
        self.walk_leaves(start, end, |_| false).map(drop)
    }

    /// As [`Map::touch`], which takes no time where no node can be missing.
    pub fn touch_if_may_miss(&self, start: u64, end: u64) -> Result<(), Missing> {
        if self.may_miss { self.touch(start, end) } else { Ok(()) }
    }

    /// Visits the leaves whose keys may lie in `start..end`, until told that it is enough.
    fn walk_leaves(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(&Leaf) -> bool,
    ) -> Result<bool, Missing> {
        match &self.root {
            Some(root) => walk(root, start, end, None, &mut visit),
            None => Ok(false),
        }
    }

    /// Counts the nodes in memory that lead to the keys in `ranges`, which are disjoint and ascend.
    pub fn nodes_of(&self, ranges: &[LbaRange]) -> u64 {
        self.root.as_ref().map_or(0, |root| nodes_of(root, (0, u64::MAX), ranges))
    }

    /// Takes out the first entries with keys in `start..end`, those of one leaf, and returns the key
    /// from which to go on: `end` if none is left.
    pub fn remove_some(
        &mut self,
        start: u64,
        end: u64,
        out: &mut Vec<(u64, Mapping)>,
    ) -> Result<u64, Missing> {
        let Some(first) = self.first_key(start, end)? else { return Ok(end) };
        let root = self.root.as_mut().expect("it has an entry");
        let before = out.len();
        let node = root.node_mut().expect("first_key went through it");
        let _tall = during_if(Phase::ThreeLevels, || node.level() > 1);
        remove_below(node, first, end, out, &self.counters, &mut self.retired);
        // The number came from the device, and nodes may have been given up.
        self.entries = self.entries.saturating_sub((out.len() - before) as u64);
        if let Some(count) = &mut self.count {
            out[before..].iter().for_each(|(key, _)| count.remove(*key));
        }
        self.shrink_root();
        let skipped = u64::from(broken(Sabotage::RemoveSkipsKey));
        Ok(out.last().map_or(end, |(key, _)| key + 1 + skipped).min(end))
    }

    /// An empty root goes; an inner root with one child gives way to it.
    fn shrink_root(&mut self) {
        while let Some(node) = self.root.as_ref().and_then(Child::node) {
            let only = match &node.body {
                _ if node.is_empty() => None,
                Body::Inner(inner) if inner.keys.len() == 1 => {
                    Some(inner.children.borrow()[0].clone())
                }
                _ => return,
            };
            situation_if(Situation::RootGivesWay, || only.is_some());
            let old = std::mem::replace(&mut self.root, only).expect("looked at");
            retire(old, &self.counters, &mut self.retired);
        }
        if self.root.is_none() {
            self.entries = 0;
        }
    }

    /// The keys that a missing node may hold: from the first on, to before the second.
    pub fn bounds(&self, missing: Missing) -> Option<(u64, u64)> {
        let mut child = self.root.clone()?;
        let mut span = (0, u64::MAX);
        loop {
            let node = match child {
                Child::InMemory(node) => node,
                _ => return (child.missing() == Some(missing.pointer)).then_some(span),
            };
            let Body::Inner(inner) = &node.body else { return None };
            let index = inner.find(missing.key);
            span = inner.span(index, span);
            let next = inner.children.borrow()[index].clone();
            child = next;
        }
    }

    /// Returns whether a loaded node holds only keys that its place may hold.
    pub fn fits(&self, missing: Missing, node: &Node) -> bool {
        let Some((low, high)) = self.bounds(missing) else { return true };
        let ends = match &node.body {
            Body::Leaf(leaf) => leaf.keys().next().zip(leaf.keys().last()),
            Body::Inner(inner) => inner.keys.first().copied().zip(inner.keys.last().copied()),
        };
        ends.is_some_and(|(first, last)| low <= first && last < high)
    }

    /// Removes a node that cannot be read, with all that it leads to: the owners of those blocks
    /// are lost.
    pub fn give_up(&mut self, missing: Missing) {
        self.count = None;
        situation(Situation::NodeGivenUp);
        let Some(root) = &mut self.root else { return };
        if root.missing() == Some(missing.pointer) {
            let root = self.root.take().expect("looked at");
            retire(root, &self.counters, &mut self.retired);
        } else if let Some(node) = root.node_mut() {
            give_up_below(node, missing, &self.counters, &mut self.retired);
        }
        self.shrink_root();
    }

    /// Attaches a loaded node where it is missing. Does nothing if it was attached already.
    pub fn attach(&mut self, missing: Missing, node: Node) {
        fn below(child: &mut Child, missing: Missing, node: Node) {
            match child {
                Child::InMemory(parent) => {
                    let Body::Inner(inner) = &parent.body else { return };
                    let index = inner.find(missing.key);
                    parent.touch();
                    below(&mut inner.children.borrow_mut()[index], missing, node);
                }
                _ if child.missing() == Some(missing.pointer) => {
                    *child = Child::InMemory(Rc::new(node));
                }
                _ => {}
            }
        }
        if let Some(root) = &mut self.root {
            below(root, missing, node);
        }
    }

    /// Returns whether the node is still missing: a failed load only matters if so.
    pub fn is_missing(&self, missing: Missing) -> bool {
        matches!(self.get(missing.key), Err(still) if still.pointer == missing.pointer)
    }

    /// Number of dirty nodes.
    pub fn dirty_nodes(&self) -> usize {
        let mut count = 0;
        self.for_each_dirty(|_| count += 1);
        count
    }

    /// Tells where the last versions of dirty and of retired nodes lie, once for each.
    pub fn take_old_places(&mut self, mut old: impl FnMut(Pba)) {
        let retired = std::mem::take(&mut self.retired);
        retired.iter().filter_map(|location| location.0.take()).for_each(&mut old);
        self.for_each_dirty(|node| node.location.0.take().into_iter().for_each(&mut old));
    }

    /// Gives each dirty node a place, children first, and fills the blocks to be written there.
    pub fn place_dirty(&mut self, places: &mut impl Iterator<Item = Pba>) -> Vec<(Pba, Buffer)> {
        let mut blocks = Vec::new();
        self.for_each_dirty(|node| {
            let pba = places.next().expect("as many places as dirty nodes");
            let mut block = Buffer::new(1);
            node.encode(block.as_mut_bytes(), self.tree.number);
            node.placed.set(Some(Mapping { pba, crc: checksum::crc32c(block.as_bytes()) }));
            node.set_stored();
            node.location.0.set(Some(pba));
            blocks.push((pba, block));
        });
        blocks
    }

    /// Visits the dirty nodes, children first.
    fn for_each_dirty(&self, mut visit: impl FnMut(&Node)) {
        fn below(child: &Child, visit: &mut impl FnMut(&Node)) {
            let Some(node) = child.dirty_node() else { return };
            if let Body::Inner(inner) = &node.body {
                inner.children.borrow().iter().for_each(|child| below(child, visit));
            }
            visit(node);
        }
        if let Some(root) = &self.root {
            below(root, &mut visit);
        }
    }

    /// Tells where the last versions of all nodes lie, and of retired ones. All of it is loaded.
    pub fn for_each_place(&self, mut visit: impl FnMut(Pba)) {
        fn below(child: &Child, visit: &mut impl FnMut(Pba)) {
            let Some(node) = child.node() else {
                child.missing().into_iter().for_each(|missing| visit(missing.pba));
                return;
            };
            if let Body::Inner(inner) = &node.body {
                inner.children.borrow().iter().for_each(|child| below(child, visit));
            }
            node.location.0.get().into_iter().for_each(visit);
        }
        self.retired.iter().filter_map(|location| location.0.get()).for_each(&mut visit);
        if let Some(root) = &self.root {
            below(root, &mut visit);
        }
    }

    /// Returns the first key of each node in memory, with its level.
    #[cfg(feature = "small-structures")]
    pub fn node_bounds(&self) -> Vec<(u8, u64)> {
        fn below(child: &Child, low: u64, out: &mut Vec<(u8, u64)>) {
            let Some(node) = child.node() else { return };
            out.push((node.level(), low));
            let Body::Inner(inner) = &node.body else { return };
            for (index, child) in inner.children.borrow().iter().enumerate() {
                below(child, inner.span(index, (low, u64::MAX)).0, out);
            }
        }
        let mut bounds = Vec::new();
        self.root.iter().for_each(|root| below(root, 0, &mut bounds));
        bounds
    }

    #[cfg(test)]
    pub(crate) fn root(&self) -> Option<&Child> {
        self.root.as_ref()
    }
}

fn nodes_of(child: &Child, span: (u64, u64), ranges: &[LbaRange]) -> u64 {
    let Some(node) = child.node() else { return 0 };
    let Body::Inner(inner) = &node.body else { return 1 };
    let children = inner.children.borrow();
    let below = children.iter().enumerate().map(|(index, child)| {
        let (low, high) = inner.span(index, span);
        let from = ranges.partition_point(|range| range.end().0 <= low);
        let to = ranges.partition_point(|range| range.start.0 < high);
        if from < to { nodes_of(child, (low, high), &ranges[from..to]) } else { 0 }
    });
    1 + below.sum::<u64>()
}

fn walk(
    child: &Child,
    start: u64,
    end: u64,
    level: Option<u8>,
    visit: &mut impl FnMut(&Leaf) -> bool,
) -> Result<bool, Missing> {
    let node = match child {
        Child::InMemory(node) => node,
        Child::OnDisk(pointer) => {
            return Err(Missing { pointer: (*pointer).into(), key: start, level });
        }
        Child::Absent => return Ok(false),
    };
    match &node.body {
        Body::Leaf(leaf) => {
            node.touch();
            Ok(visit(leaf))
        }
        Body::Inner(inner) => {
            let first = inner.find(start);
            let children = inner.children.borrow();
            let misses_bound = broken(Sabotage::WalkMissesBound);
            for index in first..children.len() {
                // A later child is reached by its own lower bound.
                let from = if index == first { start } else { inner.keys[index] };
                if from >= end || (index > first && from + 1 == end && misses_bound) {
                    break;
                }
                situation_if(Situation::RangeAcrossInnerNode, || index > first && inner.level > 1);
                if walk(&children[index], from, end, Some(inner.level - 1), visit)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
