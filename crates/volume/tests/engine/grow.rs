//! Devices that were made larger, with their server and without.

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, tags};
use crate::fsck;
use crate::sharing::{Shards, check_both, create, fill, run, two_shards_on};
use units::Lba;
use uuid::Uuid;
use volume::{OpenError, Shard, Superblock, grow, read_superblock};

const SMALL_BLOCKS: u64 = 64 << 8;
const LARGE_BLOCKS: u64 = 200 << 8;
const VOLUME: Uuid = Uuid::from_u128(1);

/// A larger device, with a volume of 900 blocks and a clean end.
fn made_larger() -> Sim {
    let (mut sim, volume) = fresh(&TestDevice::new(SMALL_BLOCKS, true), None, 1 << 20);
    sim.run_ok(async {
        volume.write(Lba(0), data(1, 900), None).await.expect("room");
        volume.shard().shutdown().await.expect("writable");
    });
    sim.settle();
    sim.device.enlarge(LARGE_BLOCKS);
    sim
}

/// GROW-1: wherever the power is cut, the device has the old size or the new one, is sound, and holds what it held.
///
/// Method: cut the power behind each write and flush of a growth in turn. Of what was not flushed each sector survives or not
/// by a coin from the seed.
#[test]
fn a_power_cut_leaves_the_old_size_or_the_new_one() {
    let mut seen = [0; 2];
    for cut in 0.. {
        let mut sim = made_larger();
        let device = sim.device.clone();
        sim.crash_at = Some(device.completed() + cut);
        let done = sim.run(grow(&device)).is_ok();
        for seed in 0..4 {
            let mut sim = Sim::new(sim.device.after_crash(&mut Random(cut * 4 + seed)), seed);
            let device = sim.device.clone();
            let found = sim.run_ok(read_superblock(&device)).expect("it counts");
            let is_large = found.blocks == LARGE_BLOCKS;
            assert!(is_large || found.blocks == SMALL_BLOCKS, "cut {cut}: {found:?}");
            assert!(is_large || !done, "cut {cut}: a growth that is done is durable");
            seen[usize::from(is_large)] += 1;
            let report = fsck::check(&mut sim);
            assert_eq!(report.faults, [], "cut {cut} seed {seed}");
            let shard = open(&mut sim);
            let volume = shard.volume(VOLUME).expect("it is there");
            assert_eq!(sim.run_ok(tags(&volume, 0, 900)), [1; 900], "cut {cut} seed {seed}");
            sim.run_ok(volume.write(Lba(5000), data(2, 100), None)).expect("room");
            check(&mut sim, &shard);
        }
        if done {
            break;
        }
    }
    assert!(seen[0] > 100 && seen[1] > 4, "{seen:?}");
}

/// Shards that are read back one after the other keep what they have, and either can use all that was added.
#[test]
fn shards_that_were_closed_come_back_on_a_larger_device() {
    for grows_to in [LARGE_BLOCKS, SMALL_BLOCKS + 256, SMALL_BLOCKS] {
        let device = TestDevice::new(SMALL_BLOCKS, true);
        let (mut sim, shards) = two_shards_on(&device);
        let volumes = [create(&mut sim, &shards, 0, 1), create(&mut sim, &shards, 1, 2)];
        let before = fill(&mut sim, &shards, &volumes, 0);
        let capacity = shards[0].capacity().device_total;
        close(&mut sim, &shards);
        device.enlarge(grows_to);
        let grown = sim.run_ok(grow(&device)).expect("sound");
        assert_eq!((grown.0.blocks, grown.1.blocks), (SMALL_BLOCKS, grows_to));
        shards[0].may_have_grown();
        let shards = reopen(&mut sim, &shards);
        let added = shards[1].capacity().device_total - capacity;
        assert_eq!(added, grows_to - SMALL_BLOCKS);
        let volumes = [0, 1].map(|at| {
            let id = Uuid::from_u128(at as u128 + 1);
            shards[at].volume(id).expect("it was acknowledged")
        });
        for (number, lba) in &before {
            let found = sim.run_ok(tags(&volumes[*number], lba * 8, 8));
            assert_eq!(found, [7; 8], "volume {number} block {lba}");
        }
        let more = fill(&mut sim, &shards, &volumes[1..], 1 << 20).len() as u64 * 8;
        assert!(more * 100 >= added * 90 || grows_to != LARGE_BLOCKS, "{more} of {added}");
        check_both(&mut sim, &shards);
        close(&mut sim, &shards);
        assert_eq!(fsck::check(&mut Sim::new(device, 7)).faults, []);
    }
}

/// A device that is larger than it was, without a word of that, is not gone on with: shards that go on use the former size.
#[test]
fn a_shard_does_not_come_back_at_another_size_unless_that_was_said() {
    let device = TestDevice::new(SMALL_BLOCKS, true);
    let (mut sim, shards) = two_shards_on(&device);
    create(&mut sim, &shards, 0, 1);
    close(&mut sim, &shards);
    device.enlarge(LARGE_BLOCKS);
    sim.run_ok(grow(&device)).expect("sound");
    let refused = sim.run_ok(shards[0].reopen()).err();
    assert_eq!(refused, Some(OpenError::OtherDevice));
    shards[1].may_have_grown();
    let shards = reopen(&mut sim, &shards);
    check_both(&mut sim, &shards);
}

/// A device whose growth failed on the way comes back at the size that it has. Method: a write of a root, and of each superblock,
/// fails once; the shards are then read back.
#[test]
fn shards_come_back_behind_a_growth_that_failed() {
    let superblock = Superblock::for_device(Uuid::from_u128(42), SMALL_BLOCKS).expect("in bounds");
    let large = Superblock { blocks: LARGE_BLOCKS, ..superblock };
    let [first, last] = Superblock::places(LARGE_BLOCKS);
    let stale = Superblock::places(SMALL_BLOCKS)[1];
    for refused in [large.root_places(3, 1)[1], last, first, stale] {
        let device = TestDevice::new(SMALL_BLOCKS, true);
        let (mut sim, shards) = two_shards_on(&device);
        let volume = create(&mut sim, &shards, 0, 1);
        sim.run_ok(volume.write(Lba(0), data(1, 100), None)).expect("room");
        close(&mut sim, &shards);
        device.enlarge(LARGE_BLOCKS);
        device.faults(|faults| faults.write_errors.extend([(refused.0, 1)]));
        assert!(sim.run_ok(grow(&device)).is_err(), "{refused}");
        shards[0].may_have_grown();
        let shards = reopen(&mut sim, &shards);
        let volume = shards[0].volume(VOLUME).expect("it was acknowledged");
        assert_eq!(sim.run_ok(tags(&volume, 0, 100)), [1; 100]);
        sim.run_ok(volume.write(Lba(500), data(2, 100), None)).expect("it takes changes");
        check_both(&mut sim, &shards);
    }
}

fn close(sim: &mut Sim, shards: &Shards) {
    for shard in shards.clone() {
        run(sim, shards, async move { shard.close().await }).expect("writable");
    }
}

fn reopen(sim: &mut Sim, shards: &Shards) -> Shards {
    let back: Vec<Shard<TestDevice>> =
        shards.iter().map(|shard| sim.run_ok(shard.reopen()).expect("it is as it says")).collect();
    for shard in &back {
        let (a, b) = (shard.clone(), shard.clone());
        sim.spawn(async move { a.run_committer().await });
        sim.spawn(async move { b.run_checkpointer().await });
    }
    back
}
