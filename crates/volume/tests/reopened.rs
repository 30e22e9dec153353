//! Volumes of which little is in memory: shards that were just opened.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use common::{Random, Sim, TestDevice};
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
        shard.expect("sound").start().await.expect("room")
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
    for seed in 0..30 {
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
