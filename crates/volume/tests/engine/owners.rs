//! Blocks with two owners, owned blocks that are free or outside the shard, blocks in use without
//! an owner, and wrong counts: `fsck` and a scrub of the shard in use find and report each.

use layout::Descriptor;
use units::{BLOCK_SIZE, Lba, Pba};
use uuid::Uuid;
use volume::{Fault, Finding, Owner, Problem, Structure, VolumeSpec};

use crate::common::{Random, Sim, TestDevice, data, fresh, open, tags};
use crate::forge::{forge, place_of, redirect};
use crate::fsck::{check, mend};
use crate::scrub::scrub;

const DEVICE_BLOCKS: u64 = 64 << 8;

/// Volumes 1 and 2, each with 500 blocks, and shut down.
fn filled() -> Sim {
    let (mut sim, first) = fresh(&TestDevice::new(DEVICE_BLOCKS, true), None, 2000);
    let shard = first.shard().clone();
    sim.run_ok(async {
        let spec = VolumeSpec { uuid: Uuid::from_u128(2), name: "second".to_owned(), blocks: 2000 };
        let second = shard.create_volume(spec).await.expect("room");
        first.write(Lba(0), data(1, 500), None).await.expect("room");
        second.write(Lba(0), data(2, 500), None).await.expect("room");
        shard.shutdown().await.expect("writable");
    });
    Sim::new(sim.device.after_crash(&mut Random(3)), 5)
}

fn found(sim: &mut Sim) -> Vec<Finding> {
    let faults = check(sim).faults.into_iter();
    let findings = faults.map(|Fault { problem, .. }| match problem {
        Problem::Check(finding) => finding,
        problem => panic!("{problem}"),
    });
    findings.collect()
}

type Told = (Pba, Structure, Option<(u128, Option<u64>)>);

/// Returns the reports of a scrub, with the maps on the device and with all of them in memory;
/// checks that a second scrub reports the same except for `mended`.
fn scrubbed(sim: &Sim, mended: Option<Structure>) -> Vec<Told> {
    let told = [false, true].map(|loads| {
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(4)), 6);
        let shard = open(&mut sim);
        for uuid in [1, 2].into_iter().filter(|_| loads) {
            let volume = shard.volume(Uuid::from_u128(uuid)).expect("its descriptor is whole");
            sim.run_ok(tags(&volume, 0, 500));
        }
        let mut told = || -> Vec<Told> {
            let damaged = sim.run_ok(scrub(&shard)).0.into_iter();
            let told = damaged.map(|it| {
                let volume = it.volume.map(|(uuid, _)| (uuid.as_u128(), it.lba.map(|lba| lba.0)));
                (it.pba, it.structure, volume)
            });
            told.collect()
        };
        let (first, second) = (told(), told());
        let left = first.iter().filter(|(_, structure, _)| Some(*structure) != mended);
        assert!(left.eq(&second), "{first:?} {second:?}");
        first
    });
    assert_eq!(told[0], told[1]);
    told.into_iter().next().expect("two")
}

fn volume_of(sim: &mut Sim, is_meant: impl Fn(&Finding) -> bool) -> Option<(Uuid, String)> {
    let is_meant =
        |fault: &Fault| matches!(&fault.problem, Problem::Check(found) if is_meant(found));
    check(sim).faults.into_iter().find(is_meant).expect("it was found").volume
}

fn expect_second(sim: &mut Sim) {
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(4)), 6);
    let second = open(&mut sim).volume(Uuid::from_u128(2)).expect("nothing of it is damaged");
    assert_eq!(sim.run_ok(tags(&second, 0, 500)), [2; 500]);
}

fn crc_of(tag: u8) -> u32 {
    checksum::crc32c(&[tag; BLOCK_SIZE])
}

/// The block of volume 1 that the tests have its leaf name elsewhere.
const LBA: u64 = 10;
const OWNER: Owner = Owner::Data { volume: 1, lba: LBA };

#[test]
fn a_block_that_two_name() {
    let mut sim = filled();
    assert_eq!(found(&mut sim), []);
    let (_, was) = place_of(&sim.device, 1, LBA);
    let (_, others) = place_of(&sim.device, 2, 20);
    redirect(&sim.device, 1, LBA, (others, crc_of(2)));
    let second = Owner::Data { volume: 2, lba: 20 };
    let shared = Finding::Shared { pba: others, first: OWNER, second };
    assert_eq!(found(&mut sim), [Finding::Leaked { pba: was }, shared.clone()]);
    let named = volume_of(&mut sim, |finding| *finding == shared);
    let told = [
        (was, Structure::Leaked, None),
        (others, Structure::Shared, Some((1, Some(LBA)))),
        (others, Structure::Shared, Some((2, Some(20)))),
    ];
    assert!(told.iter().all(|told| scrubbed(&sim, None).contains(told)));
    assert_eq!(scrubbed(&sim, None).len(), 3);
    assert_eq!(named, Some((Uuid::from_u128(2), "second".to_owned())));
    mend(&mut sim, false);
    assert_eq!(found(&mut sim), [shared], "its right owner is unknown");
    expect_second(&mut sim);
}

