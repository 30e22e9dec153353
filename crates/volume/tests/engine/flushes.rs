//! A flush fails, and what it should have covered is seen by reads until the power goes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{ExtentAllocator, FormatOptions, Shard, ShardOptions, Volume, VolumeError, format};

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, range, tags, try_open};
use crate::sharing::{create, open_both, tick, two_shards_on};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// The outcome of a write, if it is known.
type Told = Rc<RefCell<Option<Result<(), VolumeError>>>>;

/// The way a shard comes back.
#[derive(Clone, Copy, Debug)]
enum Return {
    Reopened,
    Restarted,
}

fn fresh_volume() -> (Sim, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    fresh(&device, Some(1024), 20_000)
}

fn come_back(sim: &mut Sim, shard: &Shard<TestDevice>, how: Return) -> Shard<TestDevice> {
    match how {
        Return::Reopened => {
            let back = sim.run_ok(shard.reopen()).expect("the device answers again");
            let (a, b) = (back.clone(), back.clone());
            sim.spawn(async move { a.run_committer().await });
            sim.spawn(async move { b.run_checkpointer().await });
            back
        }
        Return::Restarted => {
            *sim = Sim::new(sim.device.clone(), 5);
            open(sim)
        }
    }
}

fn volume_of(shard: &Shard<TestDevice>) -> Volume<TestDevice> {
    shard.volume(Uuid::from_u128(1)).expect("durable")
}

/// A write that was not acknowledged as durable, but is there when the shard has come back, stays
/// there: the data from before is gone.
///
/// Method: fail the flush behind a write over acknowledged data, come back, read, and cut the
/// power.
#[test]
fn what_is_there_behind_a_failed_flush_stays_there() {
    for how in [Return::Reopened, Return::Restarted] {
        let (mut sim, volume) = fresh_volume();
        sim.run_ok(volume.write(Lba(0), data(1, 4), None)).expect("room");
        sim.device.faults(|faults| faults.flush_errors = 1);
        let refused = sim.run_ok(volume.write(Lba(1), data(2, 2), None));
        assert_eq!(refused, Err(VolumeError::JournalLost));
        let shard = come_back(&mut sim, volume.shard(), how);
        let found = sim.run_ok(tags(&volume_of(&shard), 0, 4));
        assert!([[1, 1, 1, 1], [1, 2, 2, 1]].iter().any(|allowed| found == allowed), "{found:?}");
        sim = Sim::new(sim.device.after_crash(&mut Random(1)), 6);
        let shard = open(&mut sim);
        assert_eq!(sim.run_ok(tags(&volume_of(&shard), 0, 4)), found, "{how:?}");
        check(&mut sim, &shard);
    }
}

/// Opens the shard again, or reads it back in the same process, until the power goes after so many writes and flushes.
/// Returns the disk behind the power cut, and whether the shard was there before.
fn cut_return(
    mut sim: Sim,
    shard: &Shard<TestDevice>,
    how: Return,
    (cut, seed): (u64, u64),
) -> (Sim, bool) {
    if let Return::Restarted = how {
        sim = Sim::new(sim.device.clone(), 5);
    }
    sim.crash_at = Some(sim.device.completed() + cut);
    let device = sim.device.clone();
    let finished = match how {
        Return::Reopened => sim.run(shard.reopen()).is_ok(),
        Return::Restarted => sim.run(try_open(device)).is_ok(),
    };
    (Sim::new(sim.device.after_crash(&mut Random(seed)), 6), finished)
}

/// Each way of coming back, each with some survivors.
fn returns() -> impl Iterator<Item = (Return, u64)> {
    [Return::Reopened, Return::Restarted].into_iter().flat_map(|how| (0..4).map(move |n| (how, n)))
}

