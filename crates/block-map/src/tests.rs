//! The map against a `BTreeMap`.

mod bounds;
mod checker;
mod runs;
mod shapes;
mod space;

use std::collections::BTreeMap;

use units::Pba;

use super::*;

fn mapping(n: u64) -> Mapping {
    Mapping { pba: Pba(1 + (n & 0xFF_FFFF)), crc: n as u32 }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        let drawn = random::mix(self.0);
        self.0 = self.0.wrapping_add(random::STEP);
        drawn % below
    }
}

/// Checks order, bounds and levels, and returns (leaves, nodes, dirty nodes).
fn check(child: &Child, low: u64, high: u64, level: Option<u8>) -> (u64, u64, u64) {
    let node = child.node().expect("in memory");
    assert!(level.is_none_or(|level| level == node.level()));
    assert!(!node.is_empty());
    let dirty = u64::from(node.placed.get().is_none());
    match &node.body {
        Body::Leaf(leaf) => {
            let keys: Vec<u64> = leaf.keys().collect();
            assert!(keys.is_sorted() && keys[0] >= low && *keys.last().expect("some") < high);
            (1, 1, dirty)
        }
        Body::Inner(inner) => {
            assert!(inner.keys.is_sorted() && inner.keys[0] >= low && inner.keys.len() <= 254);
            let mut sum = (0, 1, dirty);
            for (index, child) in inner.children.borrow().iter().enumerate() {
                let upper = inner.keys.get(index + 1).copied().unwrap_or(high);
                let lower = if index == 0 { low } else { inner.keys[index] };
                let part = check(child, lower, upper, Some(inner.level - 1));
                sum = (sum.0 + part.0, sum.1 + part.1, sum.2 + part.2);
            }
            sum
        }
    }
}

#[test]
fn sequential_fill_leaves_full_leaves_in_either_direction() {
    for reverse in [false, true] {
        let mut map = Map::new(1, Rc::default());
        for i in 0..369 * 300 {
            let key = if reverse { 1_000_000 - i } else { i };
            assert_eq!(map.insert(key, mapping(key)), None);
        }
        let (leaves, ..) = check(map.root().expect("filled"), 0, u64::MAX, None);
        assert!(leaves <= 302, "{leaves} leaves, reverse {reverse}");
    }
}

/// Space for the map stays within 0.4 % of the data at random fill.
#[test]
fn random_fill_takes_at_most_four_parts_in_a_thousand() {
    let mut map = Map::new(1, Rc::default());
    let mut random = Random(3);
    let blocks = 300_000;
    while map.entries() < blocks {
        map.insert(random.next(400_000), mapping(1));
    }
    let (_, nodes, dirty) = check(map.root().expect("filled"), 0, u64::MAX, None);
    assert!(nodes * 1000 <= blocks * 4, "{nodes} nodes for {blocks} blocks");
    assert_eq!(dirty, map.counters.live.get());
}

/// And while entries go at random.
#[test]
fn random_removals_leave_at_most_four_parts_in_a_thousand() {
    let mut map = Map::new(1, Rc::default());
    let mut random = Random(4);
    for key in 0..200_000 {
        map.insert(key, mapping(1));
    }
    while map.entries() > 20_000 {
        let before = map.entries();
        for _ in 0..5_000 {
            let key = random.next(200_000);
            map.remove_some(key, key + 1, &mut Vec::new()).expect("in memory");
        }
        let (_, nodes, dirty) = check(map.root().expect("filled"), 0, u64::MAX, None);
        let entries = map.entries();
        assert!(nodes * 1000 <= entries * 4, "{nodes} nodes for {entries} blocks of {before}");
        assert_eq!(dirty, map.counters.live.get());
    }
}

