//! Shards that failed and come back without a restart.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice, check, data, fresh, range, tags, try_recover};
use crate::sharing::{create, open_both, run as run_both};
use io_traits::DeviceError;
use layout::Descriptor;
use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{
    CompareError, FormatOptions, JournalLoss, OpenError, Shard, Volume, VolumeError, VolumeSpec,
    format,
};

const DEVICE_BLOCKS: u64 = 64 << 8;
const VOLUME: Uuid = Uuid::from_u128(1);

/// A volume with acknowledged data, some in a checkpoint and some in the journal.
fn written(device: &TestDevice) -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh(device, None, 20_000);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 900), None).await.expect("room");
        volume.shard().checkpoint().await.expect("writable");
        volume.write(Lba(100), data(2, 100), None).await.expect("room");
        volume.unmap(range(300, 50)).await.expect("possible");
    });
    (sim, volume)
}

/// The same; and, refused, one write more, since the device failed a flush.
fn failed() -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = written(&device);
    device.faults(|faults| faults.flush_errors = 1);
    let refused = sim.run_ok(volume.write(Lba(5000), data(3, 10), None));
    assert_eq!(refused, Err(VolumeError::JournalLost));
    let why = volume.shard().journal_loss();
    assert!(matches!(why, Some(JournalLoss::Flush(_))), "{why:?}");
    (sim, volume)
}

fn expected(lba: u64) -> u8 {
    match lba {
        100..200 => 2,
        300..350 | 900.. => 0,
        _ => 1,
    }
}

fn run(sim: &mut Sim, shard: &Shard<TestDevice>) -> Volume<TestDevice> {
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
    shard.volume(VOLUME).expect("it was acknowledged")
}

fn expect_all(sim: &mut Sim, volume: &Volume<TestDevice>) {
    let found = sim.run_ok(tags(volume, 0, 1000));
    for (lba, tag) in (0_u64..).zip(found) {
        assert_eq!(tag, expected(lba), "block {lba}");
    }
}

#[test]
fn a_failed_shard_comes_back_with_all_that_was_acknowledged() {
    let (mut sim, old) = failed();
    expect_all(&mut sim, &old);
    let before = old.shard().capacity().device_unreserved;
    let shard = sim.run_ok(old.shard().reopen()).expect("the device answers again");
    let volume = run(&mut sim, &shard);
    expect_all(&mut sim, &volume);
    assert!(shard.capacity().device_unreserved >= before, "no extent got lost");
    sim.run_ok(volume.write(Lba(6000), data(4, 20), None)).expect("it takes changes again");
    assert_eq!(sim.run_ok(old.write(Lba(0), data(9, 1), None)), Err(VolumeError::JournalLost));
    check(&mut sim, &shard);
    // And after a power cut.
    let survivor = sim.device.after_crash(&mut Random(5));
    let mut sim = Sim::new(survivor, 6);
    let shard = crate::common::open(&mut sim);
    let volume = shard.volume(VOLUME).expect("durable");
    expect_all(&mut sim, &volume);
    assert_eq!(sim.run_ok(tags(&volume, 6000, 20)), [4; 20]);
    check(&mut sim, &shard);
}

/// A sparse file on a file system that filled up: what was acknowledged can be read after a restart, also if that was a
/// crash, and the shard takes changes again when there is room.
#[test]
fn a_start_without_room_for_a_checkpoint_serves_reads_until_there_is_some() {
    for volatile in [false, true] {
        let device = TestDevice::new(DEVICE_BLOCKS, volatile);
        let _written = written(&device);
        let mut sim = Sim::new(device.after_process_end(), 7);
        sim.device.faults(|faults| faults.is_full = true);
        let recovered = |sim: &mut Sim| sim.run_ok(try_recover(sim.device.clone())).expect("sound");
        let refused = recovered(&mut sim);
        let refused = sim.run_ok(async { refused.confirm().await?.start().await }).err();
        assert!(matches!(refused, Some(OpenError::Device(DeviceError::NoSpace { .. }))));
        let full = recovered(&mut sim);
        let full = sim.run_ok(async { full.confirm().await?.start_even_full().await });
        let full = full.expect("it can be read");
        assert!(matches!(full.journal_loss(), Some(JournalLoss::Checkpoint(_))));
        let old = run(&mut sim, &full);
        expect_all(&mut sim, &old);
        let written = sim.run_ok(old.write(Lba(6000), data(4, 20), None));
        assert!(matches!(written, Err(VolumeError::Device(DeviceError::NoSpace { .. }))));
        assert!(sim.run_ok(full.reopen()).is_err(), "there is no room yet");
        expect_all(&mut sim, &old);
        sim.device.faults(|faults| faults.is_full = false);
        let shard = sim.run_ok(full.reopen()).expect("there is room");
        let volume = run(&mut sim, &shard);
        expect_all(&mut sim, &volume);
        sim.run_ok(volume.write(Lba(6000), data(4, 20), None)).expect("it takes changes again");
        check(&mut sim, &shard);
    }
}

