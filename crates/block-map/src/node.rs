//! Nodes in memory: shared between the live tree and the snapshot that a checkpoint writes.
//!
//! - NODE-1: a node with a place is on the device as it is in memory, and so is everything below it. A
//!   node without is dirty, and so is everything above it.
//! - NODE-2: only a node with a single reference is changed in place; else the path to it is copied.
//! - NODE-3: copies of a node share its [`NodeLocation`], the location of the last version written, so
//!   that the writer of the next version frees it.
//! - NODE-4: what was loaded of a tree for a request stays so while the request is under way (EVICT-2), and
//!   with it the answer for every key that the loaded part answers. A child that goes leaves its
//!   keys to a neighbour only if that is loaded down to the leaf; else an absent child keeps its
//!   place. On the device there are no absent children: a neighbour answers.
//! - NODE-5: an older version of a node keeps only those of its children in memory that are dirty, so
//!   that a checkpoint holds nothing that could be evicted.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::{
    DecodeError, INNER_CAPACITY, Mapping, NodeHead, NodeView, PackedMapping, VOLUME_TREE,
    encode_node,
};
use situations::{Situation, situation};
use units::{MetadataSize, Pba};

use super::Tree;
use super::capacity::inner_capacity;
use super::leaf::{LEAF_BYTES_MAX, Leaf, grow};
use crate::sabotage::{Sabotage, broken};

/// Memory that a node takes besides what its body holds: itself, its home, and the counts of both.
const OVERHEAD_BYTES: usize =
    size_of::<Node>() + size_of::<NodeLocation>() + 4 * size_of::<usize>();
/// The most memory that a node takes.
pub const NODE_BYTES_MAX: u64 =
    (OVERHEAD_BYTES + INNER_CAPACITY * (size_of::<u64>() + size_of::<Child>())) as u64;

/// The location of the last version of a node, shared by its versions (NODE-3).
#[derive(Debug, Default)]
pub struct NodeLocation(pub Cell<Option<Pba>>);

/// Counts the nodes of a shard's maps.
#[derive(Debug, Default)]
pub struct NodeCounters {
    /// Dirty nodes of live trees, since the last snapshot: each needs a free block at the next
    /// checkpoint.
    pub live: Cell<u64>,
    /// Those of the snapshot that is being written, as far as they are not.
    pub snapshot: Cell<u64>,
    /// All of that snapshot, until its checkpoint is over.
    pub writing: Cell<u64>,
    /// Bytes of all nodes in memory, those of older versions included.
    pub resident: Cell<u64>,
    /// The most that there ever were.
    pub resident_max: Cell<u64>,
}

impl NodeCounters {
    /// All nodes in memory.
    pub fn total(&self) -> u64 {
        self.live.get() + self.snapshot.get()
    }

    pub(crate) fn add_live(&self) {
        self.live.set(self.live.get() + 1);
    }

    fn remove_live(&self) {
        self.live.set(self.live.get().saturating_sub(1));
    }

    fn add_resident(&self, bytes: u64) {
        let resident = self.resident.get() + bytes;
        self.resident.set(resident);
        self.resident_max.set(self.resident_max.get().max(resident));
    }
}

/// Memory that a node takes, for as long as it is there.
#[derive(Debug)]
struct Charge {
    counters: Rc<NodeCounters>,
    bytes: Cell<u32>,
}

impl Charge {
    fn new(bytes: usize, counters: &Rc<NodeCounters>) -> Self {
        let bytes = u32::try_from(bytes).expect("a few thousand");
        counters.add_resident(u64::from(bytes));
        Self { counters: counters.clone(), bytes: Cell::new(bytes) }
    }

