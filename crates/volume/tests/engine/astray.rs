//! Reads that give something else than what lies there, and are sound when they are made again: they cost nothing.

use std::collections::BTreeMap;

use layout::NodeView;
use units::{BLOCK_SIZE, Lba, LbaRange, Pba};
use uuid::Uuid;
use volume::{Repaired, Shard, Superblock, VolumeError};

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};
use crate::fsck;
use crate::scrub::scrub;

const DEVICE_BLOCKS: u64 = 64 << 8;

/// The next `times` reads that begin at each of these blocks give something else.
fn garble(sim: &Sim, places: impl IntoIterator<Item = Pba>, times: u32) {
    let garbled: BTreeMap<u64, u32> = places.into_iter().map(|pba| (pba.0, times)).collect();
    sim.device.faults(|faults| faults.garbled_reads = garbled);
}

fn all() -> impl Iterator<Item = Pba> {
    (0..DEVICE_BLOCKS).map(Pba)
}

/// Returns the number of reads that were garbled.
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

/// REPLAY-2: the last writes are compared with their checksums, and one that was acknowledged is not skipped for a wrong read.
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

/// REPLAY-1: the journal does not end, and no shard is refused, where a read went astray.
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

/// Method: garble the first read of each block of the device.
#[test]
fn a_start_takes_nothing_for_damaged_that_one_read_gave_wrong() {
    let (mut sim, _) = cut_off(100);
    garble(&sim, all(), 1);
    let volume = open(&mut sim).volume(Uuid::from_u128(1)).expect("there");
    assert!(garbled(&sim, 1) > 5);
    drop(volume);
    let (mut sim, _) = cut_off(100);
    garble(&sim, all(), 1);
    is_whole(&mut sim, 100);
}

/// A check of a device that is not in use reports no damage for such reads either, and nothing is
/// rewritten.
///
/// Method: garble the first read at each place; and the first one or two of superblocks and roots
/// alone.
#[test]
fn a_check_of_the_whole_device_names_nothing_for_reads_that_went_astray() {
    let (sim, shard) = cut_off(100);
    let superblock = *shard.superblock();
    let roots = (0..superblock.shard_slots).flat_map(|shard| {
        [0, 1].into_iter().flat_map(move |parity| superblock.root_places(shard, parity))
    });
    let copies: Vec<Pba> = roots.chain(Superblock::places(DEVICE_BLOCKS)).collect();
    for (places, times) in [(all().collect(), 1), (copies.clone(), 1), (copies, 2)] {
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 1);
        garble(&sim, places.iter().copied(), times);
        assert_eq!(fsck::check(&mut sim).faults, [], "{times}");
        garble(&sim, places, times);
        assert_eq!(fsck::mend(&mut sim, true), Repaired::default(), "{times}");
        is_whole(&mut sim, 100);
    }
}

/// A shard of which nothing is in memory, and a volume of it with blocks here and there.
fn scattered() -> (Sim, Shard<TestDevice>) {
    let (mut sim, volume) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 1 << 20);
    sim.run_ok(async {
        for lba in (0..2000).rev().step_by(2) {
            volume.write(Lba(lba), data(lba as u8 | 1, 1), None).await.expect("room");
        }
        volume.write(Lba(5000), data(7, 64), None).await.expect("room");
        volume.shard().shutdown().await.expect("writable");
    });
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 1);
    let shard = open(&mut sim);
    (sim, shard)
}

/// Method: garble the first read at each place, then read block by block, many at once, with a comparison, and scrub.
#[test]
fn requests_fail_for_no_read_that_went_astray() {
    let (mut sim, shard) = scattered();
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    let expected: Vec<u8> =
        (0..2000).map(|lba| if lba % 2 == 1 { lba as u8 | 1 } else { 0 }).collect();
    garble(&sim, all(), 1);
    for lba in 0..2000 {
        assert_eq!(sim.run_ok(tags(&volume, lba, 1)), expected[lba as usize..][..1], "{lba}");
    }
    for step in [3, 50, 500] {
        garble(&sim, all(), 1);
        for lba in (0..2000).step_by(step) {
            let count = step.min(2000 - lba) as u64;
            let found = sim.run_ok(tags(&volume, lba as u64, count));
            assert_eq!(found, expected[lba..][..count as usize], "{lba} by {step}");
        }
        assert!(garbled(&sim, 1) >= 2000 / step, "by {step}");
    }
    garble(&sim, all(), 1);
    assert_eq!(sim.run_ok(tags(&volume, 4999, 66)), [&[0][..], &[7; 64], &[0]].concat());
    garble(&sim, all(), 1);
    sim.run_ok(volume.compare(Lba(5000), data(7, 64))).expect("equal");
    garble(&sim, all(), 1);
    assert_eq!(sim.run_ok(scrub(&shard)).0, []);
    assert_eq!((volume.stats().damaged_blocks, shard.media_errors()), (0, 0));
}

/// Method: garble the first read at each place, but of one node of a map the second, and scrub. So no look at all nodes that
/// lead to a leaf is without a read that went astray.
#[test]
fn a_scrub_calls_nothing_damaged_for_reads_that_went_astray_one_after_the_other() {
    let (mut sim, shard) = scattered();
    let nodes = sim.device.find_by(|block| NodeView::decode(block).is_ok_and(|it| it.tree == 1));
    assert!(nodes.len() > 3);
    for node in nodes {
        garble(&sim, all(), 1);
        sim.device.faults(|faults| faults.reads_spared = [(node.0, 1)].into());
        assert_eq!(sim.run_ok(scrub(&shard)).0, [], "{node}");
    }
    assert_eq!(shard.media_errors(), 0);
}

/// Data that is wrong on each read is damaged, counts once, and affects only itself.
#[test]
fn what_is_wrong_twice_is_damaged() {
    let (mut sim, shard) = scattered();
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    sim.run_ok(tags(&volume, 0, 1));
    sim.run_ok(tags(&volume, 5000, 64));
    let place = sim.device.find(&[7; BLOCK_SIZE])[10];
    sim.device.flip(place, 9);
    for _ in 0..3 {
        let wrong = sim.run_ok(volume.read(LbaRange::new(Lba(5000), 64))).expect_err("damaged");
        assert!(matches!(wrong, VolumeError::Corrupt { pba, .. } if pba == place), "{wrong:?}");
    }
    assert_eq!((volume.stats().damaged_blocks, shard.media_errors()), (1, 1));
    sim.device.flip(place, 9);
    assert_eq!(sim.run_ok(tags(&volume, 5000, 64)), [7; 64]);
}
