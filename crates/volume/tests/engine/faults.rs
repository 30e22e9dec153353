//! Devices that fail, rot and fill up: the error goes to the caller concerned, and nothing else
//! changes.

use std::future::Future;

use crate::common::{Random, Sim, TestDevice};
use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, OpenError, Shard, ShardOptions, Volume, VolumeError,
    VolumeSpec, format, read_superblock,
};

const DEVICE_BLOCKS: u64 = 64 << 8;

fn data(tag: u8, blocks: usize) -> BufferSlice {
    Buffer::from_bytes(&vec![tag; blocks * BLOCK_SIZE]).into_slice()
}

fn range(start: u64, blocks: u64) -> LbaRange {
    LbaRange::new(Lba(start), blocks)
}

async fn try_open(device: TestDevice) -> Result<Shard<TestDevice>, OpenError> {
    let superblock = read_superblock(&device).await?;
    let extents = ExtentAllocator::new(&superblock);
    let options = ShardOptions::default();
    Shard::recover(device, superblock, 0, extents, options).await?.confirm().await?.start().await
}

fn open(sim: &mut Sim) -> Shard<TestDevice> {
    let device = sim.device.clone();
    let shard = sim.run_ok(try_open(device)).expect("sound");
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
    shard
}

fn fresh(volatile: bool, blocks: u64) -> (Sim, Shard<TestDevice>, Volume<TestDevice>) {
    let device = TestDevice::new(DEVICE_BLOCKS, volatile);
    let mut sim = Sim::new(device.clone(), 9);
    sim.run_ok(async {
        let options = FormatOptions { uuid: Uuid::from_u128(42) };
        format(&device, &options).await.expect("large enough");
    });
    let shard = open(&mut sim);
    let spec = VolumeSpec { uuid: Uuid::from_u128(1), name: "v".into(), blocks };
    let volume = sim.run_ok(shard.create_volume(spec)).expect("room");
    (sim, shard, volume)
}

fn check(sim: &mut Sim, shard: &Shard<TestDevice>) {
    sim.settle();
    let report = sim.run_ok(shard.check(true));
    assert!(report.findings.is_empty(), "{report:#?}");
}

fn restart(sim: &mut Sim) -> Shard<TestDevice> {
    let survivor = sim.device.after_crash(&mut Random(3));
    *sim = Sim::new(survivor, 2);
    open(sim)
}

async fn tags(volume: &Volume<TestDevice>, start: u64, blocks: u64) -> Vec<u8> {
    let found = volume.read(range(start, blocks)).await.expect("readable").to_vec();
    found.chunks(BLOCK_SIZE).map(|block| block[0]).collect()
}

#[test]
fn a_flipped_bit_costs_its_block_and_says_where_it_is() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(async {
        for lba in 0..10 {
            volume.write(Lba(lba), data(lba as u8 + 1, 1), None).await.expect("room");
        }
    });
    let place = sim.device.find(&[5; BLOCK_SIZE])[0];
    sim.device.flip(place, 1000);
    sim.run_ok(async {
        let error = volume.read(range(4, 1)).await.expect_err("damaged");
        assert!(matches!(error, VolumeError::Corrupt { lba: Lba(4), pba, .. } if pba == place));
        assert!(volume.read(range(0, 10)).await.is_err());
        assert_eq!(tags(&volume, 0, 4).await, [1, 2, 3, 4]);
        assert_eq!(tags(&volume, 5, 5).await, [6, 7, 8, 9, 10]);
        assert_eq!(volume.stats().damaged_blocks, 1);
        volume.write(Lba(4), data(77, 1), None).await.expect("room");
        assert_eq!(tags(&volume, 3, 3).await, [4, 77, 6]);
    });
    check(&mut sim, &shard);
}

