//! Devices that do not take what the engine writes for itself, for long or for ever.

use std::cell::RefCell;
use std::rc::Rc;

use io_traits::DeviceError;
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba, PbaRange};
use uuid::Uuid;
use volume::{JournalLoss, Shard, Terms, Volume, VolumeError, VolumeSpec};

use crate::common::{Sim, TestDevice, check, crash, data, fresh, tags};

const DEVICE_BLOCKS: u64 = 64 << 8;
const VOLUME: Uuid = Uuid::from_u128(1);
/// Ticks after which a caller must have been told.
const TICKS: u32 = 40;

fn tick(sim: &mut Sim, shard: &Shard<TestDevice>, ticks: u32) {
    for _ in 0..ticks {
        shard.settle();
        sim.settle();
    }
}

/// Writes a block in every `stride` until one is not answered within [`TICKS`]; how many were acknowledged, and what came of the
/// first other one.
fn write_until_told(sim: &mut Sim, volume: &Volume<TestDevice>, stride: u64) -> (u64, VolumeError) {
    for n in 0.. {
        let (writing, block) = (volume.clone(), data(n as u8 | 1, 1));
        let told = sim.begin(async move { writing.write(Lba(n * stride), block, None).await });
        sim.settle();
        if told.borrow().is_none() {
            tick(sim, volume.shard(), TICKS);
        }
        let outcome = told.borrow_mut().take().expect("told within some ticks");
        if let Err(error) = outcome {
            return (n, error);
        }
    }
    unreachable!("numbers end later")
}

fn reopen(sim: &mut Sim, failed: &Shard<TestDevice>) -> Volume<TestDevice> {
    let shard = sim.run_ok(failed.reopen()).expect("it can be written");
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
    shard.volume(VOLUME).expect("it was acknowledged")
}

/// The ring of a device this small: behind the bitmap slots of its first extent.
fn journal_of(shard: &Shard<TestDevice>) -> PbaRange {
    PbaRange::new(shard.superblock().extent(0).start.plus(2), 1022)
}

fn every_block_but_the_journal(shard: &Shard<TestDevice>) -> impl Iterator<Item = u64> + use<> {
    let journal = journal_of(shard);
    (1..DEVICE_BLOCKS).filter(move |pba| !(journal.start.0..journal.end().0).contains(pba))
}

/// A root that brings the volume may be on the device when the shard fails: so it is not said that nothing has changed.
#[test]
fn a_creation_by_a_checkpoint_that_fails_for_want_of_space_is_in_doubt() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    let shard = volume.shard().clone();
    sim.device.faults(|faults| faults.is_full = true);
    let creating = shard.clone();
    let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "new".into(), blocks: 100 };
    let terms = Terms { metadata: MetadataSize::Bytes8, ..Terms::default() };
    let told =
        sim.begin(async move { creating.create_volume_under(spec, terms).await.map(|_| ()) });
    tick(&mut sim, &shard, TICKS);
    let loss = shard.journal_loss();
    assert!(matches!(loss, Some(JournalLoss::Record(DeviceError::NoSpace { .. }))), "{loss:?}");
    assert_eq!(*told.borrow(), Some(Err(VolumeError::JournalLost)));
}

