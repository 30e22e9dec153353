//! The cost of damaged blocks that cannot be rebuilt, and its bounds.

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, range, tags, try_open};
use layout::NodeView;
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{
    FsckOptions, FsckReport, Loss, OpenError, Problem, Repair, Repaired, Shard, Volume, VolumeSpec,
    fsck, repair,
};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// Volumes 1, 2 and 3 with 500 blocks each, in a checkpoint; their first 100 written over since then, in
/// the journal alone, and the blocks from 50 on of the second freed, which others may have now.
fn filled() -> Sim {
    let (mut sim, first) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let shard = first.shard().clone();
    sim.run_ok(async {
        for number in [2, 3] {
            let spec = VolumeSpec {
                uuid: Uuid::from_u128(number),
                name: number.to_string(),
                blocks: 2000,
            };
            shard.create_volume(spec).await.expect("room");
        }
        for (tag, volume) in (1..).zip(shard.volumes()) {
            volume.write(Lba(0), data(tag, 500), None).await.expect("room");
        }
        shard.checkpoint().await.expect("writable");
        for (tag, volume) in (11..).zip(shard.volumes()) {
            volume.write(Lba(0), data(tag, 50), None).await.expect("room");
            volume.write(Lba(50), data(tag, 50), None).await.expect("room");
        }
        shard.volumes()[1].unmap(range(50, 200)).await.expect("possible");
        shard.volumes()[2].write(Lba(600), data(33, 300), None).await.expect("room");
    });
    sim.settle();
    power_cut(&sim)
}

fn power_cut(sim: &Sim) -> Sim {
    let survivor = sim.device.after_crash(&mut Random(3));
    Sim::new(survivor, 5)
}

fn fsck_of(sim: &mut Sim) -> FsckReport {
    let device = sim.device.clone();
    let before = device.completed();
    let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
    assert_eq!(device.completed(), before, "nothing is written");
    report.expect("ours")
}

fn lost(report: &FsckReport) -> Vec<Loss> {
    let losses = report.faults.iter().filter_map(|fault| match fault.problem {
        Problem::Lost(loss) => Some(loss),
        _ => None,
    });
    losses.collect()
}

/// Without consent nothing is given up; with it, all that is announced.
fn mend(sim: &mut Sim) -> Repaired {
    let device = sim.device.clone();
    let repairs = fsck_of(sim);
    let mut repairs = repairs.faults.iter().filter_map(|fault| fault.problem.repair());
    assert!(repairs.any(Repair::loses_data));
    let repaired = sim.run_ok(repair(&device, false, |_, _| ()));
    assert!(repaired.is_err() || repaired == Ok(Repaired::default()), "{repaired:?}");
    let repaired = sim.run_ok(repair(&device, true, |_, _| ())).expect("writable");
    assert_eq!(fsck_of(sim).faults, []);
    repaired
}

/// Flips a bit of each block that is meant, old versions included.
fn damage(sim: &Sim, is_meant: impl Fn(&[u8; 4096]) -> bool) -> Vec<Pba> {
    let all = (0..DEVICE_BLOCKS).map(Pba);
    let meant: Vec<Pba> = all.filter(|pba| is_meant(&sim.device.block(*pba))).collect();
    assert!(!meant.is_empty());
    meant.iter().for_each(|pba| sim.device.flip(*pba, 90));
    meant
}

fn is_descriptor(block: &[u8; 4096], number: u8) -> bool {
    block.starts_with(b"FVD1") && block[40] == number
}

fn is_node(block: &[u8; 4096], tree: u32) -> bool {
    NodeView::decode(block).is_ok_and(|view| view.tree == tree)
}

fn volume(shard: &Shard<TestDevice>, number: u128) -> Option<Volume<TestDevice>> {
    shard.volume(Uuid::from_u128(number))
}

/// Checks the contents of the volumes, except for lost ones.
fn expect_all(sim: &mut Sim, shard: &Shard<TestDevice>, lost: &[u128]) {
    for number in 1..=3 {
        let found = volume(shard, number);
        assert_eq!(found.is_none(), lost.contains(&number), "volume {number}");
        let Some(volume) = found else { continue };
        let found = sim.run_ok(tags(&volume, 0, 1000));
        for (lba, tag) in (0_u64..).zip(found) {
            let expected = match (number, lba) {
                (2, 50..250) => 0,
                (3, 600..900) => 33,
                (_, 0..100) => 10 + number as u8,
                (_, 100..500) => number as u8,
                _ => 0,
            };
            assert_eq!(tag, expected, "volume {number}, block {lba}");
        }
    }
}

