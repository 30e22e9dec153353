//! The start of several shards, and the power going meanwhile.

use std::collections::BTreeSet;

use crate::common::{Crashed, Random, Sim, TestDevice, data, fresh};
use units::Lba;
use uuid::Uuid;
use volume::{ExtentAllocator, OpenError, Recovered, Shard, ShardOptions, read_superblock};

const DEVICE_BLOCKS: u64 = 1 << 14;
/// What a volume that stays has in its blocks.
const TAG: u8 = 7;

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
async fn start(device: TestDevice, order: &[u16]) -> Result<Vec<Shard<TestDevice>>, OpenError> {
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

/// W5: an extent that was given back by a root that no flush covers is nobody's else before that root is durable, also if a core
/// comes that was not there before.
///
/// Method: fail each flush of a shard that gives extents back, start it with another shard that comes first, cut the
/// power at each write and flush of that, and start them again.
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
