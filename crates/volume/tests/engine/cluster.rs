//! To which cluster a device belongs, whenever the power goes.

use crate::common::{Random, Sim, TestDevice, check, fresh, open};
use units::Pba;
use uuid::Uuid;
use volume::{OpenError, Probe, Superblock, join_cluster, leave_cluster, probe, read_superblock};

const DEVICE_BLOCKS: u64 = 64 << 8;
const OURS: Uuid = Uuid::from_u128(0xA);
const OTHERS: Uuid = Uuid::from_u128(0xB);

/// Returns the cluster that each whole copy names.
fn said(sim: &Sim) -> Vec<Option<Uuid>> {
    let copies = Superblock::places(DEVICE_BLOCKS).map(|pba| sim.device.block(pba));
    copies.iter().filter_map(|copy| Superblock::decode(copy).ok()).map(|it| it.cluster).collect()
}

fn belongs(sim: &mut Sim) -> Option<Uuid> {
    let device = sim.device.clone();
    let found = sim.run_ok(read_superblock(&device)).expect("one copy is whole");
    let probed = sim.run_ok(probe(&device)).expect("readable");
    assert_eq!(probed, Probe::Farflash(found), "both tell the same");
    found.cluster
}

fn join(sim: &mut Sim, cluster: Uuid) -> Option<Uuid> {
    let device = sim.device.clone();
    sim.run_ok(join_cluster(&device, cluster)).expect("it works").cluster
}

fn leave(sim: &mut Sim) -> Option<Uuid> {
    let device = sim.device.clone();
    sim.run_ok(leave_cluster(&device)).expect("it works")
}

/// A device with a volume, and with one copy of the superblock damaged, if that is said.
fn device(damaged: Option<Pba>) -> Sim {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    sim.settle();
    if let Some(pba) = damaged {
        sim.device.flip(pba, 70);
    }
    sim
}

fn after_power_cut(sim: &Sim, seed: u64) -> Sim {
    Sim::new(sim.device.after_crash(&mut Random(seed)), seed)
}

/// CLUSTER-4: a device has one cluster at a time, and passes to another by way of none.
#[test]
fn a_device_of_a_cluster_joins_no_other() {
    let mut sim = device(None);
    assert_eq!(belongs(&mut sim), None);
    assert_eq!(join(&mut sim, OURS), Some(OURS));
    let before = sim.device.blocks_written();
    assert_eq!(join(&mut sim, OTHERS), Some(OURS), "it says whose it is");
    assert_eq!(join(&mut sim, OURS), Some(OURS));
    assert_eq!(sim.device.blocks_written(), before, "nothing was to be written");
    assert_eq!((leave(&mut sim), belongs(&mut sim)), (Some(OURS), None));
    assert_eq!(leave(&mut sim), None);
    assert_eq!(join(&mut sim, OTHERS), Some(OTHERS));
    let shard = open(&mut sim);
    check(&mut sim, &shard);
}

/// CLUSTER-1 to CLUSTER-3: whenever the power goes, one copy is whole; a device that joined stays its cluster's, and
/// one that did not quite can still be had by one cluster, and then by no other.
///
/// Method: cut the power behind each write and flush of a join, and of a leave, with both copies whole and with either
/// damaged before. Of what was not flushed each sector survives or not by a coin from the seed.
#[test]
fn a_power_cut_leaves_a_device_to_at_most_one_cluster() {
    let tail = Pba(DEVICE_BLOCKS - 1);
    for damaged in [None, Some(Pba(0)), Some(tail)] {
        for joins in [true, false] {
            for (cut, seed) in (0..6).flat_map(|cut| (0..40).map(move |seed| (cut, seed))) {
                let mut sim = device(None);
                if !joins {
                    join(&mut sim, OURS);
                }
                damaged.inspect(|pba| sim.device.flip(*pba, 70));
                cut_and_claim(sim, joins, (cut, seed));
            }
        }
    }
}