/// The entry of a failed write may be durable while its data is not: neither now nor after a crash
/// may it show, and what was there before must.
#[test]
fn a_write_that_the_device_fails_leaves_what_was_there() {
    for volatile in [false, true] {
        for crash in [false, true] {
            let (mut sim, shard, volume) = fresh(volatile, 100);
            sim.run_ok(async {
                volume.write(Lba(0), data(1, 4), None).await.expect("room");
                volume.unmap(range(2, 1)).await.expect("possible");
            });
            // Wherever the next write goes, but not the journal: its blocks come first.
            let first_data = sim.device.find(&[1; BLOCK_SIZE])[0].0;
            sim.device.faults(|faults| {
                faults.write_errors.extend((first_data..first_data + 500).map(|pba| (pba, 1)));
            });
            sim.run_ok(async {
                let failed = volume.write(Lba(0), data(2, 4), None).await;
                assert!(matches!(failed, Err(VolumeError::Device(_))), "{failed:?}");
                assert_eq!(tags(&volume, 0, 4).await, [1, 1, 0, 1]);
            });
            sim.device.faults(|faults| faults.write_errors.clear());
            let shard = if crash { restart(&mut sim) } else { shard };
            let volume = shard.volume(Uuid::from_u128(1)).expect("there");
            sim.run_ok(async {
                assert_eq!(tags(&volume, 0, 4).await, [1, 1, 0, 1]);
                volume.write(Lba(0), data(3, 4), None).await.expect("the device is well again");
                assert_eq!(tags(&volume, 0, 4).await, [3; 4]);
            });
            check(&mut sim, &shard);
        }
    }
}

#[test]
fn a_journal_that_cannot_be_written_stops_acknowledgements_and_nothing_else() {
    let (mut sim, _shard, volume) = fresh(true, 100);
    sim.run_ok(async { volume.write(Lba(0), data(1, 1), None).await }).expect("room");
    sim.device.faults(|faults| faults.flush_errors = 1);
    sim.run_ok(async {
        let lost = volume.write(Lba(0), data(2, 1), None).await;
        assert_eq!(lost, Err(VolumeError::JournalLost));
        assert_eq!(volume.unmap(range(0, 1)).await, Err(VolumeError::JournalLost));
        assert_eq!(tags(&volume, 0, 1).await, [1]);
    });
    let shard = restart(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    sim.run_ok(async {
        // The write was not acknowledged: either of the two may be there.
        assert!([1, 2].contains(&tags(&volume, 0, 1).await[0]));
        volume.write(Lba(0), data(3, 1), None).await.expect("works again");
    });
    check(&mut sim, &shard);
}

#[test]
fn a_full_device_can_be_read_overwritten_deallocated_and_filled_again() {
    let (mut sim, shard, volume) = fresh(false, DEVICE_BLOCKS);
    let written = sim.run_ok(async {
        let mut written = 0;
        loop {
            match volume.write(Lba(written), data(1, 16), None).await {
                Ok(()) => written += 16,
                Err(VolumeError::PoolFull) => break written,
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(written > DEVICE_BLOCKS * 85 / 100, "only {written} of {DEVICE_BLOCKS} blocks");
    sim.run_ok(async {
        for round in 0..200_u64 {
            let lba = Lba(round * 7919 % written);
            volume.write(lba, data(2, 1), None).await.expect("an overwrite adds nothing");
        }
        let beyond = volume.write(Lba(written + 100), data(1, 64), None).await;
        assert_eq!(beyond, Err(VolumeError::PoolFull));
        volume.unmap(range(100, 500)).await.expect("possible");
        volume.write(Lba(written), data(3, 400), None).await.expect("room again");
        volume.unmap(range(0, written)).await.expect("possible");
        assert_eq!(tags(&volume, 0, 3).await, [0; 3]);
    });
    sim.settle();
    sim.run_ok(shard.checkpoint()).expect("writable");
    check(&mut sim, &shard);
    sim.run_ok(async {
        for lba in (0..written / 2).step_by(16) {
            volume.write(Lba(lba), data(4, 16), None).await.expect("room again");
        }
    });
    check(&mut sim, &shard);
    let shard = restart(&mut sim);
    check(&mut sim, &shard);
}

#[test]
fn one_damaged_root_or_superblock_costs_nothing_and_all_of_them_are_an_error() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 1), None).await.expect("room");
        shard.shutdown().await.expect("writable");
    });
    let superblock = *shard.superblock();
    sim.device.flip(units::Pba(0), 17);
    for parity in [0, 1] {
        sim.device.flip(superblock.root_places(0, parity)[0], 30);
    }
    let shard = restart(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [1]);
    for parity in [0, 1] {
        superblock.root_places(0, parity).into_iter().for_each(|place| sim.device.flip(place, 40));
    }
    let device = sim.device.after_crash(&mut Random(1));
    sim = Sim::new(device.clone(), 1);
    assert_eq!(sim.run_ok(try_open(device)).err(), Some(OpenError::Root(0)));
}