/// REFUSED-1. Method: no checkpoint can be written any more, and a writer goes on writing.
#[test]
fn who_waits_for_a_checkpoint_that_is_refused_is_told_and_nothing_is_lost() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    let shard = volume.shard().clone();
    let bitmaps = crate::space::bitmap_slots(shard.superblock());
    sim.device.faults(|faults| faults.write_errors.extend(bitmaps.map(|pba| (pba, u32::MAX))));
    let (acknowledged, error) = write_until_told(&mut sim, &volume, 1);
    assert_eq!(error, VolumeError::JournalLost);
    assert!(acknowledged > 500, "{acknowledged}: changes go on while the journal has room");
    assert!(matches!(shard.checkpoint_error(), Some(DeviceError::Io { .. })));
    assert!(shard.media_errors() > 0);
    assert!(matches!(shard.journal_loss(), Some(JournalLoss::Checkpoint(_))));
    let expected: Vec<u8> = (0..acknowledged).map(|n| n as u8 | 1).collect();
    assert_eq!(sim.run_ok(tags(&volume, 0, acknowledged)), expected, "reads go on");
    assert!(sim.run_ok(shard.reopen()).is_err(), "it is still refused");
    sim.device.faults(|faults| faults.write_errors.clear());
    let volume = reopen(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 0, acknowledged)), expected);
    assert_eq!(volume.shard().checkpoint_error(), None);
    sim.run_ok(volume.write(Lba(0), data(9, 1), None)).expect("it takes changes again");
    check(&mut sim, volume.shard());
}

/// REFUSED-1: what waits is memory for the map, long before the journal is full. Method: each write changes another leaf.
#[test]
fn who_waits_for_memory_that_a_refused_checkpoint_holds_is_told() {
    let (mut sim, volume) = crate::paging::filled(200);
    let volume = crate::paging::reopen(&mut sim, volume.shard(), 50 * crate::paging::NODE_BYTES);
    let bitmaps = crate::space::bitmap_slots(volume.shard().superblock());
    sim.device.faults(|faults| faults.write_errors.extend(bitmaps.map(|pba| (pba, u32::MAX))));
    let stride = crate::paging::LEAF_ENTRIES;
    let (acknowledged, error) = write_until_told(&mut sim, &volume, stride);
    assert_eq!(error, VolumeError::JournalLost);
    assert!((5..100).contains(&acknowledged), "{acknowledged}: the journal had room");
    sim.device.faults(|faults| faults.write_errors.clear());
    let volume = reopen(&mut sim, volume.shard());
    for n in 0..acknowledged {
        assert_eq!(sim.run_ok(tags(&volume, n * stride, 1)), [n as u8 | 1]);
    }
    check(&mut sim, volume.shard());
}

/// REFUSED-1: a creation that has to be in a checkpoint before it is answered. Method: it comes before the checkpoint that is
/// refused, or when that was refused more often than a caller waits for.
#[test]
fn a_creation_that_waits_for_a_refused_checkpoint_is_told() {
    for refused_before in [0, 2 * TICKS] {
        let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
        let shard = volume.shard().clone();
        let bitmaps = crate::space::bitmap_slots(shard.superblock());
        sim.device.faults(|faults| faults.write_errors.extend(bitmaps.map(|pba| (pba, u32::MAX))));
        if refused_before > 0 {
            sim.run_ok(volume.write(Lba(0), data(7, 1), None)).expect("it has its record");
            // It asks for a checkpoint, and is not counted as waiting for it.
            let scrubbing = shard.clone();
            sim.spawn(async move {
                let mut cursor = scrubbing.scrub();
                drop(scrubbing.scrub_step(&mut cursor).await);
            });
            tick(&mut sim, &shard, refused_before);
            assert!(shard.checkpoint_error().is_some() && !shard.is_failed());
        }
        let creating = shard.clone();
        let told = sim.begin(async move {
            let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "second".into(), blocks: 100 };
            let metadata = MetadataSize::Bytes8;
            let terms = Terms { metadata, ..Terms::default() };
            creating.create_volume_under(spec, terms).await.err()
        });
        tick(&mut sim, &shard, TICKS);
        assert_eq!(told.take(), Some(Some(VolumeError::JournalLost)));
    }
}

