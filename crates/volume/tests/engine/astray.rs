//! Reads that give something else than what lies there, and are sound when they are made again: they cost nothing.

use std::collections::BTreeMap;

use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::Shard;

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};

const DEVICE_BLOCKS: u64 = 64 << 8;

/// The next `times` reads that begin at each of these blocks give something else.
fn garble(sim: &Sim, places: impl IntoIterator<Item = Pba>, times: u32) {
    let garbled: BTreeMap<u64, u32> = places.into_iter().map(|pba| (pba.0, times)).collect();
    sim.device.faults(|faults| faults.garbled_reads = garbled);
}

/// How many of the reads that were to be garbled were made.
fn garbled(sim: &Sim, times: u32) -> usize {
    let mut made = 0;
    sim.device.faults(|faults| {
        made = faults.garbled_reads.values().filter(|left| **left < times).count();
    });
    made
}

fn journal_of(shard: &Shard<TestDevice>) -> impl Iterator<Item = Pba> + use<> {
    let superblock = *shard.superblock();
    let start = superblock.extent(0).start.plus(2);
    (0..u64::from(superblock.journal_blocks)).map(move |block| start.plus(block))
}

/// A volume of which all blocks are 1 in a checkpoint, and one after the other 2 in the journal alone.
fn cut_off(blocks: u64) -> (Sim, Shard<TestDevice>) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    let shard = volume.shard().clone();
    sim.run_ok(async {
        volume.write(Lba(0), data(1, blocks), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        for lba in 0..blocks {
            volume.write(Lba(lba), data(2, 1), None).await.expect("room");
        }
    });
    (Sim::new(sim.device.after_crash(&mut Random(3)), 5), shard)
}

/// All that was acknowledged is there, and stays; nothing counts as damaged.
fn is_whole(sim: &mut Sim, blocks: u64) {
    let expected = vec![2; blocks as usize];
    let shard = open(sim);
    assert_eq!(shard.mended().len(), 0);
    sim.device.faults(|faults| faults.garbled_reads.clear());
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, blocks)), expected);
    assert_eq!(shard.media_errors(), 0);
    check(sim, &shard);
    *sim = Sim::new(sim.device.after_crash(&mut Random(4)), 6);
    let shard = open(sim);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    assert_eq!(sim.run_ok(tags(&volume, 0, blocks)), expected);
}

/// P2: the last writes are compared with their checksums, and one that was acknowledged is not skipped for a wrong read.
///
/// Method: cut the power behind acknowledged writes, and garble the first one or two reads of each block of their data.
#[test]
fn a_start_skips_no_acknowledged_write_for_a_read_that_went_astray() {
    for times in [1, 2] {
        let (mut sim, _) = cut_off(100);
        let places = sim.device.find(&[2; BLOCK_SIZE]);
        assert_eq!(places.len(), 100);
        garble(&sim, places, times);
        let shard = open(&mut sim);
        assert!(garbled(&sim, times) > 0, "what is not settled was compared");
        drop(shard);
        let (mut sim, _) = cut_off(100);
        garble(&sim, sim.device.find(&[2; BLOCK_SIZE]), times);
        is_whole(&mut sim, 100);
    }
}

/// P1: the journal does not end, and no shard is refused, where a read went astray.
///
/// Method: cut the power behind records of a block each, which are read with one request or with two, and garble the first one
/// or two reads at each place of the journal, and the first one at each place alone.
#[test]
fn a_start_ends_the_journal_at_no_read_that_went_astray() {
    for (blocks, times) in [(20, 1), (20, 2), (100, 1), (100, 2)] {
        let (mut sim, shard) = cut_off(blocks);
        garble(&sim, journal_of(&shard), times);
        is_whole(&mut sim, blocks);
    }
    for place in journal_of(&cut_off(100).1).take(130) {
        let (mut sim, _) = cut_off(100);
        garble(&sim, [place], 1);
        is_whole(&mut sim, 100);
    }
}