/// Bit rot in the middle of the journal must not silently cost what comes behind it.
#[test]
fn a_damaged_record_with_a_later_one_behind_it_is_an_error() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(async {
        for lba in 0..6 {
            volume.write(Lba(lba), data(1, 1), None).await.expect("room");
        }
    });
    let journal = shard.superblock().extent(0).start.plus(2);
    sim.device.flip(journal.plus(3), 100);
    let device = sim.device.after_crash(&mut Random(1));
    sim = Sim::new(device.clone(), 1);
    let error = sim.run_ok(try_open(device)).err();
    assert!(matches!(error, Some(OpenError::Journal { shard: 0, .. })), "{error:?}");
}

/// A request whose future is dropped half way finishes by itself.
#[test]
fn abandoned_writes_finish_and_hold_nothing() {
    let (mut sim, shard, volume) = fresh(true, 100);
    sim.run_ok(async {
        for lba in 0..20 {
            let mut write = Box::pin(volume.write(Lba(lba), data(9, 2), None));
            let mut polls = 0;
            std::future::poll_fn(|context| {
                polls += 1;
                let done = write.as_mut().poll(context).is_ready();
                if done || polls > lba % 4 {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            })
            .await;
        }
    });
    sim.settle();
    sim.run_ok(async {
        let found = tags(&volume, 0, 22).await;
        assert!(found.iter().all(|tag| [0, 9].contains(tag)));
        volume.write(Lba(0), data(3, 30), None).await.expect("no range is held");
    });
    check(&mut sim, &shard);
    sim.run_ok(shard.shutdown()).expect("nothing is under way");
}

/// The root before the newest is no way back once the journal went on from the newest.
#[test]
fn a_lost_newest_root_is_an_error_if_anything_was_built_on_it() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(async { volume.write(Lba(0), data(1, 1), None).await }).expect("room");
    let superblock = *shard.superblock();
    let shard = restart(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    sim.run_ok(async { volume.write(Lba(0), data(2, 1), None).await }).expect("room");
    // The first root of the new shard, then the one of the restart.
    for place in superblock.root_places(0, 2) {
        sim.device.flip(place, 50);
    }
    let device = sim.device.after_crash(&mut Random(1));
    sim = Sim::new(device.clone(), 1);
    let error = sim.run_ok(try_open(device)).err();
    assert!(matches!(error, Some(OpenError::Journal { .. })), "{error:?}");
}

/// Data that cannot be read may have been acknowledged: its reader gets an error, not older data.
#[test]
fn a_write_whose_data_cannot_be_read_at_recovery_is_not_rolled_back() {
    for failures in [2, 1000] {
        let (mut sim, _shard, volume) = fresh(true, 100);
        sim.run_ok(async {
            volume.write(Lba(0), data(1, 1), None).await.expect("room");
            volume.write(Lba(0), data(2, 1), None).await.expect("room");
        });
        let place = sim.device.find(&[2; BLOCK_SIZE])[0];
        let device = sim.device.after_crash(&mut Random(3));
        device.faults(|faults| faults.read_errors.extend([(place.0, failures)]));
        sim = Sim::new(device, 2);
        let shard = open(&mut sim);
        let volume = shard.volume(Uuid::from_u128(1)).expect("there");
        sim.run_ok(async {
            if failures == 2 {
                assert_eq!(tags(&volume, 0, 1).await, [2]);
            } else {
                let error = volume.read(range(0, 1)).await.expect_err("unreadable");
                assert!(matches!(error, VolumeError::Device(_)), "{error:?}");
                volume.write(Lba(0), data(3, 1), None).await.expect("works again");
            }
        });
        check(&mut sim, &shard);
    }
}

/// REPLAY-2: but not if another of its blocks can be read, and is not what was written. Method: of three blocks one is torn,
/// and one unreadable.
#[test]
fn a_write_that_was_cut_short_is_rolled_back_also_if_some_of_it_cannot_be_read() {
    for (torn, unreadable) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let (mut sim, _shard, volume) = fresh(true, 100);
        sim.run_ok(async {
            volume.write(Lba(0), data(1, 3), None).await.expect("room");
            volume.write(Lba(0), data(2, 3), None).await.expect("room");
        });
        let places = sim.device.find(&[2; BLOCK_SIZE]);
        let device = sim.device.after_crash(&mut Random(3));
        device.flip(places[torn], 700);
        device.faults(|faults| faults.read_errors.extend([(places[unreadable].0, u32::MAX)]));
        sim = Sim::new(device, 2);
        let shard = open(&mut sim);
        let volume = shard.volume(Uuid::from_u128(1)).expect("there");
        assert_eq!(sim.run_ok(tags(&volume, 0, 3)), [1; 3], "{torn} {unreadable}");
        check(&mut sim, &shard);
    }
}

