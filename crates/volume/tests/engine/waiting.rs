//! Requests that wait for space (SPACE-4), and reclaimed blocks that wait for a checkpoint (RECLAIM-1).

use std::cell::RefCell;
use std::rc::Rc;

use layout::Root;
use units::{Lba, LbaRange, Pba};
use uuid::Uuid;
use volume::{Shard, Superblock, Volume, VolumeError, VolumeSpec};

use crate::common::{Sim, TestDevice, check, crash, data, fill, fresh, range};
use crate::forge::place_of;

/// Blocks of the largest write.
const MIB: u64 = 256;

/// Returns the generation of the newest root: it grows with each checkpoint.
fn generation(sim: &Sim, superblock: &Superblock) -> u64 {
    let places = [0, 1].into_iter().flat_map(|slot| superblock.root_places(0, slot));
    let generations = places.filter_map(|place| Root::decode(&sim.device.block(place)).ok());
    generations.map(|root| root.generation).max().expect("it was formatted")
}

/// Begins a write, and lets all tasks go on without the device.
fn begin(
    sim: &mut Sim,
    volume: &Volume<TestDevice>,
    lba: u64,
    blocks: u64,
) -> Rc<RefCell<Option<Result<(), VolumeError>>>> {
    let writing = volume.clone();
    let told = sim.begin(async move { writing.write(Lba(lba), data(2, blocks), None).await });
    sim.run_ok(async {});
    told
}

/// SPACE-4: a small request for which there is room does not pass a large one that waits for room, so that no stream of small
/// ones keeps it waiting for ever.
///
/// Method: overwrites of 1 MiB on a full device, of which nothing completes, until one waits. What a request writes is at the
/// device as soon as it has room.
#[test]
fn a_small_request_does_not_pass_a_large_one_that_waits_for_room() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 14);
    let superblock = *volume.shard().superblock();
    let filled = fill(&mut sim, &volume);
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    sim.settle();
    let at_device = |sim: &Sim| sim.device.pending_data(&superblock).len();
    let mut told = Vec::new();
    loop {
        let before = at_device(&sim);
        told.push(begin(&mut sim, &volume, told.len() as u64 * MIB, MIB));
        if at_device(&sim) == before {
            break;
        }
        assert!(told.len() < 20, "a full device has room for few of them");
    }
    let before = at_device(&sim);
    assert!(before > 0 && volume.shard().capacity().free > 20, "there is room for a small one");
    for small in 1..=3 {
        told.push(begin(&mut sim, &volume, filled - small, 1));
        assert_eq!(at_device(&sim), before, "it waits for its turn");
    }
    sim.settle();
    for outcome in &told {
        assert_eq!(outcome.take(), Some(Ok(())));
    }
    check(&mut sim, volume.shard());
}

/// Makes a device full, beside `count` volumes of a few `blocks` that lie apart. Returns the volume that fills it, and the
/// leaves of the others, of which none is in memory, that of the last one first.
fn full_beside(count: u32, blocks: u64) -> (Sim, Volume<TestDevice>, Vec<Pba>) {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, false), None, 1 << 15);
    let shard = volume.shard().clone();
    sim.run_ok(async {
        for number in 1..=count {
            let (uuid, name) = (Uuid::from_u128(100 + u128::from(number)), "small".into());
            let spec = VolumeSpec { uuid, name, blocks: 1 << 12 };
            let small = shard.create_volume(spec).await.expect("room");
            for block in 0..blocks {
                small.write(Lba(block * 100), data(1, 1), None).await.expect("room");
            }
        }
    });
    fill(&mut sim, &volume);
    sim.run_ok(shard.shutdown()).expect("writable");
    let volume = crash(&mut sim);
    let leaves = (2..2 + count).rev().map(|number| place_of(&sim.device, number, 0).0).collect();
    (sim, volume, leaves)
}

