//! A shard's record of damage: each place counts once, whichever path finds it.

use std::collections::BTreeSet;

use crate::common::{Random, Sim, TestDevice, data, fresh, open, range};
use layout::NodeView;
use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{Shard, Structure, Volume, VolumeError, VolumeSpec};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// Volumes 1 and 2, each with 400 blocks in a checkpoint; nothing of their maps is in memory.
fn filled() -> (Sim, Shard<TestDevice>, [Volume<TestDevice>; 2]) {
    let (mut sim, first) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let shard = first.shard().clone();
    sim.run_ok(async {
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "2".into(), blocks: 2000 };
        let second = shard.create_volume(spec).await.expect("room");
        for (tag, volume) in [(1, &first), (2, &second)] {
            for block in 0..400 {
                volume.write(Lba(block), data(tag, 1), None).await.expect("room");
            }
        }
        shard.checkpoint().await.expect("writable");
    });
    let survivor = sim.device.after_crash(&mut Random(3));
    sim = Sim::new(survivor, 5);
    let shard = open(&mut sim);
    let volumes = [1, 2].map(|n| shard.volume(Uuid::from_u128(n)).expect("durable"));
    (sim, shard, volumes)
}

/// Returns the location of the leaf of a tree with a key, and its former location.
fn leafs(sim: &Sim, tree: u32, key: u64) -> Vec<Pba> {
    let holds = |pba: &Pba| {
        let block = sim.device.block(*pba);
        NodeView::decode(&block).is_ok_and(|view| {
            view.tree == tree && view.level == 0 && view.keys().any(|found| found == key)
        })
    };
    (0..DEVICE_BLOCKS).map(Pba).filter(holds).collect()
}

fn scrub(sim: &mut Sim, shard: &Shard<TestDevice>) {
    sim.run_ok(async {
        let mut cursor = shard.scrub();
        while !cursor.is_over() {
            shard.scrub_step(&mut cursor).await.expect("running");
        }
    });
}

/// FINDING-1, FINDING-2. Method: damage a block of each kind, have it met again and again by requests
/// and scrubs, and count.
#[test]
fn each_damaged_place_counts_once_and_for_its_volume() {
    let (mut sim, shard, [first, second]) = filled();
    let superblock = *shard.superblock();
    let block = sim.device.find(&[1; BLOCK_SIZE])[7];
    let nodes = leafs(&sim, 2, 399);
    let [node] = nodes[..] else { panic!("it was written once: {nodes:?}") };
    sim.device.flip(block, 9);
    sim.device.flip(node, 300);
    assert_eq!((shard.media_errors(), shard.take_findings()), (0, Vec::new()));
    for _ in 0..3 {
        let whole = range(0, 400);
        assert!(matches!(sim.run_ok(first.read(whole)), Err(VolumeError::Corrupt { .. })));
        assert!(matches!(sim.run_ok(first.verify(whole)), Err(VolumeError::Corrupt { .. })));
        for lba in [399, 398] {
            let read = sim.run_ok(second.read(range(lba, 1)));
            assert!(matches!(read, Err(VolumeError::CorruptMap { .. })));
        }
    }
    assert_eq!((shard.media_errors(), first.media_errors(), second.media_errors()), (2, 1, 1));
    let found: Vec<_> = shard.take_findings().iter().map(|it| (it.pba, it.structure)).collect();
    assert_eq!(found, [(block, Structure::Data), (node, Structure::Node)]);

    let mut shared = leafs(&sim, layout::VOLUME_TREE, 1);
    shared.extend([Pba(0), superblock.root_places(0, 0)[0]]);
    shared.into_iter().for_each(|pba| sim.device.flip(pba, 100));
    for _ in 0..2 {
        scrub(&mut sim, &shard);
    }
    assert_eq!((shard.media_errors(), first.media_errors(), second.media_errors()), (5, 4, 4));
    let found: BTreeSet<_> = shard.take_findings().iter().map(|it| it.structure).collect();
    let expected = [Structure::Superblock, Structure::Root, Structure::Table];
    assert_eq!(found, BTreeSet::from(expected));
    assert_eq!(shard.take_findings(), []);
}

/// Method: damage both slots of a bitmap, and start.
#[test]
fn what_a_start_makes_good_counts() {
    let (mut sim, shard, _) = filled();
    let extent = shard.superblock().extent(0).start;
    sim.run_ok(shard.checkpoint()).expect("writable");
    let survivor = sim.device.after_crash(&mut Random(3));
    for slot in 0..2 {
        survivor.flip(extent.plus(slot), 9);
    }
    let mut sim = Sim::new(survivor, 6);
    let shard = open(&mut sim);
    assert_eq!(shard.media_errors(), 1);
    assert_eq!(shard.volumes()[0].media_errors(), 1, "all volumes rest on it");
    assert_eq!(shard.take_findings(), [], "the opening code reports it");
}

/// Each kind of request, not reads alone.
#[test]
fn what_the_device_fails_counts_whatever_was_asked() {
    let (mut sim, shard, [volume, other]) = filled();
    sim.run_ok(volume.verify(range(0, 400))).expect("sound");
    let place = sim.device.find(&[1; BLOCK_SIZE])[3];
    sim.device.faults(|faults| faults.read_errors.extend([(place.0, u32::MAX)]));
    let whole = range(0, 400);
    for count in 1..=2 {
        assert!(sim.run_ok(volume.read(whole)).is_err());
        assert!(sim.run_ok(volume.verify(whole)).is_err());
        assert!(sim.run_ok(volume.compare(Lba(0), data(1, 400))).is_err());
        let swapped = volume.compare_and_write(Lba(0), data(1, 400), data(3, 400));
        assert!(sim.run_ok(swapped).is_err());
        assert_eq!((volume.media_errors(), shard.media_errors()), (4 * count, 4 * count));
    }
    assert_eq!(other.media_errors(), 0);
}

/// FINDING-4.
#[test]
fn what_was_found_outlives_a_failure_of_the_shard() {
    let (mut sim, shard, [volume, _]) = filled();
    let block = sim.device.find(&[1; BLOCK_SIZE])[0];
    sim.device.flip(block, 9);
    assert!(sim.run_ok(volume.read(range(0, 400))).is_err());
    let failing = sim.device.find(&[1; BLOCK_SIZE])[3];
    sim.device.faults(|faults| faults.read_errors.extend([(failing.0, u32::MAX)]));
    assert!(sim.run_ok(volume.read(range(0, 400))).is_err());
    sim.device.faults(|faults| faults.read_errors.clear());
    sim.run_ok(volume.write(Lba(500), data(3, 2), None)).expect("written");
    sim.run_ok(volume.read(range(500, 2))).expect("sound");
    sim.device.faults(|faults| faults.flush_errors = 1);
    let refused = sim.run_ok(volume.write(Lba(500), data(3, 1), None));
    assert_eq!(refused, Err(VolumeError::JournalLost));
    let before = (shard.media_errors(), volume.media_errors(), volume.stats());
    assert!(before.0 >= 2 && before.1 >= 2, "{before:?}");
    assert_eq!((before.2.writes, before.2.blocks_read), (1, 2));
    let shard = sim.run_ok(shard.reopen()).expect("the device answers again");
    let volume = shard.volume(volume.uuid()).expect("durable");
    assert_eq!((shard.media_errors(), volume.media_errors(), volume.stats()), before);
    assert_eq!(volume.stats().damaged_blocks, 1);
    assert!(sim.run_ok(volume.read(range(0, 400))).is_err());
    assert_eq!(volume.stats().damaged_blocks, 1);
}
