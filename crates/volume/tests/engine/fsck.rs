//! Devices checked as a whole, and repaired.

use std::collections::BTreeMap;

use crate::common::{Random, Sim, TestDevice, crash, data, fresh, open, range, tags};
use layout::NodeView;
use units::{BLOCK_SIZE, Lba, Pba};
use volume::{
    Fault, Finding, FsckOptions, FsckReport, OpenError, Problem, Repair, Repaired, Superblock,
    Volume, VolumeError, fsck, repair,
};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// Checks that reported progress grows, and never exceeds the total.
fn growing(last: &mut (u64, u64)) -> impl FnMut(u64, u64) + '_ {
    move |done, total| {
        assert!(last.0 <= done && done <= total, "{last:?} {done} {total}");
        *last = (done, total);
    }
}

pub(crate) fn check(sim: &mut Sim) -> FsckReport {
    let device = sim.device.clone();
    let (mut last, options) = ((0, 0), FsckOptions { read_data: true });
    let report = sim.run_ok(fsck(&device, options, growing(&mut last)));
    assert_eq!(last.0, last.1);
    report.expect("ours")
}

pub(crate) fn mend(sim: &mut Sim, consent: bool) -> Repaired {
    let device = sim.device.clone();
    let mut last = (0, 0);
    let repaired = sim.run_ok(repair(&device, consent, growing(&mut last))).expect("writable");
    assert_eq!(last.0, last.1);
    repaired
}

/// A repair looks at all that is in use, and says how far it is.
#[test]
fn a_repair_tells_its_progress() {
    let (mut sim, volume) = filled();
    let superblock = *volume.shard().superblock();
    sim.device.wipe(Superblock::places(superblock.blocks)[0]);
    let (device, mut told) = (sim.device.clone(), Vec::new());
    let repaired = repair(&device, false, |done, total| told.push((done, total)));
    sim.run_ok(repaired).expect("writable");
    let total = told.last().expect("it is told").1;
    assert!(total > 2000, "the data and what leads to it: {total}");
    assert!(told.iter().any(|(done, _)| (1..total).contains(done)), "{told:?}");
    assert_eq!(told.last(), Some(&(total, total)));
}

/// One copy reads as zeroes, as where a drive was told to discard it.
#[test]
fn a_wiped_copy_is_rewritten_from_its_twin() {
    let (mut sim, volume) = filled();
    // So many checkpoints that every place must have been written.
    let shard = open(&mut sim);
    for _ in 0..16 {
        sim.run_ok(shard.checkpoint()).expect("writable");
    }
    sim.run_ok(shard.shutdown()).expect("writable");
    let superblock = *volume.shard().superblock();
    let mut places = Superblock::places(DEVICE_BLOCKS).to_vec();
    places.extend([0, 1].into_iter().flat_map(|g| superblock.root_places(0, g)));
    for pba in places {
        let whole = sim.device.block(pba);
        sim.device.wipe(pba);
        assert_eq!(only(&check(&mut sim)).pba, Some(pba));
        assert_eq!(mend(&mut sim, false).copies, 1);
        assert_eq!(sim.device.block(pba), whole);
        assert_eq!(check(&mut sim).faults, [], "{pba}");
    }
}

/// A volume of 2 000 blocks in some leaves, and a power cut.
fn filled() -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = fresh(&device, None, 1 << 30);
    sim.run_ok(async {
        for n in 0..20 {
            volume.write(Lba(n * 100), data(n as u8 + 1, 100), None).await.expect("room");
        }
        volume.unmap(range(450, 20)).await.expect("possible");
        volume.shard().shutdown().await.expect("writable");
    });
    let survivor = sim.device.after_crash(&mut Random(3));
    (Sim::new(survivor, 5), volume)
}

fn expect_data(sim: &mut Sim, lost: std::ops::Range<u64>) {
    let volume = crash(sim);
    let found = sim.run_ok(tags(&volume, 0, 2000));
    for (lba, tag) in (0_u64..).zip(found) {
        let kept = !(450..470).contains(&lba) && !lost.contains(&lba);
        assert_eq!(tag, if kept { (lba / 100) as u8 + 1 } else { 0 }, "block {lba}");
    }
    sim.run_ok(volume.shard().shutdown()).expect("writable");
}

fn only(report: &FsckReport) -> &Fault {
    assert_eq!(report.faults.len(), 1, "{:#?}", report.faults);
    &report.faults[0]
}

#[test]
fn a_sound_device_has_no_faults_and_is_not_written() {
    let (mut sim, _) = filled();
    let before = sim.device.completed();
    let report = check(&mut sim);
    assert_eq!(report.faults, []);
    assert_eq!((report.shards, report.volumes, report.data), (1, 1, 1980));
    assert_eq!(sim.device.completed(), before, "not even flushed");
    assert_eq!(mend(&mut sim, true), Repaired::default());
    expect_data(&mut sim, 0..0);
}

