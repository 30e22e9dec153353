//! Nodes in memory: shared between the live tree and the snapshot that a checkpoint writes.
//!
//! - D1: a node with a place is on the device as it is in memory, and so is everything below it.
//!   A node without is dirty, and so is everything above it.
//! - D2: only a node that nobody else holds is changed in place; else the path to it is copied.
//! - D3: copies of a node share its [`Home`], which knows where the last version written lies, so
//!   that whoever writes the next one gives that place back.
//! - D4: what was loaded of a tree stays so, and with it the answer for every key that the loaded
//!   part answers. A child that goes leaves its keys to a neighbour only if that is loaded down to
//!   the leaf; else an absent child keeps its place. On the device there are no absent children: a
//!   neighbour answers.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use layout::{DecodeError, INNER_CAPACITY, Mapping, NodeView, PackedMapping, encode_node};
use units::Pba;

use super::leaf::Leaf;

/// Where the last version of a node lies, shared by its versions (D3).
#[derive(Debug, Default)]
pub(crate) struct Home(pub(crate) Cell<Option<Pba>>);

/// Counts dirty nodes: each needs a free block at the next checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Of live trees, since the last snapshot.
    pub(crate) live: Cell<u64>,
    /// Of the snapshot that is being written.
    pub(crate) snapshot: Cell<u64>,
}

impl Dirty {
    pub(crate) fn total(&self) -> u64 {
        self.live.get() + self.snapshot.get()
    }

    pub(crate) fn add_live(&self) {
        self.live.set(self.live.get() + 1);
    }

    fn remove_live(&self) {
        self.live.set(self.live.get().saturating_sub(1));
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) home: Rc<Home>,
    /// Pointer to this version on the device, once it is there (D1).
    pub(crate) placed: Cell<Option<Mapping>>,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Leaf(Leaf),
    Inner(Inner),
}

/// A node with children. Each key is a lower bound of the keys in its child.
#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub(crate) level: u8,
    pub(crate) keys: Vec<u64>,
    pub(crate) children: Vec<Child>,
}

/// A child in memory, or where to load it from.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) node: OnceCell<Rc<Node>>,
    /// Has meaning while the node is not in memory.
    pub(crate) on_disk: Mapping,
}

impl Child {
    pub(crate) fn in_memory(node: Rc<Node>) -> Self {
        Self { node: OnceCell::from(node), on_disk: Mapping { pba: Pba(0), crc: 0 } }
    }

    pub(crate) fn on_disk(pointer: Mapping) -> Self {
        Self { node: OnceCell::new(), on_disk: pointer }
    }

    /// A child without any keys (D4).
    pub(crate) fn absent() -> Self {
        Self::on_disk(Mapping { pba: Pba(0), crc: 0 })
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.node.get().is_none() && self.on_disk.pba == Pba(0)
    }

    /// Whether the way down to the last leaf, or to the first, is loaded.
    fn edge_is_loaded(&self, last: bool) -> bool {
        let mut child = self;
        while let Some(node) = child.node.get() {
            let Body::Inner(inner) = &node.body else { return true };
            let next = if last { inner.children.last() } else { inner.children.first() };
            child = next.expect("an inner node has children");
        }
        child.is_absent()
    }

    /// Pointer to the child on the device, unless it is dirty.
    pub(crate) fn pointer(&self) -> Option<Mapping> {
        self.node.get().map_or(Some(self.on_disk), |node| node.placed.get())
    }
}

impl Node {
    pub(crate) fn new_dirty(body: Body, dirty: &Dirty) -> Rc<Self> {
        dirty.add_live();
        Rc::new(Self { home: Rc::default(), placed: Cell::new(None), body })
    }

    /// Nodes of this level and all below, for a single key of which `low` is a lower bound.
    pub(crate) fn new_path(
        level: u8,
        low: u64,
        (key, mapping): (u64, Mapping),
        dirty: &Dirty,
    ) -> Rc<Self> {
        let mut node = Self::new_dirty(Body::Leaf(Leaf::single(key, mapping)), dirty);
        for level in 1..=level {
            let (keys, children) = (vec![low.min(key)], vec![Child::in_memory(node)]);
            node = Self::new_dirty(Body::Inner(Inner { level, keys, children }), dirty);
        }
        node
    }

    pub(crate) fn level(&self) -> u8 {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Inner(inner) => inner.level,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &self.body {
            Body::Leaf(leaf) => leaf.is_empty(),
            Body::Inner(inner) => inner.children.iter().all(Child::is_absent),
        }
    }

