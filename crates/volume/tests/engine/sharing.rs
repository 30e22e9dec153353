//! Space that goes from shard to shard, and back to the device.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice, crash, data, fresh, range, tags};
use units::Lba;
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, Recovered, Shard, ShardOptions, Volume, VolumeError,
    VolumeSpec, format, read_superblock,
};

const DEVICE_BLOCKS: u64 = 1 << 14;

pub(crate) type Shards = Vec<Shard<TestDevice>>;

pub(crate) fn open_both(sim: &mut Sim) -> Shards {
    open_both_and_extents(sim).0
}

/// The same, and what both get their extents from.
fn open_both_and_extents(sim: &mut Sim) -> (Shards, ExtentAllocator) {
    let device = sim.device.clone();
    let (shards, extents): (Shards, _) = sim.run_ok(async {
        let superblock = read_superblock(&device).await.expect("formatted");
        let extents = ExtentAllocator::new(&superblock);
        let mut recovered = Vec::new();
        for index in [0, 1] {
            let (device, extents) = (device.clone(), extents.clone());
            let options = ShardOptions::default();
            let shard = Shard::recover(device, superblock, index, extents, options).await;
            recovered.push(shard.expect("sound"));
        }
        (Recovered::start_all(recovered).await.expect("room"), extents)
    });
    for shard in &shards {
        let (a, b) = (shard.clone(), shard.clone());
        sim.spawn(async move { a.run_committer().await });
        sim.spawn(async move { b.run_checkpointer().await });
    }
    (shards, extents)
}

pub(crate) fn two_shards() -> (Sim, Shards) {
    two_shards_on(&TestDevice::new(DEVICE_BLOCKS, false))
}

/// Two shards of a device that is formatted for them.
pub(crate) fn two_shards_on(device: &TestDevice) -> (Sim, Shards) {
    let mut sim = Sim::new(device.clone(), 3);
    let options = FormatOptions { uuid: Uuid::from_u128(42) };
    sim.run_ok(format(device, &options)).expect("large enough");
    let shards = open_both(&mut sim);
    (sim, shards)
}

pub(crate) fn tick(sim: &mut Sim, shards: &Shards) {
    sim.settle();
    shards.iter().for_each(Shard::settle);
    sim.settle();
}

/// Runs `task` to its end while time passes.
pub(crate) fn run<T: 'static>(
    sim: &mut Sim,
    shards: &Shards,
    task: impl Future<Output = T> + 'static,
) -> T {
    let outcome = Rc::new(RefCell::new(None));
    let place = outcome.clone();
    sim.spawn(async move {
        let value = task.await;
        place.borrow_mut().replace(value);
    });
    for _ in 0..100_000 {
        sim.settle();
        if let Some(value) = outcome.borrow_mut().take() {
            return value;
        }
        tick(sim, shards);
    }
    panic!("it does not end");
}

pub(crate) fn create(
    sim: &mut Sim,
    shards: &Shards,
    shard: usize,
    number: u128,
) -> Volume<TestDevice> {
    let spec = VolumeSpec { uuid: Uuid::from_u128(number), name: "v".into(), blocks: 1 << 30 };
    let shard = shards[shard].clone();
    run(sim, shards, async move { shard.create_volume(spec).await }).expect("room")
}

/// Writes runs of eight blocks, from number `first` on, in turn to each of `volumes`, as long as there
/// is space.
pub(crate) fn fill(
    sim: &mut Sim,
    shards: &Shards,
    volumes: &[Volume<TestDevice>],
    first: u64,
) -> Vec<(usize, u64)> {
    let volumes = volumes.to_vec();
    run(sim, shards, async move {
        let (mut written, mut full) = (Vec::new(), BTreeSet::new());
        for lba in first.. {
            for (number, volume) in volumes.iter().enumerate() {
                if full.contains(&number) {
                    continue;
                }
                match volume.write(Lba(lba * 8), data(7, 8), None).await {
                    Ok(()) => written.push((number, lba)),
                    Err(VolumeError::PoolFull) => drop(full.insert(number)),
                    Err(error) => panic!("{error}"),
                }
            }
            if full.len() == volumes.len() {
                break;
            }
        }
        written
    })
}

pub(crate) fn check_both(sim: &mut Sim, shards: &Shards) {
    sim.settle();
    for shard in shards {
        let report = sim.run_ok(shard.check(true));
        assert!(report.findings.is_empty(), "{report:#?}");
    }
}

/// Extents that one shard no longer needs go to the other as soon as it needs them.
#[test]
fn an_empty_pool_is_filled_from_the_other_cores_free_extents() {
    let (mut sim, shards) = two_shards();
    let volumes = [create(&mut sim, &shards, 0, 1), create(&mut sim, &shards, 1, 2)];
    let both = fill(&mut sim, &shards, &volumes[..1], 0).len() as u64 * 8;
    // Two journals and what each shard keeps in reserve are a good part of 64 MiB.
    assert!(both * 100 > DEVICE_BLOCKS * 74, "{both} of {DEVICE_BLOCKS}");
    assert!(fill(&mut sim, &shards, &volumes[1..], 0).len() < 300);
    let giver = shards[0].clone();
    run(&mut sim, &shards, async move { giver.delete_volume(Uuid::from_u128(1)).await })
        .expect("there");
    let moved = fill(&mut sim, &shards, &volumes[1..], 10_000).len() as u64 * 8;
    assert!(moved * 100 > both * 90, "{moved} of {both}");
    check_both(&mut sim, &shards);
    // And back, across a restart.
    let taker = shards[1].clone();
    run(&mut sim, &shards, async move { taker.delete_volume(Uuid::from_u128(2)).await })
        .expect("there");
    tick(&mut sim, &shards);
    sim = Sim::new(sim.device.after_crash(&mut Random(1)), 8);
    let shards = open_both(&mut sim);
    let volume = create(&mut sim, &shards, 0, 3);
    let back = fill(&mut sim, &shards, &[volume], 0).len() as u64 * 8;
    assert!(back * 100 > both * 95, "{back} of {both}");
    check_both(&mut sim, &shards);
}

