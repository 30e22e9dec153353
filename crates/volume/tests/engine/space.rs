//! Space: what checkpoints need, what goes back to the device, what a full device still does.

use crate::common::{Sim, TestDevice, check, crash, data, fresh, tags};
use io_traits::Device;
use units::{Lba, Pba};
use volume::{Superblock, VolumeError};

fn root_blocks(device: &TestDevice, superblock: &Superblock) -> Vec<[u8; 4096]> {
    let places = [0, 1].into_iter().flat_map(|parity| superblock.root_places(0, parity));
    places.map(|place| device.block(place)).collect()
}

fn bitmap_slots(superblock: &Superblock) -> impl Iterator<Item = u64> {
    let starts = (0..superblock.extent_count()).map(|n| superblock.extent(n).start.0);
    starts.flat_map(|start| [start, start + 1])
}

/// The checkpoint's snapshot holds effects of records of which nobody knows any more whether they
/// are on the media.
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
    assert_eq!(sim.device.geometry().blocks, 1 << 14);
}

/// Fills the device block by block, then overwrites for long: that needs no space but for a moment.
fn fill_and_overwrite(device_blocks: u64, volatile: bool) -> (u64, u64) {
    let (mut sim, volume) = fresh(&TestDevice::new(device_blocks, volatile), None, device_blocks);
    let filled = sim.run_ok(async {
        let (mut filled, mut blocks) = (0, 256);
        while blocks > 0 {
            match volume.write(Lba(filled), data(1, blocks), None).await {
                Ok(()) => filled += blocks,
                Err(VolumeError::PoolFull) => blocks /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        filled
    });
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