    fn change(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).expect("a few thousand");
        let old = u64::from(self.bytes.replace(bytes));
        self.counters.resident.set(self.counters.resident.get() - old);
        self.counters.add_resident(u64::from(bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.counters.resident.set(self.counters.resident.get() - u64::from(self.bytes.get()));
    }
}

/// A version of a node.
#[derive(Debug)]
pub struct Node {
    /// Its home on the device.
    pub location: Rc<NodeLocation>,
    /// Pointer to this version on the device, once it is there (NODE-1).
    pub placed: Cell<Option<Mapping>>,
    /// True if the node can be read there: from when the write is over.
    stored: Cell<bool>,
    /// True if the node was accessed since the clock's hand passed it.
    recent: Cell<bool>,
    charge: Charge,
    /// Its content.
    pub body: Body,
}

/// The content of a node.
#[derive(Debug)]
pub enum Body {
    /// Level 0.
    Leaf(Leaf),
    /// Any level above.
    Inner(Inner),
}

/// A node with children. Each key is a lower bound of the keys in its child.
#[derive(Debug)]
pub struct Inner {
    /// Its level; leaves have 0.
    pub level: u8,
    /// The lower bound of each child.
    pub keys: Vec<u64>,
    /// A `RefCell`, since lookups may load or evict a child, too.
    pub children: RefCell<Vec<Child>>,
}

/// A child of an inner node.
#[derive(Clone, Debug)]
pub enum Child {
    /// It is in memory.
    InMemory(Rc<Node>),
    /// On the device only, at this location.
    OnDisk(PackedMapping),
    /// Without any keys (NODE-4).
    Absent,
}

const _: () = assert!(size_of::<Child>() == 16);

impl Child {
    /// A child of which nothing is loaded.
    pub fn on_disk(pointer: Mapping) -> Self {
        Self::OnDisk(pointer.into())
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// The node, if it is in memory.
    #[inline]
    pub(crate) fn node(&self) -> Option<&Rc<Node>> {
        match self {
            Self::InMemory(node) => Some(node),
            Self::OnDisk(_) | Self::Absent => None,
        }
    }

    pub(crate) fn node_mut(&mut self) -> Option<&mut Rc<Node>> {
        match self {
            Self::InMemory(node) => Some(node),
            Self::OnDisk(_) | Self::Absent => None,
        }
    }

    /// Returns the location to load the child from, if it is missing.
    pub fn missing(&self) -> Option<Mapping> {
        match self {
            Self::OnDisk(pointer) => Some((*pointer).into()),
            Self::InMemory(_) | Self::Absent => None,
        }
    }

    /// Returns whether the way down to the last leaf, or to the first, is loaded.
    fn edge_is_loaded(&self, last: bool) -> bool {
        let Some(node) = self.node() else { return self.is_absent() };
        let Body::Inner(inner) = &node.body else { return true };
        let children = inner.children.borrow();
        let next = if last { children.last() } else { children.first() };
        next.expect("an inner node has children").edge_is_loaded(last)
    }

    /// Pointer to the child on the device, unless it is dirty or absent.
    pub fn pointer(&self) -> Option<Mapping> {
        match self {
            Self::InMemory(node) => node.placed.get(),
            Self::OnDisk(pointer) => Some((*pointer).into()),
            Self::Absent => None,
        }
    }

    /// The child, if it is not on the device as it is.
    pub fn dirty_node(&self) -> Option<&Rc<Node>> {
        self.node().filter(|node| node.placed.get().is_none())
    }

    /// The child without what can be read back.
    pub(crate) fn without_clean(&self) -> Self {
        self.pointer().map_or_else(|| self.clone(), Self::on_disk)
    }
}

impl Node {
    pub(crate) fn new_dirty(body: Body, counters: &Rc<NodeCounters>) -> Rc<Self> {
        counters.add_live();
        Rc::new(Self::new(Rc::default(), None, body, counters))
    }

