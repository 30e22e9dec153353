//! Space: what checkpoints need, what goes back to the device, what a full device still does.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::common::{Sim, TestDevice, check, crash, data, fill, fresh, range, tags};
use io_traits::Device;
use units::{Lba, Pba};
use uuid::Uuid;
use volume::{Superblock, VolumeError, VolumeSpec};

fn root_blocks(device: &TestDevice, superblock: &Superblock) -> Vec<[u8; 4096]> {
    let places = [0, 1].into_iter().flat_map(|parity| superblock.root_places(0, parity));
    places.map(|place| device.block(place)).collect()
}

pub(crate) fn bitmap_slots(superblock: &Superblock) -> impl Iterator<Item = u64> + use<> {
    let superblock = *superblock;
    let starts = (0..superblock.extent_count()).map(move |n| superblock.extent(n).start.0);
    starts.flat_map(|start| [start, start + 1])
}

/// The checkpoint's snapshot holds effects of records that may or may not be on the media.
#[test]
fn a_checkpoint_ends_without_a_root_when_the_journal_is_lost_meanwhile() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, 100);
    let shard = volume.shard().clone();
    let superblock = *shard.superblock();
    let device = sim.device.clone();
    sim.run_ok(volume.write(Lba(0), data(1, 1), None)).expect("room");
    device.faults(|faults| faults.held.extend(bitmap_slots(&superblock)));
    let checkpointing = shard.clone();
    sim.spawn(async move { drop(checkpointing.checkpoint().await) });
    sim.settle();
    let before = root_blocks(&device, &superblock);
    let journal = superblock.extent(0).start.0 + 2;
    device.faults(|faults| {
        faults.write_errors.extend((journal..journal + 1000).map(|pba| (pba, 9)));
    });
    let lost = sim.run_ok(volume.write(Lba(0), data(2, 1), None));
    assert_eq!(lost, Err(VolumeError::JournalLost));
    device.faults(|faults| faults.held.clear());
    sim.settle();
    assert!(root_blocks(&device, &superblock) == before, "a root was written");
    let volume = crash(&mut sim);
    assert!([1, 2].contains(&sim.run_ok(tags(&volume, 0, 1))[0]));
    check(&mut sim, volume.shard());
}

/// Space below may be short for a while: the checkpoint waits for it, and nothing is lost.
#[test]
fn a_checkpoint_that_cannot_be_written_is_tried_again() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, 100);
    let shard = volume.shard().clone();
    let superblock = *shard.superblock();
    sim.run_ok(volume.write(Lba(0), data(1, 1), None)).expect("room");
    let device = sim.device.clone();
    device.faults(|f| f.write_errors.extend(bitmap_slots(&superblock).map(|pba| (pba, 10))));
    let checkpointing = shard.clone();
    sim.spawn(async move { checkpointing.checkpoint().await.expect("in the end") });
    sim.settle();
    sim.run_ok(volume.write(Lba(1), data(2, 1), None)).expect("the journal goes on");
    for _ in 0..10 {
        shard.settle();
        sim.settle();
    }
    check(&mut sim, &shard);
    assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [1, 2]);
    device.faults(|faults| faults.write_errors.clear());
    sim.run_ok(shard.shutdown()).expect("writable");
}

/// The last extent of the device is short, and the first ones are this shard's.
#[test]
fn extents_have_as_many_blocks_as_the_device_has() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, 1 << 30);
    let (shard, superblock) = (volume.shard(), *volume.shard().superblock());
    let (first, last) = (superblock.extent(0), superblock.extent(superblock.extent_count() - 1));
    assert!(last.blocks < first.blocks);
    let capacity = shard.capacity();
    assert!(capacity.device_unreserved > 0 && capacity.owned > 0, "{capacity:?}");
    assert_eq!(capacity.owned + capacity.device_unreserved, capacity.device_total);
    fill(&mut sim, &volume);
    let capacity = shard.capacity();
    assert_eq!((capacity.owned, capacity.device_unreserved), (capacity.device_total, 0));
}

#[test]
fn a_start_that_cannot_write_says_why() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, 100);
    sim.run_ok(volume.write(Lba(0), data(1, 1), None)).expect("room");
    let superblock = *volume.shard().superblock();
    let device = sim.device.after_crash(&mut sim.random);
    device.faults(|f| f.write_errors.extend(bitmap_slots(&superblock).map(|pba| (pba, 99))));
    sim = Sim::new(device.clone(), 1);
    let error = sim.run_ok(crate::common::try_open(device)).err().expect("nothing can be written");
    let volume::OpenError::Device(io_traits::DeviceError::Io { range, errno: 5 }) = error else {
        panic!("{error}")
    };
    assert!(bitmap_slots(&superblock).any(|slot| Pba(slot) == range.start));
    assert_eq!(sim.device.limits().blocks, 1 << 14);
}