/// Many volumes on two shards: full, deallocated at random, full again, and again.
#[test]
fn a_device_is_filled_to_its_end_again_and_again() {
    let (mut sim, shards) = two_shards();
    let volumes: Vec<_> = (0..6).map(|n| create(&mut sim, &shards, n % 2, n as u128 + 1)).collect();
    let mut used = fill(&mut sim, &shards, &volumes, 0);
    let first = used.len();
    assert!(first as u64 * 8 * 100 > DEVICE_BLOCKS * 80, "{first}");
    for round in 0..3 {
        let mut random = Random(round);
        let (gone, kept): (Vec<_>, Vec<_>) = used.into_iter().partition(|_| random.below(3) == 0);
        let all = volumes.clone();
        run(&mut sim, &shards, async move {
            for (number, lba) in gone {
                all[number].unmap(range(lba * 8, 8)).await.expect("possible");
            }
        });
        tick(&mut sim, &shards);
        used = kept;
        let again = fill(&mut sim, &shards, &volumes, (round + 1) * 1_000_000);
        used.extend(again);
        assert!(used.len() * 100 >= first * 97, "{} of {first} in round {round}", used.len());
        check_both(&mut sim, &shards);
    }
}

/// Only unused space is discarded: here a discard spoils its blocks.
#[test]
fn freed_space_is_discarded_and_nothing_else() {
    for seed in 0..4 {
        let device = TestDevice::new(1 << 14, seed % 2 == 0);
        let (mut sim, mut volume) = fresh(&device, None, 1 << 20);
        sim.random = Random(seed);
        let mut model = vec![0_u8; 4096];
        let mut discarded = 0;
        for round in 0..25_u64 {
            let shard = volume.shard().clone();
            for n in 0..6 {
                let blocks = 1 + sim.random.below(200);
                let start = sim.random.below(4096 - blocks);
                let (from, to) = (start as usize, (start + blocks) as usize);
                if sim.random.below(3) == 0 {
                    sim.run_ok(volume.unmap(range(start, blocks))).expect("possible");
                    model[from..to].fill(0);
                } else {
                    let tag = (1 + (round * 6 + n) % 200) as u8;
                    sim.run_ok(volume.write(Lba(start), data(tag, blocks), None)).expect("room");
                    model[from..to].fill(tag);
                }
            }
            match sim.random.below(4) {
                0 => sim.run_ok(shard.checkpoint()).expect("writable"),
                // Until extents count as left alone.
                1 => (0..10).for_each(|_| tick(&mut sim, &vec![shard.clone()])),
                2 => shard.settle(),
                _ => {}
            }
            if sim.random.below(10) == 0 {
                discarded += sim.device.blocks_discarded();
                volume = crash(&mut sim);
            }
            let found = sim.run_ok(tags(&volume, 0, 4096));
            assert!(found == model, "seed {seed} round {round}");
        }
        discarded += sim.device.blocks_discarded();
        assert!(discarded > 100, "seed {seed}: {discarded}");
        crate::common::check(&mut sim, volume.shard());
    }
}

/// A shard that has space asks neither the state that cores share nor the other shard, which reads
/// and writes nothing.
///
/// Method: writes of new blocks and of old ones, of many at once, deallocations and reads by one of
/// two shards, counting what was asked of the allocator of extents, which is all that both know of,
/// and where blocks were written.
#[test]
fn a_write_that_has_space_asks_no_other_core() {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let mut sim = Sim::new(device.clone(), 3);
    let options = FormatOptions { uuid: Uuid::from_u128(42) };
    sim.run_ok(format(&device, &options)).expect("large enough");
    let (shards, extents) = open_both_and_extents(&mut sim);
    let spec = VolumeSpec { uuid: Uuid::from_u128(7), name: "v".into(), blocks: 10_000 };
    let volume = sim.run_ok(shards[0].create_volume(spec)).expect("room");
    sim.run_ok(volume.write(Lba(0), data(1, 100), None)).expect("room");
    tick(&mut sim, &shards);
    let (before, other) = (extents.calls(), shards[1].capacity());
    let asked = extents.calls() - before;
    assert!(asked > 0, "what a shard says of the device's space it asks for");
    let before = extents.calls();
    let writer = volume.clone();
    crate::common::run_many(&mut sim, 200, 8, move |number| {
        let volume = writer.clone();
        async move {
            match number % 8 {
                0..3 => volume.write(Lba(number * 7 % 100), data(2, 1), None).await.expect("room"),
                3..5 => volume.write(Lba(200 + number), data(3, 1), None).await.expect("room"),
                5 => volume.write(Lba(number % 50), data(4, 8), None).await.expect("room"),
                6 => volume.unmap(range(number % 100, 2)).await.expect("possible"),
                _ => volume.verify(range(0, 100)).await.expect("sound"),
            }
        }
    });
    assert_eq!(extents.calls(), before);
    assert_eq!(shards[1].capacity(), other);
}