/// Random inserts and removals over dense, spread and huge key spaces, with snapshots that must not
/// see later changes.
#[test]
fn the_map_behaves_like_a_btree_map() {
    for (seed, space) in [(1, 3_000), (2, 1 << 20), (3, 1 << 50)] {
        let mut random = Random(seed);
        let mut map = Map::new(1, Rc::default());
        let mut model = BTreeMap::new();
        let mut kept: Option<(MapSnapshot, BTreeMap<u64, Mapping>)> = None;
        for step in 0..60_000_u64 {
            let key = random.next(space);
            if random.next(3) > 0 || step < 20_000 {
                assert_eq!(map.insert(key, mapping(step)), model.insert(key, mapping(step)));
            } else {
                let end = (key + random.next(space / 50) + 1).min(space);
                let mut removed = Vec::new();
                let mut at = key;
                while at < end {
                    at = map.remove_some(at, end, &mut removed).expect("in memory");
                }
                let keys: Vec<u64> = model.range(key..end).map(|(key, _)| *key).collect();
                let expected: Vec<_> =
                    keys.into_iter().map(|key| (key, model.remove(&key).expect("there"))).collect();
                assert_eq!(removed, expected, "seed {seed} step {step}");
            }
            assert_eq!(map.get(key).expect("in memory"), model.get(&key).copied());
            if step % 7_001 == 0 {
                if let Some((snapshot, model)) = kept.take() {
                    let mut old = Map::new(1, Rc::default());
                    old.root = snapshot.root;
                    let mut entries = Vec::new();
                    old.for_each(0, u64::MAX, |k, m| entries.push((k, m))).expect("in memory");
                    assert!(entries.into_iter().eq(model), "seed {seed} step {step}");
                }
                kept = Some((map.snapshot(), model.clone()));
            }
        }
        assert_eq!(map.entries(), model.len() as u64);
        let mut entries = Vec::new();
        map.for_each(0, u64::MAX, |key, mapping| entries.push((key, mapping))).expect("in memory");
        assert!(entries.into_iter().eq(model), "seed {seed}");
        if let Some(root) = map.root() {
            check(root, 0, u64::MAX, None);
        }
        let mut at = 0;
        while at < space {
            at = map.remove_some(at, space, &mut Vec::new()).expect("in memory");
        }
        assert!(map.is_empty());
    }
}

/// A tree on a device of its own.
struct Disk {
    blocks: BTreeMap<Pba, Buffer>,
    next: u64,
}

impl Disk {
    /// Writes the tree out and reopens it, with nothing loaded.
    fn reopen(&mut self, mut map: Map) -> Map {
        map.take_old_places(|_| {});
        let from = self.next;
        self.next += map.dirty_nodes() as u64;
        let mut places = (from..self.next).map(Pba);
        self.blocks.extend(map.place_dirty(&mut places));
        let root = map.root_pointer().expect("not empty");
        Map::on_disk(1, root, map.entries(), Rc::default())
    }

    fn load(&self, map: &mut Map, missing: Missing) {
        let block = self.blocks[&missing.pointer.pba].as_bytes();
        let node = Node::decode(block, map.tree(), missing.pointer, map.counters());
        map.attach(missing, node.expect("just encoded"));
    }

    /// Loads what a change of `start..end` needs.
    fn prepare(&self, map: &mut Map, start: u64, end: u64) {
        while let Err(missing) = map.touch(start, end) {
            self.load(map, missing);
        }
    }
}

