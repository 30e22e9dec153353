//! Limits of nodes, and of what is done to them, from either side.

use layout::PackedMapping;

use super::super::capacity::{NodeCapacity, set_node_capacity};
use super::super::leaf::grown;
use super::super::metadata::Metadata;
use super::super::node::Inner;
use super::*;

/// Has nodes take so many entries until it is dropped.
struct SmallNodes;

impl SmallNodes {
    fn new(leaf: usize, inner: usize) -> Self {
        set_node_capacity(Some(NodeCapacity { leaf, inner }));
        Self
    }
}

impl Drop for SmallNodes {
    fn drop(&mut self) {
        set_node_capacity(None);
    }
}

fn leaf_of(keys: impl IntoIterator<Item = u64>) -> Leaf {
    let entry = |key| (key, PackedMapping::from(mapping(key)));
    Leaf::from_entries(keys.into_iter().map(entry), MetadataSize::None, &[])
}

/// Bytes that the keys of a leaf take, each.
fn key_bytes(leaf: &Leaf) -> usize {
    (leaf.len_bytes() / leaf.len()).saturating_sub(size_of::<PackedMapping>())
}

#[test]
fn room_grows_by_as_many_at_first_then_by_an_eighth_and_to_a_full_leaf_at_most() {
    let steps = [(0, 4), (4, 8), (16, 32), (17, 33), (128, 144), (200, 225), (365, 369)];
    for (len, wanted) in steps {
        assert_eq!(grown(len, 369), wanted, "{len}");
    }
    assert_eq!(grown(369, 369), 370, "one more, if it must be");
}

#[test]
fn keys_take_no_more_bytes_than_their_span_needs() {
    for (span, bytes) in
        [(3, 0), (4, 2), (0xFFFF, 2), (0x1_0000, 4), (0xFFFF_FFFF, 4), (0x1_0000_0000, 8)]
    {
        let leaf = leaf_of([7, 8, 9, 7 + span]);
        assert_eq!(key_bytes(&leaf), bytes, "{span:#x}");
        assert!(leaf.keys().eq([7, 8, 9, 7 + span]));
    }
}

/// Dense leaves have room for 369 entries, and those of keys far apart for 254.
#[test]
fn leaves_become_one_if_an_eighth_of_it_stays_free() {
    let merged = |a: u64, b: u64, from: u64| {
        Leaf::merged(&leaf_of(0..a), &leaf_of(from..from + b)).map(|leaf| leaf.len() as u64)
    };
    assert_eq!(merged(161, 161, 161), Some(322));
    assert_eq!(merged(161, 162, 161), None);
    assert_eq!(merged(111, 111, 1 << 40), Some(222));
    assert_eq!(merged(111, 112, 1 << 40), None);
    assert_eq!(merged(0, 5, 9), None, "there is nothing to merge");
    assert_eq!(merged(5, 0, 9), None, "there is nothing to merge");
    // With keys of two bytes; a wider span has room for 312.
    assert_eq!(merged(160, 161, 0xFFFF - 160), Some(321));
    assert_eq!(merged(160, 161, 0x1_0000 - 160), None);
}

/// Room that is there for `wanted` entries, when there was none and `pieces` came one after the other.
fn room_after(pieces: &[usize], most: usize) -> usize {
    let (mut len, mut room) = (0, 0);
    for piece in pieces {
        len += piece;
        while room < len {
            room = grown(room, most);
        }
    }
    room
}

