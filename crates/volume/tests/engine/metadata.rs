//! Metadata of blocks goes where the block goes.

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, open_with, range};
use layout::Record;
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba};
use uuid::Uuid;
use volume::{
    Blocks, CompareError, FsckOptions, Shard, ShardOptions, Terms, Volume, VolumeError, VolumeSpec,
    fsck,
};

const SIZES: [MetadataSize; 3] =
    [MetadataSize::Bytes8, MetadataSize::Bytes16, MetadataSize::Bytes64];
const UUID: Uuid = Uuid::from_u128(77);

/// Blocks of `tag`, the metadata of block `n` being `tag + n`.
fn blocks(size: MetadataSize, tag: u8, count: u64) -> Blocks {
    let of = |n: u64| vec![tag.wrapping_add(n as u8); size.bytes()];
    let metadata: Vec<u8> = (0..count).flat_map(of).collect();
    Blocks { data: data(tag, count), metadata: metadata.into() }
}

/// First bytes of data and of metadata of each block, all others being the same.
async fn pairs(volume: &Volume<TestDevice>, start: u64, count: u64) -> Vec<(u8, u8)> {
    let found = volume.read(range(start, count)).await.expect("sound");
    let bytes = found.to_vec();
    let each = volume.metadata_size().bytes();
    assert_eq!(found.metadata.len() as u64, count * each as u64);
    let uniform = |bytes: &[u8]| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    };
    let all = bytes.chunks(BLOCK_SIZE).zip(found.metadata.chunks(each));
    all.map(|(data, metadata)| (uniform(data), uniform(metadata))).collect()
}

fn create(sim: &mut Sim, shard: &Shard<TestDevice>, metadata: MetadataSize) -> Volume<TestDevice> {
    let spec = VolumeSpec { uuid: UUID, name: "with metadata".into(), blocks: 5000 };
    let terms = Terms { metadata, ..Terms::default() };
    sim.run_ok(shard.create_volume_under(spec, terms)).expect("room")
}

fn reopen(sim: &mut Sim) -> Volume<TestDevice> {
    let survivor = sim.device.after_crash(&mut sim.random);
    *sim = Sim::new(survivor, 2);
    let volume = open(sim).volume(UUID).expect("durable");
    assert!(!volume.metadata_size().is_none());
    volume
}

/// Written, overwritten in part, deallocated, rewritten, shrunk and grown: read from memory, behind
/// a replay, and from the device.
#[test]
fn metadata_is_read_back_with_its_block() {
    for size in SIZES {
        let device = TestDevice::new(1 << 16, true);
        let (mut sim, plain) = fresh(&device, None, 100);
        let volume = create(&mut sim, plain.shard(), size);
        assert_eq!(volume.metadata_size(), size);
        sim.run_ok(async {
            volume.write(Lba(10), blocks(size, 0x10, 6), None).await.expect("room");
            volume.write(Lba(12), blocks(size, 0x40, 2), None).await.expect("room");
            volume.unmap(range(14, 1)).await.expect("possible");
            volume.write(Lba(4000), blocks(size, 0x60, 3), None).await.expect("room");
            volume.resize(4001).await.expect("possible");
            volume.resize(5000).await.expect("possible");
            plain.write(Lba(0), data(9, 1), None).await.expect("room");
        });
        let expected = [
            (0, 0),
            (0x10, 0x10),
            (0x10, 0x11),
            (0x40, 0x40),
            (0x40, 0x41),
            (0, 0),
            (0x10, 0x15),
            (0, 0),
        ];
        let mut volume = volume;
        for round in 0..3 {
            assert_eq!(sim.run_ok(pairs(&volume, 9, 8)), expected, "round {round}");
            assert_eq!(sim.run_ok(pairs(&volume, 4000, 3)), [(0x60, 0x60), (0, 0), (0, 0)]);
            check(&mut sim, volume.shard());
            if round == 1 {
                sim.run_ok(volume.shard().shutdown()).expect("writable");
            }
            volume = reopen(&mut sim);
        }
        let device = sim.device.clone();
        let found = sim.run_ok(fsck(&device, FsckOptions { read_data: true }, |_, _| {}));
        assert!(found.expect("ours").faults.is_empty());
    }
}