/// REOPEN-5. Method: the descriptor of a volume that is not in use rots, then the shard fails, which has
/// the volume in memory.
#[test]
fn a_volume_that_does_not_come_back_is_named_and_costs_no_other() {
    let (mut sim, first) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 20_000);
    let (old, idle) = (first.shard().clone(), Uuid::from_u128(2));
    sim.run_ok(async {
        let spec = VolumeSpec { uuid: idle, name: "idle".to_owned(), blocks: 100 };
        old.create_volume(spec).await.expect("room");
        let spec = VolumeSpec { uuid: Uuid::from_u128(3), name: "gone".to_owned(), blocks: 100 };
        old.create_volume(spec).await.expect("room");
        first.write(Lba(0), data(1, 900), None).await.expect("room");
        old.checkpoint().await.expect("writable");
        old.delete_volume(Uuid::from_u128(3)).await.expect("it is there");
    });
    let is_idle = |pba: &u64| {
        Descriptor::decode(&sim.device.block(Pba(*pba))).is_ok_and(|found| found.name == "idle")
    };
    let place = (1..DEVICE_BLOCKS).find(is_idle).expect("in the checkpoint");
    sim.device.flip(Pba(place), 100);
    sim.device.faults(|faults| faults.flush_errors = 1);
    let refused = sim.run_ok(first.write(Lba(5000), data(3, 10), None));
    assert_eq!(refused, Err(VolumeError::JournalLost));
    for _ in 0..3 {
        sim.device.faults(|faults| faults.flush_errors = u32::MAX);
        assert!(sim.run_ok(old.reopen()).is_err());
        assert_eq!(old.lost_volumes(), BTreeSet::new(), "the cost of the return is not known yet");
    }
    assert_eq!(old.take_findings(), []);
    sim.device.faults(|faults| faults.flush_errors = 0);
    let shard = sim.run_ok(old.reopen()).expect("the device answers again");
    assert_eq!(shard.lost_volumes(), BTreeSet::from([idle]));
    let told: Vec<_> =
        shard.take_findings().into_iter().map(|found| (found.pba, found.volume)).collect();
    assert_eq!(told, [(Pba(place), Some((idle, "idle".to_owned())))]);
    let volume = run(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 0, 900)), [1; 900]);
    sim.run_ok(volume.write(Lba(6000), data(4, 20), None)).expect("it takes changes again");
}

/// While the device fails, each attempt is an error and leaves everything as it was.
#[test]
fn attempts_while_the_device_fails_cost_nothing() {
    let (mut sim, old) = failed();
    for flush_errors in [1, 1, 1] {
        sim.device.faults(|faults| faults.flush_errors = flush_errors);
        let reopened = sim.run_ok(old.shard().reopen());
        assert!(matches!(reopened.err(), Some(OpenError::Device(_))), "it still fails");
        expect_all(&mut sim, &old);
    }
    let shard = sim.run_ok(old.shard().reopen()).expect("the device answers again");
    let volume = run(&mut sim, &shard);
    expect_all(&mut sim, &volume);
    check(&mut sim, &shard);
}

