//! Freed space is discarded: all of it in the end, whatever goes on meanwhile.

use crate::common::{Sim, TestDevice, check, crash, data, fresh, open, range, tags};
use crate::sharing::{Shards, check_both, create, fill, open_both, run, tick, two_shards};
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{Shard, Volume, VolumeSpec};

/// A gibibyte: extents of 16 MiB.
const DEVICE_BLOCKS: u64 = 1 << 18;
/// Twelve of them.
const LARGE_BLOCKS: u64 = 12 * 4096;
const LARGE_TAG: u8 = 201;
/// Ticks within which all is discarded: at last also what is free in extents in which blocks are freed all the time.
const TICKS: u64 = 300;

/// A device with the volume of [`fresh`], which has eight blocks, and a large one beside it; and where the
/// blocks of that lie.
fn with_large_volume() -> (Sim, Volume<TestDevice>, Vec<Pba>) {
    let (mut sim, small) = fresh(&TestDevice::new(DEVICE_BLOCKS, false), None, 1 << 20);
    let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "large".into(), blocks: 1 << 20 };
    let large = sim.run_ok(small.shard().create_volume(spec)).expect("room");
    sim.run_ok(async {
        for at in (0..LARGE_BLOCKS).step_by(256) {
            large.write(Lba(at), data(LARGE_TAG, 256), None).await.expect("room");
            if at % 2048 == 0 {
                small.write(Lba(at / 2048 % 8), data(7, 1), None).await.expect("room");
            }
        }
    });
    let blocks = sim.device.find(&[LARGE_TAG; 4096]);
    assert_eq!(blocks.len() as u64, LARGE_BLOCKS);
    (sim, small, blocks)
}

fn delete_large(sim: &mut Sim, shard: &Shard<TestDevice>) {
    sim.run_ok(shard.delete_volume(Uuid::from_u128(2))).expect("there");
}

/// Writes to the small volume while time passes, with a checkpoint for each tick. What is discarded is
/// spoilt, so that it would show if something in use was.
fn write_on(sim: &mut Sim, small: &Volume<TestDevice>, ticks: u64) {
    let shard = small.shard().clone();
    for round in 0..ticks {
        let tag = (1 + round % 200) as u8;
        sim.run_ok(small.write(Lba(round % 8), data(tag, 1), None)).expect("room");
        sim.run_ok(shard.checkpoint()).expect("writable");
        tick(sim, &vec![shard.clone()]);
        assert_eq!(sim.run_ok(tags(small, round % 8, 1)), [tag]);
    }
}

fn assert_nearly_all_blank(sim: &Sim, blocks: &[Pba]) {
    let blank = blocks.iter().filter(|pba| sim.device.is_blank(**pba)).count();
    assert!(blank * 100 >= blocks.len() * 95, "{blank} of {} blocks", blocks.len());
}

#[test]
fn a_deleted_volume_is_discarded_while_checkpoints_are_taken() {
    let (mut sim, small, blocks) = with_large_volume();
    let shard = small.shard().clone();
    let unowned = shard.capacity().device_unreserved;
    delete_large(&mut sim, &shard);
    write_on(&mut sim, &small, TICKS);
    assert_nearly_all_blank(&sim, &blocks);
    let back = shard.capacity().device_unreserved - unowned;
    assert!(
        back >= LARGE_BLOCKS - 2 * 4096,
        "the device has {back} of {LARGE_BLOCKS} blocks again"
    );
    check(&mut sim, &shard);
}

#[test]
fn what_was_to_be_discarded_at_a_crash_or_an_orderly_end_is_discarded_afterwards() {
    for orderly in [false, true] {
        let (mut sim, small, blocks) = with_large_volume();
        let shard = small.shard().clone();
        delete_large(&mut sim, &shard);
        // Its extents are empty by then, and hardly anything of them is discarded.
        write_on(&mut sim, &small, 2);
        let small = if orderly {
            sim.run_ok(shard.shutdown()).expect("writable");
            sim = Sim::new(sim.device.clone(), 5);
            open(&mut sim).volume(Uuid::from_u128(1)).expect("there")
        } else {
            crash(&mut sim)
        };
        write_on(&mut sim, &small, TICKS);
        assert_nearly_all_blank(&sim, &blocks);
        check(&mut sim, small.shard());
    }
}

/// While there is no space below, what was deallocated is given back soon, though nothing else is written that would bring a
/// checkpoint about.
#[test]
fn without_space_below_what_is_deallocated_in_pieces_is_given_back_by_itself() {
    let (mut sim, small, blocks) = with_large_volume();
    let shard = small.shard().clone();
    let large = shard.volume(Uuid::from_u128(2)).expect("there");
    sim.run_ok(shard.checkpoint()).expect("writable");
    sim.device.faults(|faults| faults.says_full = true);
    // Too few to fill half of the journal, which would bring a checkpoint about.
    let freed = 64;
    sim.run_ok(async {
        for at in 0..freed {
            large.unmap(range(at, 1)).await.expect("possible");
        }
    });
    for _ in 0..TICKS {
        tick(&mut sim, &vec![shard.clone()]);
    }
    let blank = blocks.iter().filter(|pba| sim.device.is_blank(**pba)).count() as u64;
    assert_eq!(blank, freed);
    check(&mut sim, &shard);
}