#[test]
fn what_is_appended_takes_room_step_by_step() {
    for pieces in [&[1, 3, 1][..], &[1, 7, 5], &[1, 40], &[1, 1, 1, 1, 1], &[1, 15, 200, 1]] {
        let mut leaf = Leaf::single(7, mapping(7), &[]);
        let (mut key, mut room) = (8, leaf.len_bytes() / size_of::<PackedMapping>());
        for piece in &pieces[1..] {
            let crcs = vec![0; *piece];
            let run = run::Run { start: Pba(key), crcs: &crcs, metadata: &[] };
            assert_eq!(leaf.put_run(key, u64::MAX, run, |_| {}).added, *piece);
            key += *piece as u64;
            while room < leaf.len() {
                room = grown(room, 369);
            }
            assert_eq!(leaf.len_bytes(), room * size_of::<PackedMapping>(), "{pieces:?}");
        }
    }
    for size in [MetadataSize::Bytes8, MetadataSize::Bytes16] {
        let most = super::super::capacity::leaf_capacity(2, size);
        for pieces in [&[1, 3, 1][..], &[4, 4, 1], &[40], &[1, 1, 1, 1, 1], &[16, 200, 1]] {
            let mut metadata = Metadata::new(size, &[]).expect("some");
            let each = size.bytes();
            for count in 1..=pieces.len() {
                metadata.append(&vec![3; pieces[count - 1] * each]);
                let room = room_after(&pieces[..count], most) * each;
                assert_eq!(metadata.bytes.capacity(), room, "{pieces:?}");
            }
            let blocks = metadata.bytes.len() / each;
            while metadata.bytes.len() < metadata.bytes.capacity() {
                let room = metadata.bytes.capacity();
                metadata.insert(blocks, &vec![4; each]);
                assert_eq!(metadata.bytes.capacity(), room, "there was room");
            }
        }
    }
}

/// A step of a run replaces all keys that follow each other, whatever form they have.
#[test]
fn one_step_replaces_all_keys_in_order() {
    for far in [9, 1 << 20, 1 << 40] {
        let mut leaf = leaf_of([1, 2, 3, 4, far]);
        for (key, replaced) in [(1, 4), (2, 3), (3, 2), (far, 1)] {
            let run = run::Run { start: Pba(100), crcs: &[7; 6], metadata: &[] };
            let mut old = Vec::new();
            let part = leaf.put_run(key, u64::MAX, run, |mapping| old.push(mapping));
            assert_eq!((part.replaced, part.added, old.len()), (replaced, 0, replaced), "{key}");
        }
    }
}

#[test]
fn keys_that_come_to_lie_in_order_take_no_memory() {
    let mut leaf = leaf_of([10, 12]);
    assert_ne!(leaf.len_bytes() % size_of::<PackedMapping>(), 0);
    leaf.insert(11, mapping(11), &[]);
    assert_eq!(leaf.len_bytes() % size_of::<PackedMapping>(), 0);
    leaf.insert(9, mapping(9), &[]);
    leaf.insert(13, mapping(13), &[]);
    assert_eq!(leaf.len_bytes() % size_of::<PackedMapping>(), 0);
    assert!(leaf.keys().eq(9..14));
}

#[test]
fn entries_are_spread_if_a_sixteenth_of_each_leaf_stays_free() {
    let spread = |a: u64, b: u64, from: u64| {
        let parts = Leaf::spread(&[&leaf_of(0..a), &leaf_of(from..from + b)], 2)?;
        Some(parts.iter().map(Leaf::len).collect::<Vec<_>>())
    };
    assert_eq!(spread(369, 321, 369), Some(vec![345, 345]));
    assert_eq!(spread(369, 322, 369), None);
    // The first is to take keys up to where the second begins.
    assert_eq!(spread(238, 238, 1 << 40), Some(vec![238, 238]));
    assert_eq!(spread(239, 239, 1 << 40), None);
}

/// A map of so many full leaves, on a device and loaded.
fn loaded(leaves: u64) -> (Disk, Map) {
    let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
    let mut map = Map::new(1, Rc::default());
    (0..369 * leaves).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
    let mut map = disk.reopen(map);
    disk.prepare(&mut map, 0, u64::MAX);
    (disk, map)
}

fn lap(map: &mut Map, wanted: u64) -> Sweep {
    let mut sweep = Sweep::new(wanted);
    map.sweep(0, &mut sweep, &|_, _| false);
    sweep
}

/// EVICT-3: what was looked at since the hand came by stays once more.
#[test]
fn a_sweep_takes_as_much_as_is_wanted_and_not_what_was_used_lately() {
    let (_, mut map) = loaded(5);
    assert_eq!(lap(&mut map, u64::MAX).nodes, 0, "all was just loaded");
    let first = lap(&mut map, 1);
    assert_eq!(first.nodes, 1, "it is enough");
    assert_eq!(lap(&mut map, first.freed).nodes, 1, "exactly that much");
    assert!(map.get(0).is_err() && map.get(369).is_err());
    assert_eq!(map.get(3 * 369), Ok(Some(mapping(3 * 369))));
    assert_eq!(lap(&mut map, u64::MAX).nodes, 2, "not the one looked at, nor what leads to it");
    assert_eq!(map.get(3 * 369), Ok(Some(mapping(3 * 369))));
    lap(&mut map, u64::MAX);
    assert_eq!(lap(&mut map, u64::MAX).nodes, 1, "it was not looked at since");
    assert_eq!(lap(&mut map, u64::MAX).nodes, 1, "nor was the root");
    assert_eq!(map.counters().resident.get(), 0);
}