/// A deallocation that waits for a place among the pending unmaps is told when there will be none.
#[test]
fn who_waits_to_deallocate_is_told_that_the_journal_is_lost() {
    const LARGE: u64 = 1 << 16;
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (first, _) = fresh(&device, None, 1 << 30);
    let mut sim = Sim::new(first.device.after_crash(&mut Random(7)), 8);
    // Without the loop that takes space back.
    let shard = sim.run_ok(crate::common::try_open(sim.device.clone())).expect("sound");
    let committing = shard.clone();
    sim.spawn(async move { committing.run_committer().await });
    let volume = shard.volume(VOLUME).expect("durable");
    for n in 0..=65 {
        sim.run_ok(volume.write(Lba(n * LARGE), data(1, 1), None)).expect("room");
    }
    for n in 1..=64 {
        sim.run_ok(volume.unmap(range(n * LARGE, LARGE))).expect("possible");
    }
    let waiting = volume.clone();
    let told = sim.begin(async move { waiting.unmap(range(65 * LARGE, LARGE)).await });
    sim.settle();
    assert!(told.borrow().is_none(), "there is no place");
    sim.device.faults(|faults| faults.flush_errors = 1);
    let refused = sim.run_ok(volume.write(Lba(1), data(2, 1), None));
    assert_eq!(refused, Err(VolumeError::JournalLost));
    sim.settle();
    assert_eq!(told.take(), Some(Err(VolumeError::JournalLost)));
}

/// REOPEN-1: a write that is still on its way is waited for, and one that came too late is not begun.
#[test]
fn nothing_of_the_failed_shard_reaches_the_device_behind_its_successor() {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = fresh(&device, None, 20_000);
    sim.run_ok(volume.write(Lba(0), data(1, 8), None)).expect("room");
    sim.settle();
    let is_record = |pba: &u64| device.block(Pba(*pba)).starts_with(b"FJR1");
    let first = (256..DEVICE_BLOCKS).find(is_record).expect("a journal");
    let journal = first..first + 1022;
    device.faults(|faults| {
        faults.held = (256..DEVICE_BLOCKS).filter(|pba| !journal.contains(pba)).collect();
        faults.write_errors = journal.map(|pba| (pba, 1)).collect();
    });
    let (slow, done) = (volume.clone(), Rc::new(RefCell::new(None)));
    let told = done.clone();
    sim.spawn(async move {
        let outcome = slow.write(Lba(50), data(7, 8), None).await;
        told.replace(Some(outcome));
    });
    sim.settle();
    assert!(volume.shard().is_failed());
    let reopened: Rc<RefCell<Option<Shard<TestDevice>>>> = Rc::default();
    let (slot, old) = (reopened.clone(), volume.shard().clone());
    sim.spawn(async move {
        let shard = old.reopen().await.expect("the device answers");
        slot.replace(Some(shard));
    });
    sim.settle();
    assert!(reopened.borrow().is_none(), "what is on its way is waited for");
    device.faults(|faults| *faults = crate::common::Faults::default());
    sim.settle();
    assert!(matches!(*done.borrow(), Some(Err(VolumeError::JournalLost))));
    let shard = reopened.take().expect("nothing is held any more");
    let writes = device.blocks_written();
    let late = sim.run_ok(volume.write(Lba(60), data(8, 4), None));
    assert_eq!(late, Err(VolumeError::JournalLost));
    assert_eq!(device.blocks_written(), writes, "not begun");
    let volume = run(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 1, 7)), [1; 7]);
    check(&mut sim, &shard);
}

/// Blocks that its successor writes are no damage to readers of the shard that was given up.
#[test]
fn what_the_successor_writes_is_no_damage() {
    let (mut sim, old) = failed();
    let device = sim.device.clone();
    let places: Vec<u64> = device.find(&[1; BLOCK_SIZE]).iter().map(|pba| pba.0).collect();
    device.faults(|faults| faults.held_reads.extend(&places));
    let outcomes: Rc<RefCell<Vec<VolumeError>>> = Rc::default();
    let note = |sim: &mut Sim, request: Pin<Box<dyn Future<Output = VolumeError>>>| {
        let outcomes = outcomes.clone();
        sim.spawn(async move {
            let outcome = request.await;
            outcomes.borrow_mut().push(outcome);
        });
    };
    let volume = old.clone();
    note(&mut sim, Box::pin(async move { volume.read(range(0, 1)).await.expect_err("late") }));
    let volume = old.clone();
    note(&mut sim, Box::pin(async move { volume.verify(range(1, 10)).await.expect_err("late") }));
    let volume = old.clone();
    note(
        &mut sim,
        Box::pin(async move {
            match volume.compare(Lba(20), data(1, 5)).await {
                Err(CompareError::Volume(error)) => error,
                outcome => panic!("{outcome:?}"),
            }
        }),
    );
    let shard = old.shard().clone();
    note(
        &mut sim,
        Box::pin(async move {
            let mut cursor = shard.scrub();
            loop {
                match shard.scrub_step(&mut cursor).await {
                    Ok(step) => assert_eq!(step.damaged, []),
                    Err(error) => return error,
                }
            }
        }),
    );
    sim.settle();
    let shard = sim.run_ok(old.shard().reopen()).expect("the device answers again");
    let volume = run(&mut sim, &shard);
    let is_old = |pba: &u64| device.block(Pba(*pba))[0] == 1;
    for tag in (10..100).take_while(|_| places.iter().any(is_old)) {
        for lba in (0..900).step_by(6) {
            sim.run_ok(volume.write(Lba(lba), data(tag, 6), None)).expect("room");
        }
        // Overwrites stay where they are: what grows takes the rest.
        let new = 1000 + u64::from(tag) * 64;
        sim.run_ok(volume.write(Lba(new), data(tag, 32), None)).expect("room");
        for lba in new + 32..new + 64 {
            sim.run_ok(volume.write(Lba(lba), data(tag, 1), None)).expect("room");
        }
    }
    // A few blocks stay free until there are no others.
    for lba in (8000..20_000).take_while(|_| places.iter().any(is_old)) {
        sim.run_ok(volume.write(Lba(lba), data(9, 1), None)).expect("room");
    }
    assert!(!places.iter().any(is_old), "all written over");
    assert!(outcomes.borrow().is_empty(), "they wait for the device");
    device.faults(|faults| faults.held_reads.clear());
    sim.settle();
    assert_eq!(*outcomes.borrow(), vec![VolumeError::ShutDown; 4]);
    assert_eq!(old.stats().damaged_blocks, 0);
    assert_eq!(sim.run_ok(old.verify(range(0, 100))), Err(VolumeError::ShutDown));
    check(&mut sim, &shard);
}

