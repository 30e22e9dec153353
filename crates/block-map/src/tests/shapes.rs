//! Trees of all shapes, by nodes that take few entries: three levels and more, dense and sparse, with leaves and inner nodes
//! that are full, or emptied from either end, in memory or not.
//!
//! Each seed is a tree that is changed, written out as a checkpoint does it, evicted and read back, step by step. Most
//! changes begin or end around a bound of some node. After each step the tree is compared with a `BTreeMap`, and checked by
//! `checker.rs`, which goes through nodes and blocks by itself.

use std::collections::BTreeSet;

use units::MetadataSize;

use super::super::capacity::{NodeCapacity, set_node_capacity};
use super::checker::{Blocks, Found, check, check_child};
use super::*;
use crate::sabotage::{Sabotage, sabotage};

/// Seeds of the test, and those within which a broken map is noticed.
const SEEDS: u64 = 300;
const STEPS: u64 = 120;
/// Characters printed of a finding.
const FINDING_CHARS: usize = 120;
/// Keys stay below this: the device has no room for others.
const KEY_MAX: u64 = 1 << 55;

/// The mapping of a key, and its metadata.
type Value = (Mapping, Vec<u8>);

/// Coverage of all seeds together, as far as trees show it.
#[derive(Debug, Default)]
struct Did {
    levels_max: u8,
    thin_inner_nodes: usize,
    /// Runs, and removals, that began below one inner node and ended below another.
    runs_across: u64,
    removals_across: u64,
    /// Steps that left fewer inner nodes, or more, and levels.
    inner_nodes_fewer: u64,
    inner_nodes_more: u64,
    levels_fewer: u64,
    evicted: u64,
    changed_under_checkpoint: u64,
}

/// A checkpoint of the tree on its way to the device.
struct Writing {
    root: Option<Child>,
    expected: Vec<(u64, Mapping, Vec<u8>)>,
    stack: Vec<(Rc<Node>, usize)>,
    /// Nodes that have their places, and are not there yet.
    unwritten: Vec<(Rc<Node>, Buffer)>,
    /// Addresses of those of its nodes that have no place yet, which the live tree does not count.
    dirty: BTreeSet<usize>,
    superseded: Vec<Pba>,
}

struct Shape {
    random: Random,
    map: Map,
    model: BTreeMap<u64, Value>,
    blocks: Blocks,
    next_place: u64,
    writing: Option<Writing>,
    /// Distance of keys that lie side by side.
    stride: u64,
    /// Keys of a full tree.
    keys: u64,
    found: Found,
    stamp: u64,
    /// Nodes were given up: the number of entries is unknown.
    is_damaged: bool,
    did: Did,
}

