//! Writes that are lost, or go elsewhere, leave whole blocks: the checksum beside the pointer tells
//! that they are others. Each costs what it concerns, is told with its place, counts once, and is
//! cured by a rewrite.

use std::collections::BTreeSet;

use units::{BLOCK_SIZE, Lba, LbaRange, Pba};
use uuid::Uuid;
use volume::{Shard, Structure, Volume, VolumeError};

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};
use crate::scrub::scrub;

const DEVICE_BLOCKS: u64 = 64 << 8;
/// Blocks of the volume; block `n` is full of `n + 1`.
const BLOCKS: u64 = 10;
/// The tag that block 4 is overwritten with.
const NEW: u8 = 77;

fn filled() -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    for lba in 0..BLOCKS {
        sim.run_ok(volume.write(Lba(lba), data(lba as u8 + 1, 1), None)).expect("room");
    }
    (sim, volume)
}

fn place_of(sim: &Sim, tag: u8) -> Pba {
    let places = sim.device.find(&[tag; BLOCK_SIZE]);
    assert_eq!(places.len(), 1, "{tag}");
    places[0]
}

/// Returns the blocks that data may use and the journal does not.
fn of_data(sim: &Sim) -> impl Iterator<Item = u64> + use<> {
    let first = place_of(sim, 1).0;
    first..first + 500
}

/// Exactly `damaged` is damaged, of a volume whose block 4 was overwritten if `overwritten`: for
/// its reader, in counts and reports, for a scrub, and also after a power cut. A rewrite cures it.
fn is_all_that_is_damaged(
    mut sim: Sim,
    volume: &Volume<TestDevice>,
    damaged: &[u64],
    overwritten: bool,
) {
    let shard = volume.shard().clone();
    let places = each_is_an_error(&mut sim, volume, damaged, overwritten);
    assert_eq!(volume.stats().damaged_blocks, damaged.len() as u64);
    assert_eq!(shard.media_errors(), damaged.len() as u64);
    let told: BTreeSet<_> = shard.take_findings().iter().map(|it| (it.lba, it.pba)).collect();
    assert_eq!(told, places);
    each_is_an_error(&mut sim, volume, damaged, overwritten);
    a_scrub_finds(&mut sim, &shard, &places);
    assert_eq!(shard.media_errors(), damaged.len() as u64, "each place once");

    sim.run_ok(shard.checkpoint()).expect("writable");
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
    let shard = open(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(each_is_an_error(&mut sim, &volume, damaged, overwritten), places);
    for lba in damaged {
        sim.run_ok(volume.write(Lba(*lba), data(99, 1), None)).expect("room");
        assert_eq!(sim.run_ok(tags(&volume, *lba, 1)), [99]);
    }
    a_scrub_finds(&mut sim, &shard, &BTreeSet::new());
    check(&mut sim, &shard);
}

/// Reads all. Returns where what is damaged lies.
fn each_is_an_error(
    sim: &mut Sim,
    volume: &Volume<TestDevice>,
    damaged: &[u64],
    overwritten: bool,
) -> BTreeSet<(Option<Lba>, Pba)> {
    let mut places = BTreeSet::new();
    for lba in 0..BLOCKS {
        match sim.run_ok(volume.read(LbaRange::new(Lba(lba), 1))) {
            Err(VolumeError::Corrupt { lba: told, pba, .. }) => {
                assert!(told == Lba(lba) && damaged.contains(&lba), "{told} for {lba}");
                places.insert((Some(told), pba));
            }
            Err(error) => panic!("{lba}: {error}"),
            Ok(found) => {
                let expected = if lba == 4 && overwritten { NEW } else { lba as u8 + 1 };
                assert_eq!(found.to_vec(), [expected; BLOCK_SIZE], "{lba}");
            }
        }
    }
    assert_eq!(places.len(), damaged.len());
    let all = sim.run_ok(volume.read(LbaRange::new(Lba(0), BLOCKS)));
    assert!(matches!(all, Err(VolumeError::Corrupt { lba, .. }) if lba.0 == damaged[0]));
    places
}

fn a_scrub_finds(sim: &mut Sim, shard: &Shard<TestDevice>, places: &BTreeSet<(Option<Lba>, Pba)>) {
    let found = sim.run_ok(scrub(shard)).0;
    assert!(found.iter().all(|it| it.structure == Structure::Data), "{found:?}");
    let found: BTreeSet<_> = found.iter().map(|it| (it.lba, it.pba)).collect();
    assert_eq!(found, *places);
}

/// Method: lose the next write wherever it goes, and leave there what was there before, or the block's version before.
#[test]
fn a_write_that_is_lost_costs_its_block() {
    for is_version in [false, true] {
        let (mut sim, volume) = filled();
        let lost = of_data(&sim).map(|pba| (pba, 1)).collect();
        sim.device.faults(|faults| faults.lost_writes = lost);
        sim.run_ok(volume.write(Lba(4), data(NEW, 1), None)).expect("it seems to be written");
        sim.device.faults(|faults| faults.lost_writes.clear());
        assert_eq!(sim.device.find(&[NEW; BLOCK_SIZE]), []);
        if is_version {
            let wrong = sim.run_ok(volume.read(LbaRange::new(Lba(4), 1))).expect_err("it is lost");
            let VolumeError::Corrupt { pba, .. } = wrong else { panic!("{wrong}") };
            sim.device.put(pba, [5; BLOCK_SIZE]);
        }
        is_all_that_is_damaged(sim, &volume, &[4], true);
    }
}

/// Method: have the next write land where block 7 lies.
#[test]
fn a_write_that_goes_elsewhere_costs_its_block_and_the_one_that_it_hits() {
    let (mut sim, volume) = filled();
    let victim = place_of(&sim, 8);
    let astray = of_data(&sim).map(|pba| (pba, victim.0)).collect();
    sim.device.faults(|faults| faults.astray_writes = astray);
    sim.run_ok(volume.write(Lba(4), data(NEW, 1), None)).expect("it seems to be written");
    sim.device.faults(|faults| faults.astray_writes.clear());
    assert_eq!(place_of(&sim, NEW), victim);
    is_all_that_is_damaged(sim, &volume, &[4, 7], true);
}

#[test]
fn two_blocks_that_change_places_cost_both() {
    let (sim, volume) = filled();
    let places = [3, 4].map(|tag| place_of(&sim, tag));
    sim.device.put(places[0], [4; BLOCK_SIZE]);
    sim.device.put(places[1], [3; BLOCK_SIZE]);
    is_all_that_is_damaged(sim, &volume, &[2, 3], false);
}
