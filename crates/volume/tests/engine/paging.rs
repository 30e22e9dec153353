//! Maps that do not fit into the memory they may take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice, data, fresh, open_with, range, run_many, tags};
use io_traits::{Buffer, Device};
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{CutOff, Shard, ShardOptions, Volume, VolumeError, WRITE_BLOCKS_MAX};

/// Entries of a full leaf of blocks that follow each other.
pub(crate) const LEAF_ENTRIES: u64 = 369;
/// Memory of such a leaf, at least.
const LEAF_BYTES: u64 = LEAF_ENTRIES * 9;
/// The most memory that a node takes, and a little more.
pub(crate) const NODE_BYTES: u64 = 6400;
const VOLUME_BLOCKS: u64 = 1 << 40;

/// A volume whose map has so many full leaves, and next to nothing else on the device.
pub(crate) fn filled(leaves: u64) -> (Sim, Volume<TestDevice>) {
    let blocks = leaves * LEAF_ENTRIES;
    let device = TestDevice::new(blocks + 50_000, true);
    let (mut sim, volume) = fresh(&device, None, VOLUME_BLOCKS);
    sim.run_ok(async {
        for start in (0..blocks).step_by(WRITE_BLOCKS_MAX as usize) {
            let count = WRITE_BLOCKS_MAX.min(blocks - start) as usize;
            let zeroes = Buffer::zeroed(count).into_slice();
            volume.write(Lba(start), zeroes, None).await.expect("room");
        }
    });
    (sim, volume)
}

/// Opens the shard again, with nothing of its maps in memory, and a limit.
pub(crate) fn reopen(sim: &mut Sim, shard: &Shard<TestDevice>, limit: u64) -> Volume<TestDevice> {
    sim.run_ok(shard.shutdown()).expect("writable");
    let seed = sim.random.next();
    *sim = Sim::new(sim.device.after_crash(&mut Random(3)), seed);
    let options = ShardOptions { map_memory: Some(limit), ..ShardOptions::default() };
    let shard = open_with(sim, options);
    let memory = shard.map_memory();
    assert_eq!((memory.resident_bytes_max, memory.loads), (0, 0), "opening needs none of it");
    shard.volume(Uuid::from_u128(1)).expect("durable")
}

/// All kinds of requests on a map of which one part in a hundred may be in memory, by several at once.
///
/// Method: a volume of ten thousand leaves; writes, deallocations and reads all over it, each block
/// compared with what was last written there. The limit is never exceeded.
#[test]
fn a_hundredth_of_the_map_in_memory_is_enough() {
    let leaves = 10_000;
    let (mut sim, volume) = filled(leaves);
    let limit = leaves * LEAF_BYTES / 100;
    let volume = reopen(&mut sim, volume.shard(), limit);
    let model: Rc<RefCell<BTreeMap<u64, u8>>> = Rc::default();
    let (all, known) = (volume.clone(), model.clone());
    let blocks = leaves * LEAF_ENTRIES;
    run_many(&mut sim, 3000, 8, move |number| {
        let (volume, model) = (all.clone(), known.clone());
        async move {
            let mut random = Random(number);
            let tag = 1 + (number % 250) as u8;
            // No two requests have the same block.
            let lba = random.below(blocks / 4000) * 4000 + number;
            match number % 8 {
                0..4 => {
                    volume.write(Lba(lba), data(tag, 1), None).await.expect("room");
                    model.borrow_mut().insert(lba, tag);
                }
                4 => volume.unmap(range(lba, 1)).await.expect("sound"),
                5 => volume.verify(range(lba, 900)).await.expect("sound"),
                _ => {
                    let known = model.borrow().range(lba..).next().map(|(lba, tag)| (*lba, *tag));
                    let Some((lba, tag)) = known else { return };
                    assert_eq!(tags(&volume, lba, 1).await, [tag], "{lba}");
                }
            }
        }
    });
    for (lba, tag) in model.borrow().iter() {
        assert_eq!(sim.run_ok(tags(&volume, *lba, 1)), [*tag], "{lba}");
    }
    let memory = volume.shard().map_memory();
    println!("{memory:?}");
    assert!(memory.loads > 1000 && memory.evictions > 1000, "{memory:?}");
    assert!(memory.device_bytes > 100 * limit, "{memory:?}");
    assert!(memory.resident_bytes_max <= limit, "{memory:?}");
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    sim.settle();
    let report = sim.run_ok(volume.shard().check(false));
    assert!(report.findings.is_empty(), "{:?}", report.findings.first());
}