/// REFUSED-5. Method: only a scrub waits for a checkpoint that is refused, for a while and for longer.
#[test]
fn a_scrub_that_waits_for_a_refused_checkpoint_is_told_and_changes_go_on() {
    for (refused_for, is_told) in [(TICKS / 4, false), (2 * TICKS, true)] {
        let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
        let shard = volume.shard().clone();
        let bitmaps = crate::space::bitmap_slots(shard.superblock());
        sim.device.faults(|faults| faults.write_errors.extend(bitmaps.map(|pba| (pba, u32::MAX))));
        sim.run_ok(volume.write(Lba(0), data(7, 1), None)).expect("it has its record");
        let scrubbing = shard.clone();
        let told = sim.begin(async move {
            let mut cursor = scrubbing.scrub();
            let mut outcome = Ok(());
            while outcome.is_ok() && !cursor.is_over() {
                outcome = scrubbing.scrub_step(&mut cursor).await.map(drop);
            }
            outcome
        });
        tick(&mut sim, &shard, refused_for);
        let outcome = told.take();
        match is_told {
            true => assert!(matches!(outcome, Some(Err(VolumeError::Device(_)))), "{outcome:?}"),
            false => assert_eq!(outcome, None, "it may pass"),
        }
        sim.run_ok(volume.write(Lba(1), data(8, 1), None)).expect("the journal has room");
        sim.device.faults(|faults| faults.write_errors.clear());
        tick(&mut sim, &shard, 2);
        assert_eq!(told.take(), (!is_told).then_some(Ok(())));
        assert_eq!((shard.checkpoint_error(), shard.is_failed()), (None, false));
        check(&mut sim, &shard);
    }
}

/// REFUSED-2. Method: all is refused but the journal, so that a node is; then only that one, for ever.
#[test]
fn a_node_goes_elsewhere_when_its_block_is_refused_for_ever() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    let shard = volume.shard().clone();
    for lba in 0..100 {
        sim.run_ok(volume.write(Lba(lba * 3), data(7, 1), None)).expect("room");
    }
    let all = every_block_but_the_journal(&shard);
    sim.device.faults(|faults| faults.write_errors.extend(all.map(|pba| (pba, u32::MAX))));
    let checkpointing = shard.clone();
    let told = sim.begin(async move { checkpointing.checkpoint().await });
    tick(&mut sim, &shard, TICKS);
    assert_eq!(told.take(), Some(Err(VolumeError::JournalLost)));
    let Some(DeviceError::Io { range: refused, .. }) = shard.checkpoint_error() else {
        panic!("it was refused")
    };
    sim.device.faults(|faults| {
        let is_refused = |pba: &u64| (refused.start.0..refused.end().0).contains(pba);
        faults.write_errors.retain(|pba, _| is_refused(pba));
        assert!(!faults.write_errors.is_empty());
    });
    let volume = reopen(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 297, 1)), [7]);
    sim.run_ok(volume.write(Lba(5), data(8, 1), None)).expect("it takes changes again");
    sim.run_ok(volume.shard().checkpoint()).expect("elsewhere");
    check(&mut sim, volume.shard());
}

/// REFUSED-2. Method: one block is refused for ever, and it is the one that is free last: it would be the first to be tried
/// again.
#[test]
fn data_goes_elsewhere_when_a_block_was_refused_twice() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    sim.run_ok(volume.write(Lba(0), data(7, 1), None)).expect("room");
    let place = sim.device.find(&[7; BLOCK_SIZE]).pop().expect("written");
    sim.run_ok(volume.write(Lba(0), data(8, 1), None)).expect("elsewhere");
    sim.run_ok(volume.shard().checkpoint()).expect("its block is free");
    sim.device.faults(|faults| faults.write_errors.extend([(place.0, u32::MAX)]));
    let outcomes = (0..2000).map(|n| sim.run_ok(volume.write(Lba(n), data(9, 1), None)));
    let failed = outcomes.filter(Result::is_err).count();
    assert_eq!(failed, 2, "of as many writes as the device has room for");
    check(&mut sim, volume.shard());
}