/// Keys of a node lie from its bound on, to before that of the next.
#[test]
fn a_node_fits_where_all_of_its_keys_belong() {
    let (_, mut map) = loaded(3);
    // The first finds all of them used lately.
    lap(&mut map, u64::MAX);
    lap(&mut map, u64::MAX);
    let missing = map.get(369).expect_err("it is not in memory");
    let fits = |keys: std::ops::Range<u64>| {
        map.fits(missing, &Node::new_dirty(Body::Leaf(leaf_of(keys)), &Rc::default()))
    };
    assert!(fits(369..738) && fits(400..401));
    assert!(!fits(368..400) && !fits(700..739));
}

/// Changes below where a count stands are counted, and those behind are not.
#[test]
fn a_count_follows_changes_below_where_it_stands() {
    let mut map = Map::new(1, Rc::default());
    (0..20).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
    map.begin_count();
    map.count_to(10, 10);
    map.count_to(15, 5);
    for key in [15, 14, 13] {
        assert_eq!(map.remove_some(key, key + 1, &mut Vec::new()), Ok(key + 1));
    }
    [15, 14].into_iter().for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
    assert_eq!((map.end_count(), map.end_count(), map.entries()), (Some(14), None, 19));
}

/// The first child has all keys below the second one's bound, whatever its own says.
#[test]
fn children_have_the_keys_between_their_bounds() {
    let inner = Inner::new(1, vec![10, 20, 30], vec![Child::Absent, Child::Absent, Child::Absent]);
    let spans: Vec<_> = (0..3).map(|index| inner.span(index, (3, 99))).collect();
    assert_eq!(spans, [(3, 20), (20, 30), (30, 99)]);
}

/// Children of the nodes below the root, or of the root if leaves are.
fn children(map: &Map) -> Vec<usize> {
    let len = |node: &Rc<Node>| match &node.body {
        Body::Inner(inner) => inner.keys.len(),
        Body::Leaf(_) => 1,
    };
    let root = map.root().and_then(Child::node).expect("in memory");
    match &root.body {
        Body::Inner(inner) if inner.level > 1 => {
            inner.children.borrow().iter().map(|child| len(child.node().expect("here"))).collect()
        }
        _ => vec![len(root)],
    }
}

/// Inner nodes of eight children become one if one has less than two and both together less than six.
#[test]
fn inner_nodes_become_one_if_one_is_nearly_empty_and_a_quarter_of_it_stays_free() {
    let _small = SmallNodes::new(4, 8);
    for (second, expected) in [(4, vec![5]), (5, vec![1, 5]), (6, vec![1, 6])] {
        let mut map = Map::new(1, Rc::default());
        (0..4 * 16).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
        assert_eq!(children(&map), [8, 8], "what is filled in order is full");
        remove(&mut map, 4 * (8 + second)..4 * 16);
        remove(&mut map, 4..4 * 8);
        assert_eq!(children(&map), expected);
        assert_eq!(map.height(), 1 + expected.len() as u64);
        check(map.root().expect("filled"), 0, u64::MAX, None);
    }
}

/// Neighbours that are in memory answer for a leaf that goes.
#[test]
fn a_leaf_that_goes_leaves_nothing_behind_where_a_neighbour_is_loaded() {
    let (_, mut map) = loaded(4);
    for (leaf, left) in [(1, 3), (0, 2), (3, 1)] {
        let keys = 369 * leaf..369 * (leaf + 1);
        assert_eq!(map.remove_some(keys.start, keys.end, &mut Vec::new()), Ok(keys.end));
        let all = children(&map);
        assert_eq!(all, [left], "leaf {leaf}");
    }
}

