//! The reads of recovery have a bound that the format gives.

use crate::common::{Random, Sim, TestDevice, data, fresh, try_open};
use crate::space::bitmap_slots;
use crate::structures::Structures;
use layout::{Entry, RECORD_BLOCKS_MAX};
use units::Lba;

const DEVICE_BLOCKS: u64 = 1 << 14;
/// Copies of the superblock, and of the roots of a shard.
const COPIES: u64 = 2 + 4;

/// Recovery reads each block of the journal twice at most, to follow it and to see that nothing lies behind its end, and
/// beside that each structure once and the data that is not known to be on the media.
///
/// Method: fill the journal while no checkpoint can be written, cut the power, and count the blocks that are read until the
/// shard is there again.
#[test]
fn recovery_reads_the_journal_and_what_it_leads_to_and_no_more() {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, volume) = fresh(&device, None, 5000);
    for lba in (0..1200).step_by(100) {
        sim.run_ok(volume.write(Lba(lba), data(1, 100), None)).expect("room");
    }
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    let superblock = *volume.shard().superblock();
    device.faults(|faults| faults.held.extend(bitmap_slots(&superblock)));
    for task in 0..8 {
        let volume = volume.clone();
        sim.spawn(async move {
            for round in 0.. {
                let lba = (round * 8 + task) * 7 % 1200;
                if volume.write(Lba(lba), data(2, 1), None).await.is_err() {
                    return;
                }
            }
        });
    }
    sim.settle();

    let survivor = device.after_crash(&mut Random(5));
    let found = Structures::of(&survivor);
    let journal = found.root.journal.blocks;
    let longest = u64::from(RECORD_BLOCKS_MAX);
    let records: u64 = found.records.iter().map(|(_, record)| u64::from(record.blocks)).sum();
    assert!(records + longest > journal, "{records} of {journal} blocks: the journal is full");
    let settled = found.records.iter().map(|(_, record)| record.head.settled).max();
    let unsettled = found.records.iter().filter(|(_, r)| Some(r.head.sequence) > settled);
    let in_doubt = unsettled.flat_map(|(_, record)| &record.entries).map(|entry| match entry {
        Entry::Write { crcs, .. } => crcs.len() as u64,
        _ => 0,
    });
    let structures =
        u64::from(superblock.extent_count()) + (found.nodes.len() + found.descriptors.len()) as u64;
    let bound = COPIES + structures + 2 * (journal + longest) + in_doubt.sum::<u64>();

    let mut sim = Sim::new(survivor.clone(), 6);
    sim.run_ok(try_open(survivor.clone())).expect("sound");
    let read = survivor.blocks_read();
    assert!((records..=bound).contains(&read), "{read} blocks of {bound}, {records} of records");
}
