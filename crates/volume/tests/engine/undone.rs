//! A write that failed and is not undone yet, and what rots beside it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use layout::{Entry, Record};
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{OpenError, Volume, VolumeError};

use crate::common::{Sim, TestDevice, check, data, fresh, journal_of, open, tags, try_open};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// The records that name the two writes.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Records {
    /// Each has a record.
    Two,
    /// They share one.
    One,
}

/// Blocks 0 to 3 of a volume, written before a checkpoint. Then block 0 is written, of which the record gets there and the data
/// does not, and block 1 beside it, which is acknowledged. What undoes the former is on its way.
struct Staged {
    sim: Sim,
    volume: Volume<TestDevice>,
    /// Former location of block 1.
    freed: Pba,
    failed: Rc<RefCell<Option<Result<(), VolumeError>>>>,
}

/// The tags that blocks 0 and 1 are written with.
const FAILED: u8 = 20;
const ACKNOWLEDGED: u8 = 21;

fn stage(records: Records) -> Staged {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, false), Some(1024), 20_000);
    let superblock = *volume.shard().superblock();
    for lba in 0..4 {
        sim.run_ok(volume.write(Lba(lba), data(10 + lba as u8, 1), None)).expect("room");
    }
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    let freed = sim.device.find(data(11, 1).as_bytes())[..].try_into().map(|[pba]: [Pba; 1]| pba);

    let journal = journal_of(&superblock);
    let outside = (0..DEVICE_BLOCKS).filter(|pba| !journal.contains(pba));
    sim.device.faults(|faults| faults.held = outside.collect());
    let (failing, writer) = (volume.clone(), volume.clone());
    let failed = sim.begin(async move { failing.write(Lba(0), data(FAILED, 1), None).await });
    if records == Records::Two {
        sim.settle();
    }
    let acknowledged =
        sim.begin(async move { writer.write(Lba(1), data(ACKNOWLEDGED, 1), None).await });
    sim.settle();
    let places = sim.device.pending_data(&superblock);
    assert_eq!(places.len(), 2);
    // Block 1 waits for block 0.
    sim.device.faults(|faults| {
        faults.held = BTreeSet::from([places[0].0]);
        faults.write_errors = BTreeMap::from([(places[0].0, u32::MAX)]);
    });
    sim.settle();
    assert!(acknowledged.borrow().is_none());
    // What undoes the first does not become durable.
    sim.device.faults(|faults| faults.held = journal.collect());
    sim.settle();
    assert_eq!(acknowledged.take(), Some(Ok(())));
    assert!(failed.borrow().is_none(), "it is not undone");
    Staged { sim, volume, freed: freed.expect("one"), failed }
}

/// Flips a bit of the data that was acknowledged, on a device that is not used. Where it lies.
fn spoil_acknowledged(device: &TestDevice) -> Pba {
    let rotten = device.find(data(ACKNOWLEDGED, 1).as_bytes());
    assert_eq!(rotten.len(), 1);
    device.flip(rotten[0], 100);
    rotten[0]
}

/// Block 1 is an error, and what was acknowledged before is there.
fn expect_one_lost_block(sim: &mut Sim, rotten: Pba) {
    let shard = open(sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    let found = sim.run_ok(volume.read(crate::common::range(1, 1)));
    assert!(
        matches!(found, Err(VolumeError::Corrupt { pba, .. }) if pba == rotten),
        "{:?}",
        found.map(|found| found.to_vec()[0])
    );
    assert_eq!(sim.run_ok(tags(&volume, 2, 2)), [12, 13]);
    assert!([10, FAILED].contains(&sim.run_ok(tags(&volume, 0, 1))[0]));
    sim.run_ok(volume.write(Lba(1), data(22, 1), None)).expect("room");
    check(sim, &shard);
}

/// JOURNAL-6: a record that was acknowledged and rots beside a write that failed is missed: what came behind is not forgotten
/// without a word.
#[test]
fn a_record_that_rots_beside_a_failed_write_is_missed() {
    let Staged { sim, .. } = stage(Records::Two);
    let mut sim = Sim::new(sim.device.after_crash_without_loss(), 1);
    let names_block_1 =
        |entry: &Entry<'_>| matches!(entry, Entry::Write { lba: Lba(1), trusted: false, .. });
    let is_record = |block: &[u8]| {
        Record::decode(block).is_ok_and(|record| record.entries.iter().any(names_block_1))
    };
    let records = sim.device.find_by(is_record);
    // One is of before the checkpoint.
    let rotten = *records.last().expect("written");
    sim.device.flip(rotten, 100);
    let opened = sim.run_ok(try_open(sim.device.clone()));
    assert!(matches!(opened, Err(OpenError::Journal { .. })), "{:?}", opened.err());
}

/// REPLAY-7: a write was acknowledged beside one that failed, and its data rots. That costs its data, and what was there before
/// is not read as if nothing had been.
#[test]
fn data_that_rots_beside_a_failed_write_is_an_error() {
    let Staged { sim, .. } = stage(Records::Two);
    let mut sim = Sim::new(sim.device.after_crash_without_loss(), 1);
    let rotten = spoil_acknowledged(&sim.device);
    expect_one_lost_block(&mut sim, rotten);
}

/// REPLAY-6: the same where both are in one record, of which the journal only says that something in it failed, and the block
/// that the write freed was used again.
#[test]
fn a_block_that_rots_beside_a_failed_write_costs_that_block() {
    let Staged { mut sim, volume, freed, failed } = stage(Records::One);
    for lba in 100..140 {
        let writer = volume.clone();
        sim.spawn(async move { drop(writer.write(Lba(lba), data(30, 1), None).await) });
        sim.settle();
    }
    assert!(failed.borrow().is_none(), "it is not undone");
    assert!(sim.device.block(freed)[0] == 30, "what was freed is used again");
    let mut sim = Sim::new(sim.device.after_crash_without_loss(), 1);
    let rotten = spoil_acknowledged(&sim.device);
    expect_one_lost_block(&mut sim, rotten);
}
