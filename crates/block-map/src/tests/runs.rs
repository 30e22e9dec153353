//! Runs of blocks, against their blocks one by one.

use super::*;

/// The contents of a map: keys, their mappings and their metadata.
fn contents(map: &Map) -> Vec<(u64, Mapping, Vec<u8>)> {
    let mut all = Vec::new();
    let visit = |key, mapping, of_block: &[u8]| all.push((key, mapping, of_block.to_vec()));
    map.for_each_with_metadata(0, u64::MAX, visit).expect("in memory");
    all
}

fn is_well_formed(map: &Map) {
    check(map.root().expect("filled"), 0, u64::MAX, None);
}

/// Runs over what is there and what is not, across the ends of leaves, between removals and snapshots.
#[test]
fn a_run_is_as_good_as_its_blocks() {
    for (seed, space, each) in [(1, 2_000, 0), (2, 2_000, 16), (3, 1 << 20, 0), (4, 1 << 50, 64)] {
        let mut random = Random(seed);
        let (mut by_runs, mut by_blocks) = (Map::new(1, Rc::default()), Map::new(1, Rc::default()));
        let mut at = 0;
        for step in 0..4_000_u64 {
            // Half of the time in order, as a sequential writer does.
            let key = if random.next(2) == 0 { at } else { random.next(space) };
            if random.next(5) == 0 {
                for map in [&mut by_runs, &mut by_blocks] {
                    let (mut at, end) = (key, key + 1 + step % 100);
                    while at < end {
                        at = map.remove_some(at, end, &mut Vec::new()).expect("in memory");
                    }
                }
                continue;
            }
            let crcs: Vec<u32> = (0..=random.next(90)).map(|n| (step * 100 + n) as u32).collect();
            let metadata: Vec<u8> =
                (0..crcs.len() * each).map(|n| (step as usize + n) as u8).collect();
            let run = Run { start: Pba(1 + step * 100), crcs: &crcs, metadata: &metadata };
            let (mut replaced, mut expected) = (Vec::new(), Vec::new());
            by_runs.insert_run(key, run, |old| replaced.push(old));
            for (n, crc) in crcs.iter().enumerate() {
                let mapping = Mapping { pba: run.start.plus(n as u64), crc: *crc };
                let of_block = &metadata[n * each..][..each];
                expected.extend(by_blocks.insert_with_metadata(key + n as u64, mapping, of_block));
            }
            assert_eq!(replaced, expected, "seed {seed}, step {step}");
            assert_eq!(by_runs.entries(), by_blocks.entries(), "seed {seed}, step {step}");
            at = key + crcs.len() as u64;
            if step % 501 == 0 {
                drop((by_runs.snapshot(), by_blocks.snapshot()));
                assert!(contents(&by_runs) == contents(&by_blocks), "seed {seed}, step {step}");
                is_well_formed(&by_runs);
            }
        }
        assert!(contents(&by_runs) == contents(&by_blocks), "seed {seed}");
        is_well_formed(&by_runs);
    }
}

/// While a run goes in, a count in progress counts those keys of the run that are below its
/// position.
#[test]
fn keys_of_a_run_are_counted_up_to_where_the_count_stands() {
    let mut map = Map::new(1, Rc::default());
    map.insert(10, mapping(1));
    map.begin_count();
    map.count_to(15, 1);
    let crcs = [0; 8];
    map.insert_run(9, Run { start: Pba(5), crcs: &crcs, metadata: &[] }, |_| ());
    assert_eq!((map.entries(), map.end_count()), (8, Some(6)));
}

#[test]
fn a_run_in_order_leaves_full_leaves() {
    let mut map = Map::new(1, Rc::default());
    let crcs = [7; 32];
    for n in 0..369 {
        map.insert_run(32 * n, Run { start: Pba(1 + 32 * n), crcs: &crcs, metadata: &[] }, |_| ());
    }
    let (leaves, ..) = check(map.root().expect("filled"), 0, u64::MAX, None);
    assert_eq!((map.entries(), leaves), (32 * 369, 32));
}