/// Deallocates the volumes of [`full_beside`] whole, one leaf after the other, while a request for new blocks waits.
/// Returns the outcome of the request, and how many leaves were left when it came.
fn write_beside_deallocation(count: u32, blocks: u64) -> (Result<(), VolumeError>, usize) {
    let (mut sim, volume, mut leaves) = full_beside(count, blocks);
    sim.device.faults(|faults| faults.held_reads.extend(leaves.iter().map(|leaf| leaf.0)));
    let others: Vec<_> = volume.shard().volumes().into_iter().skip(1).collect();
    for small in &others {
        sim.run_ok(small.unmap(range(0, 1 << 12))).expect("possible");
    }
    let before = generation(&sim, volume.shard().superblock());
    let told = begin(&mut sim, &volume, 1 << 14, MIB);
    sim.settle();
    while told.borrow().is_none() {
        let leaf = leaves.pop().expect("it waits for ever: nothing is left to be given back");
        sim.device.faults(|faults| faults.held_reads.retain(|held| *held != leaf.0));
        sim.settle();
    }
    let outcome = told.take().expect("it has ended");
    let checkpoints = generation(&sim, volume.shard().superblock()) - before;
    assert!(checkpoints <= 2 * u64::from(count) + 2, "{checkpoints} for {count} leaves");
    sim.device.faults(|faults| faults.held_reads.clear());
    check(&mut sim, volume.shard());
    (outcome, leaves.len())
}

/// SPACE-4: a request for new blocks has them if a large deallocation brings them, after however many checkpoints.
///
/// Method: each leaf that the reclaimer reads brings few blocks; that of the next is held until all else has ended.
#[test]
fn a_request_for_new_blocks_waits_for_all_that_a_deallocation_brings() {
    for (leaves, blocks) in [(40, 10), (150, 2)] {
        let (outcome, left) = write_beside_deallocation(leaves, blocks);
        assert_eq!(outcome, Ok(()), "{leaves} leaves of {blocks} blocks");
        assert!(left > 0, "as soon as there is room");
    }
}

/// SPACE-4: a request for new blocks learns that there is no space when a deallocation has brought all that it can, and not
/// before.
///
/// Method: as above, with fewer blocks than the request takes.
#[test]
fn a_request_for_new_blocks_is_refused_when_nothing_more_can_come() {
    let (outcome, left) = write_beside_deallocation(20, 10);
    assert_eq!((outcome, left), (Err(VolumeError::PoolFull), 0));
}

/// Deallocates every other block of a range.
async fn perforate(volume: &Volume<TestDevice>, blocks: u64) {
    for start in (0..blocks).step_by(MIB as usize) {
        let odd: Vec<LbaRange> =
            (start + 1..start + MIB).step_by(2).map(|lba| range(lba, 1)).collect();
        assert_eq!(volume.unmap_together(&odd).await, Ok(true));
    }
}

/// Lets a large deallocation of a volume in so many pieces be reclaimed; returns the number of checkpoints that this took.
fn reclaim(pieces: u64) -> u64 {
    let blocks = (2 * pieces).next_multiple_of(MIB);
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 18, false), None, blocks);
    let (shard, superblock): (Shard<TestDevice>, _) =
        (volume.shard().clone(), *volume.shard().superblock());
    sim.run_ok(async {
        for start in (0..blocks).step_by(MIB as usize) {
            volume.write(Lba(start), data(0, MIB), None).await.expect("room");
        }
        perforate(&volume, blocks).await;
        shard.checkpoint().await.expect("writable");
    });
    sim.settle();
    let before = generation(&sim, &superblock);
    sim.run_ok(volume.unmap(range(0, blocks))).expect("possible");
    sim.settle();
    assert_eq!(shard.capacity().data, 0);
    generation(&sim, &superblock) - before
}

/// Blocks of a large deallocation wait for a checkpoint in a bounded number of pieces: a checkpoint begins when there are more.
#[test]
fn reclaimed_blocks_wait_in_a_bounded_number_of_pieces() {
    assert_eq!(reclaim(60_000), 1, "at its end");
    assert_eq!(reclaim(70_000), 2, "and when there are 65 536 of them");
}