/// NODE-4: changes that were prepared together take effect in any order without another load, on trees
/// of which little is in memory.
#[test]
fn what_was_prepared_stays_possible_whatever_else_goes_first() {
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
        let mut map = Map::new(1, Rc::default());
        let mut model = BTreeMap::new();
        // Many small leaves under several inner nodes.
        let step = 1 + seed % 3 * 40_000;
        let space = 369 * 300 * step;
        for n in 0..369 * 300 {
            map.insert(n * step, mapping(n));
            model.insert(n * step, mapping(n));
        }
        for round in 0..4 {
            map = disk.reopen(map);
            for _ in 0..60 {
                let mut changes: Vec<(bool, u64, u64)> = (0..1 + random.next(6))
                    .map(|_| {
                        let start = random.next(space);
                        let widest = [1, 400, 2_000, 120_000][random.next(4) as usize] * step;
                        (random.next(4) == 0, start, (start + 1 + random.next(widest)).min(space))
                    })
                    .collect();
                changes.iter().for_each(|(_, start, end)| disk.prepare(&mut map, *start, *end));
                while !changes.is_empty() {
                    let at = random.next(changes.len() as u64) as usize;
                    let (insert, start, end) = changes.swap_remove(at);
                    if insert {
                        for key in (start..end).step_by((1 + (end - start) / 20) as usize) {
                            let new = mapping(round * 1000 + key);
                            assert_eq!(map.insert(key, new), model.insert(key, new));
                        }
                        continue;
                    }
                    let (mut at, mut removed) = (start, Vec::new());
                    while at < end {
                        at = map.remove_some(at, end, &mut removed).expect("prepared");
                    }
                    let expected: Vec<_> = model.range(start..end).map(|(k, m)| (*k, *m)).collect();
                    model.retain(|key, _| !(start..end).contains(key));
                    assert_eq!(removed, expected, "seed {seed}");
                }
                if map.is_empty() {
                    map.insert(0, mapping(0));
                    model.insert(0, mapping(0));
                }
            }
            map = disk.reopen(map);
            disk.prepare(&mut map, 0, u64::MAX);
            let mut found = Vec::new();
            map.for_each(0, u64::MAX, |key, mapping| found.push((key, mapping))).expect("loaded");
            assert!(found.into_iter().eq(model.clone()), "seed {seed}");
            assert_eq!(map.entries(), model.len() as u64);
        }
    }
}

/// A node that leaves the live tree while a checkpoint is still to write its older version.
#[test]
fn a_node_that_goes_while_it_is_being_written_gives_its_place_back() {
    let mut map = Map::new(1, Rc::default());
    for key in 0..1000 {
        map.insert(key, mapping(key));
    }
    let snapshot = map.snapshot();
    let mut at = 0;
    while at < 369 {
        at = map.remove_some(at, 369, &mut Vec::new()).expect("in memory");
    }
    // The writer comes to the first leaf only now.
    let Body::Inner(root) = &snapshot.root.as_ref().and_then(Child::node).expect("two").body else {
        panic!("a thousand entries need more than one leaf")
    };
    root.children.borrow()[0].node().expect("in memory").location.0.set(Some(Pba(77)));
    let places: Vec<_> =
        map.snapshot().retired.iter().filter_map(|location| location.0.get()).collect();
    assert_eq!(places, [Pba(77)]);
}

/// The count of memory equals what the nodes take, and all of it is given back.
#[test]
fn the_memory_of_nodes_is_counted() {
    fn below(child: &Child) -> u64 {
        let Some(node) = child.node() else { return 0 };
        assert!(node.len_bytes() <= NODE_BYTES_MAX);
        let heap = node.body.len_bytes() as u64;
        assert!(node.len_bytes() > heap, "never less than there is");
        let children = match &node.body {
            Body::Inner(inner) => inner.children.borrow().iter().map(below).sum(),
            Body::Leaf(_) => 0,
        };
        node.len_bytes() + children
    }
    let mut random = Random(11);
    for space in [3_000, 1 << 20, 1 << 50] {
        let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
        let counters: Rc<NodeCounters> = Rc::default();
        let mut map = Map::new(1, counters.clone());
        for step in 0..40_000_u64 {
            let key = random.next(space);
            if random.next(3) > 0 {
                map.insert(key, mapping(step));
            } else {
                let mut at = key;
                while at < (key + 40).min(space) {
                    at = map.remove_some(at, (key + 40).min(space), &mut Vec::new()).expect("here");
                }
            }
            if step % 4_001 == 0 {
                assert_eq!(counters.resident.get(), map.root().map_or(0, below));
            }
        }
        assert_eq!(counters.resident.get(), map.root().map_or(0, below));
        let dirty = counters.resident.get();
        let map = disk.reopen(map);
        assert!(counters.resident.get() == 0 && counters.resident_max.get() >= dirty);
        drop(map);
    }
}

