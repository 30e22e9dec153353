//! A whole device, damaged: checked, repaired, checked again, opened, read.
//!
//! Promises, whatever the blocks hold:
//! - a check writes nothing; neither it nor a repair panics, runs for ever or goes beyond the device;
//! - behind a repair that succeeds, a check finds nothing that this repair would do something about, and
//!   the device opens;
//! - where checksums tell what is damaged, each block of a volume is what it was, or an error, or as old
//!   as what was announced makes it. A volume of which nothing was announced is as it was.

use std::ops::Range;

use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    Fault, FsckOptions, Loss, Problem, Shard, Volume, VolumeSpec, active_shards, fsck,
    read_superblock, repair,
};

use crate::image::{
    self, Damaged, FAR, ImageDevice, READ_BLOCKS, SHARDS_MAX, blocks, damaged, history,
    may_look_torn, open, run_with,
};
use crate::input::Input;

/// Faults of a device: there are no more than blocks that something can name.
const FAULTS_MAX: usize = 1 << 20;
/// Blocks written behind a repair, to where nothing should be.
const MORE_BLOCKS: u64 = 64;

/// The first byte of the input says whether the first repair may lose data; then mutations follow.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let at_once = input.u8() & 1 != 0;
    let damaged = damaged(&mut input);
    let device = ImageDevice::new(damaged.image.clone());
    if !at_once {
        mend(&device, &damaged, false);
    }
    mend(&device, &damaged, true);
}

/// Returns the findings of a check, if it can read the device.
fn check(device: &ImageDevice) -> Option<Vec<Fault>> {
    device.take_writes();
    let options = FsckOptions { read_data: true };
    let report = run_with(&[], fsck(device, options, |_, _| ())).expect("a check ends");
    assert_eq!(device.take_writes(), 0, "a check writes nothing");
    let faults = report.ok()?.faults;
    assert!(faults.len() < FAULTS_MAX, "{} faults", faults.len());
    faults.iter().for_each(|fault| drop(fault.problem.to_string()));
    Some(faults)
}

/// Repairs the device, and looks at what came of it.
fn mend(device: &ImageDevice, damaged: &Damaged, consent: bool) {
    let Some(before) = check(device) else { return };
    let repaired = run_with(&[], repair(device, consent, |_, _| ())).expect("a repair ends");
    let writes = device.take_writes();
    if before.is_empty() {
        assert_eq!(writes, 0, "what is sound is not written");
        return;
    }
    let after = check(device).expect("what could be looked at can be looked at");
    if repaired.is_err() {
        return;
    }
    let mends = |fault: &&Fault| {
        fault.problem.repair().is_some_and(|repair| consent || !repair.loses_data())
    };
    let left = after.iter().find(mends);
    assert_eq!(left, None, "a repair leaves what it repairs; before: {before:#?}");
    let superblock = run_with(&[], read_superblock(device)).expect("ends").expect("it was read");
    let active = run_with(&[], active_shards(device, &superblock)).expect("ends").expect("read");
    // One that has no root looks like one that was never used.
    if active.is_empty() || active.len() > SHARDS_MAX {
        return;
    }
    let copy = ImageDevice::new(device.image());
    let shards = run_with(&[], open(&copy, None)).expect("recovery ends");
    let shards = shards.expect("a repaired device can be opened");
    if !damaged.is_covered_up {
        run_with(&shards, look(&shards, &before, damaged)).expect("requests end");
    }
}

/// The volumes hold what they should, also when more is written.
async fn look(shards: &[Shard<ImageDevice>], before: &[Fault], damaged: &Damaged) {
    let shard = &shards[0];
    let torn = damaged.places.iter().any(|place| may_look_torn(*place));
    let all_lose = before.iter().any(|fault| match &fault.problem {
        Problem::Root { twin } => !twin,
        Problem::Lost(loss) => matches!(loss, Loss::Volumes { .. } | Loss::Journal { .. }),
        Problem::Unopened(_) => true,
        _ => false,
    });
    for round in 0..2 {
        for number in 1..=2 {
            let uuid = Uuid::from_u128(number);
            let named = |fault: &Fault| match fault.problem {
                Problem::Lost(Loss::Volume { number: lost, .. }) => u128::from(lost) == number,
                _ => fault.volume.as_ref().is_some_and(|(id, _)| *id == uuid),
            };
            let is_sound = !torn && !all_lose && !before.iter().any(named);
            match shard.volume(uuid) {
                Some(volume) => look_at(&volume, is_sound).await,
                None => assert!(!is_sound, "volume {number} is gone: {before:#?}"),
            }
        }
        if round == 0 {
            let spec = VolumeSpec { uuid: Uuid::from_u128(4), name: "more".into(), blocks: 5000 };
            let Ok(more) = shard.create_volume(spec).await else { return };
            for step in 0..4 {
                let data = vec![0xDD; BLOCK_SIZE * MORE_BLOCKS as usize];
                let data = blocks(&data, more.metadata_size());
                let _ = more.write(Lba(step * MORE_BLOCKS), data, None).await;
            }
        }
    }
}

async fn look_at(volume: &Volume<ImageDevice>, is_sound: bool) {
    look_in(volume, 0..READ_BLOCKS, is_sound).await;
    look_in(volume, FAR, is_sound).await;
}

async fn look_in(volume: &Volume<ImageDevice>, lbas: Range<u64>, is_sound: bool) {
    let range = LbaRange::new(Lba(lbas.start), lbas.end - lbas.start);
    let whole = volume.read(range).await.map(|read| read.to_vec());
    for lba in lbas.clone() {
        let held = history(lba);
        let last = held.last().copied();
        let block = match &whole {
            Ok(bytes) => {
                Ok(bytes[(lba - lbas.start) as usize * BLOCK_SIZE..][..BLOCK_SIZE].to_vec())
            }
            Err(_) => volume.read(LbaRange::new(Lba(lba), 1)).await.map(|read| read.to_vec()),
        };
        match block {
            Ok(bytes) => {
                let is_one = bytes.iter().all(|byte| *byte == bytes[0]);
                let known =
                    if is_sound { last == Some(bytes[0]) } else { held.contains(&bytes[0]) };
                let name = volume.name();
                assert!(is_one && known, "volume {name}, block {lba}: {} of {held:?}", bytes[0]);
            }
            Err(error) => assert!(!is_sound, "a sound block cannot be read: {error}"),
        }
    }
}

/// Each kind of damage to each block, every other one covered up.
pub fn seeds() -> Vec<Vec<u8>> {
    let seeds = image::seeds().into_iter().enumerate().map(|(number, seed)| {
        let mut seed = [&[(number / 2) as u8], &seed[..]].concat();
        if let Some(mode) = seed.get_mut(4).filter(|_| number % 2 == 0) {
            *mode |= 0x80;
        }
        seed
    });
    seeds.collect()
}