/// Cuts the power behind `cut` writes and flushes of a join or leave, and has another cluster claim the device.
fn cut_and_claim(mut sim: Sim, joins: bool, (cut, seed): (u64, u64)) {
    let context = format!("joins {joins} cut {cut} seed {seed}");
    let at = sim.device.clone();
    sim.crash_at = Some(at.completed() + cut);
    let done = match joins {
        true => sim.run(join_cluster(&at, OURS)).map(drop),
        false => sim.run(leave_cluster(&at)).map(drop),
    };
    let mut sim = after_power_cut(&sim, seed);
    let left = belongs(&mut sim);
    match (done, joins) {
        (Ok(()), true) => assert_eq!(left, Some(OURS), "{context}: what is done is durable"),
        (Ok(()), false) => assert_eq!(left, None, "{context}: what is done is durable"),
        (Err(_), _) => {
            let named = said(&sim).contains(&Some(OURS)).then_some(OURS);
            assert_eq!(left, named, "{context}: one copy is enough");
        }
    }
    let (first, second) = if left.is_some() { (OURS, OTHERS) } else { (OTHERS, OURS) };
    if left.is_some() {
        assert_eq!(join(&mut sim, OTHERS), Some(OURS), "{context}: it is a cluster's");
    }
    assert_eq!(join(&mut sim, first), Some(first), "{context}: it is finished");
    assert_eq!(join(&mut sim, second), Some(first), "{context}");
    // What was damaged before may still be; mended, either copy may be lost from now on.
    crate::fsck::mend(&mut sim, false);
    assert_eq!(crate::fsck::check(&mut sim).faults, [], "{context}");
    for pba in Superblock::places(DEVICE_BLOCKS) {
        let whole = sim.device.block(pba);
        sim.device.flip(pba, 70);
        assert_eq!(belongs(&mut sim), Some(first), "{context}: without {pba}");
        assert_eq!(join(&mut sim, second), Some(first), "{context}: without {pba}");
        sim.device.put(pba, whole);
    }
}

/// CLUSTER-1: where a copy that is whole cannot be written, the device does not join; where one can be neither read nor
/// written, the other one says it.
#[test]
fn a_device_joins_only_if_no_copy_can_say_otherwise() {
    for pba in Superblock::places(DEVICE_BLOCKS) {
        let sim = &mut device(None);
        sim.device.faults(|faults| faults.write_errors = [(pba.0, u32::MAX)].into());
        let at = sim.device.clone();
        let refused = sim.run_ok(join_cluster(&at, OURS));
        assert!(matches!(refused, Err(OpenError::Device(_))), "{refused:?}");

        sim.device.flip(pba, 70);
        assert_eq!((join(sim, OURS), belongs(sim)), (Some(OURS), Some(OURS)), "{pba}");
        assert_eq!(join(sim, OTHERS), Some(OURS), "{pba}");
    }
}

/// CLUSTER-1: what a process has written that ended before its flush is made durable by the next one, before it counts.
///
/// Method: end the process, not the power, behind each write and flush of a join; join again, and cut the power then.
#[test]
fn a_device_that_has_joined_is_flushed_also_where_nothing_was_to_be_written() {
    for cut in 0..4 {
        let mut sim = device(None);
        let at = sim.device.clone();
        sim.crash_at = Some(at.completed() + cut);
        assert!(sim.run(join_cluster(&at, OURS)).is_err(), "cut {cut}");
        sim.settle();
        let mut next = Sim::new(at, 7);
        assert_eq!(join(&mut next, OURS), Some(OURS), "cut {cut}");
        for seed in 0..20 {
            let sim = after_power_cut(&next, seed);
            assert_eq!(said(&sim), [Some(OURS); 2], "cut {cut} seed {seed}");
        }
    }
}

/// CLUSTER-3: the only copy that is whole is not touched before the other one is durable, since a drive may lose what
/// it was writing when the power went.
#[test]
fn the_only_whole_copy_is_written_last() {
    let [head, tail] = Superblock::places(DEVICE_BLOCKS);
    for (damaged, whole) in [(head, tail), (tail, head)] {
        let mut sim = device(Some(damaged));
        let (at, before) = (sim.device.clone(), sim.device.block(whole));
        // Its write, and its flush.
        sim.crash_at = Some(at.completed() + 2);
        assert!(sim.run(join_cluster(&at, OURS)).is_err(), "{damaged}");
        assert_eq!(at.block(whole), before, "{damaged}");
        let sim = after_power_cut(&sim, 1);
        let mended = Superblock::decode(&sim.device.block(damaged)).expect("durable");
        assert_eq!(mended.cluster, Some(OURS));
    }
}