#[test]
fn a_damaged_copy_is_rewritten_from_its_twin() {
    let (mut sim, volume) = filled();
    let superblock = *volume.shard().superblock();
    let mut places = Superblock::places(DEVICE_BLOCKS).to_vec();
    places.extend([0, 1].into_iter().flat_map(|g| superblock.root_places(0, g)));
    for pba in places {
        sim.device.flip(pba, 70);
        let report = check(&mut sim);
        let fault = only(&report);
        assert_eq!(fault.pba, Some(pba));
        let is_superblock = [0, DEVICE_BLOCKS - 1].contains(&pba.0);
        let expected = if is_superblock { Repair::Superblock } else { Repair::Root };
        assert_eq!(fault.problem.repair(), Some(expected), "{fault:?}");
        assert_eq!(mend(&mut sim, false).copies, 1);
        assert_eq!(check(&mut sim).faults, [], "{pba}");
    }
    expect_data(&mut sim, 0..0);
}

#[test]
fn a_damaged_bitmap_is_rebuilt_and_costs_nothing() {
    let (mut sim, volume) = filled();
    let superblock = *volume.shard().superblock();
    let mut mended = 0;
    for extent in 0..3 {
        for slot in 0..2 {
            let pba = superblock.extent(extent).start.plus(slot);
            sim.device.flip(pba, 9);
            let report = check(&mut sim);
            for fault in &report.faults {
                assert_eq!((fault.pba, fault.shard), (Some(pba), Some(0)));
                assert_eq!(fault.problem, Problem::Bitmap { extent });
                mended += 1;
            }
            assert!(mend(&mut sim, false).shards <= 1);
            assert_eq!(check(&mut sim).faults, []);
        }
    }
    assert!(mended >= 2, "two extents are in use");
    // A server mends it on its own.
    for slot in 0..2 {
        sim.device.flip(superblock.extent(0).start.plus(slot), 9);
    }
    expect_data(&mut sim, 0..0);
    assert_eq!(check(&mut sim).faults, []);
}

#[test]
fn a_damaged_block_of_data_is_named_and_stays_an_error() {
    let (mut sim, volume) = filled();
    let pba = sim.device.find(&[8; BLOCK_SIZE])[33];
    sim.device.flip(pba, 5);
    let report = check(&mut sim);
    let fault = only(&report);
    assert_eq!((fault.pba, fault.shard), (Some(pba), Some(0)));
    assert_eq!(fault.volume, Some((volume.uuid(), "v".into())));
    let Problem::Check(finding) = &fault.problem else { panic!("{fault:?}") };
    assert_eq!(finding.lba(), Some(Lba(733)));
    assert_eq!(fault.problem.repair(), None);
    assert_eq!(mend(&mut sim, true), Repaired::default());
    assert_eq!(check(&mut sim), report, "it is still told");
}

/// The leaf of the map that has the key `lba`, as far as the device knows.
fn leaf_of(sim: &Sim, lba: u64) -> (Pba, std::ops::Range<u64>) {
    let mut newest = None;
    for pba in (0..DEVICE_BLOCKS).map(Pba) {
        let block = sim.device.block(pba);
        let Ok(view) = NodeView::decode(&block) else { continue };
        let keys: Vec<u64> = view.keys().collect();
        if view.tree == 1 && view.level == 0 && keys.contains(&lba) {
            newest = Some((pba, keys[0]..keys[keys.len() - 1] + 1));
        }
    }
    newest.expect("the volume was checkpointed")
}

#[test]
fn an_unreadable_node_is_given_up_only_with_consent() {
    let (mut sim, _) = filled();
    let (pba, keys) = leaf_of(&sim, 1000);
    sim.device.flip(pba, 2000);
    let report = check(&mut sim);
    let nodes: Vec<_> = report
        .faults
        .iter()
        .filter(|fault| fault.problem.repair() == Some(Repair::GiveUpNode))
        .collect();
    assert_eq!(nodes.len(), 1, "{:#?}", report.faults);
    assert_eq!(nodes[0].pba, Some(pba));
    assert!(report.faults.len() <= 2, "one more for the blocks that it named");
    assert_eq!(mend(&mut sim, false), Repaired::default());
    assert_eq!(check(&mut sim), report);
    let repaired = mend(&mut sim, true);
    assert_eq!((repaired.nodes_given_up, repaired.shards), (1, 1));
    let report = check(&mut sim);
    assert_eq!(report.faults, []);
    assert!(report.data < 1980);
    expect_data(&mut sim, keys);
}