/// EVICT-3: the hand passes a bounded number of nodes, even if none of them goes.
#[test]
fn a_sweep_ends_after_a_while_without_success() {
    let _small = SmallNodes::new(4, 8);
    let mut map = Map::new(1, Rc::default());
    (0..4 * 30_000).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
    let mut empty = Map::new(2, Rc::default());
    for steps_before in 0..10 {
        let mut sweep = Sweep::new(1);
        for _ in 0..steps_before {
            assert_eq!(empty.sweep(0, &mut sweep, &|_, _| false), None);
        }
        let stopped = map.sweep(0, &mut sweep, &|_, _| false).expect("not at the end");
        // Every eighth step is an inner node, and some are of those above.
        assert!((14_000..15_000).contains(&(stopped / 4)), "{stopped}");
        assert!(sweep.is_over() && sweep.nodes == 0);
    }
    let mut sweep = Sweep::new(1);
    let laps = (0..100_000).find(|_| {
        assert_eq!(empty.sweep(0, &mut sweep, &|_, _| false), None);
        sweep.is_over()
    });
    assert!(laps.is_some(), "maps without nodes count, too");
}

/// EVICT-1: a node goes once its write is over, and unless it is held. Only then a map may miss nodes.
#[test]
fn written_nodes_go_unless_they_are_held() {
    let counters: Rc<NodeCounters> = Rc::default();
    let mut map = Map::new(1, counters.clone());
    (0..369 * 3).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
    let dirty = counters.resident.get();
    lap(&mut map, u64::MAX);
    assert_eq!((lap(&mut map, u64::MAX).nodes, map.may_miss()), (0, false), "all are dirty");
    let Body::Inner(root) = &map.root().and_then(Child::node).expect("here").body else {
        panic!("three leaves need a root")
    };
    let held = root.children.borrow()[1].node().expect("here").clone();
    map.place_dirty(&mut (1..).map(Pba));
    assert!(counters.resident.get() < dirty, "what is not changed needs no room to grow");
    lap(&mut map, u64::MAX);
    assert_eq!(lap(&mut map, u64::MAX).nodes, 2, "one is held, and what leads to it stays");
    assert!(map.may_miss() && map.get(0).is_err());
    assert_eq!(map.get(369), Ok(Some(mapping(369))));
    drop(held);
    for _ in 0..4 {
        lap(&mut map, u64::MAX);
    }
    assert!(map.may_miss() && map.get(0).is_err());
    assert_eq!(counters.resident.get(), 0);
}

/// A node is counted with what it has allocated.
#[test]
fn each_child_of_an_inner_node_takes_memory() {
    let root_bytes = |leaves| {
        let (_, map) = loaded(leaves);
        map.root().and_then(Child::node).expect("loaded").len_bytes()
    };
    let child = (size_of::<u64>() + size_of::<Child>()) as u64;
    assert_eq!(root_bytes(200) - root_bytes(100), 100 * child);
    assert_eq!(NODE_BYTES_MAX - root_bytes(200), 54 * child);
}

/// A node that was read for a place where another version is by now.
#[test]
fn what_was_read_for_an_older_version_is_left_out() {
    let (mut disk, map) = loaded(3);
    let mut map = disk.reopen(map);
    let root = map.get(0).expect_err("nothing is in memory");
    disk.load(&mut map, root);
    let old = map.get(0).expect_err("the leaf is not in memory");
    assert!(map.is_missing(old));
    disk.prepare(&mut map, 0, 1);
    assert!(!map.is_missing(old), "it is there");
    map.insert(0, mapping(77));
    let mut map = disk.reopen(map);
    assert!(!map.is_missing(old), "another root is missing");
    let root = map.get(0).expect_err("nothing is in memory");
    disk.load(&mut map, root);
    assert!(!map.is_missing(old), "another leaf is missing");
    disk.load(&mut map, old);
    assert!(map.get(0).is_err(), "the older version is not taken");
    disk.prepare(&mut map, 0, 1);
    assert_eq!(map.get(0), Ok(Some(mapping(77))));
}

