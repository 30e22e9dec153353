//! Writes without a task: begun if they wait for nothing but their record, and told when they are over.

use std::cell::RefCell;
use std::rc::Rc;

use units::Lba;
use volume::{Allowance, Unattended, Volume, VolumeError};

use crate::common::{Sim, TestDevice, check, crash, data, fresh, journal_of, range, tags};

const DEVICE_BLOCKS: u64 = 1 << 14;

type Outcomes = Rc<RefCell<Vec<Result<(), VolumeError>>>>;

/// A volume on a device that lies in memory and writes at once.
fn on_memory(volatile: bool) -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, volatile);
    let (sim, volume) = fresh(&device, None, 100);
    let superblock = *volume.shard().superblock();
    device.faults(|faults| {
        faults.is_memory = true;
        faults.writes_at_once = Some(superblock);
    });
    (sim, volume)
}

/// Begins a write of one block; the outcome is told there, if it has begun.
fn begin(volume: &Volume<TestDevice>, lba: u64, tag: u8) -> Option<Outcomes> {
    let outcomes = Outcomes::default();
    let told = outcomes.clone();
    let tell = Box::new(move |outcome| told.borrow_mut().push(outcome));
    volume.hold_write(range(lba, 1))?.write(Unattended { data: data(tag, 1), crcs: None, tell });
    Some(outcomes)
}

/// With a cache and without: the record, and the flush behind it, come before the answer.
#[test]
fn the_outcome_is_told_once_and_not_before_the_write_is_durable() {
    for volatile in [false, true] {
        let (mut sim, volume) = on_memory(volatile);
        let journal = journal_of(volume.shard().superblock());
        sim.device.faults(|faults| faults.held = journal.collect());
        let outcomes = begin(&volume, 7, 3).expect("nothing is in its way");
        sim.settle();
        assert!(outcomes.borrow().is_empty(), "the record is on its way");
        assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [0], "not in effect yet");
        sim.device.faults(|faults| faults.held.clear());
        sim.settle();
        assert_eq!(*outcomes.borrow(), [Ok(())]);
        assert_eq!(volume.stats().writes, 1);
        let volume = crash(&mut sim);
        assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [3]);
    }
}

#[test]
fn what_would_have_to_wait_or_would_fail_is_not_begun() {
    let (mut sim, volume) = on_memory(false);
    let journal = journal_of(volume.shard().superblock());
    sim.device.faults(|faults| faults.held = journal.collect());
    let first = begin(&volume, 7, 1).expect("nothing is in its way");
    assert!(begin(&volume, 7, 2).is_none(), "its range is held");
    assert!(begin(&volume, 100, 2).is_none(), "beyond the end");
    sim.device.faults(|faults| faults.held.clear());
    sim.settle();
    assert_eq!(first.take(), [Ok(())]);
    let allowance = Rc::new(Allowance::default());
    allowance.set(1, 1);
    volume.set_allowance(allowance.clone());
    assert!(begin(&volume, 8, 2).is_none(), "no allowance is left");
    assert!(begin(&volume, 7, 2).is_some(), "what replaces a block takes none");
    sim.settle();
    allowance.set(2, 1);
    assert!(begin(&volume, 8, 2).is_some());
    assert_eq!(allowance.used(1), 2, "taken until it is over");
    sim.settle();
    assert_eq!(allowance.used(2), 2);
    sim.device.faults(|faults| faults.is_memory = false);
    assert!(begin(&volume, 9, 2).is_none(), "the device is no memory");
    sim.device.faults(|faults| faults.is_memory = true);
    sim.run_ok(volume.shard().shutdown()).expect("sound");
    assert!(begin(&volume, 9, 2).is_none(), "the shard is closed");
}