/// EVICT-1 to EVICT-3: what is on the device goes until little enough is left, dirty nodes and pinned ones stay,
/// and all of it can be read back.
#[test]
fn clean_nodes_go_and_come_back() {
    let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
    let mut map = Map::new(1, Rc::default());
    for key in 0..369 * 600 {
        map.insert(key, mapping(key));
    }
    assert!(!map.may_miss(), "it was never anywhere but in memory");
    let mut map = disk.reopen(map);
    disk.prepare(&mut map, 0, u64::MAX);
    map.insert(5, mapping(77));
    let pinned = |low, high| low < 3700 && 3690 < high;
    let (mut hand, mut laps) = (0, 0);
    while laps < 3 {
        let mut sweep = Sweep::new(20_000);
        match map.sweep(hand, &mut sweep, &pinned) {
            Some(next) => hand = next,
            None => (hand, laps) = (0, laps + 1),
        }
    }
    // The root and the first of its children, since they are dirty; the leaf that is, too; one pinned.
    assert!(map.may_miss() && map.counters().resident.get() < 5 * NODE_BYTES_MAX);
    assert_eq!(map.get(5), Ok(Some(mapping(77))));
    assert!(map.get(3695).is_ok() && map.get(369 * 500).is_err());
    disk.prepare(&mut map, 0, u64::MAX);
    for key in 0..369 * 600 {
        let expected = if key == 5 { mapping(77) } else { mapping(key) };
        assert_eq!(map.get(key), Ok(Some(expected)));
    }
}

/// Method: maps with and without gaps of all widths of keys, asked for keys that they have and for others.
#[test]
fn only_keys_with_gaps_are_searched_and_hints_change_nothing() {
    for (stride, is_searched) in [(1, false), (3, true), (1 << 20, true), (1 << 40, true)] {
        let mut map = Map::new(1, Rc::default());
        assert!(!map.will_get(0), "there is no leaf");
        let keys: Vec<u64> = (0..1000).map(|index| 7 + index * stride).collect();
        keys.iter().for_each(|key| assert_eq!(map.insert(*key, mapping(*key)), None));
        let before: Vec<_> = keys.iter().map(|key| map.get(*key).expect("in memory")).collect();
        for key in keys.iter().copied().chain([0, 6, 8, u64::MAX]) {
            map.will_search(key);
            assert_eq!(map.will_get(key), is_searched, "{key} by {stride}");
            map.will_get_searched(key);
        }
        let after: Vec<_> = keys.iter().map(|key| map.get(*key).expect("in memory")).collect();
        assert_eq!(before, after);
    }
}
/// An inner node that became the root, or the first child of its parent, takes keys below its first bound: it is read back as
/// it was written.
#[test]
fn keys_below_the_first_bound_of_an_inner_node_are_read_back() {
    for inner_nodes in [1, 2] {
        let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
        let mut map = Map::new(1, Rc::default());
        let of_inner = 369 * 254;
        let end = of_inner * inner_nodes + 10 * 369;
        for key in 0..end {
            map.insert(key, mapping(key));
        }
        let mut at = 0;
        while at < of_inner {
            at = map.remove_some(at, of_inner, &mut Vec::new()).expect("in memory");
        }
        let keys = (0..3 * 369).chain(of_inner..end);
        for key in keys.clone().take(3 * 369) {
            assert_eq!(map.insert(key, mapping(key)), None);
        }
        check(map.root().expect("filled"), 0, u64::MAX, None);
        let mut map = disk.reopen(map);
        disk.prepare(&mut map, 0, u64::MAX);
        for key in keys {
            assert_eq!(map.get(key), Ok(Some(mapping(key))), "{inner_nodes}: {key}");
        }
    }
}