/// A removal makes no more nodes dirty than it set space aside for: the path to the key, and one leaf beside it.
#[test]
fn a_removal_makes_one_leaf_beside_its_own_dirty_at_most() {
    let _small = SmallNodes::new(8, 8);
    for seed in 0..60 {
        let (mut random, mut disk) = (Random(seed), Disk { blocks: BTreeMap::new(), next: 1 });
        let mut map = Map::new(1, Rc::default());
        (0..400).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
        for _ in 0..60 {
            if map.entries() < 50 {
                break;
            }
            map = disk.reopen(map);
            disk.prepare(&mut map, 0, u64::MAX);
            let key = random.next(400);
            let levels = map.height();
            map.remove_some(key, key + 1 + random.next(4), &mut Vec::new()).expect("loaded");
            let dirty = map.dirty_nodes() as u64;
            assert!(dirty <= levels + 1, "seed {seed}: {dirty} nodes of {levels} levels");
        }
    }
}

fn remove(map: &mut Map, keys: std::ops::Range<u64>) {
    let mut at = keys.start;
    while at < keys.end {
        at = map.remove_some(at, keys.end, &mut Vec::new()).expect("in memory");
    }
}

/// Leaves of eight entries: what two of seven can hold is not left in three, if one of those is all that becomes dirty by it.
#[test]
fn leaves_become_fewer_if_one_clean_one_has_to_be_changed() {
    let _small = SmallNodes::new(8, 8);
    for (kept, expected) in [(6, 2), (7, 3)] {
        let mut disk = Disk { blocks: BTreeMap::new(), next: 1 };
        let mut map = Map::new(1, Rc::default());
        (0..24).for_each(|key| assert_eq!(map.insert(key, mapping(key)), None));
        remove(&mut map, 16 + kept..24);
        let mut map = disk.reopen(map);
        disk.prepare(&mut map, 0, u64::MAX);
        remove(&mut map, 0..4);
        assert_eq!(children(&map), [3]);
        (8..12).for_each(|key| remove(&mut map, key..key + 1));
        assert_eq!(children(&map), [expected], "the last leaf has {kept}");
        check(map.root().expect("filled"), 0, u64::MAX, None);
    }
}

/// A key at either end of a full leaf begins a leaf, whatever room its neighbour has: more may follow in order.
#[test]
fn what_goes_in_in_order_is_not_spread() {
    let _small = SmallNodes::new(8, 8);
    let fill = || {
        let mut map = Map::new(1, Rc::default());
        (0..11).for_each(|n| assert_eq!(map.insert(10 * n, mapping(n)), None));
        assert_eq!(children(&map), [2]);
        map
    };
    let mut map = fill();
    map.insert(75, mapping(1));
    assert_eq!(children(&map), [3], "behind the first, which is full; the second has room");
    let mut map = fill();
    map.insert(45, mapping(1));
    assert_eq!(children(&map), [2], "within the first: the second takes some");
    let mut map = fill();
    (11..16).for_each(|n| assert_eq!(map.insert(10 * n, mapping(n)), None));
    remove(&mut map, 80..81);
    remove(&mut map, 10..11);
    map.insert(155, mapping(1));
    map.insert(85, mapping(1));
    assert_eq!(children(&map), [3], "before the second, which is full; the first has room");
}

/// NODE-4: a leaf that goes between one that is not in memory and the absent one that went before leaves one absent child,
/// and both give their places back.
#[test]
fn of_two_absent_children_side_by_side_one_is_left() {
    let (mut disk, map) = loaded(4);
    let mut map = disk.reopen(map);
    for leaf in [2, 1] {
        let keys = 369 * leaf..369 * (leaf + 1);
        disk.prepare(&mut map, keys.start, keys.end);
        remove(&mut map, keys);
    }
    assert_eq!(children(&map), [3]);
    let Body::Inner(root) = &map.root().and_then(Child::node).expect("here").body else {
        panic!("it has children")
    };
    let absent: Vec<bool> = root.children.borrow().iter().map(Child::is_absent).collect();
    assert_eq!(absent, [false, true, false]);
    let mut places = Vec::new();
    map.take_old_places(|place| places.push(place));
    assert_eq!(places.len(), 3, "of both leaves and of the root");
}

#[test]
fn nodes_that_a_checkpoint_has_yet_to_write_are_counted_with_the_dirty_ones() {
    let counters = NodeCounters::default();
    counters.live.set(3);
    counters.snapshot.set(2);
    assert_eq!(counters.total(), 5);
}