    fn new(
        location: Rc<NodeLocation>,
        placed: Option<Mapping>,
        body: Body,
        counters: &Rc<NodeCounters>,
    ) -> Self {
        let bytes = if placed.is_some() { body.len_bytes() } else { body.len_bytes_max() };
        Self {
            location,
            placed: Cell::new(placed),
            stored: Cell::new(placed.is_some()),
            recent: Cell::new(true),
            charge: Charge::new(OVERHEAD_BYTES + bytes, counters),
            body,
        }
    }

    /// Nodes of this level and all below, down to `leaf`, of whose keys `low` is a lower bound.
    pub(crate) fn new_path(
        level: u8,
        low: u64,
        leaf: Leaf,
        counters: &Rc<NodeCounters>,
    ) -> Rc<Self> {
        let key = leaf.key(0);
        let mut node = Self::new_dirty(Body::Leaf(leaf), counters);
        for level in 1..=level {
            let inner = Inner::new(level, vec![low.min(key)], vec![Child::InMemory(node)]);
            node = Self::new_dirty(Body::Inner(inner), counters);
        }
        node
    }

    /// Memory that it takes.
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.charge.bytes.get())
    }

    /// Someone looks at it.
    #[inline]
    pub fn touch(&self) {
        if !self.recent.get() {
            self.recent.set(true);
        }
    }

    /// Returns whether the node was accessed since the last call.
    pub fn take_recent(&self) -> bool {
        self.recent.replace(false)
    }

    /// The write to its place is over.
    pub fn set_stored(&self) {
        self.stored.set(true);
        self.charge.change(OVERHEAD_BYTES + self.body.len_bytes());
    }

    /// Returns the location that the node can be read from as it is, if any (EVICT-1).
    pub(crate) fn stored_at(&self) -> Option<Mapping> {
        self.placed.get().filter(|_| self.stored.get())
    }

    /// Its level; leaves have 0.
    pub fn level(&self) -> u8 {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Inner(inner) => inner.level,
        }
    }

    /// Returns true if it has neither entries nor children.
    pub fn is_empty(&self) -> bool {
        match &self.body {
            Body::Leaf(leaf) => leaf.is_empty(),
            Body::Inner(inner) => inner.children.borrow().iter().all(Child::is_absent),
        }
    }

    /// A node as read from `pointer`.
    pub fn decode(
        block: &[u8],
        tree: Tree,
        pointer: Mapping,
        counters: &Rc<NodeCounters>,
    ) -> Result<Self, DecodeError> {
        let is_meant = checksum::crc32c(block) == pointer.crc;
        if !is_meant && !broken(Sabotage::SkipNodeChecksum) && !is_taken_stale(block, tree) {
            return Err(DecodeError::Checksum);
        }
        let view = NodeView::decode(block)?;
        if view.tree != tree.number {
            return Err(DecodeError::Field("tree of the node"));
        }
        if view.entries().any(|(_, mapping)| mapping.pba == Pba(0)) {
            return Err(DecodeError::Field("pointer in the node"));
        }
        let body = if view.level == 0 {
            if view.metadata_size != tree.metadata {
                return Err(DecodeError::Field("metadata of the node"));
            }
            let (size, metadata) = (view.metadata_size, view.metadata());
            Body::Leaf(Leaf::from_entries(view.keys().zip(view.mappings()), size, metadata))
        } else {
            let children = view.mappings().map(Child::OnDisk).collect();
            Body::Inner(Inner::new(view.level, view.keys().collect(), children))
        };
        let location = Rc::new(NodeLocation(Cell::new(Some(pointer.pba))));
        Ok(Self::new(location, Some(pointer), body, counters))
    }

    /// Fills a block. Every child must have its place.
    pub fn encode(&self, block: &mut [u8], tree: u32) {
        match &self.body {
            Body::Leaf(leaf) => {
                let head = NodeHead { tree, level: 0, metadata: leaf.metadata_size() };
                encode_node(block, head, leaf.keys(), leaf.packed(), leaf.all_metadata());
            }
            Body::Inner(inner) => {
                let pointer = |child: &Child| -> PackedMapping {
                    child.pointer().expect("children are written before their parent").into()
                };
                let children = inner.children.borrow();
                let present = |at: &usize| !children[*at].is_absent();
                let places: Vec<usize> = (0..children.len()).filter(present).collect();
                // Whichever comes first has the keys of absent ones before it (NODE-4).
                let key = |(n, at): (usize, &usize)| inner.keys[if n == 0 { 0 } else { *at }];
                let keys: Vec<u64> = places.iter().enumerate().map(key).collect();
                let pointers = places.iter().map(|at| pointer(&children[*at]));
                let metadata = MetadataSize::None;
                let head = NodeHead { tree, level: inner.level, metadata };
                encode_node(block, head, keys.into_iter(), pointers, &[]);
            }
        }
    }

    /// Returns whether a change of it makes nothing dirty that is not.
    pub(crate) fn is_free_to_change(this: &Rc<Self>) -> bool {
        this.placed.get().is_none() && Rc::strong_count(this) == 1
    }

    /// The node to be changed: itself, or its copy if someone else holds it (NODE-2).
    pub fn make_mut<'a>(this: &'a mut Rc<Self>, counters: &Rc<NodeCounters>) -> &'a mut Self {
        if Rc::get_mut(this).is_none() {
            situation(Situation::NodeChangedUnderCheckpoint);
            let body = this.body.next_version();
            *this = Rc::new(Self::new(this.location.clone(), None, body, counters));
            counters.add_live();
        }
        let node = Rc::get_mut(this).expect("not shared, or just copied");
        if node.placed.take().is_some() {
            node.stored.set(false);
            node.charge.change(OVERHEAD_BYTES + node.body.len_bytes_max());
            counters.add_live();
        }
        node
    }
}

