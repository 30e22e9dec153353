//! The start of several shards, and the power going meanwhile.

use std::collections::BTreeSet;

use crate::common::{Crashed, Random, Sim, TestDevice, data, fresh, journal_of, open, tags};
use units::Lba;
use uuid::Uuid;
use volume::{ExtentAllocator, OpenError, Recovered, Shard, ShardOptions, read_superblock};

const DEVICE_BLOCKS: u64 = 1 << 14;
/// The tag of the blocks of a volume that stays.
const TAG: u8 = 7;
/// Attempts to write a copy of a root.
const ATTEMPTS: u32 = 4;

/// A device whose only shard gives extents back, as the next process finds it behind a flush that failed: so many had succeeded.
/// `None`: there are fewer.
fn ended_behind_flush(number: u32) -> Option<TestDevice> {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = fresh(&device, Some(1024), 1 << 30);
    let shard = volume.shard().clone();
    let kept = volume::VolumeSpec { uuid: Uuid::from_u128(2), name: "k".into(), blocks: 100 };
    sim.run_ok(async {
        let kept = shard.create_volume(kept).await.expect("room");
        kept.write(Lba(0), data(TAG, 5), None).await.expect("room");
        for lba in 0..20 {
            volume.write(Lba(lba * 250), data(1, 250), None).await.expect("room");
        }
        shard.checkpoint().await.expect("writable");
        shard.delete_volume(volume.uuid()).await.expect("there");
    });
    // What is to be given back is discarded first.
    for _ in 0..20 {
        sim.settle();
        shard.settle();
    }
    device.faults(|faults| (faults.flushes_spared, faults.flush_errors) = (number, 1));
    let before = shard.capacity().device_unreserved;
    let giving = shard.clone();
    sim.spawn(async move { drop(giving.checkpoint().await) });
    sim.settle();
    let is_over = shard.capacity().device_unreserved > before;
    assert!(is_over || shard.is_failed(), "extents are given back");
    (!is_over).then(|| device.after_process_end())
}

/// Starts as many shards as there are in `order`, in that order.
pub(crate) async fn start(
    device: TestDevice,
    order: &[u16],
) -> Result<Vec<Shard<TestDevice>>, OpenError> {
    let superblock = read_superblock(&device).await?;
    let extents = ExtentAllocator::new(&superblock);
    let mut recovered = Vec::new();
    for &index in order {
        let (device, extents) = (device.clone(), extents.clone());
        let options = ShardOptions::default();
        recovered.push(Shard::recover(device, superblock, index, extents, options).await?);
    }
    Recovered::start_all(recovered).await
}

/// REPERSIST-5: an extent that was given back by a root that no flush covers goes to no other shard before
/// that root is durable, also if a core comes that was not there before.
///
/// Method: fail each flush of a shard that gives extents back, start it with another shard that
/// comes first, cut the power at each write and flush of that, and start them again.
#[test]
fn no_extent_has_two_owners_whenever_the_power_goes_at_a_start() {
    let mut starts = BTreeSet::new();
    for number in 0.. {
        let Some(device) = ended_behind_flush(number) else { break };
        for seed in 0..6 {
            for cut in 0.. {
                let mut sim = Sim::new(device.after_process_end(), seed);
                sim.crash_at = Some(sim.device.completed() + cut);
                let cut_off = matches!(sim.run(start(sim.device.clone(), &[1, 0])), Err(Crashed));
                sim = Sim::new(sim.device.after_crash(&mut Random(seed)), seed);
                let shards = sim.run_ok(start(sim.device.clone(), &[0, 1]));
                let shards = shards.unwrap_or_else(|error| {
                    panic!("flush {number} seed {seed} cut {cut}: {error}")
                });
                let kept = shards[0].volume(Uuid::from_u128(2)).expect("durable");
                let found = sim.run_ok(crate::common::tags(&kept, 0, 5));
                assert_eq!(found, [TAG; 5], "flush {number} seed {seed} cut {cut}");
                starts.insert((number, cut));
                if !cut_off {
                    break;
                }
            }
        }
    }
    assert!(starts.len() > 30, "{}", starts.len());
}

/// REPERSIST-5: where what one shard was read back from cannot be made durable, no shard is started. It is
/// not forgotten either: the next attempt does it.
///
/// Method: as above, with a device that refuses both copies of the root at first; then the power
/// goes.
#[test]
fn a_confirmation_that_failed_is_made_when_it_is_asked_for_again() {
    let mut lasting = 0;
    for number in 0.. {
        let Some(device) = ended_behind_flush(number) else { break };
        for seed in 0..6 {
            let mut sim = Sim::new(device.after_process_end(), seed);
            let device = sim.device.clone();
            let superblock = sim.run_ok(read_superblock(&device)).expect("ours");
            let newest = |device: &TestDevice| {
                let generation = |place| {
                    let root = layout::Root::decode(&device.block(place));
                    (root.map_or(0, |root| root.generation), place)
                };
                let slots = [0, 1].map(|slot| superblock.root_places(0, slot));
                slots.into_iter().map(|places| (generation(places[0]), places)).max().expect("two")
            };
            let ((generation, _), places) = newest(&device);
            device.faults(|faults| {
                faults.write_errors.extend(places.map(|place| (place.0, ATTEMPTS)))
            });
            let extents = ExtentAllocator::new(&superblock);
            let recover = |index| {
                let options = ShardOptions::default();
                Shard::recover(device.clone(), superblock, index, extents.clone(), options)
            };
            let all = sim.run_ok(async { [recover(1).await, recover(0).await] });
            let mut all = Vec::from(all.map(|recovered| recovered.expect("sound")));
            assert!(sim.run_ok(Recovered::confirm_all(&mut all)).is_err());
            let confirmed = sim.run_ok(Recovered::confirm_all(&mut all)).expect("it is taken now");
            assert_eq!(confirmed.len(), 2);
            let device = device.after_crash(&mut Random(seed));
            assert_eq!(newest(&device).0.0, generation, "flush {number} seed {seed}");
            let blank = superblock.root_places(1, 1).map(|place| device.block(place) == [0; 4096]);
            assert_eq!(blank, [true; 2], "flush {number} seed {seed}: no shard was started");
            lasting += 1;
        }
    }
    assert!(lasting > 6, "{lasting}");
}

/// The last checkpoint of a shard that is shut down comes behind the requests under way: there is nothing to replay then.
///
/// Method: shut a shard down while the device holds the data of a write.
#[test]
fn a_shutdown_waits_for_a_write_under_way() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 100);
    let shard = volume.shard().clone();
    let journal = journal_of(shard.superblock());
    let outside = (0..DEVICE_BLOCKS).filter(|pba| !journal.contains(pba));
    sim.device.faults(|faults| faults.held = outside.collect());
    let written = sim.begin(async move { volume.write(Lba(0), data(1, 1), None).await });
    sim.settle();
    let places = sim.device.pending_data(shard.superblock());
    sim.device.faults(|faults| faults.held = places.iter().map(|place| place.0).collect());
    let ended = sim.begin(async move { shard.shutdown().await });
    sim.settle();
    assert!(ended.borrow().is_none() && written.borrow().is_none());
    sim.device.faults(|faults| faults.held.clear());
    sim.settle();
    assert_eq!((written.take(), ended.take()), (Some(Ok(())), Some(Ok(()))));
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
    let shard = open(&mut sim);
    assert!(!shard.was_cut_off());
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, 1)), [1]);
    sim.run_ok(volume.write(Lba(0), data(2, 1), None)).expect("room");
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(3)), 5);
    assert!(open(&mut sim).was_cut_off());
}
