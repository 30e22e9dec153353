//! The shards that were ever used, and their roots, whatever a single read gives.

use std::collections::VecDeque;

use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{
    FsckOptions, OpenError, Problem, Repair, Repaired, Superblock, Volume, active_shards, fsck,
    repair,
};

use crate::common::{Random, Sim, TestDevice, data, fresh, open, tags};

const DEVICE_BLOCKS: u64 = 64 << 8;
/// Nothing was ever written there.
const EMPTY: u64 = DEVICE_BLOCKS - 200;

/// A device of whose only shard one root was ever written, and a volume with one block.
fn begun() -> (Sim, Superblock) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    sim.run_ok(volume.write(Lba(0), data(7, 1), None)).expect("room");
    let superblock = *volume.shard().superblock();
    (Sim::new(sim.device.after_crash(&mut Random(1)), 1), superblock)
}

fn active(sim: &mut Sim, superblock: &Superblock) -> Vec<u16> {
    let device = sim.device.clone();
    sim.run_ok(active_shards(&device, superblock)).expect("readable")
}

fn astray(sim: &Sim, place: Pba, to: &[u64]) {
    let to: VecDeque<u64> = to.iter().copied().collect();
    sim.device.faults(|faults| faults.astray_reads = [(place.0, to)].into());
}

/// COPY-1: one copy of a shard's only root is damaged, and reads of the other one go astray or fail.
/// Otherwise its extents would count as unowned.
///
/// Method: damage either copy in each way, have one or two reads of the other one give zeroes, a
/// root of another slot, or an error, and open.
#[test]
fn a_shard_counts_as_used_whatever_single_reads_of_its_only_whole_root_give() {
    let garbage = [0xA5; BLOCK_SIZE];
    for damage in [Some(garbage), Some([0; BLOCK_SIZE]), None] {
        for (damaged, whole) in [(0, 1), (1, 0)] {
            for wrong in [&[EMPTY][..], &[EMPTY, EMPTY], &[0], &[0, EMPTY], &[EMPTY, 0]] {
                let context = format!("{:?} {damaged} {wrong:?}", damage.map(|block| block[0]));
                let (mut sim, superblock) = begun();
                let places = superblock.root_places(0, 1);
                match damage {
                    Some(block) => sim.device.put(places[damaged], block),
                    None => sim.device.faults(|faults| {
                        faults.read_errors.insert(places[damaged].0, u32::MAX);
                    }),
                }
                astray(&sim, places[whole], wrong);
                assert_eq!(active(&mut sim, &superblock), [0], "{context}");
                astray(&sim, places[whole], wrong);
                let shard = open(&mut sim);
                let volume = shard.volume(Uuid::from_u128(1)).expect("there");
                assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [7], "{context}");
            }
        }
    }
}

/// COPY-1: a place that reads as zeroes once, and cannot be read otherwise, may hold a root.
#[test]
fn a_root_that_cannot_be_read_is_not_taken_for_one_that_never_was() {
    let (mut sim, superblock) = begun();
    let places = superblock.root_places(0, 1);
    sim.device.flip(places[0], 70);
    sim.device.flip(places[1], 70);
    for zeroes_at in 0..5 {
        let reads = (0..5).map(|read| if read == zeroes_at { EMPTY } else { places[1].0 });
        astray(&sim, places[1], &reads.collect::<Vec<_>>());
        assert_eq!(active(&mut sim, &superblock), [0], "read {zeroes_at}");
    }
}

/// COPY-1: a shard that was never used is none, whatever single reads of its places give.
#[test]
fn a_shard_that_was_never_used_is_not_counted_for_reads_that_went_astray() {
    let (_, superblock) = begun();
    let root_of_first = superblock.root_places(0, 1)[0].0;
    for (from, reads) in [(root_of_first, 1), (root_of_first, 2), (0, 1), (0, 2)] {
        let (mut sim, superblock) = begun();
        let places = [0, 1].into_iter().flat_map(|parity| superblock.root_places(1, parity));
        let wrong = places.map(|place| (place.0, vec![from; reads].into()));
        sim.device.faults(|faults| faults.astray_reads = wrong.collect());
        assert_eq!(active(&mut sim, &superblock), [0], "{reads} of {from}");
    }
}

fn generation(sim: &Sim, place: Pba) -> u64 {
    layout::Root::decode(&sim.device.block(place)).expect("whole").generation
}

/// Writes block 0 with each of `tags`, and a checkpoint behind each.
fn checkpoint_each(sim: &mut Sim, volume: &Volume<TestDevice>, tags: std::ops::Range<u8>) {
    sim.run_ok(async {
        for tag in tags {
            volume.write(Lba(0), data(tag, 1), None).await.expect("room");
            volume.shard().checkpoint().await.expect("writable");
        }
    });
}

