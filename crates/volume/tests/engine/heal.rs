//! Blocks that a scrub finds damaged and memory has whole are there after a power cut.

use std::collections::BTreeSet;

use layout::{Descriptor, NodeView};
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{Shard, Structure, VolumeSpec};

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags, try_open};
use crate::scrub::scrub;

const DEVICE_BLOCKS: u64 = 64 << 8;

/// Two volumes in a checkpoint, the second of which is not used any more.
fn filled() -> (Sim, Shard<TestDevice>) {
    let (mut sim, first) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 30);
    let shard = first.shard().clone();
    sim.run_ok(async {
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "idle".to_owned(), blocks: 5000 };
        let idle = shard.create_volume(spec).await.expect("room");
        for n in 0..20 {
            first.write(Lba(n * 100), data(1, 100), None).await.expect("room");
            idle.write(Lba(n * 100), data(2, 100), None).await.expect("room");
        }
        shard.checkpoint().await.expect("writable");
    });
    (sim, shard)
}

fn is_node_of(block: &[u8], trees: &[u32]) -> bool {
    NodeView::decode(block).is_ok_and(|view| trees.contains(&view.tree))
}

/// All copies of what `places` finds are damaged, a scrub runs, and the power is cut.
fn damage_scrub_and_cut(structure: Structure, places: impl Fn(&Sim) -> Vec<Pba>) {
    let (mut sim, shard) = filled();
    let places = places(&sim);
    assert!(!places.is_empty());
    places.iter().for_each(|pba| sim.device.flip(*pba, 100));
    let (damaged, ..) = sim.run_ok(scrub(&shard));
    let found: BTreeSet<_> = damaged.iter().map(|damaged| damaged.structure).collect();
    assert_eq!(found, BTreeSet::from([structure]));
    sim.settle();
    assert_eq!(sim.run_ok(scrub(&shard)).0, [], "it was rewritten");
    check(&mut sim, &shard);
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
    let shard = open(&mut sim);
    for (uuid, tag) in [(1, 1), (2, 2)] {
        let volume = shard.volume(Uuid::from_u128(uuid)).expect("nothing was lost");
        assert!(sim.run_ok(tags(&volume, 0, 2000)).iter().all(|found| *found == tag));
    }
    check(&mut sim, &shard);
}

/// Method: a record rots that others follow. A shard that crashes then is not opened, or, behind a scrub, as if nothing was.
#[test]
fn a_record_of_the_journal() {
    for scrubs in [false, true] {
        let (mut sim, shard) = filled();
        let volume = shard.volume(Uuid::from_u128(1)).expect("there");
        for n in 0..10 {
            sim.run_ok(volume.write(Lba(n), data(9, 1), None)).expect("room");
        }
        let records = sim.device.find_by(|block| block.starts_with(b"FJR1"));
        sim.device.flip(records[records.len() - 5], 100);
        if scrubs {
            assert_eq!(sim.run_ok(scrub(&shard)).0, []);
        }
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
        let opened = sim.run_ok(try_open(sim.device.clone()));
        assert_eq!(opened.is_ok(), scrubs);
        if let Ok(shard) = opened {
            let volume = shard.volume(Uuid::from_u128(1)).expect("nothing was lost");
            assert_eq!(sim.run_ok(tags(&volume, 0, 12)), [[9; 10].as_slice(), &[1; 2]].concat());
        }
    }
}

#[test]
fn a_descriptor() {
    damage_scrub_and_cut(Structure::Table, |sim| {
        let is_idle = |block: &[u8]| Descriptor::decode(block).is_ok_and(|it| it.name == "idle");
        sim.device.find_by(is_idle)
    });
}

#[test]
fn a_node_of_the_volume_table() {
    damage_scrub_and_cut(Structure::Table, |sim| {
        sim.device.find_by(|block| is_node_of(block, &[layout::VOLUME_TREE]))
    });
}

#[test]
fn a_node_of_the_extent_table() {
    damage_scrub_and_cut(Structure::Table, |sim| {
        sim.device.find_by(|block| is_node_of(block, &[layout::EXTENT_TREE]))
    });
}

#[test]
fn nodes_of_maps() {
    damage_scrub_and_cut(Structure::Node, |sim| {
        sim.device.find_by(|block| is_node_of(block, &[1, 2]))
    });
}

#[test]
fn bitmaps() {
    damage_scrub_and_cut(Structure::Bitmap, |sim| {
        let superblock = layout::Superblock::decode(&sim.device.block(Pba(0)));
        crate::space::bitmap_slots(&superblock.expect("whole")).map(Pba).collect()
    });
}