/// A limit that leaves room for every request is never exceeded.
#[test]
fn the_limit_holds_through_a_random_workload() {
    let leaves = 600;
    let (mut sim, volume) = filled(leaves);
    let limit = 1 << 20;
    let volume = reopen(&mut sim, volume.shard(), limit);
    let all = volume.clone();
    let blocks = leaves * LEAF_ENTRIES;
    run_many(&mut sim, 4000, 32, move |number| {
        let volume = all.clone();
        async move {
            let mut random = Random(number);
            let lba = random.below(blocks - 2048);
            let large = [1, 1, 3, 40, 700][random.below(5) as usize];
            let zeroes = Buffer::zeroed(large as usize).into_slice();
            match random.below(8) {
                0..4 => volume.write(Lba(lba), zeroes, None).await.expect("room"),
                4 => volume.unmap(range(lba, large)).await.expect("sound"),
                5 => drop(volume.shard().checkpoint().await),
                _ => drop(volume.read(range(lba, large)).await.expect("sound")),
            }
        }
    });
    let memory = volume.shard().map_memory();
    println!("{memory:?}");
    assert!(memory.evictions > 100 && memory.resident_bytes_max > limit * 3 / 4, "{memory:?}");
    assert!(memory.resident_bytes_max <= limit, "{memory:?}");
}

/// Each request looks once, and that is a hit unless it had to wait for a node.
#[test]
fn a_look_up_that_needs_no_read_is_a_hit() {
    let (mut sim, volume) = filled(20);
    let volume = reopen(&mut sim, volume.shard(), 1 << 20);
    let counts = || {
        let memory = volume.shard().map_memory();
        (memory.hits, memory.loads)
    };
    let data = |blocks| Buffer::zeroed(blocks).into_slice();
    assert_eq!(counts(), (0, 0));
    sim.run_ok(volume.read(range(0, 1))).expect("sound");
    assert_eq!(counts(), (0, 2), "the root, and a leaf");
    sim.run_ok(volume.read(range(1, 1))).expect("sound");
    sim.run_ok(volume.read(range(2, 8))).expect("sound");
    sim.run_ok(volume.write(Lba(3), data(2), None)).expect("room");
    sim.run_ok(volume.unmap(range(3, 1))).expect("sound");
    assert_eq!(counts(), (4, 2));
    sim.run_ok(volume.read(range(3, 1))).expect("sound");
    assert_eq!(counts(), (5, 2), "that it is empty is found there, too");
    let other = 10 * LEAF_ENTRIES;
    sim.run_ok(volume.write(Lba(other), data(1), None)).expect("room");
    assert_eq!(counts(), (5, 3), "one more leaf");
    sim.run_ok(volume.write(Lba(other), data(1), None)).expect("room");
    assert_eq!(counts(), (6, 3));
}

/// PAGING-4: tasks that miss the same node share one read.
#[test]
fn concurrent_readers_of_an_absent_node_read_it_once() {
    let (mut sim, volume) = filled(20);
    let volume = reopen(&mut sim, volume.shard(), 1 << 20);
    // The root; what remains is the way to one leaf.
    sim.run_ok(volume.verify(range(19 * LEAF_ENTRIES, 1))).expect("sound");
    let (reads, loads) = (sim.device.reads(), volume.shard().map_memory().loads);
    let readers = 20;
    let all = volume.clone();
    run_many(&mut sim, readers, readers, move |number| {
        let volume = all.clone();
        async move { volume.verify(range(number, 1)).await.expect("sound") }
    });
    assert_eq!(volume.shard().map_memory().loads - loads, 1);
    assert_eq!(sim.device.reads() - reads, 1 + readers, "the leaf, and a block for each");
}