/// REPLAY-2: a failed read is no evidence. Method: the data is torn, and can be read at the third attempt.
#[test]
fn a_torn_write_is_rolled_back_also_if_it_can_be_read_late() {
    let (mut sim, _shard, volume) = fresh(true, 100);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 1), None).await.expect("room");
        volume.write(Lba(0), data(2, 1), None).await.expect("room");
    });
    let place = sim.device.find(&[2; BLOCK_SIZE])[0];
    let device = sim.device.after_crash(&mut Random(3));
    device.flip(place, 700);
    device.faults(|faults| faults.read_errors.extend([(place.0, 2)]));
    sim = Sim::new(device, 2);
    let shard = open(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [1]);
    check(&mut sim, &shard);
}

/// With nothing under way, the journal says once that all data is on the media: bit rot found later
/// is then not taken for a write that the crash cut short.
#[test]
fn a_settled_journal_trusts_its_data() {
    let (mut sim, shard, volume) = fresh(true, 100);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 1), None).await.expect("room");
        volume.write(Lba(0), data(2, 1), None).await.expect("room");
    });
    sim.settle();
    shard.settle();
    sim.settle();
    let written = sim.device.blocks_written();
    for _ in 0..5 {
        shard.settle();
        sim.settle();
    }
    assert_eq!(sim.device.blocks_written(), written, "it is said once");
    let place = sim.device.find(&[2; BLOCK_SIZE])[0];
    sim.device.flip(place, 5);
    let shard = restart(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    sim.run_ok(async {
        let error = volume.read(range(0, 1)).await.expect_err("damaged");
        assert!(matches!(error, VolumeError::Corrupt { .. }), "{error:?}");
        volume.write(Lba(0), data(3, 1), None).await.expect("room");
    });
    check(&mut sim, &shard);
}

/// As above, within one run: records say which root they build on.
#[test]
fn a_lost_newest_root_is_an_error_within_one_run_too() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 1), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.write(Lba(1), data(2, 1), None).await.expect("room");
    });
    let superblock = *shard.superblock();
    let newest = superblock.root_places(0, 0);
    let generation =
        |place| u64::from_le_bytes(sim.device.block(place)[24..32].try_into().expect("8"));
    let other = superblock.root_places(0, 1);
    let newest = if generation(newest[0]) > generation(other[0]) { newest } else { other };
    newest.into_iter().for_each(|place| sim.device.flip(place, 50));
    let device = sim.device.after_crash(&mut Random(1));
    sim = Sim::new(device.clone(), 1);
    let error = sim.run_ok(try_open(device)).err();
    assert!(matches!(error, Some(OpenError::Journal { .. })), "{error:?}");
}

