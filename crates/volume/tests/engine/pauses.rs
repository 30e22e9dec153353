//! Work in the background goes in steps: no request waits for more than one.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;

use crate::common::{Sim, TestDevice, check, data, try_open};
use units::Lba;
use uuid::Uuid;
use volume::{FormatOptions, VolumeSpec, format};

const BLOCKS: u64 = 3_000;
/// The most blocks that may come free between two polls of requests.
const FREED_PER_STEP_MAX: u64 = 600;

/// Method: two volumes lie on every other block each. One is deleted, and the poll of the background that brings the
/// most free blocks is looked at.
#[test]
fn what_a_deleted_volume_leaves_comes_back_step_by_step() {
    let device = TestDevice::new(1 << 15, false);
    let mut sim = Sim::new(device.clone(), 9);
    let options = FormatOptions { uuid: Uuid::from_u128(42) };
    sim.run_ok(format(&device, &options)).expect("in bounds");
    let shard = sim.run_ok(try_open(device)).expect("sound");
    let (committing, background) = (shard.clone(), shard.clone());
    sim.spawn(async move { committing.run_committer().await });
    let largest = Rc::new(Cell::new(0));
    let noted = largest.clone();
    sim.spawn(async move {
        let free = || background.capacity().free;
        let mut running = pin!(background.run_checkpointer());
        poll_fn(|context| {
            let before = free();
            let polled = running.as_mut().poll(context);
            noted.set(free().saturating_sub(before).max(noted.get()));
            polled
        })
        .await;
    });
    let mut volumes = Vec::new();
    for n in 1..=2 {
        let spec = VolumeSpec { uuid: Uuid::from_u128(n), name: n.to_string(), blocks: BLOCKS };
        volumes.push(sim.run_ok(shard.create_volume(spec)).expect("room"));
    }
    for lba in 0..BLOCKS {
        for volume in &volumes {
            sim.run_ok(volume.write(Lba(lba), data(1, 1), None)).expect("room");
        }
    }
    sim.run_ok(shard.checkpoint()).expect("room");
    let before = shard.capacity().free;
    largest.set(0);
    sim.run_ok(shard.delete_volume(volumes[1].uuid())).expect("there");
    sim.settle();
    sim.run_ok(shard.checkpoint()).expect("room");
    assert!(shard.capacity().free >= before + BLOCKS, "all of it came back");
    assert!(largest.get() <= FREED_PER_STEP_MAX, "{} blocks in one step", largest.get());
    check(&mut sim, &shard);
}