/// FSCK-3: a node that the device fails to give, once or from then on, at whichever of the times that a
/// repair reads it, keeps the blocks that it names. The repair fails, or does without it.
#[test]
fn a_read_that_fails_during_a_repair_costs_nothing() {
    let (original, volume) = filled();
    let superblock = *volume.shard().superblock();
    let (node, _) = leaf_of(&original, 100);
    let (lost, keys) = leaf_of(&original, 1000);
    assert_ne!(node, lost);
    let bitmaps = (0..3).flat_map(|extent| [0, 1].map(|n| superblock.extent(extent).start.plus(n)));
    let bitmaps: Vec<Pba> = bitmaps.collect();
    let mut failed = 0;
    for (places, consent) in [(&bitmaps[..], false), (&bitmaps[..], true), (&[lost][..], true)] {
        for (spared, times) in (0..6).flat_map(|spared| [(spared, 1), (spared, u32::MAX)]) {
            let mut sim = Sim::new(original.device.after_crash(&mut Random(1)), 1);
            places.iter().for_each(|pba| sim.device.flip(*pba, 70));
            sim.device.faults(|faults| {
                faults.reads_spared.insert(node.0, spared);
                faults.read_errors.insert(node.0, times);
            });
            let device = sim.device.clone();
            failed += u32::from(sim.run_ok(repair(&device, consent, |_, _| ())).is_err());
            sim.device.faults(|faults| faults.read_errors.clear());
            let shard = open(&mut sim);
            let report = sim.run_ok(shard.check(true));
            let harmless =
                |f: &Finding| matches!(f, Finding::Count { .. } | Finding::Leaked { .. });
            let harmful = report.findings.iter().find(|finding| !harmless(finding));
            assert_eq!(harmful, None, "{places:?}, {spared} reads spared");
            sim.run_ok(shard.shutdown()).expect("writable");
            mend(&mut sim, consent);
            assert_eq!(check(&mut sim).faults, [], "{places:?}, {spared} reads spared");
            expect_data(&mut sim, if consent && places == [lost] { keys.clone() } else { 0..0 });
        }
    }
    assert!(failed > 0, "without its maps a damaged bitmap cannot be rebuilt");
}

/// FSCK-3: the table of extents is damaged, and a map's root node comes wrong, at whichever of the times that a repair needs
/// it. If it does so once, that costs nothing. If it does when it is read again, too, what it names is in no table that is
/// written: the repair fails, or does without it.
#[test]
fn a_node_that_comes_wrong_for_a_while_while_extents_are_counted_keeps_them() {
    let (original, _) = filled();
    let is_root = |pba: &Pba| {
        let block = original.device.block(*pba);
        NodeView::decode(&block).is_ok_and(|view| view.tree == 1 && view.level == 1)
    };
    let node = (0..DEVICE_BLOCKS).rev().map(Pba).find(is_root).expect("some leaves");
    let damaged = |pba| {
        let sim = Sim::new(original.device.after_crash(&mut Random(1)), 1);
        sim.device.flip(pba, 70);
        sim
    };
    let has_table = |pba: &Pba| {
        let is_table = |fault: &Fault| matches!(fault.problem, Problem::Extents);
        check(&mut damaged(*pba)).faults.iter().any(is_table)
    };
    // Blocks of data are of one byte.
    let is_metadata =
        |pba: &Pba| original.device.block(*pba).windows(2).any(|two| two[0] != two[1]);
    let table = (0..DEVICE_BLOCKS).map(Pba).filter(is_metadata).find(has_table).expect("a table");
    let mut unsteady = 0;
    for (times, spared) in [1, 2].into_iter().flat_map(|times| (0..6).map(move |n| (times, n))) {
        let mut sim = damaged(table);
        sim.device.faults(|faults| {
            faults.reads_spared.insert(node.0, spared);
            faults.garbled_reads.insert(node.0, times);
        });
        let device = sim.device.clone();
        let outcome = sim.run_ok(repair(&device, true, |_, _| ()));
        unsteady += u32::from(matches!(outcome, Err(OpenError::Unsteady(0))));
        sim.device.faults(|faults| faults.garbled_reads.clear());
        if outcome.is_err() {
            mend(&mut sim, false);
        }
        assert_eq!(check(&mut sim).faults, [], "{spared} reads spared");
        assert!(times > 1 || outcome.is_ok(), "once costs nothing: {outcome:?}");
        let is_given_up = outcome.is_ok_and(|repaired| repaired.nodes_given_up > 0);
        assert!(times > 1 || !is_given_up, "once costs nothing");
        expect_data(&mut sim, if is_given_up { 0..2000 } else { 0..0 });
    }
    assert!(unsteady > 0, "the walk that makes the table reads the node, too");
}