/// Maps of many leaves of narrow and of wide keys, split, merged and paged, against a model.
#[test]
fn maps_with_metadata_behave_like_an_array() {
    for (seed, size) in (1..).zip(SIZES) {
        let device = TestDevice::new(1 << 16, true);
        let (mut sim, plain) = fresh(&device, None, 100);
        drop(plain);
        let options = ShardOptions { map_memory: Some(40_000), ..ShardOptions::default() };
        let survivor = sim.device.after_crash(&mut sim.random);
        sim = Sim::new(survivor, seed);
        let shard = open_with(&mut sim, options);
        let mut volume = create(&mut sim, &shard, size);
        let mut model = vec![(0, 0); 5000];
        let mut random = Random(seed);
        for step in 0..600_u64 {
            let start = random.below(4900);
            let count = 1 + random.below(if step.is_multiple_of(10) { 100 } else { 8 });
            let end = (start + count) as usize;
            if random.below(4) > 0 {
                let tag = 1 + random.below(250) as u8;
                sim.run_ok(volume.write(Lba(start), blocks(size, tag, count), None)).expect("room");
                for (n, place) in model[start as usize..end].iter_mut().enumerate() {
                    *place = (tag, tag.wrapping_add(n as u8));
                }
            } else {
                sim.run_ok(volume.unmap(range(start, count))).expect("possible");
                model[start as usize..end].fill((0, 0));
            }
            if step % 150 == 149 {
                if step == 299 {
                    sim.run_ok(volume.shard().checkpoint()).expect("writable");
                }
                let survivor = sim.device.after_crash(&mut sim.random);
                sim = Sim::new(survivor, step);
                volume = open_with(&mut sim, options).volume(UUID).expect("durable");
                assert_eq!(sim.run_ok(pairs(&volume, 0, 5000)), model, "step {step}");
                check(&mut sim, volume.shard());
            }
        }
    }
}

#[test]
fn blocks_come_with_the_metadata_that_they_have() {
    let device = TestDevice::new(1 << 16, true);
    let (mut sim, plain) = fresh(&device, None, 100);
    let (eight, sixteen) = (MetadataSize::Bytes8, MetadataSize::Bytes16);
    let volume = create(&mut sim, plain.shard(), eight);
    let bare = Blocks::from(data(1, 2));
    let refused = |len_bytes, wanted_bytes| Err(VolumeError::Metadata { len_bytes, wanted_bytes });
    sim.run_ok(async {
        assert_eq!(volume.write(Lba(0), bare.clone(), None).await, refused(0, 16));
        let too_much = blocks(sixteen, 1, 2);
        assert_eq!(volume.write(Lba(0), too_much.clone(), None).await, refused(32, 16));
        assert_eq!(plain.write(Lba(0), too_much, None).await, refused(32, 0));
        let compared = volume.compare(Lba(0), bare.clone()).await;
        assert_eq!(compared, Err(VolumeError::Metadata { len_bytes: 0, wanted_bytes: 16 }.into()));
        let both = volume.compare_and_write(Lba(0), blocks(eight, 0, 2), bare).await;
        assert!(matches!(both, Err(CompareError::Volume(VolumeError::Metadata { .. }))));
    });
    let spec = VolumeSpec { uuid: UUID, name: "again".into(), blocks: 1 };
    let terms = Terms { metadata: sixteen, ..Terms::default() };
    let again = sim.run_ok(plain.shard().create_volume_under(spec, terms));
    assert_eq!(again.map(drop), Err(VolumeError::Exists(UUID)));
}

/// Comparisons cover data and metadata; where they differ is counted as both lie on the wire.
#[test]
fn comparisons_cover_the_metadata() {
    let device = TestDevice::new(1 << 16, true);
    let (mut sim, plain) = fresh(&device, None, 100);
    let size = MetadataSize::Bytes16;
    let volume = create(&mut sim, plain.shard(), size);
    sim.run_ok(async {
        volume.write(Lba(5), blocks(size, 7, 3), None).await.expect("room");
        assert_eq!(volume.compare(Lba(5), blocks(size, 7, 3)).await, Ok(()));
        let mut other = blocks(size, 7, 3);
        other.metadata[16 + 3] ^= 1;
        let at = |offset_bytes| Err(CompareError::Miscompare { offset_bytes });
        let differs = at(4112 + 4096 + 3);
        assert_eq!(volume.compare(Lba(5), other.clone()).await, differs);
        let new = blocks(size, 0x20, 3);
        assert_eq!(volume.compare_and_write(Lba(5), other, new.clone()).await, differs);
        // In the data of the last block, behind metadata of two others.
        let mut bytes = blocks(size, 7, 3).data.as_bytes().to_vec();
        bytes[2 * BLOCK_SIZE + 9] ^= 1;
        let other = Blocks {
            data: io_traits::Buffer::from_bytes(&bytes).into_slice(),
            ..blocks(size, 7, 3)
        };
        assert_eq!(volume.compare(Lba(5), other).await, at(2 * 4112 + 9));
        let old = blocks(size, 7, 3);
        assert_eq!(volume.compare_and_write(Lba(5), old, new).await, Ok(()));
        assert_eq!(pairs(&volume, 5, 3).await, [(0x20, 0x20), (0x20, 0x21), (0x20, 0x22)]);
    });
}