impl Shape {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let pick = |random: &mut Random, of: &[u64]| of[random.next(of.len() as u64) as usize];
        let leaf = pick(&mut random, &[4, 5, 6, 9, 16]) as usize;
        let inner = pick(&mut random, &[4, 5, 8, 8, 9, 12]) as usize;
        set_node_capacity(Some(NodeCapacity { leaf, inner }));
        let metadata =
            [MetadataSize::None, MetadataSize::None, MetadataSize::Bytes8, MetadataSize::Bytes16];
        let metadata = metadata[random.next(4) as usize];
        let stride = pick(&mut random, &[1, 1, 1, 2, 300, 1 << 20, 1 << 40]);
        let keys = pick(&mut random, &[60, 200, 500, 900]);
        Self {
            map: Map::new(Tree { number: 1, metadata }, Rc::default()),
            model: BTreeMap::new(),
            blocks: Blocks::new(),
            next_place: 1,
            writing: None,
            stride,
            keys,
            found: Found::default(),
            stamp: 0,
            is_damaged: false,
            did: Did::default(),
            random,
        }
    }

    fn metadata(&mut self) -> Vec<u8> {
        let byte = self.stamp as u8;
        (0..self.map.tree().metadata.bytes()).map(|at| byte.wrapping_add(at as u8)).collect()
    }

    fn mapping(&mut self) -> Mapping {
        self.stamp += 1;
        Mapping { pba: Pba(1 + self.stamp * 4096), crc: self.stamp as u32 }
    }

    /// A key at random, or one around a bound of some node; a bound of an inner node as often as that of a leaf.
    fn aim(&mut self) -> u64 {
        let space = self.keys * self.stride;
        if self.random.next(3) == 0 || self.found.bounds.is_empty() {
            return self.random.next(space) / self.stride * self.stride;
        }
        let level = self.random.next(u64::from(self.found.height)) as u8;
        let of_level: Vec<u64> =
            self.found.bounds.range((level, 0)..(level + 1, 0)).map(|(_, key)| *key).collect();
        let bound = of_level[self.random.next(of_level.len() as u64) as usize];
        let aside = self.random.next(9) * self.stride.min(1 + self.random.next(self.stride));
        (bound + aside).saturating_sub(4).min(KEY_MAX)
    }

    /// The bound of the inner nodes right above the leaves behind which `key` lies.
    fn inner_bound(&self, key: u64) -> Option<u64> {
        self.found.bounds.range((1, 0)..=(1, key)).next_back().map(|(_, bound)| *bound)
    }

    fn prepare(&mut self, start: u64, end: u64) {
        while let Err(missing) = self.map.touch(start, end) {
            self.load(missing);
        }
    }

    fn load(&mut self, missing: Missing) {
        let block = self.blocks[&missing.pointer.pba].as_bytes();
        let node = Node::decode(block, self.map.tree(), missing.pointer, self.map.counters());
        let node = node.expect("written as it is");
        assert!(self.map.fits(missing, &node), "a node that was there does not fit there");
        self.map.attach(missing, node);
    }

    fn insert(&mut self, key: u64) {
        let (mapping, metadata) = (self.mapping(), self.metadata());
        let old = self.map.insert_with_metadata(key, mapping, &metadata);
        let expected = self.model.insert(key, (mapping, metadata)).map(|(mapping, _)| mapping);
        assert_eq!(old, expected, "what {key} led to");
    }

    fn insert_run(&mut self, key: u64, count: u64) {
        if self.inner_bound(key) != self.inner_bound(key + count - 1) {
            self.did.runs_across += 1;
        }
        let first = self.mapping();
        let (mut crcs, mut metadata, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..count {
            let mapping = Mapping { pba: first.pba.plus(n), crc: self.mapping().crc };
            let of_block = self.metadata();
            crcs.push(mapping.crc);
            metadata.extend_from_slice(&of_block);
            expected.extend(self.model.insert(key + n, (mapping, of_block)).map(|(old, _)| old));
        }
        let run = Run { start: first.pba, crcs: &crcs, metadata: &metadata };
        let mut replaced = Vec::new();
        self.map.insert_run(key, run, |old| replaced.push(old));
        assert_eq!(replaced, expected, "what {count} keys from {key} on led to");
    }

    fn remove(&mut self, start: u64, end: u64) {
        if self.inner_bound(start) != self.inner_bound(end) {
            self.did.removals_across += 1;
        }
        let (mut at, mut removed) = (start, Vec::new());
        while at < end {
            at = self.map.remove_some(at, end, &mut removed).expect("prepared");
        }
        let gone: Vec<u64> = self.model.range(start..end).map(|(key, _)| *key).collect();
        let expected: Vec<(u64, Mapping)> =
            gone.iter().map(|key| (*key, self.model.remove(key).expect("there").0)).collect();
        assert_eq!(removed, expected, "what {start}..{end} held");
    }

    /// The end of a range that begins at `start`: near, at a bound, or far.
    fn end(&mut self, start: u64) -> u64 {
        let most = 1 + self.random.next(40);
        match self.random.next(4) {
            0 => start + self.stride * most,
            1 => start + 1,
            2 => self.aim().max(start) + 1,
            _ => start + 1 + self.random.next(self.keys * self.stride),
        }
    }

    /// Some changes, all of which are prepared before any takes effect (NODE-4).
    fn change_several(&mut self) {
        let count = 1 + self.random.next(4);
        let mut changes: Vec<(u64, u64, u64)> = Vec::new();
        for _ in 0..count {
            let (start, kind) = (self.aim(), self.random.next(9));
            let end = match kind {
                0..3 => start + 1,
                3..6 => start + 1 + self.random.next(40),
                _ => self.end(start),
            };
            changes.push((kind, start, end));
        }
        let most = self.keys as usize;
        changes.iter().for_each(|(_, start, end)| self.prepare(*start, *end));
        while !changes.is_empty() {
            let at = self.random.next(changes.len() as u64) as usize;
            match changes.swap_remove(at) {
                (6.., start, end) => self.remove(start, end),
                _ if self.model.len() > most => {}
                (0..3, start, _) => self.insert(start),
                (_, start, end) => self.insert_run(start, end - start),
            }
        }
        if self.writing.is_some() {
            self.did.changed_under_checkpoint += 1;
        }
    }

    /// Fills a part of the tree, in order or not, or leaves each leaf there with few entries.
    fn fill(&mut self) {
        let first = self.random.next(self.keys);
        let count = 1 + self.random.next(self.keys - first);
        let (one_in, in_order) = (1 + self.random.next(3), self.random.next(3));
        let mut keys: Vec<u64> = (first..first + count).map(|n| n * self.stride).collect();
        match in_order {
            0 => keys.reverse(),
            1 => keys.sort_unstable_by_key(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            _ => {}
        }
        for key in keys {
            if self.random.next(one_in) == 0 && self.model.len() as u64 <= self.keys {
                self.prepare(key, key + 1);
                self.insert(key);
            }
        }
    }

    /// Takes entries of some leaves out, from either end, so that one is left or few are.
    fn thin_out(&mut self) {
        let bounds: Vec<u64> =
            self.found.bounds.range((0, 0)..(1, 0)).map(|(_, bound)| *bound).collect();
        let from = self.random.next(bounds.len().max(1) as u64) as usize;
        for pair in bounds.windows(2).skip(from).take(8) {
            let held: Vec<u64> = self.model.range(pair[0]..pair[1]).map(|(key, _)| *key).collect();
            let Some((first, last)) = held.first().zip(held.last()) else { continue };
            let kept = held[self.random.next(held.len() as u64) as usize];
            let (start, end) =
                if self.random.next(2) == 0 { (*first, kept) } else { (kept + 1, last + 1) };
            if start < end {
                self.prepare(start, end);
                self.remove(start, end);
            }
        }
    }

    /// Begins to write the tree out, as it is now.
    fn begin_writing(&mut self) {
        let snapshot = self.map.snapshot();
        self.map.counters().live.set(0);
        let superseded = snapshot.retired.iter().filter_map(|location| location.0.take()).collect();
        let root = snapshot.root.as_ref().and_then(Child::dirty_node);
        let stack = root.map(|node| (node.clone(), 0)).into_iter().collect();
        let expected = entries_of(&self.model);
        let dirty = self.found.dirty.clone();
        let root = snapshot.root;
        self.writing =
            Some(Writing { root, expected, stack, unwritten: Vec::new(), dirty, superseded });
    }

    /// Gives one node its place. `false` if all have theirs, and are there.
    fn write_some(&mut self) -> bool {
        let Some(mut writing) = self.writing.take() else { return false };
        let is_dirty = |child: &Child| child.dirty_node().cloned();
        while let Some((node, next)) = writing.stack.last_mut() {
            let child = match &node.body {
                Body::Inner(inner) => {
                    let children = inner.children.borrow();
                    let found = (*next..children.len())
                        .find_map(|at| is_dirty(&children[at]).map(|child| (at, child)));
                    found.inspect(|(at, _)| *next = at + 1).map(|(_, child)| child)
                }
                Body::Leaf(_) => None,
            };
            if let Some(child) = child {
                writing.stack.push((child, 0));
                continue;
            }
            let (node, _) = writing.stack.pop().expect("just looked at");
            let mut block = Buffer::new(1);
            node.encode(block.as_mut_bytes(), 1);
            let pba = Pba(self.next_place);
            self.next_place += 1;
            node.placed.set(Some(Mapping { pba, crc: checksum::crc32c(block.as_bytes()) }));
            writing.superseded.extend(node.location.0.replace(Some(pba)));
            writing.dirty.remove(&Rc::as_ptr(&node).addr());
            writing.unwritten.push((node, block));
            break;
        }
        if writing.unwritten.len() > 3 || writing.stack.is_empty() {
            for (node, block) in writing.unwritten.drain(..) {
                self.blocks.insert(node.placed.get().expect("given").pba, block);
                node.set_stored();
            }
        }
        let goes_on = !writing.stack.is_empty();
        match goes_on {
            true => self.writing = Some(writing),
            false => self.end_writing(writing),
        }
        goes_on
    }

    /// All is on the device: what is there is what the tree was, and nothing else is left of what came before.
    fn end_writing(&mut self, writing: Writing) {
        let Writing { root, expected, superseded, .. } = writing;
        for pba in superseded {
            assert!(self.blocks.remove(&pba).is_some(), "{pba} is freed twice");
        }
        let root = root.as_ref().and_then(Child::pointer).map(Child::on_disk);
        let tree = self.map.tree();
        let found = check_child(root.as_ref(), 1, tree.metadata, &self.blocks);
        assert!(found.entries == expected, "a checkpoint of another state");
        let left: BTreeSet<Pba> = self.blocks.keys().copied().collect();
        assert!(left == found.places || self.is_damaged, "blocks without an owner stay in use");
    }

    fn write_out(&mut self) {
        while self.write_some() {}
        self.begin_writing();
        while self.write_some() {}
    }

    /// Writes the tree out, and opens it with nothing of it in memory.
    fn reopen(&mut self) {
        self.write_out();
        let tree = self.map.tree();
        assert!(!self.map.is_dirty());
        match self.map.root_pointer() {
            None => self.map = Map::new(tree, Rc::default()),
            Some(root) => {
                self.map = Map::on_disk(tree, root, self.map.entries(), Rc::default());
            }
        }
    }

    /// The clock's hand goes round. What a request relies on stays, and still leads where it did.
    fn evict(&mut self) {
        let start = self.aim();
        let end = self.end(start);
        self.prepare(start, end);
        let wanted = 1 + self.random.next(self.map.counters().resident.get() + 1);
        let (mut hand, mut laps) = (self.aim(), 0);
        let pinned = |low, high| low < end && start < high;
        while laps < 3 {
            let mut sweep = Sweep::new(wanted);
            match self.map.sweep(hand, &mut sweep, &pinned) {
                Some(next) => hand = next,
                None => (hand, laps) = (0, laps + 1),
            }
            self.did.evicted += sweep.nodes;
        }
        assert_eq!(self.map.touch(start, end), Ok(()), "EVICT-2: what was pinned went");
    }

    /// Goes from leaf to leaf, counting, with changes in between; what is then known is how many entries there are.
    fn count(&mut self) {
        let (mut at, mut seen) = (0, Vec::new());
        self.map.begin_count();
        while at < KEY_MAX * 2 {
            let site = match self.map.leaf_at(at) {
                Ok(site) => site,
                Err(missing) => {
                    self.load(missing);
                    continue;
                }
            };
            assert!(site.end > at, "leaves follow each other");
            let entries = match site.leaf {
                LeafBody::Absent => Vec::new(),
                LeafBody::InMemory(entries) => entries,
                LeafBody::OnDisk(pointer) => {
                    let child = Child::on_disk(pointer);
                    let size = self.map.tree().metadata;
                    let found = check_child(Some(&child), 1, size, &self.blocks);
                    found.entries.into_iter().map(|(key, mapping, _)| (key, mapping)).collect()
                }
            };
            let entries = entries.into_iter().filter(|(key, _)| (at..site.end).contains(key));
            let entries: Vec<(u64, Mapping)> = entries.collect();
            let expected: Vec<(u64, Mapping)> = self
                .model
                .range(at..site.end)
                .map(|(key, (mapping, _))| (*key, *mapping))
                .collect();
            assert_eq!(entries, expected, "the leaf at {at}");
            self.map.count_to(site.end, entries.len() as u64);
            seen.extend(entries);
            at = site.end;
            if self.random.next(6) == 0 {
                self.change_several();
            }
        }
        assert_eq!(self.map.end_count(), Some(self.model.len() as u64), "entries as counted");
    }

    /// Gives up a node that is on the device alone, with all that it leads to.
    fn give_up(&mut self) {
        let start = self.aim();
        let Err(missing) = self.map.get(start) else { return };
        let (low, high) = self.map.bounds(missing).expect("it is missing");
        assert!((low..high).contains(&start));
        let lost = check_child(
            Some(&Child::on_disk(missing.pointer)),
            1,
            self.map.tree().metadata,
            &self.blocks,
        );
        let lost: BTreeSet<u64> = lost.entries.into_iter().map(|(key, ..)| key).collect();
        assert!(lost.iter().all(|key| (low..high).contains(key)), "bounds of what is missing");
        self.model.retain(|key, _| !lost.contains(key));
        self.map.give_up(missing);
        self.is_damaged = true;
    }

    fn ask(&mut self) {
        for _ in 0..6 {
            let key = self.aim();
            self.map.will_search(key);
            let is_searched = self.map.will_get(key);
            self.map.will_get_searched(key);
            assert!(self.stride > 1 || !is_searched || self.map.may_miss() || !self.is_dense(key));
            self.prepare(key, key + 1);
            let expected = self.model.get(&key).map(|(mapping, _)| *mapping);
            assert_eq!(self.map.get(key), Ok(expected), "key {key}");
            let end = self.end(key);
            self.prepare(key, end);
            let first = self.model.range(key..end).next().map(|(key, _)| *key);
            assert_eq!(self.map.first_key(key, end), Ok(first), "first of {key}..{end}");
            let (mut visited, mut expected) = (Vec::new(), Vec::new());
            let visit = |key, mapping, of: &[u8]| visited.push((key, mapping, of.to_vec()));
            self.map.for_each_with_metadata(key, end, visit).expect("prepared");
            for (key, (mapping, metadata)) in self.model.range(key..end) {
                expected.push((*key, *mapping, metadata.clone()));
            }
            assert!(visited == expected, "what {key}..{end} leads to");
            self.ask_neighbours(key);
            self.ask_nodes(key);
        }
    }

    /// Ranges lead to as many nodes in memory as single keys of them do: where a range and the keys of a node begin.
    fn ask_nodes(&self, key: u64) {
        let mut random = Random(key ^ self.stamp);
        let (mut ranges, mut at) = (Vec::new(), key);
        for _ in 0..1 + random.next(3) {
            let blocks = 1 + random.next(self.keys * self.stride / 2);
            ranges.push(LbaRange::new(units::Lba(at), blocks));
            at += blocks + random.next(3 * self.stride);
        }
        let is_within = |key: &u64| ranges.iter().any(|range| range.contains(units::Lba(*key)));
        let bounds = self.found.bounds.iter().map(|(_, bound)| *bound).filter(is_within);
        let mut nodes = BTreeSet::new();
        for key in bounds.chain(ranges.iter().map(|range| range.start.0)) {
            let mut child = self.map.root().cloned();
            while let Some(Child::InMemory(node)) = child {
                nodes.insert(Rc::as_ptr(&node).addr());
                child = match &node.body {
                    Body::Inner(inner) => Some(inner.children.borrow()[inner.find(key)].clone()),
                    Body::Leaf(_) => None,
                };
            }
        }
        assert_eq!(self.map.nodes_of(&ranges), nodes.len() as u64, "nodes of {ranges:?}");
    }

    /// Returns whether all keys around this one are there.
    fn is_dense(&self, key: u64) -> bool {
        let around = key.saturating_sub(40)..key + 40;
        self.model.range(around).count() == 80
    }

    /// Neighbours that a leaf returns are right, though it need not return all.
    fn ask_neighbours(&mut self, key: u64) {
        let blocks = 1 + self.random.next(3);
        let neighbours = self.map.neighbours(LbaRange::new(units::Lba(key), blocks));
        let place = |key: u64| self.model.get(&key).map(|(mapping, _)| mapping.pba);
        let is_so = |said: Option<Pba>, key| said.is_none() || said == place(key);
        assert!(key == 0 || is_so(neighbours.before, key - 1), "before {key}");
        assert!(is_so(neighbours.own, key), "at {key}");
        assert!(is_so(neighbours.behind, key + blocks), "behind {key}");
    }

    fn step(&mut self, may_give_up: bool) {
        match self.random.next(20) {
            0 => self.fill(),
            1 => self.thin_out(),
            2 => self.reopen(),
            3 if self.writing.is_none() => self.begin_writing(),
            3..6 => drop(self.write_some()),
            6 => self.evict(),
            7 => self.count(),
            8 if may_give_up && self.writing.is_none() => self.give_up(),
            8..11 => self.ask(),
            _ => self.change_several(),
        }
    }

    /// Compares the tree with the model, and checks it.
    fn look(&mut self) {
        let found = check(&self.map, &self.blocks);
        assert!(found.entries == entries_of(&self.model), "another content");
        let levels = self.map.root().map_or(0, |root| root.node().map_or(4, |_| found.height));
        assert_eq!(self.map.height(), u64::from(levels), "levels");
        if let Some(Body::Inner(root)) = self.map.root().and_then(Child::node).map(|it| &it.body) {
            assert!(root.keys.len() > 1, "a root with one child");
        }
        if !self.is_damaged {
            assert_eq!(self.map.entries(), self.model.len() as u64, "number of entries");
        }
        let of_writing = self.writing.as_ref().map(|writing| &writing.dirty);
        let is_new = |node: &&usize| of_writing.is_none_or(|dirty| !dirty.contains(node));
        let live = found.dirty.iter().filter(is_new).count();
        if !self.is_damaged {
            assert_eq!(self.map.counters().live.get(), live as u64, "dirty nodes");
        }
        if self.writing.is_none() {
            assert_eq!(self.map.counters().resident.get(), found.resident, "memory of nodes");
        }
        let did = &mut self.did;
        did.levels_max = did.levels_max.max(found.height);
        did.thin_inner_nodes += found.thin;
        did.inner_nodes_fewer += u64::from(found.inner < self.found.inner);
        did.inner_nodes_more += u64::from(found.inner > self.found.inner);
        did.levels_fewer += u64::from(found.height < self.found.height);
        self.found = found;
    }
}

fn entries_of(model: &BTreeMap<u64, Value>) -> Vec<(u64, Mapping, Vec<u8>)> {
    model.iter().map(|(key, (mapping, metadata))| (*key, *mapping, metadata.clone())).collect()
}

/// Runs one seed; what it did, or what it found.
fn run(seed: u64) -> Result<Did, String> {
    let step = std::cell::Cell::new(0);
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut shape = Shape::new(seed);
        let may_give_up = shape.random.next(6) == 0;
        shape.fill();
        shape.look();
        for number in 0..STEPS {
            step.set(number);
            shape.step(may_give_up);
            shape.look();
        }
        shape.reopen();
        shape.look();
        shape.prepare(0, KEY_MAX);
        shape.remove(0, KEY_MAX + 1);
        shape.look();
        assert!(shape.map.is_empty() && shape.map.counters().resident.get() == 0);
        shape.reopen();
        assert!(shape.blocks.is_empty() || shape.is_damaged, "an empty tree has blocks");
        shape.did
    }));
    set_node_capacity(None);
    ran.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let start: String = text.chars().take(FINDING_CHARS).collect();
        format!("seed {seed}, step {}: {start}", step.get())
    })
}

