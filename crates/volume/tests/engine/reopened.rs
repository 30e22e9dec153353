//! Volumes of which little is in memory: shards that were just opened.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice};
use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, Shard, ShardOptions, Volume, VolumeSpec, format,
    read_superblock,
};

const DEVICE_BLOCKS: u64 = 64 << 8;

fn data(tag: u8, blocks: u64) -> BufferSlice {
    Buffer::from_bytes(&vec![tag; blocks as usize * BLOCK_SIZE]).into_slice()
}

fn range(start: u64, blocks: u64) -> LbaRange {
    LbaRange::new(Lba(start), blocks)
}

fn open(sim: &mut Sim) -> Shard<TestDevice> {
    let device = sim.device.clone();
    let shard = sim.run_ok(async {
        let superblock = read_superblock(&device).await.expect("formatted");
        let extents = ExtentAllocator::new(&superblock);
        let options = ShardOptions::default();
        let shard = Shard::recover(device.clone(), superblock, 0, extents, options).await;
        shard.expect("sound").confirm().await.expect("sound").start().await.expect("room")
    });
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
    shard
}

fn fresh(seed: u64) -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let mut sim = Sim::new(device.clone(), seed);
    sim.run_ok(async {
        let options = FormatOptions { uuid: Uuid::from_u128(42) };
        format(&device, &options).await.expect("large enough");
    });
    let shard = open(&mut sim);
    let spec = VolumeSpec { uuid: Uuid::from_u128(1), name: "v".into(), blocks: 1 << 30 };
    let volume = sim.run_ok(shard.create_volume(spec)).expect("room");
    (sim, volume)
}

/// Reopens the shard, with nothing of its maps loaded.
fn restart(sim: &mut Sim, volume: &Volume<TestDevice>) -> Volume<TestDevice> {
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    let seed = sim.random.next();
    *sim = Sim::new(sim.device.after_crash(&mut Random(3)), seed);
    open(sim).volume(Uuid::from_u128(1)).expect("durable")
}

fn check(sim: &mut Sim, shard: &Shard<TestDevice>, context: &str) {
    sim.settle();
    let report = sim.run_ok(shard.check(true));
    assert!(report.findings.is_empty(), "{context}: {report:#?}");
}

#[test]
fn a_deallocation_that_empties_a_leaf_needs_nothing_of_its_neighbours() {
    let (mut sim, volume) = fresh(1);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 369), None).await.expect("room");
        volume.write(Lba(10_000), data(2, 100), None).await.expect("room");
    });
    let volume = restart(&mut sim, &volume);
    sim.run_ok(async {
        volume.unmap(range(10_000, 256)).await.expect("possible");
        volume.write(Lba(10_050), data(3, 1), None).await.expect("room");
        let found = volume.read(range(10_049, 3)).await.expect("readable").to_vec();
        assert_eq!([0, 1, 2].map(|n| found[n * BLOCK_SIZE]), [0, 3, 0]);
    });
    check(&mut sim, volume.shard(), "first");
    let volume = restart(&mut sim, &volume);
    assert_eq!(volume.mapped_blocks(), 370);
    check(&mut sim, volume.shard(), "second");
}