/// A device with some checkpoints that goes on, and the places of its newer root and of the older one.
fn checkpointed() -> (Sim, Volume<TestDevice>, [[Pba; 2]; 2]) {
    let (mut sim, superblock) = begun();
    let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("there");
    checkpoint_each(&mut sim, &volume, 8..12);
    let mut slots = [0, 1].map(|slot| superblock.root_places(0, slot));
    slots.sort_by_key(|places| std::cmp::Reverse(generation(&sim, places[0])));
    (sim, volume, slots)
}

/// A device behind a power cut of which the newest root is whole in the first of these places alone, since the other one takes no
/// writes. Something was built on it.
fn with_newest_in_one_copy() -> (Sim, [Pba; 2]) {
    let (mut sim, volume, [places, _]) = checkpointed();
    sim.device.faults(|faults| {
        faults.write_errors.insert(places[1].0, u32::MAX);
    });
    checkpoint_each(&mut sim, &volume, 12..14);
    sim.run_ok(volume.write(Lba(1), data(99, 1), None)).expect("room");
    let ahead = generation(&sim, places[0]) - generation(&sim, places[1]);
    assert_eq!(ahead, 2, "one copy alone");
    (Sim::new(sim.device.after_crash(&mut Random(1)), 1), places)
}

fn expect_all(sim: &mut Sim) {
    let volume = open(sim).volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [13, 99]);
}

/// The first reads of a newest root that is whole in one copy alone are wrong: a repair that took it for damaged would put the
/// older root in its place.
#[test]
fn a_repair_puts_no_older_root_where_a_read_of_the_newest_went_astray() {
    for wrong in [&[EMPTY][..], &[EMPTY, EMPTY], &[0, EMPTY]] {
        let (mut sim, places) = with_newest_in_one_copy();
        let device = sim.device.clone();
        astray(&sim, places[0], wrong);
        let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
        assert_eq!(report.expect("ours").faults, []);
        astray(&sim, places[0], wrong);
        assert_eq!(sim.run_ok(repair(&device, true, |_, _| ())), Ok(Repaired::default()));
        expect_all(&mut sim);
    }
}

/// FSCK-5: a newest root that is in one copy alone, which cannot be read, is written over
/// with consent alone. Until then a later successful read recovers it.
#[test]
fn a_newest_root_that_cannot_be_read_is_given_up_with_consent_alone() {
    for consent in [false, true] {
        let (mut sim, places) = with_newest_in_one_copy();
        let (device, held) = (sim.device.clone(), sim.device.block(places[0]));
        device.faults(|faults| {
            faults.read_errors.insert(places[0].0, u32::MAX);
        });
        let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
        let faults = report.expect("ours").faults;
        let of_root: Vec<_> = faults.iter().filter(|fault| fault.pba == Some(places[0])).collect();
        assert_eq!(of_root.len(), 1, "{faults:?}");
        assert_eq!(of_root[0].problem.repair(), Some(Repair::GoBack));
        assert!(Repair::GoBack.loses_data());
        let repaired = sim.run_ok(repair(&device, consent, |_, _| ()));
        device.faults(|faults| faults.read_errors.clear());
        if consent {
            let repaired = repaired.expect("writable");
            assert_eq!((repaired.copies, repaired.journals_cut), (1, 1));
            let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("there");
            assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [13, 0]);
        } else {
            assert!(matches!(repaired, Err(OpenError::Journal { .. })), "{repaired:?}");
            assert!(device.block(places[0]) == held, "written over");
            expect_all(&mut sim);
        }
    }
}

/// FSCK-5: a copy of the older root that cannot be read is rewritten: the shard is read
/// back without it, and nothing is missing.
#[test]
fn a_copy_of_the_older_root_that_cannot_be_read_is_rewritten() {
    let (sim, _, [_, older]) = checkpointed();
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 1);
    let (device, held) = (sim.device.clone(), sim.device.block(older[0]));
    device.faults(|faults| {
        faults.read_errors.insert(older[0].0, u32::MAX);
    });
    let report = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| ()));
    let faults = report.expect("ours").faults;
    assert_eq!((faults.len(), &faults[0].problem), (1, &Problem::Root { twin: true }));
    device.put(older[0], [0xA5; BLOCK_SIZE]);
    let repaired = sim.run_ok(repair(&device, false, |_, _| ()));
    assert_eq!(repaired, Ok(Repaired { copies: 1, ..Repaired::default() }));
    assert!(device.block(older[0]) == held);
}