/// Fills the device block by block, then overwrites for long: that needs no space but for a moment.
fn fill_and_overwrite(device_blocks: u64, volatile: bool) -> (u64, u64) {
    let (mut sim, volume) = fresh(&TestDevice::new(device_blocks, volatile), None, device_blocks);
    let filled = fill(&mut sim, &volume);
    for (blocks, count) in [(1, 2000), (8, 500), (256, 200), (32, 200), (1, 500)] {
        let writing = volume.clone();
        crate::common::run_many(&mut sim, count, 32, move |n| {
            let volume = writing.clone();
            async move {
                let lba = n * 7919 * 13 % (filled - blocks);
                volume.write(Lba(lba), data(2, blocks), None).await.expect("an overwrite");
            }
        });
    }
    let beyond = sim.run_ok(volume.write(Lba(filled), data(3, 64), None));
    assert_eq!(beyond, Err(VolumeError::PoolFull));
    check(&mut sim, volume.shard());
    let volume = crash(&mut sim);
    check(&mut sim, volume.shard());
    let report = sim.run_ok(volume.write(Lba(0), data(4, 256), None));
    assert_eq!(report, Ok(()));
    (filled, volume.mapped_blocks())
}

#[test]
fn a_volume_on_a_full_device_can_be_overwritten_forever() {
    for volatile in [false, true] {
        let (filled, mapped) = fill_and_overwrite(1 << 14, volatile);
        assert_eq!(filled, mapped);
        assert!(filled * 100 > (1 << 14) * 88, "{filled} blocks of 64 MiB");
    }
}

/// Overhead of a device of 1 GiB is below 2 %.
#[test]
fn nearly_all_of_a_gibibyte_holds_data() {
    let (filled, _) = fill_and_overwrite(1 << 18, false);
    eprintln!("{filled} blocks of 1 GiB: {:.2} %", filled as f64 / f64::from(1 << 18) * 100.0);
    assert!(filled * 100 > (1 << 18) * 98, "{filled} blocks of 1 GiB");
}

/// Blocks that hold data on a device of a single shard at least, as `docs/operations/devices.md` says, if written in
/// order.
fn usable(superblock: &Superblock, volumes: u64) -> u64 {
    let extents = u64::from(superblock.extent_count());
    let reserve = (superblock.blocks / 256).clamp(320, 2304);
    let journal = u64::from(superblock.journal_blocks);
    let (tables, ends) =
        (64 + extents / 32 + 4 * volumes, superblock.blocks - all_extents(superblock));
    let room = superblock.blocks - ends - 2 * extents - journal - reserve - tables;
    room * 1000 / 1003
}

fn all_extents(superblock: &Superblock) -> u64 {
    (0..superblock.extent_count()).map(|extent| superblock.extent(extent).blocks).sum()
}