/// Trees of three levels and more are what a `BTreeMap` is, whatever shape they have.
#[test]
fn trees_of_all_shapes_behave_like_a_btree_map() {
    let mut all = Did::default();
    let mut tall = 0;
    for seed in 0..SEEDS {
        let did = run(seed).unwrap_or_else(|finding| panic!("{finding}"));
        tall += u64::from(did.levels_max > 2);
        all.levels_max = all.levels_max.max(did.levels_max);
        all.thin_inner_nodes += did.thin_inner_nodes;
        all.runs_across += did.runs_across;
        all.removals_across += did.removals_across;
        all.inner_nodes_fewer += did.inner_nodes_fewer;
        all.inner_nodes_more += did.inner_nodes_more;
        all.levels_fewer += did.levels_fewer;
        all.evicted += did.evicted;
        all.changed_under_checkpoint += did.changed_under_checkpoint;
    }
    println!("{tall} of {SEEDS} with three levels: {all:?}");
    assert!(tall > SEEDS * 3 / 4 && all.levels_max > 4);
    let counts = [
        all.runs_across,
        all.removals_across,
        all.inner_nodes_fewer,
        all.inner_nodes_more,
        all.levels_fewer,
        all.changed_under_checkpoint,
    ];
    assert!(counts.iter().all(|count| *count > SEEDS), "{all:?}");
    assert!(all.evicted > 10 * SEEDS && all.thin_inner_nodes as u64 > SEEDS);
}