/// DISCARD-3.
#[test]
fn a_device_that_fails_to_discard_for_a_while_is_told_again() {
    let (mut sim, small, blocks) = with_large_volume();
    sim.device.faults(|faults| faults.discard_errors = 5);
    delete_large(&mut sim, &small.shard().clone());
    write_on(&mut sim, &small, 2 * TICKS);
    sim.device.faults(|faults| assert_eq!(faults.discard_errors, 0));
    assert_nearly_all_blank(&sim, &blocks);
}

/// Blocks kept back to be discarded delay no request that needs them; their user discards the rest.
#[test]
fn space_that_is_not_discarded_yet_is_there_for_all() {
    let (mut sim, shards): (Sim, Shards) = two_shards();
    let first = create(&mut sim, &shards, 0, 1);
    let filled = fill(&mut sim, &shards, &[first], 0).len() as u64 * 8;
    // No discard succeeds.
    sim.device.faults(|faults| faults.discard_errors = u32::MAX);
    let giver = shards[0].clone();
    run(&mut sim, &shards, async move { giver.delete_volume(Uuid::from_u128(1)).await })
        .expect("there");
    let second = create(&mut sim, &shards, 1, 2);
    let moved = fill(&mut sim, &shards, std::slice::from_ref(&second), 0).len() as u64 * 8;
    assert!(moved * 100 > filled * 95, "{moved} of {filled}");
    // The other one gives back most of it, which its new owner knows nothing of.
    run(&mut sim, &shards, async move { second.unmap(range(0, 1 << 30)).await }).expect("possible");
    sim.device.faults(|faults| faults.discard_errors = 0);
    let blocks = sim.device.find(&[7; 4096]);
    for _ in 0..600 {
        tick(&mut sim, &shards);
    }
    let blank = blocks.iter().filter(|pba| sim.device.is_blank(**pba)).count();
    assert!(blank * 100 > blocks.len() * 70, "{blank} of {}", blocks.len());
    check_both(&mut sim, &shards);
}

/// DISCARD-1: blocks being discarded are not allocated until the device has finished.
///
/// Method: a device that holds its discards, on which two shards then write until it is full, the
/// one that discards and the one that gets what the other has empty. The discards are carried out
/// last, or the power goes before.
#[test]
fn a_discard_that_is_late_hits_nothing_that_was_written_meanwhile() {
    for crashes in [false, true] {
        let (mut sim, shards): (Sim, Shards) = two_shards();
        let first = create(&mut sim, &shards, 0, 1);
        fill(&mut sim, &shards, &[first], 0);
        sim.device.faults(|faults| faults.holds_discards = true);
        let giver = shards[0].clone();
        run(&mut sim, &shards, async move { giver.delete_volume(Uuid::from_u128(1)).await })
            .expect("there");
        for _ in 0..20 {
            tick(&mut sim, &shards);
        }
        assert!(sim.device.blocks_being_discarded() > 0);
        for (shard, number) in [(1, 2), (0, 3)] {
            let volume = create(&mut sim, &shards, shard, number);
            assert!(!fill(&mut sim, &shards, &[volume], 0).is_empty());
        }
        assert!(sim.device.blocks_being_discarded() > 0, "it was full before that was over");
        if crashes {
            let survivor = sim.device.after_crash(&mut sim.random);
            sim = Sim::new(survivor, 7);
            let shards = open_both(&mut sim);
            check_both(&mut sim, &shards);
            continue;
        }
        sim.device.faults(|faults| faults.holds_discards = false);
        for _ in 0..20 {
            tick(&mut sim, &shards);
        }
        check_both(&mut sim, &shards);
    }
}

/// DISCARD-1: a shard has ended only when the device has finished what it was told to discard: the blocks may be a
/// successor's then.
///
/// Method: shut a shard down while the device holds its discards.
#[test]
fn a_shard_ends_when_its_discards_are_over() {
    let (mut sim, small, _) = with_large_volume();
    let shard = small.shard().clone();
    delete_large(&mut sim, &shard);
    write_on(&mut sim, &small, 1);
    sim.device.faults(|faults| faults.holds_discards = true);
    write_on(&mut sim, &small, 12);
    assert!(sim.device.blocks_being_discarded() > 0);
    let ended = sim.begin(async move { shard.shutdown().await });
    sim.settle();
    assert!(ended.borrow().is_none(), "blocks are being discarded");
    sim.device.faults(|faults| faults.holds_discards = false);
    sim.settle();
    assert_eq!(ended.take(), Some(Ok(())));
    assert_eq!(sim.device.blocks_being_discarded(), 0);
}
