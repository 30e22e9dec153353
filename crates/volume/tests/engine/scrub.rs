//! All blocks read while the volume is in use.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice, data, fresh, open, range};
use layout::NodeView;
use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{Damaged, Shard, Structure, Volume, VolumeError};

const DEVICE_BLOCKS: u64 = 64 << 8;

pub(crate) async fn scrub(shard: &Shard<TestDevice>) -> (Vec<Damaged>, u64, u64) {
    let (mut cursor, mut damaged) = (shard.scrub(), Vec::new());
    while !cursor.is_over() {
        damaged.extend(shard.scrub_step(&mut cursor).await.expect("running").damaged);
    }
    (damaged, cursor.done, cursor.total)
}

/// A volume of 2 000 blocks; with `reopened`, nothing of its map is in memory.
fn filled(reopened: bool) -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = fresh(&device, None, 1 << 30);
    sim.run_ok(async {
        for n in 0..20 {
            volume.write(Lba(n * 100), data(n as u8 + 1, 100), None).await.expect("room");
        }
        volume.shard().checkpoint().await.expect("writable");
    });
    if !reopened {
        return (sim, volume);
    }
    sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
    let shard = open(&mut sim);
    (sim, shard.volume(Uuid::from_u128(1)).expect("durable"))
}

#[test]
fn a_scrub_reads_what_is_in_use_and_finds_nothing_wrong() {
    for reopened in [false, true] {
        let (mut sim, volume) = filled(reopened);
        let shard = volume.shard().clone();
        let (damaged, done, total) = sim.run_ok(scrub(&shard));
        assert_eq!(damaged, []);
        assert!(done > 2000 && done <= total, "{done} of {total}: all but journal and spare slots");
        sim.run_ok(shard.shutdown()).expect("writable");
        let mut cursor = shard.scrub();
        let ended = sim.run_ok(shard.scrub_step(&mut cursor));
        assert_eq!(ended.err(), Some(VolumeError::ShutDown));
    }
}

/// Every block of data and metadata that is flipped is told, once and by its place.
#[test]
fn each_damaged_block_is_told_once_with_its_place_and_volume() {
    for reopened in [false, true] {
        let (mut sim, volume) = filled(reopened);
        let shard = volume.shard().clone();
        let superblock = *shard.superblock();
        for _ in 0..if reopened { 16 } else { 0 } {
            sim.run_ok(shard.checkpoint()).expect("writable");
        }
        let mut expected = BTreeSet::from([(Pba(0), Structure::Superblock)]);
        expected.insert((superblock.root_places(0, 0)[1], Structure::Root));
        for tag in [3, 9] {
            expected.insert((sim.device.find(&[tag; BLOCK_SIZE])[50], Structure::Data));
        }
        let leafs = (0..DEVICE_BLOCKS).map(Pba).filter(|pba| {
            let block = sim.device.block(*pba);
            NodeView::decode(&block).is_ok_and(|view| {
                view.tree == 1 && view.level == 0 && view.keys().any(|key| key == 1500)
            })
        });
        let leafs: Vec<Pba> = leafs.collect();
        assert_eq!(leafs.len(), 1);
        expected.insert((leafs[0], Structure::Node));
        for (pba, _) in &expected {
            sim.device.flip(*pba, 100);
        }
        // Behind many checkpoints, zeroes are damage as well.
        if reopened {
            let wiped = superblock.root_places(0, 1)[0];
            sim.device.wipe(wiped);
            expected.insert((wiped, Structure::Root));
        }
        let (damaged, ..) = sim.run_ok(scrub(&shard));
        let found: Vec<_> = damaged.iter().map(|d| (d.pba, d.structure)).collect();
        assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), expected);
        assert_eq!(found.len(), expected.len());
        for one in damaged {
            let named = one.volume.map(|(uuid, _)| uuid);
            let has_volume = matches!(one.structure, Structure::Node | Structure::Data);
            assert_eq!(named, has_volume.then(|| volume.uuid()));
            if one.structure == Structure::Data {
                assert!([Lba(250), Lba(850)].contains(&one.lba.expect("known")));
            }
        }
        assert_eq!(volume.stats().damaged_blocks, 3, "two of data, a node");
    }
}

/// Writes, deallocations and checkpoints go on, and another scrub: nothing sound is called damaged, and nothing is said not
/// to fit.
#[test]
fn a_scrub_under_load_calls_nothing_damaged() {
    for seed in 0..6 {
        let (mut sim, volume) = filled(seed % 2 == 1);
        sim.random = Random(seed);
        let shard = volume.shard().clone();
        let (running, found) = (Rc::new(Cell::new(4)), Rc::new(RefCell::new(Vec::new())));
        for worker in 0..4_u64 {
            let (volume, shard, running) = (volume.clone(), shard.clone(), running.clone());
            let mut random = Random(seed * 10 + worker);
            sim.spawn(async move {
                for n in 0..150 {
                    let (lba, blocks) = (random.below(2500), 1 + random.below(30));
                    match random.below(5) {
                        0 => volume.unmap(range(lba, blocks * 20)).await.expect("possible"),
                        _ => volume.write(Lba(lba), data(n, blocks), None).await.expect("room"),
                    }
                    if random.below(15) == 0 {
                        shard.checkpoint().await.expect("writable");
                    }
                }
                running.set(running.get() - 1);
            });
        }
        let ended = Rc::new(Cell::new(0));
        for _ in 0..2 {
            let (scrubbing, out, left) = (shard.clone(), found.clone(), running.clone());
            let rounds = ended.clone();
            sim.spawn(async move {
                while left.get() > 0 {
                    let (damaged, ..) = scrub(&scrubbing).await;
                    out.borrow_mut().extend(damaged);
                    rounds.set(rounds.get() + 1);
                }
                rounds.set(rounds.get() + 1000);
            });
        }
        sim.run_ok(std::future::poll_fn(|_| {
            if ended.get() >= 2000 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }));
        assert!(ended.get() > 2000, "at least one round");
        assert_eq!(*found.borrow(), [], "seed {seed}");
        crate::common::check(&mut sim, &shard);
    }
}

/// A leaf that takes in the one before, which was counted already, is no wrong count.
///
/// Method: behind each step of a scrub deallocate so much that two leaves become one.
#[test]
fn leaves_that_become_one_are_not_counted_twice() {
    for steps in 0.. {
        let (mut sim, volume) = fresh(&TestDevice::new(64 << 8, true), None, 1 << 20);
        sim.run_ok(async {
            for lba in (0..700).step_by(100) {
                volume.write(Lba(lba), data(1, 100), None).await.expect("room");
            }
        });
        let shard = volume.shard().clone();
        let mut cursor = shard.scrub();
        for _ in 0..steps {
            sim.run_ok(shard.scrub_step(&mut cursor)).expect("readable");
        }
        let is_over = cursor.is_over();
        sim.run_ok(volume.unmap(range(100, 500))).expect("possible");
        while !cursor.is_over() {
            let step = sim.run_ok(shard.scrub_step(&mut cursor)).expect("readable");
            assert_eq!(step.damaged, [], "behind step {steps}");
        }
        if is_over {
            break;
        }
    }
}
