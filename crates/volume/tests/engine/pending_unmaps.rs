//! The bound of the ranges that are deallocated and not yet taken out of a map: a descriptor has room for so many.
//!
//! Method: nodes that do not come from the device hold the reclaimer up.

use std::cell::Cell;
use std::rc::Rc;

use layout::PENDING_UNMAPS_MAX;
use units::Lba;
use uuid::Uuid;
use volume::Volume;

use crate::common::{Random, Sim, TestDevice, check, crash, data, fresh, open, range, tags};
use crate::forge::place_of;

const BLOCKS: u64 = 1 << 20;
const VOLUME: u32 = 1;
/// Distance of the mapped blocks. A range as long as that stays pending when it is deallocated.
const STEP: u64 = 1100;
const MAX: u64 = PENDING_UNMAPS_MAX as u64;

/// A volume of which the first block of each step is mapped. Nothing of its map is in memory.
fn mapped(steps: u64) -> (Sim, Volume<TestDevice>) {
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 14, true), None, BLOCKS);
    sim.run_ok(async {
        for step in 0..steps {
            volume.write(Lba(step * STEP), data(1, 1), None).await.expect("room");
        }
        volume.shard().shutdown().await.expect("writable");
    });
    let volume = crash(&mut sim);
    (sim, volume)
}

/// Begins to deallocate steps, each by itself; counts those that are done.
fn deallocate(
    sim: &mut Sim,
    volume: &Volume<TestDevice>,
    steps: std::ops::Range<u64>,
) -> Rc<Cell<u64>> {
    let done = Rc::new(Cell::new(0));
    for step in steps {
        let (volume, done) = (volume.clone(), done.clone());
        sim.spawn(async move {
            volume.unmap(range(step * STEP, STEP)).await.expect("deallocated in the end");
            done.set(done.get() + 1);
        });
    }
    sim.settle();
    done
}

/// Returns the tags of the first blocks of the steps.
fn first_tags(sim: &mut Sim, volume: &Volume<TestDevice>, steps: u64) -> Vec<u8> {
    (0..steps).map(|step| sim.run_ok(tags(volume, step * STEP, 1))[0]).collect()
}

fn hold_map(sim: &Sim) {
    let nodes = sim.device.find_by(|block| block.starts_with(b"FMN1"));
    sim.device.faults(|faults| faults.held_reads.extend(nodes.iter().map(|pba| pba.0)));
}

/// The ranges that a descriptor has count after the start, too.
#[test]
fn ranges_that_were_pending_at_the_last_checkpoint_count() {
    let steps = 2 * MAX + 10;
    let (mut sim, volume) = mapped(steps);
    hold_map(&sim);
    let done = deallocate(&mut sim, &volume, 0..MAX);
    assert_eq!(done.get(), MAX);
    sim.run_ok(volume.shard().checkpoint()).expect("writable");

    sim = Sim::new(sim.device.after_crash(&mut Random(5)), 2);
    let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("durable");
    hold_map(&sim);
    let done = deallocate(&mut sim, &volume, MAX..2 * MAX);
    assert_eq!(done.get(), 0, "as many as may be are pending");
    sim.run_ok(volume.shard().checkpoint()).expect("writable");

    sim.device.faults(|faults| faults.held_reads.clear());
    sim.settle();
    assert_eq!(done.get(), MAX);
    let volume = crash(&mut sim);
    let found = first_tags(&mut sim, &volume, steps);
    assert_eq!(found, [vec![0; 2 * MAX as usize], vec![1; 10]].concat());
    check(&mut sim, volume.shard());
}

/// A write into the middle of a pending range leaves two, and the second counts.
#[test]
fn a_range_that_a_write_splits_counts_twice() {
    let (steps, first) = (900, 800);
    let (mut sim, volume) = mapped(steps);
    let leaf = place_of(&sim.device, VOLUME, 0).0;
    sim.device.faults(|faults| faults.held_reads.extend([leaf.0]));
    // The reclaimer takes the shortest first.
    sim.run_ok(volume.unmap(range(0, STEP - 1))).expect("possible");
    sim.settle();
    let done = deallocate(&mut sim, &volume, first..first + MAX - 3);
    assert_eq!(done.get(), MAX - 3);
    for step in [first, first + 1] {
        let middle = Lba(step * STEP + STEP / 2);
        sim.run_ok(volume.write(middle, data(2, 1), None)).expect("room");
    }
    let done = deallocate(&mut sim, &volume, first + MAX..first + MAX + 10);
    assert_eq!(done.get(), 0, "as many as may be are pending");
    sim.run_ok(volume.shard().checkpoint()).expect("writable");

    sim.device.faults(|faults| faults.held_reads.clear());
    sim.settle();
    assert_eq!(done.get(), 10);
    let volume = crash(&mut sim);
    let is_gone = |step: u64| {
        let late = first + MAX..first + MAX + 10;
        step == 0 || (first..first + MAX - 3).contains(&step) || late.contains(&step)
    };
    let expected: Vec<u8> = (0..steps).map(|step| u8::from(!is_gone(step))).collect();
    assert_eq!(first_tags(&mut sim, &volume, steps), expected);
    assert_eq!(sim.run_ok(tags(&volume, first * STEP + STEP / 2 - 1, 3)), [0, 2, 0]);
    check(&mut sim, volume.shard());
}