/// PAGING-4: a node that is damaged where it is read back from costs its own range and nothing else,
/// and is there again when the device gives it again.
#[test]
fn a_damaged_node_read_back_is_an_error_to_those_who_asked_for_it() {
    let (mut sim, volume) = filled(40);
    let volume = reopen(&mut sim, volume.shard(), 1 << 20);
    let leaf = |number: u64| range(number * LEAF_ENTRIES + 7, 1);
    sim.run_ok(volume.verify(leaf(3))).expect("sound");
    // Found by its content: the block that begins a node with the keys of leaf 20.
    let base = (20 * LEAF_ENTRIES).to_le_bytes();
    let is_leaf = |pba: &Pba| {
        let block = sim.device.block(*pba);
        block[..5] == *b"FMN1\0" && block[16..24] == base
    };
    let places: Vec<Pba> = (0..sim.device.limits().blocks).map(Pba).filter(is_leaf).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|pba| sim.device.flip(*pba, 1000));
    let outcomes: Rc<RefCell<Vec<_>>> = Rc::default();
    let (all, seen) = (volume.clone(), outcomes.clone());
    run_many(&mut sim, 40, 40, move |number| {
        let (volume, seen) = (all.clone(), seen.clone());
        async move {
            // Half of them want the same.
            let number = if number % 2 == 0 { 20 } else { number };
            let outcome = volume.verify(leaf(number)).await;
            seen.borrow_mut().push((number, outcome));
        }
    });
    for (number, outcome) in outcomes.borrow().iter() {
        match outcome {
            Ok(()) => assert_ne!(*number, 20),
            Err(VolumeError::CorruptMap { lba, pba }) => {
                assert_eq!((*number, *lba), (20, leaf(20).start));
                assert!(places.contains(pba));
            }
            Err(error) => panic!("{error}"),
        }
    }
    places.iter().for_each(|pba| sim.device.flip(*pba, 1000));
    sim.run_ok(volume.verify(leaf(20))).expect("sound again");
}

/// The count of blocks cut off from a large map is bounded, so that the caller does not wait.
#[test]
fn what_is_cut_off_is_counted_up_to_a_bound() {
    let leaves = 4200;
    let (mut sim, volume) = filled(leaves);
    let volume = reopen(&mut sim, volume.shard(), 1 << 20);
    let cut_off = sim.run_ok(volume.resize(1)).expect("smaller").expect("it is smaller");
    assert!(!cut_off.is_all, "{cut_off:?}");
    assert!((4000 * LEAF_ENTRIES..leaves * LEAF_ENTRIES).contains(&cut_off.blocks), "{cut_off:?}");
    assert!(volume.shard().map_memory().resident_bytes_max <= 1 << 20);
}

/// A volume of which little is in memory is shrunk and deleted, and all of its space comes back.
#[test]
fn large_deallocations_need_little_memory() {
    let leaves = 500;
    let (mut sim, volume) = filled(leaves);
    let limit = 20 * NODE_BYTES;
    let volume = reopen(&mut sim, volume.shard(), limit);
    let shard = volume.shard().clone();
    let before = shard.capacity().data;
    let half = leaves / 2 * LEAF_ENTRIES;
    let cut_off = sim.run_ok(volume.resize(half)).expect("smaller");
    assert_eq!(cut_off, Some(CutOff { blocks: before - half, is_all: true }));
    sim.run_ok(volume.unmap(range(10, half / 2))).expect("sound");
    let cut_off = sim.run_ok(volume.resize(half / 2)).expect("smaller");
    let blocks = half / 2 - 10;
    assert_eq!(cut_off, Some(CutOff { blocks, is_all: true }), "nor is what was deallocated");
    sim.settle();
    assert_eq!(shard.capacity().data, 10);
    assert!(before > 2 * shard.capacity().data);
    sim.run_ok(shard.delete_volume(volume.uuid())).expect("there");
    sim.settle();
    assert_eq!(shard.capacity().data, 0);
    let memory = shard.map_memory();
    println!("{memory:?}");
    assert!(memory.resident_bytes_max <= limit + 8 * NODE_BYTES, "{memory:?}");
    let report = sim.run_ok(shard.check(false));
    assert!(report.findings.is_empty(), "{:?}", report.findings.first());
}