impl Body {
    /// A copy to be changed. What is left of the original is for a checkpoint to write (NODE-5).
    fn next_version(&self) -> Self {
        match self {
            Self::Leaf(leaf) => Self::Leaf(leaf.clone()),
            Self::Inner(inner) => {
                let mut old = inner.children.borrow_mut();
                let left = old.iter().map(Child::without_clean).collect();
                let children = std::mem::replace(&mut *old, left);
                Self::Inner(Inner::new(inner.level, inner.keys.clone(), children))
            }
        }
    }

    /// Memory that it takes, outside of the node itself.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.len_bytes(),
            Self::Inner(inner) => {
                let children = inner.children.borrow().capacity() * size_of::<Child>();
                inner.keys.capacity() * size_of::<u64>() + children
            }
        }
    }

    /// The most that it takes while it is changed.
    fn len_bytes_max(&self) -> usize {
        match self {
            Self::Leaf(_) => LEAF_BYTES_MAX,
            Self::Inner(_) => INNER_CAPACITY * (size_of::<u64>() + size_of::<Child>()),
        }
    }
}

impl Inner {
    pub(crate) fn new(level: u8, keys: Vec<u64>, children: Vec<Child>) -> Self {
        Self { level, keys, children: RefCell::new(children) }
    }

    /// The keys that a child may have, of those that `(low, high)` says the node may have.
    pub(crate) fn span(&self, index: usize, (low, high): (u64, u64)) -> (u64, u64) {
        let low = if index > 0 { self.keys[index] } else { low };
        let over = u64::from(broken(Sabotage::SpanTakesBound));
        (low, self.keys.get(index + 1).map_or(high, |next| next + over))
    }

    /// Returns the index of the child that `key` belongs to.
    #[inline]
    pub fn find(&self, key: u64) -> usize {
        let key = if broken(Sabotage::FindMissesBound) { key.saturating_sub(1) } else { key };
        self.keys.partition_point(|lower| *lower <= key).saturating_sub(1)
    }

    /// Sets the lower bound of the keys of a child that is not the first.
    pub(crate) fn set_bound(&mut self, index: usize, key: u64) {
        self.keys[index] = key;
        self.lower_first();
    }