    /// A node as read from `pointer`.
    pub(crate) fn decode(block: &[u8], tree: u32, pointer: Mapping) -> Result<Self, DecodeError> {
        if checksum::crc32c(block) != pointer.crc {
            return Err(DecodeError::Checksum);
        }
        let view = NodeView::decode(block)?;
        if view.tree != tree {
            return Err(DecodeError::Field("tree of the node"));
        }
        if view.entries().any(|(_, mapping)| mapping.pba == Pba(0)) {
            return Err(DecodeError::Field("pointer in the node"));
        }
        let body = if view.level == 0 {
            Body::Leaf(Leaf::from_entries(view.keys().zip(view.mappings())))
        } else {
            Body::Inner(Inner {
                level: view.level,
                keys: view.keys().collect(),
                children: view.mappings().map(|child| Child::on_disk(child.into())).collect(),
            })
        };
        let home = Rc::new(Home(Cell::new(Some(pointer.pba))));
        Ok(Self { home, placed: Cell::new(Some(pointer)), body })
    }

    /// Fills a block. Every child must have its place.
    pub(crate) fn encode(&self, block: &mut [u8], tree: u32) {
        match &self.body {
            Body::Leaf(leaf) => encode_node(block, tree, 0, leaf.keys(), leaf.packed()),
            Body::Inner(inner) => {
                let pointer = |child: &Child| -> PackedMapping {
                    child.pointer().expect("children are written before their parent").into()
                };
                let present = |at: &usize| !inner.children[*at].is_absent();
                let places: Vec<usize> = (0..inner.children.len()).filter(present).collect();
                // Whichever comes first has the keys of absent ones before it (D4).
                let key = |(n, at): (usize, &usize)| inner.keys[if n == 0 { 0 } else { *at }];
                let keys: Vec<u64> = places.iter().enumerate().map(key).collect();
                let children = places.iter().map(|at| pointer(&inner.children[*at]));
                encode_node(block, tree, inner.level, keys.into_iter(), children);
            }
        }
    }

    /// The node to be changed: itself, or its copy if someone else holds it (D2).
    pub(crate) fn make_mut<'a>(this: &'a mut Rc<Self>, dirty: &Dirty) -> &'a mut Self {
        if Rc::get_mut(this).is_none() {
            let copy =
                Self { home: this.home.clone(), placed: Cell::new(None), body: this.body.clone() };
            *this = Rc::new(copy);
            dirty.add_live();
        }
        let node = Rc::get_mut(this).expect("not shared, or just copied");
        if node.placed.take().is_some() {
            dirty.add_live();
        }
        node
    }
}

impl Inner {
    /// Which child `key` belongs to.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> usize {
        self.keys.partition_point(|lower| *lower <= key).saturating_sub(1)
    }

    /// Puts a child at `index`; a full node gives its upper part away first and returns it.
    pub(crate) fn insert(&mut self, index: usize, key: u64, child: Child) -> Option<Self> {
        if self.keys.len() < INNER_CAPACITY {
            self.keys.insert(index, key);
            self.children.insert(index, child);
            return None;
        }
        let at = if index == self.keys.len() { index } else { self.keys.len() / 2 };
        let mut upper = Self {
            level: self.level,
            keys: self.keys.split_off(at),
            children: self.children.split_off(at),
        };
        let full = if index >= at {
            upper.insert(index - at, key, child)
        } else {
            self.insert(index, key, child)
        };
        assert!(full.is_none(), "both halves have room");
        Some(upper)
    }

    /// Takes out a child without keys. A neighbour answers for it if it can without being loaded,
    /// else an absent child takes its place (D4).
    pub(crate) fn vacate(&mut self, index: usize) -> Child {
        let lower_answers = index > 0 && self.children[index - 1].edge_is_loaded(true);
        let upper = self.children.get(index + 1);
        if lower_answers || (index == 0 && upper.is_some_and(|upper| upper.edge_is_loaded(false))) {
            return self.remove(index);
        }
        if upper.is_some_and(Child::is_absent) {
            self.remove(index + 1);
        }
        std::mem::replace(&mut self.children[index], Child::absent())
    }

    /// Takes a child out; its neighbour answers for its keys.
    pub(crate) fn remove(&mut self, index: usize) -> Child {
        let key = self.keys.remove(index);
        if index == 0
            && let Some(first) = self.keys.first_mut()
        {
            *first = key;
        }
        self.children.remove(index)
    }
}

/// Takes a node out of the live tree: its home goes to `retired`, for the next checkpoint to free.
pub(crate) fn retire(child: Child, dirty: &Dirty, retired: &mut Vec<Rc<Home>>) {
    let on_disk = child.on_disk;
    let Some(node) = child.node.into_inner() else {
        retired.push(Rc::new(Home(Cell::new(Some(on_disk.pba)))));
        return;
    };
    let shared = Rc::strong_count(&node) > 1;
    if node.placed.get().is_none() && !shared {
        dirty.remove_live();
    }
    // A checkpoint may be about to write an older version, and then that place must be given back.
    let versions = Rc::strong_count(&node.home) > 1;
    if shared || versions || node.home.0.get().is_some() {
        retired.push(node.home.clone());
    }
}