/// REOPEN-2: what is there now must be what went away.
#[test]
fn another_device_in_its_place_is_not_touched() {
    let (mut sim, old) = failed();
    let device = sim.device.clone();
    let options = FormatOptions { uuid: Uuid::from_u128(77) };
    sim.run_ok(format(&device, &options)).expect("large enough");
    let writes = device.blocks_written();
    let reopened = sim.run_ok(old.shard().reopen());
    assert_eq!(reopened.err(), Some(OpenError::OtherDevice));
    assert_eq!(device.blocks_written(), writes);
    assert_eq!(device.block(Pba(0))[..8], *b"farflash");
}

/// REOPEN-2, attacked: the drive was in another server meanwhile, which has more cores. This server does
/// not go on as if that had not happened: data of shards that it does not have would be
/// overwritten.
#[test]
fn a_device_that_was_served_elsewhere_is_not_gone_on_with() {
    let (mut sim, old) = failed();
    let elsewhere = open_both(&mut sim);
    let volume = create(&mut sim, &elsewhere, 1, 7);
    let written = volume.clone();
    run_both(&mut sim, &elsewhere, async move { written.write(Lba(0), data(7, 500), None).await })
        .expect("room");
    for shard in elsewhere.clone() {
        run_both(&mut sim, &elsewhere, async move { shard.shutdown().await }).expect("writable");
    }
    let device = sim.device.clone();
    let writes = device.blocks_written();
    for _ in 0..2 {
        let reopened = sim.run_ok(old.shard().reopen());
        assert_eq!(reopened.err(), Some(OpenError::StartedElsewhere));
    }
    assert_eq!(device.blocks_written(), writes);
    // After a reopen with all its shards, nothing is lost.
    let mut sim = Sim::new(device, 6);
    let shards = open_both(&mut sim);
    let volume = shards[1].volume(Uuid::from_u128(7)).expect("it was acknowledged");
    assert_eq!(sim.run_ok(tags(&volume, 0, 500)), [7; 500]);
    let volume = shards[0].volume(VOLUME).expect("it was acknowledged");
    expect_all(&mut sim, &volume);
}

/// REOPEN-2: starts that this shard's own attempts have written are none of others.
#[test]
fn attempts_that_fail_half_way_keep_no_later_one_from_coming_true() {
    let (mut sim, old) = failed();
    let device = sim.device.clone();
    // The root is written, and what makes it durable fails.
    for _ in 0..3 {
        device.faults(|faults| faults.flush_errors = u32::MAX);
        assert!(sim.run_ok(old.shard().reopen()).is_err());
        device.faults(|faults| faults.flush_errors = 0);
    }
    let shard = sim.run_ok(old.shard().reopen()).expect("the device answers again");
    let volume = run(&mut sim, &shard);
    expect_all(&mut sim, &volume);
}
