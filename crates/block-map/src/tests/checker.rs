//! Checks the invariants of a tree from its nodes and from the device, without the code that walks
//! trees.

use std::collections::{BTreeMap, BTreeSet};

use io_traits::Buffer;
use layout::{Mapping, NodeView};
use units::{MetadataSize, Pba};

use super::super::capacity::{inner_capacity, leaf_capacity};
use super::super::{Body, Child, Map, Node};

/// The contents of a device.
pub(super) type Blocks = BTreeMap<Pba, Buffer>;

/// The measured properties of a tree.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// All entries with their metadata, in order.
    pub(super) entries: Vec<(u64, Mapping, Vec<u8>)>,
    /// Lower bounds of nodes, by level.
    pub(super) bounds: BTreeSet<(u8, u64)>,
    /// Locations of nodes that are on the device as they are.
    pub(super) places: BTreeSet<Pba>,
    /// Locations of the last versions of nodes, and of nodes on the device alone.
    pub(super) locations: BTreeSet<Pba>,
    /// Addresses of dirty nodes.
    pub(super) dirty: BTreeSet<usize>,
    /// Inner nodes.
    pub(super) inner: usize,
    /// Inner nodes with one or two children.
    pub(super) thin: usize,
    /// Levels.
    pub(super) height: u8,
    /// Bytes of the nodes in memory.
    pub(super) resident: u64,
}

/// A tree on its way to be looked at.
struct Check<'a> {
    tree: u32,
    metadata: MetadataSize,
    blocks: &'a Blocks,
    found: Found,
}

/// Looks at all of a tree. Panics if something is not as it must be.
pub(super) fn check(map: &Map, blocks: &Blocks) -> Found {
    let (tree, metadata) = (map.tree().number, map.tree().metadata);
    check_child(map.root(), tree, metadata, blocks)
}

/// The same of the tree that begins with this child.
pub(super) fn check_child(
    root: Option<&Child>,
    tree: u32,
    metadata: MetadataSize,
    blocks: &Blocks,
) -> Found {
    let mut check = Check { tree, metadata, blocks, found: Found::default() };
    if let Some(root) = root {
        let level = check.child(root, (0, u64::MAX), None, false);
        check.found.height = level + 1;
    }
    check.found
}