/// A program that does not know metadata must meet the descriptor, which it refuses, before any journal
/// entry of such a volume: none of its creation, and none of a write before its checkpoint.
#[test]
fn a_volume_with_metadata_is_never_created_by_the_journal() {
    for seed in 0..40 {
        let device = TestDevice::new(1 << 16, true);
        let (mut sim, plain) = fresh(&device, None, 100);
        let shard = plain.shard().clone();
        let creating = shard.clone();
        sim.spawn(async move {
            let spec = VolumeSpec { uuid: UUID, name: "w".into(), blocks: 100 };
            let terms = Terms { metadata: MetadataSize::Bytes8, ..Terms::default() };
            let Ok(volume) = creating.create_volume_under(spec, terms).await else { return };
            let _ = volume.write(Lba(0), blocks(MetadataSize::Bytes8, 3, 1), None).await;
        });
        let mut random = Random(seed);
        for n in 0..random.below(12) {
            sim.run_ok(plain.write(Lba(n), data(1, 1), None)).expect("room");
        }
        let survivor = sim.device.after_crash(&mut random);
        let mut created = Vec::new();
        for pba in 0..1 << 16 {
            let block = survivor.block(Pba(pba));
            let Ok(record) = Record::decode(&block) else { continue };
            created.extend(record.entries.into_iter().filter_map(|entry| match entry {
                layout::Entry::Create { uuid, .. } => Some(uuid),
                _ => None,
            }));
        }
        assert!(!created.is_empty() && !created.contains(&UUID), "seed {seed}");
        sim = Sim::new(survivor, seed);
        let shard = open(&mut sim);
        if let Some(volume) = shard.volume(UUID) {
            let found = sim.run_ok(pairs(&volume, 0, 1));
            assert!(found == [(0, 0)] || found == [(3, 3)]);
        }
        check(&mut sim, &shard);
    }
}

/// A volume with metadata begins with a checkpoint, and ends as any other: it is neither found again nor in the way of one of the
/// same identity. Method: two begin with one checkpoint.
#[test]
fn volumes_that_a_checkpoint_founded_can_be_deleted_and_made_again() {
    let (mut sim, plain) = fresh(&TestDevice::new(1 << 16, true), None, 100);
    let shard = plain.shard().clone();
    let uuids = [77, 78].map(Uuid::from_u128);
    let found = |sim: &mut Sim, uuids: &[Uuid]| {
        let creations: Vec<_> = uuids
            .iter()
            .map(|&uuid| {
                let shard = shard.clone();
                sim.begin(async move {
                    let spec = VolumeSpec { uuid, name: uuid.to_string(), blocks: 100 };
                    let terms = Terms { metadata: MetadataSize::Bytes8, ..Terms::default() };
                    shard.create_volume_under(spec, terms).await.map(drop)
                })
            })
            .collect();
        sim.settle();
        for created in creations {
            assert_eq!(created.take(), Some(Ok(())));
        }
    };
    for uuids in [&uuids[..], &uuids[..1], &uuids[..]] {
        found(&mut sim, uuids);
        for &uuid in uuids {
            let volume = shard.volume(uuid).expect("founded");
            let written = volume.write(Lba(3), blocks(MetadataSize::Bytes8, 5, 2), None);
            sim.run_ok(written).expect("room");
            sim.run_ok(shard.delete_volume(uuid)).expect("there");
        }
        for _ in 0..3 {
            sim.settle();
            sim.run_ok(shard.checkpoint()).expect("writable");
        }
        assert_eq!(shard.volumes().len(), 1, "only the one without metadata is left");
        check(&mut sim, &shard);
    }
    found(&mut sim, &uuids);
    let volume = reopen(&mut sim);
    assert_eq!(volume.shard().volumes().len(), 3);
    check(&mut sim, volume.shard());
}