/// REPERSIST-1: what records free that no flush covers is not written over before they are durable: without them it is what was
/// acknowledged.
///
/// Method: fail the flush behind writes over acknowledged data, come back, and cut the power at each write of that.
#[test]
fn what_was_acknowledged_is_there_however_the_return_behind_a_failed_flush_ends() {
    for (how, seed) in returns() {
        for cut in 0.. {
            let (mut sim, volume) = fresh_volume();
            sim.run_ok(async {
                for lba in 0..40 {
                    volume.write(Lba(lba), data(1, 1), None).await.expect("room");
                }
                volume.shard().checkpoint().await.expect("writable");
            });
            sim.device.faults(|faults| faults.flush_errors = 1);
            for lba in 10..30 {
                let volume = volume.clone();
                sim.spawn(async move {
                    volume.write(Lba(lba), data(2, 1), None).await.expect_err("not durable");
                });
            }
            sim.settle();
            assert!(volume.shard().is_failed());
            let (mut sim, finished) = cut_return(sim, volume.shard(), how, (cut, seed));
            let shard = open(&mut sim);
            let found = sim.run_ok(tags(&volume_of(&shard), 0, 40));
            for (lba, tag) in (0..).zip(found) {
                let is_new = (10..30).contains(&lba) && tag == 2;
                assert!(is_new || tag == 1, "{how:?}, cut at {cut}, seed {seed}: {lba} is {tag}");
            }
            check(&mut sim, &shard);
            if finished {
                break;
            }
        }
    }
}

/// All that is on the device.
fn contents(device: &TestDevice) -> Vec<(Pba, [u8; BLOCK_SIZE])> {
    device.find_by(|_| true).into_iter().map(|pba| (pba, device.block(pba))).collect()
}

/// A volume whose shard has had a few roots, with a write behind the last.
fn with_several_roots() -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh_volume();
    for tag in 1..4 {
        for lba in 0..40 {
            sim.run_ok(volume.write(Lba(lba * 50), data(tag, 1), None)).expect("room");
        }
        sim.run_ok(volume.shard().checkpoint()).expect("writable");
    }
    sim.run_ok(volume.write(Lba(0), data(4, 1), None)).expect("room");
    (sim, volume)
}

/// REPERSIST-1: a root that no flush covers is durable before what the root before leads to is written over. REPERSIST-2: what
/// is written until then changes nothing.
///
/// Method: fail the flush behind a root, while changes go on, and hold the roots' places while the shard comes back.
#[test]
fn nothing_is_written_over_before_the_root_behind_a_failed_flush_is_durable() {
    for how in [Return::Reopened, Return::Restarted] {
        let (mut sim, volume) = with_several_roots();
        let shard = volume.shard().clone();
        let superblock = *shard.superblock();
        let roots = [0, 1].into_iter().flat_map(|slot| superblock.root_places(0, slot));
        let roots: BTreeSet<u64> = roots.map(|place| place.0).collect();
        sim.device.faults(|faults| faults.held = roots.clone());
        let checkpointing = shard.clone();
        let outcome = sim.begin(async move { checkpointing.checkpoint().await });
        sim.settle();
        sim.run_ok(volume.write(Lba(50), data(5, 1), None)).expect("room");
        sim.device.faults(|faults| {
            faults.held.clear();
            faults.flush_errors = 1;
        });
        sim.settle();
        assert_eq!(outcome.take(), Some(Err(VolumeError::JournalLost)));

        let before = contents(&sim.device);
        sim.device.faults(|faults| faults.held = roots);
        let (device, failed) = (sim.device.clone(), shard.clone());
        let back = sim.begin(async move {
            match how {
                Return::Reopened => failed.reopen().await,
                Return::Restarted => try_open(device).await,
            }
        });
        sim.settle();
        assert!(back.borrow().is_none() && contents(&sim.device) == before, "{how:?}");
        sim.device.faults(|faults| faults.held.clear());
        sim.settle();
        drop(back.take().expect("it ends").expect("sound"));

        sim = Sim::new(sim.device.after_crash(&mut Random(1)), 6);
        let shard = open(&mut sim);
        let found = sim.run_ok(tags(&volume_of(&shard), 0, 101));
        assert_eq!((found[0], found[50], found[100]), (4, 5, 3), "{how:?}");
        check(&mut sim, &shard);
    }
}