/// LOSS-1: the others are served, and lose nothing.
#[test]
fn a_damaged_descriptor_costs_its_volume_alone() {
    for number in 1..=3_u8 {
        let mut sim = filled();
        damage(&sim, |block| is_descriptor(block, number));
        for round in 0..3 {
            let shard = open(&mut sim);
            expect_all(&mut sim, &shard, &[number.into()]);
            let other = volume(&shard, u128::from(number % 3 + 1)).expect("served");
            sim.run_ok(other.write(Lba(1500), data(7, 200), None)).expect("room");
            assert_eq!(sim.run_ok(tags(&other, 1500, 200)), [7; 200], "round {round}");
            if round == 1 {
                sim.run_ok(shard.shutdown()).expect("writable");
            }
            sim.settle();
            sim = power_cut(&sim);
        }
        let report = fsck_of(&mut sim);
        let [Loss::Volume { number: told, .. }] = lost(&report)[..] else { panic!("{report:#?}") };
        assert_eq!(told, u32::from(number));
        assert!(report.faults.len() <= 2, "one more for its blocks: {report:#?}");
        let repaired = mend(&mut sim);
        assert_eq!((repaired.volumes_given_up, repaired.nodes_given_up), (1, 0));
        let shard = open(&mut sim);
        expect_all(&mut sim, &shard, &[number.into()]);
        check(&mut sim, &shard);
    }
}

/// LOSS-1: what the journal had for it is gone with the next checkpoint, and an older state must not
/// show.
#[test]
fn a_lost_volume_does_not_come_back_without_its_last_changes() {
    let mut sim = filled();
    let places = damage(&sim, |block| is_descriptor(block, 2));
    let shard = open(&mut sim);
    expect_all(&mut sim, &shard, &[2]);
    sim.run_ok(shard.shutdown()).expect("writable");
    sim = power_cut(&sim);
    places.iter().for_each(|pba| sim.device.flip(*pba, 90));
    let shard = open(&mut sim);
    expect_all(&mut sim, &shard, &[2]);
    // Where the journal has nothing for it, nothing is missing.
    let mut sim = filled();
    let shard = open(&mut sim);
    sim.run_ok(shard.shutdown()).expect("writable");
    sim = power_cut(&sim);
    let places = damage(&sim, |block| is_descriptor(block, 2));
    let shard = open(&mut sim);
    expect_all(&mut sim, &shard, &[2]);
    sim = power_cut(&sim);
    places.iter().for_each(|pba| sim.device.flip(*pba, 90));
    let shard = open(&mut sim);
    expect_all(&mut sim, &shard, &[]);
    check(&mut sim, &shard);
}

#[test]
fn a_damaged_table_of_extents_costs_nothing() {
    for crashes in 0..3 {
        let mut sim = filled();
        damage(&sim, |block| is_node(block, u32::MAX));
        let report = fsck_of(&mut sim);
        assert_eq!(report.faults.len(), 1, "{report:#?}");
        assert_eq!(report.faults[0].problem.repair(), Some(Repair::Extents));
        // The start that rebuilds it is cut off.
        for cut in 0..crashes {
            let device = sim.device.clone();
            sim.crash_at = Some(cut * 7);
            assert!(sim.run(try_open(device)).is_err(), "cut off");
            sim = power_cut(&sim);
        }
        if crashes == 2 {
            let device = sim.device.clone();
            let repaired = sim.run_ok(repair(&device, false, |_, _| ())).expect("writable");
            assert_eq!(repaired, Repaired { shards: 1, ..Repaired::default() });
            assert_eq!(fsck_of(&mut sim).faults, []);
        }
        let shard = open(&mut sim);
        expect_all(&mut sim, &shard, &[]);
        check(&mut sim, &shard);
        sim.run_ok(shard.shutdown()).expect("writable");
        let mut sim = power_cut(&sim);
        assert_eq!(fsck_of(&mut sim).faults, []);
        let shard = open(&mut sim);
        expect_all(&mut sim, &shard, &[]);
    }
}

#[test]
fn a_damaged_table_of_volumes_costs_its_volumes_and_leaves_a_shard_that_works() {
    let mut sim = filled();
    damage(&sim, |block| is_node(block, u32::MAX - 1));
    let device = sim.device.clone();
    let refused = sim.run_ok(try_open(device)).err();
    assert!(matches!(refused, Some(OpenError::Damaged { what: "table node", .. })), "{refused:?}");
    let report = fsck_of(&mut sim);
    assert!(matches!(lost(&report)[..], [Loss::Volumes { .. }]), "{report:#?}");
    assert_eq!(mend(&mut sim).volumes_given_up, 1);
    let shard = open(&mut sim);
    expect_all(&mut sim, &shard, &[1, 2, 3]);
    let capacity = shard.capacity();
    assert_eq!(capacity.data, 0);
    let spec = VolumeSpec { uuid: Uuid::from_u128(9), name: "n".into(), blocks: DEVICE_BLOCKS };
    let new = sim.run_ok(shard.create_volume(spec)).expect("room");
    for n in 0..50 {
        sim.run_ok(new.write(Lba(n * 256), data(9, 256), None)).expect("its space is free");
    }
    check(&mut sim, &shard);
}