#[test]
fn a_block_that_is_free() {
    let mut sim = filled();
    let (_, was) = place_of(&sim.device, 1, LBA);
    // In the same extent, behind all that was ever written there.
    let free = Pba((was.0..DEVICE_BLOCKS).find(|pba| is_blank(&sim, *pba)).expect("room"));
    redirect(&sim.device, 1, LBA, (free, crc_of(0)));
    let not_in_use = Finding::NotInUse { pba: free, owner: OWNER };
    assert_eq!(found(&mut sim), [Finding::Leaked { pba: was }, not_in_use.clone()]);
    assert!(volume_of(&mut sim, |finding| *finding == not_in_use).is_some());
    let told = [(free, Structure::Free, Some((1, Some(LBA)))), (was, Structure::Leaked, None)];
    assert_eq!(scrubbed(&sim, Some(Structure::Free)), told);
    mend(&mut sim, false);
    assert_eq!(found(&mut sim), []);
    expect_second(&mut sim);
}

fn is_blank(sim: &Sim, pba: u64) -> bool {
    sim.device.block(Pba(pba)) == [0; BLOCK_SIZE]
}

#[test]
fn a_block_of_no_extent_of_the_shard() {
    let mut sim = filled();
    let (_, was) = place_of(&sim.device, 1, LBA);
    let beyond = Pba(DEVICE_BLOCKS - 300);
    redirect(&sim.device, 1, LBA, (beyond, crc_of(0)));
    let outside = Finding::Outside { pba: beyond, owner: OWNER };
    assert_eq!(found(&mut sim), [Finding::Leaked { pba: was }, outside.clone()]);
    let told = [(beyond, Structure::Outside, Some((1, Some(LBA)))), (was, Structure::Leaked, None)];
    assert_eq!(scrubbed(&sim, None), told);
    mend(&mut sim, false);
    assert_eq!(found(&mut sim), [outside]);
    expect_second(&mut sim);
}

#[test]
fn a_block_without_an_owner() {
    let mut sim = filled();
    let (_, used) = place_of(&sim.device, 1, LBA);
    let free = (used.0..DEVICE_BLOCKS).find(|pba| is_blank(&sim, *pba)).expect("room");
    let superblock = layout::Superblock::decode(&sim.device.block(Pba(0))).expect("whole");
    let (extent, bit) = superblock.locate(Pba(free)).expect("within an extent");
    // The slot that is not led to may say anything.
    for slot in [0, 1] {
        let pba = superblock.extent(extent).start.plus(slot);
        forge(&sim.device, pba, |bits| bits[bit as usize / 8] |= 1 << (bit % 8));
    }
    assert_eq!(found(&mut sim), [Finding::Leaked { pba: Pba(free) }]);
    assert_eq!(scrubbed(&sim, None), [(Pba(free), Structure::Leaked, None)]);
    assert_eq!(mend(&mut sim, false).shards, 1);
    assert_eq!(found(&mut sim), []);
    expect_second(&mut sim);
}

#[test]
fn a_count_that_is_wrong() {
    let mut sim = filled();
    let is_first =
        |block: &[u8]| Descriptor::decode(block).is_ok_and(|it| it.uuid == Uuid::from_u128(1));
    let places = sim.device.find_by(is_first);
    for pba in places {
        forge(&sim.device, pba, |block| block[32] ^= 1);
    }
    let faults = check(&mut sim).faults;
    let Problem::Check(Finding::Count { kept, found: there, .. }) = faults[0].problem else {
        panic!("{faults:?}")
    };
    assert_eq!((kept, there, faults.len()), (501, 500, 1));
    assert_eq!(faults[0].volume.as_ref().map(|(uuid, _)| *uuid), Some(Uuid::from_u128(1)));
    let told = scrubbed(&sim, None);
    assert_eq!((told.len(), told[0].1, told[0].2), (1, Structure::Count, Some((1, None))));
    mend(&mut sim, false);
    assert_eq!(found(&mut sim), []);
    expect_second(&mut sim);
}