/// Maps that are broken in one place each are noticed.
///
/// Method: the seeds of the test above, in order until one finds something. `--nocapture` shows which one, and what.
#[test]
fn broken_maps_are_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut unnoticed = Vec::new();
    for mutant in BROKEN {
        sabotage(Some(mutant));
        let finding = (0..SEEDS).find_map(|seed| run(seed).err());
        sabotage(None);
        match finding {
            Some(finding) => println!("{mutant:?}: {finding}"),
            None => unnoticed.push(mutant),
        }
    }
    std::panic::set_hook(hook);
    assert!(unnoticed.is_empty(), "nothing notices {unnoticed:?}");
}

const BROKEN: [Sabotage; 25] = [
    Sabotage::FirstBoundStays,
    Sabotage::RunForgetsParent,
    Sabotage::RunForgetsLeaf,
    Sabotage::RunFillsGap,
    Sabotage::RunCountsNothing,
    Sabotage::FindMissesBound,
    Sabotage::SpanTakesBound,
    Sabotage::WalkMissesBound,
    Sabotage::RemoveSkipsKey,
    Sabotage::RemoveTakesEnd,
    Sabotage::SplitLosesFirst,
    Sabotage::SplitBoundTooHigh,
    Sabotage::InnerSplitBoundTooHigh,
    Sabotage::MergeBoundTooHigh,
    Sabotage::MergeSwapsMetadata,
    Sabotage::FoldKeepsBounds,
    Sabotage::ShareKeepsBound,
    Sabotage::DrainKeepsBase,
    Sabotage::SweepForgetsParent,
    Sabotage::SiteForgetsParent,
    Sabotage::VacateForgetsAbsent,
    Sabotage::RetireForgetsHome,
    Sabotage::EvictDirty,
    Sabotage::EvictUnwritten,
    Sabotage::KeepOldMetadata,
];