/// LOSS-2, LOSS-3: with consent the journal ends before the damage; what was there before is whole, or
/// an error.
#[test]
fn a_damaged_record_costs_what_came_behind_it() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    sim.run_ok(async {
        for lba in 0..20 {
            volume.write(Lba(lba), data(1, 1), None).await.expect("room");
        }
    });
    let mut sim = power_cut(&sim);
    let journal = volume.shard().superblock().extent(0).start.plus(2);
    sim.device.flip(journal.plus(12), 100);
    let device = sim.device.clone();
    let refused = sim.run_ok(try_open(device)).err();
    let Some(OpenError::Journal { sequence, .. }) = refused else { panic!("{refused:?}") };
    let report = fsck_of(&mut sim);
    let [Loss::Journal { sequence: told, pba }] = lost(&report)[..] else { panic!("{report:#?}") };
    assert_eq!((told, pba), (sequence, journal.plus(12)));
    assert_eq!(mend(&mut sim).journals_cut, 1);
    for round in 0..3 {
        let shard = open(&mut sim);
        let volume = shard.volume(Uuid::from_u128(1)).expect("older");
        let found = sim.run_ok(tags(&volume, 0, 20));
        let kept = found.iter().take_while(|tag| **tag == 1).count();
        assert!((9..=12).contains(&kept) && found[kept..].iter().all(|tag| *tag == 0), "{found:?}");
        sim.run_ok(volume.write(Lba(100 + round), data(5, 1), None)).expect("it goes on");
        assert_eq!(sim.run_ok(tags(&volume, 100, round + 1)), vec![5; round as usize + 1]);
        check(&mut sim, &shard);
        sim = power_cut(&sim);
    }
}

/// The older root, if nothing else is left, once that is wanted; and never again the newer records.
#[test]
fn lost_newest_roots_cost_what_came_behind_the_one_before() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let (superblock, shard) = (*volume.shard().superblock(), volume.shard().clone());
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 10), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.write(Lba(10), data(2, 10), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.write(Lba(20), data(3, 10), None).await.expect("room");
    });
    let mut sim = power_cut(&sim);
    let generation = |sim: &Sim, parity| {
        let block = sim.device.block(superblock.root_places(0, parity)[0]);
        u64::from_le_bytes(block[24..32].try_into().expect("8"))
    };
    let newest = if generation(&sim, 0) > generation(&sim, 1) { 0 } else { 1 };
    superblock.root_places(0, newest).into_iter().for_each(|place| sim.device.flip(place, 50));
    let device = sim.device.clone();
    assert!(sim.run_ok(try_open(device.clone())).is_err());
    let report = fsck_of(&mut sim);
    assert!(lost(&report).iter().any(|loss| matches!(loss, Loss::Journal { .. })), "{report:#?}");
    sim.run_ok(repair(&device, true, |_, _| ())).expect("writable");
    for _ in 0..3 {
        let shard = open(&mut sim);
        let volume = shard.volume(Uuid::from_u128(1)).expect("older");
        assert_eq!(sim.run_ok(tags(&volume, 0, 10)), [1; 10]);
        check(&mut sim, &shard);
        sim = power_cut(&sim);
    }
}

#[test]
fn a_damaged_map_node_that_the_journal_leads_to_costs_what_it_describes() {
    let mut sim = filled();
    damage(&sim, |block| is_node(block, 1));
    let device = sim.device.clone();
    let refused = sim.run_ok(try_open(device)).err();
    assert!(matches!(refused, Some(OpenError::Damaged { what: "map node", .. })), "{refused:?}");
    let report = fsck_of(&mut sim);
    assert!(matches!(lost(&report)[..], [Loss::Node { volume: 1, .. }]), "{report:#?}");
    assert_eq!(mend(&mut sim).nodes_given_up, 1);
    let shard = open(&mut sim);
    let first = volume(&shard, 1).expect("there");
    let found = sim.run_ok(tags(&first, 0, 500));
    assert_eq!((&found[..100], &found[100..]), (&[11; 100][..], &[0; 400][..]));
    for number in [2, 3] {
        let volume = volume(&shard, number).expect("there");
        assert_eq!(sim.run_ok(tags(&volume, 400, 100)), vec![number as u8; 100]);
    }
    check(&mut sim, &shard);
}