/// A device that turns out to take its time: the committer sees the data through.
#[test]
fn data_that_takes_time_is_waited_for() {
    let (mut sim, volume) = on_memory(false);
    sim.device.faults(|faults| faults.writes_at_once = None);
    let superblock = *volume.shard().superblock();
    let journal = journal_of(&superblock);
    let others = (0..DEVICE_BLOCKS).filter(|pba| !journal.contains(pba));
    sim.device.faults(|faults| faults.held = others.collect());
    let outcomes = begin(&volume, 7, 3).expect("nothing is in its way");
    sim.settle();
    assert_eq!(sim.device.pending_data(&superblock).len(), 1);
    assert!(outcomes.borrow().is_empty(), "the record is there, the data is not");
    sim.device.faults(|faults| faults.held.clear());
    sim.settle();
    assert_eq!(*outcomes.borrow(), [Ok(())]);
    let volume = crash(&mut sim);
    assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [3]);
}

/// A caller that finds something else missing lets it go: nothing has happened, and nothing is held any more.
#[test]
fn a_held_write_that_is_dropped_leaves_nothing_behind() {
    let (mut sim, volume) = on_memory(false);
    let free = volume.shard().capacity().free;
    let allowance = Rc::new(Allowance::default());
    allowance.set(2, 0);
    volume.set_allowance(allowance.clone());
    let held = volume.hold_write(range(7, 2)).expect("nothing is in its way");
    assert_eq!(allowance.used(0), 2);
    assert!(volume.hold_write(range(1, 1)).is_none(), "no allowance is left");
    assert!(volume.hold_write(range(8, 1)).is_none(), "its range is held");
    drop(held);
    assert_eq!(allowance.used(0), 0);
    drop(volume.hold_write(range(7, 2)).expect("all of the allowance is left"));
    assert!(begin(&volume, 8, 3).is_some());
    sim.settle();
    assert_eq!(sim.run_ok(tags(&volume, 7, 2)), [0, 3]);
    assert_eq!(volume.shard().capacity().free, free - 1);
    check(&mut sim, volume.shard());
    sim.run_ok(volume.shard().shutdown()).expect("nothing is under way");
}

/// Data that the device refuses at once: the write is told so, has no effect, and leaves no block in use.
#[test]
fn refused_data_is_told_and_its_blocks_are_free_again() {
    let (mut sim, volume) = on_memory(false);
    sim.run_ok(volume.write(Lba(7), data(1, 1), None)).expect("room");
    sim.settle();
    let free = volume.shard().capacity().free;
    let everywhere = (0..DEVICE_BLOCKS).map(|pba| (pba, 1));
    let journal = journal_of(volume.shard().superblock());
    sim.device.faults(|faults| {
        faults.write_errors = everywhere.filter(|(pba, _)| !journal.contains(pba)).collect();
    });
    let outcomes = begin(&volume, 7, 2).expect("nothing is in its way");
    sim.device.faults(|faults| faults.write_errors.clear());
    sim.settle();
    assert!(matches!(outcomes.borrow()[..], [Err(VolumeError::Device(_))]), "{outcomes:?}");
    assert_eq!(volume.stats().device_errors, 1);
    assert_eq!(volume.stats().writes, 1, "the first one alone");
    assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [1]);
    assert_eq!(volume.shard().capacity().free, free);
    assert!(begin(&volume, 7, 2).is_some(), "its range is free");
    sim.settle();
    assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [2]);
}

#[test]
fn a_write_is_told_that_the_journal_is_lost() {
    let (mut sim, volume) = on_memory(false);
    let journal = journal_of(volume.shard().superblock());
    sim.device.faults(|faults| faults.write_errors = journal.map(|pba| (pba, 1)).collect());
    let outcomes = begin(&volume, 7, 2).expect("nothing is in its way");
    sim.settle();
    assert_eq!(*outcomes.borrow(), [Err(VolumeError::JournalLost)]);
    assert!(begin(&volume, 8, 2).is_none());
}

/// The call that tells an outcome may own the shard: it goes with the committer.
#[test]
fn what_was_to_be_told_goes_with_the_committer() {
    let (sim, volume) = on_memory(false);
    let journal = journal_of(volume.shard().superblock());
    sim.device.faults(|faults| faults.held = journal.collect());
    let outcomes = begin(&volume, 7, 2).expect("nothing is in its way");
    assert_eq!(Rc::strong_count(&outcomes), 2);
    drop(sim);
    assert_eq!(Rc::strong_count(&outcomes), 1);
    assert!(outcomes.borrow().is_empty());
}
