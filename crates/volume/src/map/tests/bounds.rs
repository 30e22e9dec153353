//! Limits of nodes, and of what is done to them, from either side.

use layout::PackedMapping;

use super::super::leaf::grown;
use super::*;

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

#[test]
fn a_leaf_is_low_below_half_of_what_it_can_have() {
    assert!(leaf_of(0..183).is_low() && !leaf_of(0..184).is_low());
    let far = |len: u64| leaf_of((0..len).map(|key| key << 40));
    assert!(far(126).is_low() && !far(127).is_low());
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

/// E3: what was looked at since the hand came by stays once more.
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