/// REFUSED-2.
#[test]
fn the_journal_goes_on_behind_a_block_that_is_refused_for_ever() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    let shard = volume.shard().clone();
    sim.run_ok(volume.write(Lba(0), data(7, 1), None)).expect("room");
    let next = first_that_fails(&mut sim, &volume, journal_of(&shard));
    let volume = reopen(&mut sim, &shard);
    sim.run_ok(volume.write(Lba(2), data(9, 1), None)).expect("the journal goes on elsewhere");
    // Some laps of the ring, with records of one block.
    for n in 0..4000 {
        let written = sim.run_ok(volume.write(Lba(3 + n % 50), data(9, 1), None));
        written.expect("it keeps off that block");
    }
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [7]);
    check(&mut sim, volume.shard());
    // And after a power cut.
    let survivor = sim.device.after_crash(&mut crate::common::Random(5));
    survivor.faults(|faults| faults.write_errors.extend([(next.0, u32::MAX)]));
    let mut sim = Sim::new(survivor, 6);
    let shard = crate::common::open(&mut sim);
    let volume = shard.volume(VOLUME).expect("durable");
    assert_eq!(sim.run_ok(tags(&volume, 2, 1)), [9]);
    check(&mut sim, &shard);
}

/// The block at which the journal fails the next write: it is refused from now on.
fn first_that_fails(sim: &mut Sim, volume: &Volume<TestDevice>, journal: PbaRange) -> Pba {
    let blocks = journal.start.0..journal.end().0;
    sim.device.faults(|faults| faults.write_errors.extend(blocks.clone().map(|pba| (pba, 1))));
    let lost = sim.run_ok(volume.write(Lba(1), data(8, 1), None));
    assert_eq!(lost, Err(VolumeError::JournalLost));
    let mut refused = Pba(0);
    sim.device.faults(|faults| {
        let left = &faults.write_errors;
        refused = Pba(blocks.clone().find(|pba| left.get(pba) == Some(&0)).expect("one failed"));
        faults.write_errors.clear();
        faults.write_errors.insert(refused.0, u32::MAX);
    });
    refused
}

/// REFUSED-2. Method: a start whose checkpoint is refused tells where its nodes would lie; from then on these blocks take
/// nothing.
#[test]
fn a_start_goes_elsewhere_when_a_block_that_it_wants_is_refused_for_ever() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    for lba in 0..100 {
        sim.run_ok(volume.write(Lba(lba * 3), data(7, 1), None)).expect("room");
    }
    let superblock = *volume.shard().superblock();
    let no_root = superblock.data_start().0..superblock.data_end().0;
    let all: Vec<u64> =
        every_block_but_the_journal(volume.shard()).filter(|pba| no_root.contains(pba)).collect();
    let device = sim.device.after_crash(&mut crate::common::Random(5));
    device.faults(|faults| faults.write_errors.extend(all.iter().map(|pba| (*pba, u32::MAX))));
    sim = Sim::new(device.clone(), 6);
    let error = sim.run_ok(crate::common::try_open(device.clone())).err().expect("it writes");
    let volume::OpenError::Device(DeviceError::Io { range, .. }) = error else { panic!("{error}") };
    device.faults(|faults| {
        faults.write_errors.retain(|pba, _| (range.start.0..range.end().0).contains(pba));
        assert!(!faults.write_errors.is_empty());
    });
    let shard = crate::common::open(&mut sim);
    let volume = shard.volume(VOLUME).expect("durable");
    assert_eq!(sim.run_ok(tags(&volume, 297, 1)), [7]);
    sim.run_ok(volume.write(Lba(5), data(8, 1), None)).expect("it takes changes");
    check(&mut sim, &shard);
}