/// Fills a device through so many volumes in turn. What is written is zeroes, of which the device in memory keeps
/// one block.
fn fill_with_zeroes(device_blocks: u64, volumes: u64) -> (u64, u64) {
    const RUN: u64 = 256;
    let (mut sim, first) = fresh(&TestDevice::new(device_blocks, false), None, device_blocks);
    let shard = first.shard().clone();
    let superblock = *shard.superblock();
    let filled = sim.run_ok(async {
        let mut all = vec![first];
        for number in 1..volumes {
            let (uuid, name) = (Uuid::from_u128(100 + u128::from(number)), "v".into());
            let spec = VolumeSpec { uuid, name, blocks: device_blocks };
            all.push(shard.create_volume(spec).await.expect("room"));
        }
        let zeroes = data(0, RUN);
        let (mut filled, mut blocks, mut next) = (0, RUN, vec![0; all.len()]);
        while blocks > 0 {
            let mut found = false;
            for (volume, next) in all.iter().zip(&mut next) {
                let part = zeroes.blocks(0, blocks as usize);
                match volume.write(Lba(*next), part, None).await {
                    Ok(()) => (*next, filled, found) = (*next + blocks, filled + blocks, true),
                    Err(VolumeError::PoolFull) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            blocks = if found { blocks } else { blocks / 2 };
        }
        filled
    });
    check(&mut sim, &shard);
    (filled, usable(&superblock, volumes))
}

/// All of a device holds data but for what the documentation names.
#[test]
fn a_device_is_usable_to_its_last_block_but_what_is_documented() {
    for (device_blocks, volumes) in [(1 << 14, 1), (1 << 18, 200), (1 << 21, 300)] {
        let (filled, usable) = fill_with_zeroes(device_blocks, volumes);
        eprintln!(
            "{device_blocks} blocks, {volumes} volumes: {filled} filled, {:.2} %, {usable} promised",
            filled as f64 / device_blocks as f64 * 100.0
        );
        assert!(
            filled >= usable,
            "{device_blocks} blocks, {volumes} volumes: {filled} of {usable}"
        );
    }
}

/// Space set aside for a write into a deallocated range comes back, also if no task waits for the
/// write any more while the map is read.
#[test]
fn a_write_that_is_given_up_while_its_map_is_read_leaves_nothing_set_aside() {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, 1 << 20);
    sim.run_ok(async {
        for lba in 0..20 {
            volume.write(Lba(lba * 250), data(1, 250), None).await.expect("room");
        }
        volume.shard().shutdown().await.expect("writable");
    });
    let volume = crash(&mut sim);
    let device = sim.device.clone();
    let nodes = device.find_by(|block| block.starts_with(b"FMN1"));
    device.faults(|faults| faults.held_reads.extend(nodes.iter().map(|pba| pba.0)));
    sim.run_ok(async {
        volume.unmap(range(0, 5000)).await.expect("possible");
        let mut write = pin!(volume.write(Lba(7), data(2, 1), None));
        let begun = poll_fn(|context| Poll::Ready(write.as_mut().poll(context)));
        assert!(begun.await.is_pending(), "the map is not there");
    });
    device.faults(|faults| faults.held_reads.clear());
    check(&mut sim, volume.shard());
    assert_eq!(sim.run_ok(tags(&volume, 7, 1)), [0]);
}

/// Fills a device, at random places if `scattered`; then deallocates 1 MiB, in pieces of `piece` blocks, and writes 1 MiB
/// instead, again and again. Returns the number of blocks that had to be deallocated beside.
fn refill(device_blocks: u64, scattered: bool, piece: u64) -> u64 {
    const MIB: u64 = 256;
    let device = TestDevice::new(device_blocks, false);
    let (mut sim, volume) = fresh(&device, None, 4 * device_blocks);
    let (shard, mut random) = (volume.shard().clone(), crate::common::Random(7));
    let filled = match scattered {
        true => sim.run_ok(async {
            let mut place = || Lba(random.below(2 * device_blocks));
            while volume.write(place(), data(1, 1), None).await.is_ok() {}
            2 * device_blocks
        }),
        false => fill(&mut sim, &volume),
    };
    let before = shard.capacity();
    let mut lacking = 0;
    for cycle in 0..4 {
        sim.run_ok(async {
            for _ in 0..MIB / piece {
                let mut lba = random.below(filled / piece) * piece;
                while tags(&volume, lba, 1).await == [0] {
                    lba = (lba + piece) % filled;
                }
                volume.unmap(range(lba, piece)).await.expect("possible");
            }
        });
        let place = Lba(2 * device_blocks + cycle * MIB);
        while sim.run_ok(volume.write(place, data(2, MIB), None)).is_err() {
            lacking += 1;
            let lba = (0..filled).find(|lba| sim.run_ok(tags(&volume, *lba, 1)) != [0]);
            sim.run_ok(volume.unmap(range(lba.expect("it is full"), 1))).expect("possible");
        }
    }
    let after = shard.capacity();
    eprintln!(
        "{device_blocks} blocks, scattered {scattered}, pieces of {piece}: {lacking} more deallocated; free {} -> {}, data {} -> \
         {}, metadata {} -> {}",
        before.free, after.free, before.data, after.data, before.metadata, after.metadata
    );
    check(&mut sim, &shard);
    lacking
}

/// SPACE-8. On a full device 1 MiB can be written where 1 MiB was deallocated, and elsewhere.
#[test]
fn as_much_can_be_written_as_was_deallocated() {
    for device_blocks in [1 << 14, 1 << 16] {
        for (scattered, piece) in [(false, 256), (false, 32), (false, 1), (true, 1)] {
            let lacking = refill(device_blocks, scattered, piece);
            assert_eq!(lacking, 0, "{device_blocks} blocks, scattered {scattered}, {piece}");
        }
    }
}