/// Workers change stripes of their own, which lie in the same leaves, right behind a restart.
#[test]
fn concurrent_changes_of_a_volume_just_opened_all_take_effect() {
    const WORKERS: u64 = 6;
    /// Blocks of a stripe; a leaf has several stripes.
    const STRIPE: u64 = 50;
    const STRIPES: u64 = 60;
    for seed in 0..10 {
        let (mut sim, mut volume) = fresh(seed);
        let mut model: BTreeMap<u64, u8> = BTreeMap::new();
        for stripe in 0..STRIPES {
            let blocks = 1 + sim.random.below(STRIPE);
            let write = volume.write(Lba(stripe * STRIPE), data(1, blocks), None);
            sim.run_ok(write).expect("room");
            model.extend((0..blocks).map(|n| (stripe * STRIPE + n, 1)));
        }
        for round in 0..4_u8 {
            volume = restart(&mut sim, &volume);
            let running = Rc::new(Cell::new(WORKERS));
            let models: Vec<Rc<std::cell::RefCell<BTreeMap<u64, u8>>>> =
                (0..WORKERS).map(|_| Rc::default()).collect();
            for (lba, tag) in std::mem::take(&mut model) {
                models[(lba / STRIPE % WORKERS) as usize].borrow_mut().insert(lba, tag);
            }
            for worker in 0..WORKERS {
                let (volume, running) = (volume.clone(), running.clone());
                let model = models[worker as usize].clone();
                let mut random = Random(seed * 100 + worker * 10 + u64::from(round));
                sim.spawn(async move {
                    for _ in 0..25 {
                        let stripe = random.below(STRIPES / WORKERS) * WORKERS + worker;
                        let skip = random.below(4) * random.below(STRIPE / 4);
                        let start = stripe * STRIPE + skip;
                        if random.below(3) == 0 {
                            let blocks = 1 + random.below(STRIPE - skip);
                            let tag = 2 + round;
                            volume.write(Lba(start), data(tag, blocks), None).await.expect("room");
                            model.borrow_mut().extend((start..start + blocks).map(|n| (n, tag)));
                        } else {
                            let blocks = STRIPE - skip;
                            volume.unmap(range(start, blocks)).await.expect("possible");
                            model.borrow_mut().retain(|n, _| *n < start || *n >= start + blocks);
                        }
                        if random.below(30) == 0 {
                            volume.shard().checkpoint().await.expect("no faults");
                        }
                    }
                    running.set(running.get() - 1);
                });
            }
            sim.run_ok(std::future::poll_fn(|_| {
                if running.get() == 0 {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            }));
            models.iter().for_each(|part| model.append(&mut part.borrow_mut()));
            let found = sim.run_ok(volume.read(range(0, STRIPES * STRIPE))).expect("readable");
            for (lba, block) in found.to_vec().chunks(BLOCK_SIZE).enumerate() {
                let tag = model.get(&(lba as u64)).copied().unwrap_or(0);
                assert!(block.iter().all(|byte| *byte == tag), "seed {seed} block {lba}");
            }
            assert_eq!(volume.mapped_blocks(), model.len() as u64);
            check(&mut sim, volume.shard(), &format!("seed {seed}"));
        }
    }
}

/// Fills leaves 0 to 9 of the volume, reopens it, and returns it with where the leaves lie.
fn ten_leaves(sim: &mut Sim, volume: &Volume<TestDevice>) -> (Volume<TestDevice>, Vec<units::Pba>) {
    sim.run_ok(async {
        for n in 0..10 {
            volume.write(Lba(n * 369), data(n as u8 + 1, 369), None).await.expect("room");
        }
    });
    let volume = restart(sim, volume);
    let mut leaves: Vec<(u64, units::Pba)> = Vec::new();
    for pba in 0..DEVICE_BLOCKS {
        let block = sim.device.block(units::Pba(pba));
        // A leaf of volume 1.
        if block[..5] == *b"FMN1\0" && block[8..12] == [1, 0, 0, 0] {
            let base = u64::from_le_bytes(block[16..24].try_into().expect("eight bytes"));
            leaves.push((base, units::Pba(pba)));
        }
    }
    leaves.sort_unstable_by_key(|(base, _)| *base);
    leaves.dedup_by_key(|(base, _)| *base);
    assert_eq!(leaves.len(), 10);
    (volume, leaves.into_iter().map(|(_, pba)| pba).collect())
}

/// Space that cannot be taken back now stays deallocated, delays no request, and comes back later.
#[test]
fn deallocated_space_whose_map_cannot_be_read_reads_as_zeroes_and_can_be_written() {
    let (mut sim, volume) = fresh(7);
    let (volume, leaves) = ten_leaves(&mut sim, &volume);
    sim.device.faults(|faults| faults.read_errors.extend([(leaves[4].0, 1_000_000)]));
    sim.run_ok(volume.unmap(range(369, 8 * 369))).expect("possible");
    sim.settle();
    let tags = sim.run_ok(crate::common::tags(&volume, 0, 3690));
    assert!((369..9 * 369).all(|lba| tags[lba] == 0));
    assert_eq!((tags[368], tags[9 * 369]), (1, 10));
    // Neither what was taken back nor what was not yet keeps writes out.
    sim.run_ok(volume.write(Lba(700), data(77, 2), None)).expect("room");
    sim.run_ok(volume.write(Lba(2500), data(78, 2), None)).expect("room");
    sim.device.faults(|faults| faults.read_errors.clear());
    volume.shard().settle();
    sim.settle();
    let expected = 2 * 369 + 4;
    assert_eq!(volume.mapped_blocks(), expected);
    check(&mut sim, volume.shard(), "healed");
    let volume = restart(&mut sim, &volume);
    assert_eq!(volume.mapped_blocks(), expected);
    let tags = sim.run_ok(crate::common::tags(&volume, 699, 4));
    assert_eq!(tags, [0, 77, 77, 0]);
}

/// Deallocating the blocks of a damaged node brings nothing back, and costs nothing that was not
/// deallocated.
#[test]
fn a_damaged_leaf_in_deallocated_space_costs_only_the_blocks_that_it_named() {
    let (mut sim, volume) = fresh(8);
    let (volume, leaves) = ten_leaves(&mut sim, &volume);
    sim.device.flip(leaves[4], 100);
    sim.device.flip(leaves[9], 100);
    // Leaf 4 as a whole, leaf 9 in part.
    sim.run_ok(volume.unmap(range(369, 8 * 369 + 100))).expect("possible");
    sim.settle();
    volume.shard().settle();
    sim.settle();
    let tags = sim.run_ok(crate::common::tags(&volume, 0, 9 * 369 + 100));
    assert!(tags[..369].iter().all(|tag| *tag == 1) && tags[369..].iter().all(|tag| *tag == 0));
    let rest = sim.run_ok(volume.read(range(9 * 369 + 100, 1)));
    assert!(matches!(rest, Err(volume::VolumeError::CorruptMap { .. })), "{rest:?}");
    assert_eq!(volume.stats().lost_nodes, 1);
    sim.run_ok(volume.write(Lba(5 * 369), data(9, 10), None)).expect("room");
    let uuid = volume.uuid();
    let volume = restart(&mut sim, &volume);
    let shard = volume.shard().clone();
    let tags = sim.run_ok(crate::common::tags(&volume, 360, 9 * 369 - 260));
    assert!(
        tags[9..]
            .iter()
            .enumerate()
            .all(|(n, t)| *t == if (1476..1486).contains(&n) { 9 } else { 0 })
    );
    sim.run_ok(shard.delete_volume(uuid)).expect("there");
    sim.settle();
    assert!(shard.volumes().is_empty());
    assert_eq!(shard.capacity().data, 0);
    let report = sim.run_ok(shard.check(true));
    let leaked = |finding: &volume::Finding| matches!(finding, volume::Finding::Leaked { .. });
    assert!(report.findings.iter().all(leaked), "{report:#?}");
    assert_eq!(report.findings.len(), 2 * 369);
}

/// Many writes all over a large deallocation, right behind it and across power cuts.
#[test]
fn writes_into_space_just_deallocated_survive_crashes_and_share_nothing() {
    for seed in 0..12 {
        let (mut sim, volume) = fresh(seed);
        let (mut volume, _) = ten_leaves(&mut sim, &volume);
        for round in 0..3_u64 {
            let from = 100 + sim.random.below(300);
            let unmapping = volume.clone();
            sim.run_ok(unmapping.unmap(range(from, 3400 - from))).expect("possible");
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            let count = 10 + sim.random.below(150);
            for n in 0..count {
                let lba = from + sim.random.below(3390 - from);
                let (tag, blocks) = (20 + (n % 200) as u8, 1 + n % 9);
                sim.run_ok(volume.write(Lba(lba), data(tag, blocks), None)).expect("room");
                model.extend((lba..lba + blocks).map(|lba| (lba, tag)));
                if sim.random.below(40) == 0 {
                    sim.run_ok(volume.shard().checkpoint()).expect("no faults");
                }
            }
            if sim.random.below(2) == 0 {
                let seed = sim.random.next();
                sim = Sim::new(sim.device.after_crash(&mut Random(seed)), seed);
                volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("durable");
            }
            let tags = sim.run_ok(crate::common::tags(&volume, from, 3400 - from));
            for (lba, tag) in (from..).zip(&tags) {
                assert_eq!(
                    *tag,
                    model.get(&lba).copied().unwrap_or(0),
                    "seed {seed} {round} {lba}"
                );
            }
            check(&mut sim, volume.shard(), &format!("seed {seed}"));
        }
    }
}