/// REPERSIST-4: a start writes once more what no flush covers, many blocks at a time, in whatever order they come.
///
/// Method: fail the flush behind many writes, open the shard on a device that completes at once all that is under way, and
/// count how often it waits. Then cut the power.
#[test]
fn a_start_waits_for_many_blocks_at_once_that_no_flush_covers() {
    const WRITES: u64 = 600;
    let (mut sim, volume) = fresh_volume();
    sim.device.faults(|faults| faults.flushes_before_held = Some(0));
    for lba in 0..WRITES {
        let volume = volume.clone();
        // Neighbours would be one run.
        sim.spawn(async move { drop(volume.write(Lba(lba * 7), data(2, 1), None).await) });
    }
    sim.settle();
    let mut sim = Sim::new(sim.device.after_process_end(), 5);
    let (shard, rounds) = sim.run_in_rounds(try_open(sim.device.clone()));
    let found = sim.run_ok(tags(&volume_of(&shard.expect("sound")), 0, WRITES * 7));
    let there = found.iter().filter(|tag| **tag == 2).count() as u64;
    assert_eq!(there, WRITES, "all had completed");
    // A read and a write of every 32 or fewer; the rest is reading back, and the checkpoint.
    assert!(rounds < 120, "{rounds}");
    sim = Sim::new(sim.device.after_crash(&mut Random(1)), 6);
    let shard = open(&mut sim);
    assert!(sim.run_ok(tags(&volume_of(&shard), 0, WRITES * 7)) == found);
    check(&mut sim, &shard);
}

/// CHECKPOINT-6: whatever a power cut leaves of the copies of a root that are being written, a root is there: also where the
/// newest one is lost, since no flush covered it, while a start makes it durable.
///
/// Method: end the process when both copies of a root are written, flushed or not. Hold roots that the start writes, all or the
/// second copies alone, and cut the power so that they become garbage.
#[test]
fn a_root_is_left_whatever_becomes_of_those_that_a_start_writes() {
    for (held, is_flushed) in [(0..2, false), (0..2, true), (1..2, false), (1..2, true)] {
        let (mut sim, volume) = with_several_roots();
        let shard = volume.shard().clone();
        sim.device.faults(|faults| faults.flushes_before_held = (!is_flushed).then_some(1));
        let checkpointing = shard.clone();
        sim.spawn(async move { drop(checkpointing.checkpoint().await) });
        sim.settle();
        if is_flushed {
            sim.run_ok(volume.write(Lba(50), data(5, 1), None)).expect("room");
        }

        sim = Sim::new(sim.device.after_process_end(), 5);
        let copies = [0, 1].map(|slot| shard.superblock().root_places(0, slot));
        let copies = copies.iter().flat_map(|places| places[held.clone()].to_vec());
        sim.device.faults(|faults| faults.held = copies.map(|place| place.0).collect());
        let device = sim.device.clone();
        let started = sim.begin(async move { try_open(device).await.is_ok() });
        sim.settle();
        assert!(started.borrow().is_none(), "it is held");
        sim = Sim::new(sim.device.after_garbling_crash(), 6);
        let shard = sim.run_ok(try_open(sim.device.clone()));
        let shard = shard.unwrap_or_else(|error| panic!("{held:?}, {is_flushed}: {error}"));
        let found = sim.run_ok(tags(&volume_of(&shard), 0, 101));
        let expected = (4, if is_flushed { 5 } else { 3 }, 3);
        assert_eq!((found[0], found[50], found[100]), expected, "{held:?}, {is_flushed}");
    }
}

/// CHECKPOINT-5: a place of a root that came to take no writes keeps no start from making the root durable, not even one of the
/// first.
///
/// Method: let one copy of the first root, or of the second, take no writes, and start twice.
#[test]
fn a_start_makes_a_root_durable_of_which_one_copy_takes_no_writes() {
    for (checkpoints, copy) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (mut sim, volume) = fresh_volume();
        sim.run_ok(volume.write(Lba(0), data(1, 1), None)).expect("room");
        for _ in 0..checkpoints {
            sim.run_ok(volume.shard().checkpoint()).expect("writable");
        }
        let place = volume.shard().superblock().root_places(0, 1 + checkpoints)[copy];
        for _ in 0..2 {
            sim = Sim::new(sim.device.after_process_end(), 5);
            sim.device.faults(|faults| faults.write_errors = [(place.0, u32::MAX)].into());
            let shard = open(&mut sim);
            assert_eq!(sim.run_ok(tags(&volume_of(&shard), 0, 1)), [1], "{checkpoints} {copy}");
        }
    }
}