/// Whatever one block is damaged: the check ends and does not panic, data that it calls sound is
/// readable, and a repair leaves nothing that it said it would repair.
#[test]
fn any_damaged_block_of_metadata_is_survived() {
    let (original, volume) = filled();
    let superblock = *volume.shard().superblock();
    let mut told: BTreeMap<&str, u32> = BTreeMap::new();
    let is_data = |block: &[u8; BLOCK_SIZE]| block.iter().all(|byte| *byte == block[0]);
    let used = (0..DEVICE_BLOCKS).map(Pba).filter(|pba| !is_data(&original.device.block(*pba)));
    let places: Vec<Pba> = used.collect();
    assert!(places.len() > 20 && superblock.extent_count() > 3);
    for (seed, pba) in (0..).zip(places) {
        let mut random = Random(seed);
        let mut sim = Sim::new(original.device.after_crash(&mut random), seed);
        sim.device.flip(pba, random.below(4096) as usize);
        let report = check(&mut sim);
        for fault in &report.faults {
            let kind = match &fault.problem {
                Problem::Superblock(_) => "superblock",
                Problem::Root { .. } | Problem::NewestRoot => "root",
                Problem::Bitmap { .. } => "bitmap",
                Problem::Extents => "extents",
                Problem::Lost(_) => "lost",
                Problem::Unopened(_) => "unopened",
                Problem::Check(Finding::Unreadable(VolumeError::CorruptMap { .. })) => "node",
                Problem::Check(_) => "other",
            };
            *told.entry(kind).or_default() += 1;
            assert!(!fault.problem.to_string().is_empty());
        }
        mend(&mut sim, true);
        assert_eq!(check(&mut sim).faults, [], "{pba}: {:#?}", report.faults);
    }
    assert!(!told.contains_key("unopened"), "{told:?}");
    for kind in ["superblock", "root", "bitmap", "extents", "lost", "node"] {
        assert!(told.contains_key(kind), "{kind}: {told:?}");
    }
}

/// The power goes off behind any write of a repair, of one fault or of several, and once more while another goes on. A third
/// then ends where one ends that nothing cuts off, and nothing is lost but what that was allowed to give up.
#[test]
fn a_repair_that_is_cut_off_is_finished_by_another() {
    let (original, volume) = filled();
    let superblock = *volume.shard().superblock();
    let (leaf, keys) = leaf_of(&original, 1000);
    let bitmaps: Vec<Pba> = (0..3)
        .flat_map(|extent| [0, 1].map(|slot| superblock.extent(extent).start.plus(slot)))
        .collect();
    let root = superblock.root_places(0, 1)[0];
    let damages: [(&[Pba], _); 6] = [
        (&[Pba(0)], 0..0),
        (&[root], 0..0),
        (&bitmaps, 0..0),
        (&[leaf], keys.clone()),
        (&[Pba(DEVICE_BLOCKS - 1), root, leaf], keys),
        (&[&[Pba(DEVICE_BLOCKS - 1), root], bitmaps.as_slice()].concat(), 0..0),
    ];
    let mut cuts = 0;
    for (places, lost) in damages {
        let mut sim = Sim::new(original.device.after_crash(&mut Random(0)), 0);
        places.iter().for_each(|pba| sim.device.flip(*pba, 70));
        mend(&mut sim, true);
        let uncut = check(&mut sim);
        for cut in 0.. {
            let mut finished = false;
            for seed in 0..3 {
                let mut sim = Sim::new(original.device.after_crash(&mut Random(seed)), seed);
                places.iter().for_each(|pba| sim.device.flip(*pba, 70));
                sim.crash_at = Some(cut);
                let device = sim.device.clone();
                finished = sim.run(repair(&device, true, |_, _| ())).is_ok();
                let mut random = Random(100 * cut + seed);
                let mut sim = Sim::new(device.after_crash(&mut random), seed);
                sim.crash_at = Some(random.below(cut + 2));
                let device = sim.device.clone();
                // Cut off or not.
                let _ = sim.run(repair(&device, true, |_, _| ()));
                let mut sim = Sim::new(device.after_crash(&mut random), seed);
                mend(&mut sim, true);
                let report = check(&mut sim);
                assert_eq!(report.faults, [], "{places:?}, cut {cut}, seed {seed}");
                let ends = |report: &FsckReport| (report.shards, report.volumes, report.data);
                assert_eq!(ends(&report), ends(&uncut), "{places:?}, cut {cut}, seed {seed}");
                expect_data(&mut sim, lost.clone());
            }
            if finished {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts > 15, "repairs write: {cuts}");
}