/// Unreadable blocks that are not needed do not stop a start.
#[test]
fn unreadable_blocks_without_an_owner_do_not_stop_the_start() {
    let (mut sim, shard, volume) = fresh(false, 100);
    sim.run_ok(volume.write(Lba(0), data(1, 1), None)).expect("room");
    let superblock = *shard.superblock();
    let journal = superblock.extent(0).start.0 + 2;
    let device = sim.device.after_crash(&mut Random(1));
    device.faults(|faults| {
        // Far behind the last record, a copy of each root, a root of a shard never used.
        faults.read_errors.extend((journal + 20..journal + 40).map(|pba| (pba, 9999)));
        for place in [(0, 0), (0, 1), (5, 0)] {
            faults.read_errors.insert(superblock.root_places(place.0, place.1)[0].0, 9999);
        }
    });
    sim = Sim::new(device.clone(), 1);
    let active = sim.run_ok(volume::active_shards(&device, &superblock)).expect("readable");
    assert_eq!(active, [0]);
    let shard = open(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("durable");
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [1]);
}

/// Remains of our format in the last block do not make a foreign device ours.
#[test]
fn a_foreign_head_beats_a_tail_of_ours() {
    use io_traits::Device;
    let (mut sim, _shard, _volume) = fresh(false, 100);
    let device = sim.device.clone();
    let mut block = vec![0; BLOCK_SIZE];
    let mut write = |bytes: &[u8], at: usize| {
        block.fill(0);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        Buffer::from_bytes(&block).into_slice()
    };
    let blocks = [write(b"XFSB", 0), write(b"", 0), write(b"farflash", 0)];
    let mut found = Vec::new();
    for block in blocks {
        sim.run_ok(device.write(units::Pba(0), block)).expect("written");
        found.push(sim.run_ok(volume::probe(&device)).expect("readable"));
    }
    use volume::Probe;
    assert!(matches!(found[0], Probe::Overwritten { by: "XFS file system", .. }), "{found:?}");
    assert!(matches!(found[1..], [Probe::Farflash(_), Probe::Farflash(_)]), "{found:?}");
}

/// A read error that passes does not make the newest root, and with it the journal, look lost.
#[test]
fn a_root_that_cannot_be_read_at_first_is_read_again() {
    let (mut sim, shard, volume) = fresh(true, 100);
    let superblock = *shard.superblock();
    sim.run_ok(async {
        for tag in 1..5 {
            volume.write(Lba(0), data(tag, 1), None).await.expect("room");
            shard.checkpoint().await.expect("writable");
        }
        volume.write(Lba(1), data(9, 1), None).await.expect("room");
    });
    let survivor = sim.device.after_crash(&mut Random(3));
    sim = Sim::new(survivor, 2);
    let places = [0, 1].into_iter().flat_map(|g| superblock.root_places(0, g));
    sim.device.faults(|faults| faults.read_errors.extend(places.map(|place| (place.0, 2))));
    let volume = open(&mut sim).volume(volume.uuid()).expect("durable");
    assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [4, 9]);
}

/// Only a record that did not fit before the end of the ring lies at its start.
#[test]
fn the_start_of_the_journal_may_be_unreadable_while_the_journal_is_elsewhere() {
    let (mut sim, _shard, volume) = fresh(true, 100);
    let superblock = *volume.shard().superblock();
    for tag in 1..5 {
        sim.run_ok(volume.write(Lba(0), data(tag, 1), None)).expect("room");
    }
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    sim.run_ok(volume.write(Lba(1), data(9, 1), None)).expect("room");
    let survivor = sim.device.after_crash(&mut Random(3));
    sim = Sim::new(survivor, 2);
    let first = superblock.extent(0).start.0 + 2;
    sim.device.faults(|faults| faults.read_errors.extend([(first, u32::MAX)]));
    let volume = open(&mut sim).volume(volume.uuid()).expect("durable");
    assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [4, 9]);
}
