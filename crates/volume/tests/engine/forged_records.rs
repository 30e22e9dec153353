//! Records that a tenant made, in blocks of a journal (JOURNAL-7).

use crate::common::{
    Random, Sim, TestDevice, check, data, journal_of, open_with, tags, try_open_with,
};
use layout::{Entry, RECORD_HEADER_SIZE, RecordHead, seal_record};
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba, Slo};
use uuid::Uuid;
use volume::{
    Blocks, FormatOptions, OpenError, ShardOptions, Superblock, Terms, VolumeSpec, format,
};

const DEVICE_BLOCKS: u64 = 1 << 14;
const INTRUDER: Uuid = Uuid::from_u128(0xBAD);
const BLOCKS: u64 = 256;
const METADATA: MetadataSize = MetadataSize::Bytes64;

/// A shard without a secret, for which forged records are records: so they are well made.
pub(crate) const NONE: ShardOptions =
    ShardOptions { records_in_flight: 4, volatile_cache: None, map_memory: None, secret: 0 };
const WITH_SECRET: ShardOptions = ShardOptions { secret: 77, ..NONE };

pub(crate) fn formatted() -> (Sim, Superblock) {
    let sim_device = TestDevice::new(DEVICE_BLOCKS, false);
    let mut sim = Sim::new(sim_device.clone(), 3);
    let options = FormatOptions { uuid: Uuid::from_u128(42) };
    let superblock = sim.run_ok(format(&sim_device, &options)).expect("large enough");
    (sim, superblock)
}

/// Makes a record of one block of the first shard, from all that tenants can know.
pub(crate) fn forged(device: Uuid, numbers: u64, entries: &[Entry<'_>]) -> [u8; BLOCK_SIZE] {
    let mut block = [0; BLOCK_SIZE];
    let mut at = RECORD_HEADER_SIZE;
    for entry in entries {
        at += entry.encode(&mut block[at..]);
    }
    let head = RecordHead {
        sequence: numbers,
        incarnation: numbers,
        device,
        shard: 0,
        settled: numbers - 1,
        previous_crc: 0,
        generation: 1,
        applied: numbers - 1,
        failed: 0,
        secret: 0,
    };
    seal_record(&mut block, &head, entries.len() as u32, at - RECORD_HEADER_SIZE);
    block
}

/// Old data on the device from before it was formatted, or in the place of a new shard's journal,
/// is not replayed.
///
/// Method: fill the device with a first record that makes a volume, start the shard, and cut the
/// power before it makes one.
#[test]
fn what_lay_where_a_journal_begins_is_no_record_of_it() {
    for (options, is_there) in [(NONE, true), (WITH_SECRET, false)] {
        let (mut sim, superblock) = formatted();
        let intruder = Entry::Create {
            volume: 1,
            uuid: INTRUDER,
            blocks: 1 << 20,
            slo: Slo::default(),
            name: "intruder".into(),
            access: Vec::new().into(),
        };
        let record = forged(superblock.uuid, 1, &[intruder]);
        let area = superblock.data_start().0..superblock.data_end().0;
        area.for_each(|pba| sim.device.put(Pba(pba), record));
        drop(open_with(&mut sim, options));
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 4);
        let shard = open_with(&mut sim, options);
        assert_eq!(shard.volume(INTRUDER).is_some(), is_there, "{options:?}");
        check(&mut sim, &shard);
    }
}

/// A start that would choose another secret keeps that of the root: records of before have it.
#[test]
fn a_shard_keeps_its_secret() {
    let (mut sim, _) = formatted();
    let shard = open_with(&mut sim, WITH_SECRET);
    let spec = VolumeSpec { uuid: Uuid::from_u128(1), name: "v".into(), blocks: 1000 };
    let volume = sim.run_ok(shard.create_volume(spec)).expect("room");
    sim.run_ok(volume.write(Lba(0), data(10, 1), None)).expect("room");
    let uuid = volume.uuid();
    for (start, secret) in (1_u8..).zip([78, 79, 0]) {
        sim = Sim::new(sim.device.after_crash(&mut Random(1)), 4);
        let shard = open_with(&mut sim, ShardOptions { secret, ..NONE });
        let volume = shard.volume(uuid).expect("its creation was acknowledged");
        let written: Vec<u8> = (10..10 + start).collect();
        assert_eq!(sim.run_ok(tags(&volume, 0, u64::from(start))), written);
        let next = volume.write(Lba(u64::from(start)), data(10 + start, 1), None);
        sim.run_ok(next).expect("room");
    }
}

/// Metadata that fills blocks of a record is no record, whatever it looks like.
///
/// Method: write blocks with such metadata, and start the shard again.
#[test]
fn metadata_that_looks_like_a_record_keeps_no_shard_from_starting() {
    for options in [NONE, WITH_SECRET] {
        let (mut sim, superblock) = formatted();
        let shard = open_with(&mut sim, options);
        let record = forged(superblock.uuid, 1 << 40, &[]);
        // Behind the heads of record and entry, one run, and the checksums.
        let before = RECORD_HEADER_SIZE + 24 + 8 + 4 * BLOCKS as usize;
        let mut metadata = vec![1; BLOCKS as usize * METADATA.bytes()];
        let at = before.next_multiple_of(BLOCK_SIZE) - before;
        metadata[at..at + BLOCK_SIZE].copy_from_slice(&record);
        let written = Blocks { data: data(7, BLOCKS), metadata: metadata.clone().into() };
        let spec = VolumeSpec { uuid: Uuid::from_u128(1), name: "v".into(), blocks: 1000 };
        sim.run_ok(async {
            let terms = Terms { metadata: METADATA, ..Terms::default() };
            let volume = shard.create_volume_under(spec, terms).await.expect("room");
            volume.write(Lba(0), written, None).await.expect("room");
        });
        let journal = journal_of(&superblock);
        let found = sim.device.find(&record);
        assert!(found.len() == 1 && journal.contains(&found[0].0), "{found:?}");
        let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 4);
        if options.secret == 0 {
            let opened = sim.run_ok(try_open_with(sim.device.clone(), options));
            assert!(matches!(opened, Err(OpenError::Journal { .. })), "{:?}", opened.err());
            continue;
        }
        let shard = open_with(&mut sim, options);
        let volume = shard.volume(Uuid::from_u128(1)).expect("durable");
        let found = sim.run_ok(volume.read(crate::common::range(0, BLOCKS))).expect("sound");
        assert!(found.metadata[..] == metadata[..]);
        check(&mut sim, &shard);
    }
}