/// SPACE-1 and REFUSED-4. Method: a full device refuses every write for some time, in which it is tried again and again to bring
/// the shard back.
#[test]
fn what_a_full_device_refused_for_a_while_is_not_missed_when_it_takes_writes_again() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, DEVICE_BLOCKS);
    let filled = crate::common::fill(&mut sim, &volume);
    for n in 0..200 {
        let lba = n * 7919 % filled;
        sim.run_ok(volume.write(Lba(lba), data(2, 1), None)).expect("an overwrite");
    }
    let shard = volume.shard().clone();
    sim.device.faults(|faults| {
        faults.write_errors.extend((1..DEVICE_BLOCKS).map(|pba| (pba, u32::MAX)));
    });
    let lost = sim.run_ok(async {
        let _ = volume.write(Lba(0), data(3, 1), None).await;
        shard.is_failed()
    });
    assert!(lost, "its record was refused");
    for _ in 0..100 {
        assert!(sim.run_ok(shard.reopen()).is_err(), "it is still refused");
    }
    sim.device.faults(|faults| faults.write_errors.clear());
    let volume = reopen(&mut sim, &shard);
    sim.run_ok(volume.write(Lba(1), data(4, 1), None)).expect("an overwrite");
    let freed = sim.run_ok(volume.unmap(crate::common::range(0, filled / 2)));
    freed.expect("it takes nothing");
    check(&mut sim, volume.shard());
}

/// SPACE-1 and REFUSED-4. Method: a full device refuses all nodes at one start after another, more blocks than it has beyond
/// those of a checkpoint; then it takes them.
#[test]
fn a_start_on_a_full_device_takes_blocks_that_were_refused_before() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, DEVICE_BLOCKS);
    let filled = crate::common::fill(&mut sim, &volume);
    let shard = volume.shard().clone();
    let journal = journal_of(&shard);
    let refuse = |sim: &Sim, blocks: std::ops::Range<u64>| {
        let refused = blocks.map(|pba| (pba, u32::MAX));
        sim.device.faults(|faults| faults.write_errors = refused.collect());
    };
    refuse(&sim, journal.start.0..journal.end().0);
    assert!(sim.run_ok(volume.write(Lba(0), data(3, 1), None)).is_err());
    assert!(shard.is_failed(), "its record was refused");
    refuse(&sim, journal.end().0..DEVICE_BLOCKS);
    for _ in 0..500 {
        assert!(sim.run_ok(shard.reopen()).is_err(), "its nodes are refused");
    }
    refuse(&sim, 0..0);
    let volume = reopen(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 1, filled - 1)), vec![1; filled as usize - 1]);
    sim.run_ok(volume.write(Lba(1), data(4, 1), None)).expect("an overwrite");
    check(&mut sim, volume.shard());
}

/// SPACE-2 and REFUSED-4. Method: on a full device blocks are refused twice, so that they are not handed out,
/// until a write waits for room; then the device is sound.
#[test]
fn a_full_device_that_refused_data_still_takes_what_gives_back_as_much() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, DEVICE_BLOCKS);
    let filled = crate::common::fill(&mut sim, &volume);
    let shard = volume.shard().clone();
    let all = (journal_of(&shard).end().0..DEVICE_BLOCKS).map(|pba| (pba, u32::MAX));
    sim.device.faults(|faults| faults.write_errors.extend(all));
    let told = Rc::new(RefCell::new(None));
    let refused = (0..filled).take_while(|_| {
        let (slot, writing) = (told.clone(), volume.clone());
        told.replace(None);
        sim.spawn(async move {
            slot.replace(Some(writing.write(Lba(0), data(2, 8), None).await));
        });
        sim.settle();
        matches!(*told.borrow(), Some(Err(VolumeError::Device(_))))
    });
    assert!(refused.count() > 20);
    assert_eq!(*told.borrow(), None, "it waits");
    sim.device.faults(|faults| faults.write_errors.clear());
    tick(&mut sim, &shard, TICKS);
    assert_eq!(told.take(), Some(Ok(())));
    sim.run_ok(volume.unmap(crate::common::range(8, 8))).expect("it gives back");
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [2]);
    check(&mut sim, &shard);
}

