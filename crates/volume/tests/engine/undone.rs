//! A write that failed and is not undone yet, and what rots beside it.

use units::{Lba, Pba};
use uuid::Uuid;
use volume::VolumeError;

use crate::common::{Sim, TestDevice, check, data, fresh, journal_of, open, tags};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// P6: a write was acknowledged behind one that failed, the block that it freed was used again, and its data rots. That costs
/// its data, and nothing else.
///
/// Method: fail the data of a write whose record is written, overwrite a block meanwhile, and hold what undoes the former while
/// more is written, so that no record calls any of these settled. Cut the power, and damage what took the block's place.
#[test]
fn a_block_that_rots_beside_a_failed_write_costs_that_block() {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, false), Some(1024), 20_000);
    let superblock = *volume.shard().superblock();
    for lba in 0..4 {
        sim.run_ok(volume.write(Lba(lba), data(10 + lba as u8, 1), None)).expect("room");
    }
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    let freed = sim.device.find(data(11, 1).as_bytes());
    assert_eq!(freed.len(), 1);

    // Block 0 is written: its record gets there, its data does not.
    let journal = journal_of(&superblock);
    let outside = (0..DEVICE_BLOCKS).filter(|pba| !journal.contains(pba));
    sim.device.faults(|faults| faults.held = outside.collect());
    let (failing, writer) = (volume.clone(), volume.clone());
    let failed = sim.begin(async move { failing.write(Lba(0), data(20, 1), None).await });
    sim.settle();
    let places = sim.device.pending_data(&superblock);
    assert_eq!(places.len(), 1);
    // Block 1 waits for that.
    sim.device.faults(|faults| {
        faults.held = places.iter().map(|pba| pba.0).collect();
        faults.write_errors = places.iter().map(|pba| (pba.0, u32::MAX)).collect();
    });
    let acknowledged = sim.begin(async move { writer.write(Lba(1), data(21, 1), None).await });
    sim.settle();
    assert!(acknowledged.borrow().is_none());
    // What undoes the first does not become durable.
    sim.device.faults(|faults| faults.held = journal.collect());
    sim.settle();
    assert_eq!(acknowledged.take(), Some(Ok(())));
    for lba in 100..140 {
        let writer = volume.clone();
        sim.spawn(async move { drop(writer.write(Lba(lba), data(30, 1), None).await) });
        sim.settle();
    }
    assert!(failed.borrow().is_none(), "it is not undone");
    assert!(sim.device.block(freed[0])[0] == 30, "what was freed is used again");

    sim = Sim::new(sim.device.after_crash_without_loss(), 1);
    let rotten = sim.device.find(data(21, 1).as_bytes());
    assert_eq!(rotten.len(), 1);
    sim.device.flip(rotten[0], 100);
    let shard = open(&mut sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    let found = sim.run_ok(volume.read(crate::common::range(1, 1)));
    assert!(matches!(found, Err(VolumeError::Corrupt { pba: Pba(at), .. }) if at == rotten[0].0));
    assert_eq!(sim.run_ok(tags(&volume, 2, 2)), [12, 13]);
    assert!([10, 20].contains(&sim.run_ok(tags(&volume, 0, 1))[0]));
    sim.run_ok(volume.write(Lba(1), data(22, 1), None)).expect("room");
    check(&mut sim, &shard);
}