/// CHECKPOINT-6: the same of the first root that a shard ever writes: it is as if it had never been used then.
///
/// Method: cut the power at each write of the first start, so that what is being written becomes garbage.
#[test]
fn a_shard_can_be_started_however_its_first_start_ended() {
    for cut in 0.. {
        let device = TestDevice::new(DEVICE_BLOCKS, true);
        let mut sim = Sim::new(device.clone(), 3);
        let options = FormatOptions { uuid: Uuid::from_u128(42) };
        sim.run_ok(format(&device, &options)).expect("large enough");
        sim.crash_at = Some(sim.device.completed() + cut);
        let finished = sim.run(try_open(device)).is_ok();
        sim = Sim::new(sim.device.after_garbling_crash(), 6);
        let started = sim.run_ok(try_open(sim.device.clone()));
        assert!(started.is_ok(), "cut at {cut}: {:?}", started.err());
        if finished {
            break;
        }
    }
}

/// Extents of a shard that are empty, and that its next checkpoint gives back.
fn with_spare_extents() -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh_volume();
    let shard = volume.shard().clone();
    sim.run_ok(async {
        for lba in (0..6000).step_by(250) {
            volume.write(Lba(lba), data(1, 250), None).await.expect("room");
        }
        shard.checkpoint().await.expect("writable");
        volume.unmap(range(0, 6000)).await.expect("possible");
    });
    // What was freed is discarded.
    for _ in 0..20 {
        tick(&mut sim, &vec![shard.clone()]);
    }
    (sim, volume)
}

/// CHECKPOINT-4: an extent is given back only when a root without it is durable, also where a flush that another asked for
/// fails while that root is on its way.
///
/// Method: fail one flush or another while a checkpoint that gives extents back is taken beside writes, and cut the power.
#[test]
fn no_extent_is_given_back_by_a_root_that_a_failed_flush_left_behind() {
    let mut given_back = 0;
    for (seed, spared) in (0..20).flat_map(|seed| (0..8).map(move |spared| (seed, spared))) {
        let (mut sim, volume) = with_spare_extents();
        let shard = volume.shard().clone();
        let before = shard.capacity().device_unreserved;
        sim.random = Random(seed);
        sim.device.faults(|faults| (faults.flushes_spared, faults.flush_errors) = (spared, 1));
        let checkpointing = shard.clone();
        sim.spawn(async move { drop(checkpointing.checkpoint().await) });
        for lba in 0..30 {
            let volume = volume.clone();
            sim.spawn(async move { drop(volume.write(Lba(lba), data(2, 1), None).await) });
        }
        sim.settle();
        let unowned = shard.capacity().device_unreserved;
        given_back += u32::from(unowned > before);
        let device = sim.device.after_crash(&mut Random(seed));
        let mut sim = Sim::new(device.clone(), 1);
        let superblock = *shard.superblock();
        let extents = ExtentAllocator::new(&superblock);
        let options = ShardOptions::default();
        let recovered = Shard::recover(device, superblock, 0, extents.clone(), options);
        drop(sim.run_ok(recovered).expect("sound"));
        let free = extents.unowned_blocks();
        assert!(free >= unowned, "seed {seed}, {spared} flushes spared: {free} of {unowned}");
    }
    assert!((10..150).contains(&given_back), "by {given_back}");
}