    /// Keeps bounds ascending. The first one bounds nothing: where a node became the root, or the first child of its parent,
    /// keys below it are in the first child, and may come to begin the second.
    fn lower_first(&mut self) {
        if let [first, second, ..] = &mut self.keys[..]
            && first >= second
            && !broken(Sabotage::FirstBoundStays)
        {
            *first = *second - 1;
        }
    }

    /// Puts a child at `index`; a full node gives its upper part away first and returns it.
    pub fn insert(&mut self, index: usize, key: u64, child: Child) -> Option<Self> {
        let children = self.children.get_mut();
        let most = inner_capacity();
        if self.keys.len() < most {
            grow(&mut self.keys, most);
            grow(children, most);
            self.keys.insert(index, key);
            children.insert(index, child);
            self.lower_first();
            return None;
        }
        let at = if index == self.keys.len() { index } else { self.keys.len() / 2 };
        let mut upper = Self::new(self.level, self.keys.split_off(at), children.split_off(at));
        let full = if index >= at {
            upper.insert(index - at, key, child)
        } else {
            self.insert(index, key, child)
        };
        assert!(full.is_none(), "both halves have room");
        Some(upper)
    }

    /// Takes out a child without keys. A neighbour answers for it if it can without being loaded,
    /// else an absent child takes its place (NODE-4).
    pub fn vacate(&mut self, index: usize) -> Child {
        let children = self.children.get_mut();
        let forgets = broken(Sabotage::VacateForgetsAbsent);
        let lower_answers = index > 0 && (children[index - 1].edge_is_loaded(true) || forgets);
        let upper = children.get(index + 1);
        if lower_answers || (index == 0 && upper.is_some_and(|upper| upper.edge_is_loaded(false))) {
            return self.remove(index);
        }
        situation(Situation::AbsentChildKept);
        if upper.is_some_and(Child::is_absent) {
            self.remove(index + 1);
        }
        std::mem::replace(&mut self.children.get_mut()[index], Child::Absent)
    }

    /// Takes a child out; its neighbour answers for its keys.
    pub fn remove(&mut self, index: usize) -> Child {
        let key = self.keys.remove(index);
        if index == 0
            && let Some(first) = self.keys.first_mut()
        {
            *first = key;
        }
        self.children.get_mut().remove(index)
    }
}

/// Returns whether a mutant accepts a node that its pointer does not mean.
fn is_taken_stale(block: &[u8], tree: Tree) -> bool {
    if tree.number >= VOLUME_TREE {
        return broken(Sabotage::TakeStaleTable);
    }
    let is_leaf = || NodeView::decode(block).is_ok_and(|view| view.level == 0);
    (broken(Sabotage::TakeStaleLeaf) && is_leaf())
        || (broken(Sabotage::TakeStaleInner) && !is_leaf())
}

/// Takes a node out of the live tree: its home goes to `retired`, for the next checkpoint to free.
pub(crate) fn retire(child: Child, counters: &NodeCounters, retired: &mut Vec<Rc<NodeLocation>>) {
    let node = match child {
        Child::InMemory(node) => node,
        Child::OnDisk(pointer) => {
            let pba = Mapping::from(pointer).pba;
            retired.push(Rc::new(NodeLocation(Cell::new(Some(pba)))));
            return;
        }
        Child::Absent => return,
    };
    let shared = Rc::strong_count(&node) > 1;
    if node.placed.get().is_none() && !shared {
        counters.remove_live();
    }
    // A checkpoint may be about to write an older version, and then that place must be given back.
    let versions = Rc::strong_count(&node.location) > 1;
    let forgets = broken(Sabotage::RetireForgetsHome) && node.location.0.get().is_none();
    if (shared || versions || node.location.0.get().is_some()) && !forgets {
        retired.push(node.location.clone());
    }
}