impl Check<'_> {
    /// Looks at a child with keys in `span`; returns its level.
    fn child(&mut self, child: &Child, span: (u64, u64), level: Option<u8>, clean: bool) -> u8 {
        match child {
            Child::InMemory(node) => self.node(node, span, level, clean),
            Child::OnDisk(pointer) => self.block((*pointer).into(), span, level),
            Child::Absent => panic!("only a parent knows what an absent child is for"),
        }
    }

    fn node(&mut self, node: &Node, span: (u64, u64), level: Option<u8>, clean: bool) -> u8 {
        let is_clean = node.placed.get().is_some();
        assert!(is_clean || !clean, "NODE-1: a dirty node below a clean one");
        assert!(level.is_none_or(|level| level == node.level()), "a child of another level");
        self.found.resident += node.len_bytes();
        self.found.bounds.insert((node.level(), span.0));
        self.found.locations.extend(node.location.0.get());
        match node.placed.get() {
            Some(place) => self.is_on_device(node, place),
            None => drop(self.found.dirty.insert(std::ptr::from_ref(node).addr())),
        }
        match &node.body {
            Body::Leaf(leaf) => {
                let entries = (0..leaf.len())
                    .map(|at| (leaf.key(at), leaf.mapping(at), leaf.metadata(at).to_vec()));
                assert_eq!(leaf.metadata_size(), self.metadata);
                self.leaf(entries.collect(), span);
            }
            Body::Inner(inner) => {
                let children = inner.children.borrow();
                assert_eq!(inner.keys.len(), children.len(), "a bound for each child");
                self.inner(&inner.keys, span);
                assert!(!children.iter().all(Child::is_absent), "an inner node without keys");
                for (at, child) in children.iter().enumerate() {
                    if !child.is_absent() {
                        let span = span_of(&inner.keys, at, span);
                        self.child(child, span, Some(inner.level - 1), is_clean);
                    }
                }
            }
        }
        node.level()
    }

    /// A clean node is on the device as it is in memory, or will be: its write may be under way.
    fn is_on_device(&mut self, node: &Node, place: Mapping) {
        assert_eq!(node.location.0.get(), Some(place.pba), "NODE-3: a place that is not the last");
        self.found.places.insert(place.pba);
        let mut block = Buffer::new(1);
        node.encode(block.as_mut_bytes(), self.tree);
        assert_eq!(checksum::crc32c(block.as_bytes()), place.crc, "NODE-1: changed in its place");
        if node.stored_at().is_some() {
            let there = self.blocks.get(&place.pba).map(Buffer::as_bytes);
            assert!(
                there == Some(block.as_bytes()),
                "EVICT-1: it is not where it can be read from"
            );
        }
    }

    fn block(&mut self, pointer: Mapping, span: (u64, u64), level: Option<u8>) -> u8 {
        let block = self.blocks.get(&pointer.pba).expect("a node that is needed was freed");
        assert_eq!(checksum::crc32c(block.as_bytes()), pointer.crc, "another node in its place");
        let view = NodeView::decode(block.as_bytes()).expect("it was written as a node");
        assert_eq!(view.tree, self.tree);
        assert!(level.is_none_or(|level| level == view.level), "a child of another level");
        self.found.places.insert(pointer.pba);
        self.found.locations.insert(pointer.pba);
        self.found.bounds.insert((view.level, span.0));
        if view.level == 0 {
            assert_eq!(view.metadata_size, self.metadata);
            let each = self.metadata.bytes();
            let entries = view.keys().zip(view.mappings()).enumerate().map(|(at, (key, to))| {
                (key, to.into(), view.metadata()[at * each..][..each].to_vec())
            });
            self.leaf(entries.collect(), span);
        } else {
            let keys: Vec<u64> = view.keys().collect();
            self.inner(&keys, span);
            for (at, child) in view.mappings().enumerate() {
                let span = span_of(&keys, at, span);
                self.block(child.into(), span, Some(view.level - 1));
            }
        }
        view.level
    }

    fn leaf(&mut self, entries: Vec<(u64, Mapping, Vec<u8>)>, (low, high): (u64, u64)) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            panic!("an empty leaf")
        };
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "keys of a leaf ascend");
        assert!(low <= first.0 && last.0 < high, "keys outside of {low}..{high}");
        let width = layout::key_width(last.0 - first.0);
        assert!(entries.len() <= leaf_capacity(width, self.metadata), "LEAF-1: too many entries");
        let metadata_len = self.metadata.bytes();
        assert!(entries.iter().all(|(.., metadata)| metadata.len() == metadata_len));
        self.found.entries.extend(entries);
    }

    fn inner(&mut self, keys: &[u64], (low, high): (u64, u64)) {
        self.found.inner += 1;
        self.found.thin += usize::from(keys.len() <= 2);
        assert!(!keys.is_empty() && keys.len() <= inner_capacity(), "too many children");
        assert!(keys.is_sorted_by(|a, b| a < b), "bounds that do not ascend: {keys:?}");
        // The first counts as everything below the second.
        let others = keys.iter().skip(1);
        assert!({ others }.all(|key| low < *key && *key < high), "bounds outside of {low}..{high}");
        assert!(keys[0] >= low, "a first bound below {low}");
    }
}

/// The keys that a child may have.
fn span_of(keys: &[u64], at: usize, (low, high): (u64, u64)) -> (u64, u64) {
    let low = if at == 0 { low } else { keys[at] };
    (low, keys.get(at + 1).copied().unwrap_or(high))
}