/// COMMIT-5: a flush that one shard asked for, and that failed, should have covered what another one had written, too: also
/// where the core that asked hears of that late.
///
/// Method: fail one flush while both shards write, and cut the power.
#[test]
fn no_shard_acknowledges_what_the_failed_flush_of_another_should_have_covered() {
    for told_last in [false, true] {
        let (mut acknowledged, mut refused) = (0, 0);
        for (seed, spared) in (0..20).flat_map(|seed| (0..4).map(move |spared| (seed, spared))) {
            let (mut sim, shards) = two_shards_on(&TestDevice::new(DEVICE_BLOCKS, true));
            let volumes: Vec<_> =
                (0..2).map(|index| create(&mut sim, &shards, index, index as u128 + 1)).collect();
            sim.random = Random(seed);
            sim.device.faults(|faults| {
                (faults.flushes_spared, faults.flush_errors) = (spared, 1);
                faults.failed_flushes_told_last = told_last;
            });
            let told = write_all(&mut sim, &volumes);
            sim = Sim::new(sim.device.after_crash(&mut Random(seed)), 6);
            let shards = open_both(&mut sim);
            for (index, lba, told) in told {
                if told.take().expect("nothing hangs").is_err() {
                    refused += 1;
                    continue;
                }
                acknowledged += 1;
                let volume = shards[index].volume(volumes[index].uuid()).expect("durable");
                let found = sim.run_ok(tags(&volume, lba, 1));
                let told_last = if told_last { ", told last" } else { "" };
                assert_eq!(found, [7], "seed {seed}, {spared} spared{told_last}: {index}, {lba}");
            }
        }
        assert!(acknowledged > 100 && refused > 100, "{acknowledged}, {refused}");
    }
}

/// COMMIT-5: the same for the flush of a superblock that a scrub has rewritten.
///
/// Method: damage a superblock, have one shard look for damage while the other writes, fail a
/// flush, and cut the power.
#[test]
fn no_shard_acknowledges_what_the_failed_flush_of_a_scrub_should_have_covered() {
    let (mut acknowledged, mut failed) = (0, 0);
    for (seed, spared) in (0..20).flat_map(|seed| (0..8).map(move |spared| (seed, spared))) {
        let (mut sim, shards) = two_shards_on(&TestDevice::new(DEVICE_BLOCKS, true));
        let volume = create(&mut sim, &shards, 1, 1);
        sim.device.flip(Pba(DEVICE_BLOCKS - 1), 100);
        sim.random = Random(seed);
        sim.device.faults(|faults| {
            (faults.flushes_spared, faults.flush_errors) = (spared, 1);
            faults.failed_flushes_told_last = true;
        });
        let scrubbing = shards[0].clone();
        // The first step looks at the superblocks.
        sim.spawn(async move { drop(scrubbing.scrub_step(&mut scrubbing.scrub()).await) });
        let written = Rc::new(RefCell::new(Vec::new()));
        for first in [0, 100, 200] {
            let (volume, written) = (volume.clone(), written.clone());
            sim.spawn(async move {
                for lba in first..first + 30 {
                    if volume.write(Lba(lba), data(7, 1), None).await.is_err() {
                        break;
                    }
                    written.borrow_mut().push(lba);
                }
            });
        }
        sim.settle();
        failed += u32::from(shards[1].is_failed());
        sim = Sim::new(sim.device.after_crash(&mut Random(seed)), 6);
        let shards = open_both(&mut sim);
        let volume = shards[1].volume(volume.uuid()).expect("durable");
        for lba in written.take() {
            acknowledged += 1;
            let found = sim.run_ok(tags(&volume, lba, 1));
            assert_eq!(found, [7], "seed {seed}, {spared} spared: {lba}");
        }
    }
    assert!(acknowledged > 1000 && failed > 100, "{acknowledged}, {failed}");
}

/// Writes twenty blocks of each volume at the same time, until nothing goes on. Returns what was told of each: volume, block.
fn write_all(sim: &mut Sim, volumes: &[Volume<TestDevice>]) -> Vec<(usize, u64, Told)> {
    let mut told = Vec::new();
    for (index, lba) in (0..volumes.len()).flat_map(|index| (0..20).map(move |lba| (index, lba))) {
        let volume = volumes[index].clone();
        let write = async move { volume.write(Lba(lba), data(7, 1), None).await };
        told.push((index, lba, sim.begin(write)));
    }
    sim.settle();
    told
}