/// Both slots have held a root.
fn write_both_roots(sim: &mut Sim, shard: &Shard<TestDevice>) {
    for _ in 0..2 {
        sim.run_ok(shard.checkpoint()).expect("a sound device");
    }
}

/// CHECKPOINT-5. Method: one place of a slot that was never written is refused, then not any more.
#[test]
fn the_first_root_of_a_slot_needs_both_its_places() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    let (shard, device) = (volume.shard().clone(), sim.device.clone());
    let is_blank = |place: &Pba| device.block(*place) == [0; BLOCK_SIZE];
    let places = [0, 1].map(|parity| shard.superblock().root_places(0, parity)).concat();
    let blank = places.into_iter().find(is_blank).expect("one slot is new");
    sim.device.faults(|faults| faults.write_errors.extend([(blank.0, u32::MAX)]));
    let checkpointing = shard.clone();
    let told = sim.begin(async move { checkpointing.checkpoint().await });
    tick(&mut sim, &shard, TICKS / 4);
    assert_eq!(*told.borrow(), None, "it is tried again");
    sim.device.faults(|faults| faults.write_errors.clear());
    tick(&mut sim, &shard, 2);
    assert_eq!(told.take(), Some(Ok(())));
    assert!(!is_blank(&blank));
    check(&mut sim, &shard);
}

/// CHECKPOINT-5. Method: one place of each root is refused for ever, the first or the second, while
/// checkpoints are taken, the power is cut and the shard starts again.
#[test]
fn a_root_of_which_one_place_is_refused_for_ever_costs_nothing() {
    for copies in [[0, 0], [0, 1], [1, 0], [1, 1]] {
        let (mut sim, mut volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
        let superblock = *volume.shard().superblock();
        let places =
            [0, 1].map(|parity| superblock.root_places(0, parity)[copies[parity as usize]]);
        let refused = places.map(|place| (place.0, u32::MAX));
        write_both_roots(&mut sim, volume.shard());
        for n in 1..6 {
            sim.device.faults(|faults| faults.write_errors.extend(refused));
            sim.run_ok(volume.write(Lba(n), data(n as u8, 1), None)).expect("room");
            sim.run_ok(volume.shard().checkpoint()).expect("the other copy will do");
            assert!(volume.shard().media_errors() > 0, "{copies:?}: it is told");
            volume = crash(&mut sim);
        }
        assert_eq!(sim.run_ok(tags(&volume, 1, 5)), [1, 2, 3, 4, 5]);
        check(&mut sim, volume.shard());
    }
}

/// CHECKPOINT-5. Method: both places of the next root are refused, then one of them is not.
#[test]
fn a_root_of_which_no_place_takes_it_is_not_durable() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    let shard = volume.shard().clone();
    let places = [0, 1].map(|parity| shard.superblock().root_places(0, parity)).concat();
    let refused = places.iter().map(|place| (place.0, u32::MAX));
    write_both_roots(&mut sim, &shard);
    sim.device.faults(|faults| faults.write_errors.extend(refused));
    sim.run_ok(volume.write(Lba(1), data(1, 1), None)).expect("it has its record");
    let checkpointing = shard.clone();
    let told = sim.begin(async move { checkpointing.checkpoint().await });
    tick(&mut sim, &shard, TICKS / 4);
    assert_eq!(*told.borrow(), None, "it is tried again");
    assert!(shard.checkpoint_error().is_some());
    sim.device.faults(|faults| {
        faults.write_errors.retain(|pba, _| Pba(*pba) != places[1] && Pba(*pba) != places[3])
    });
    tick(&mut sim, &shard, 2);
    assert_eq!(told.take(), Some(Ok(())));
    let volume = crash(&mut sim);
    assert_eq!(sim.run_ok(tags(&volume, 1, 1)), [1]);
    check(&mut sim, volume.shard());
}
