//! Devices as earlier builds left them: each format version has an image here, which every later build
//! must open and read.
//!
//! An image holds the blocks that are not zeroes: its size in blocks (8 bytes), then for each such block
//! where it lies (8), the number of runs (2), and the runs: how often (2) which eight bytes follow. What
//! is written to make it is in [`fill`] and [`fill_with_metadata`], what must be read from it in [`expect`], and what
//! of the format must be in it in [`images_have_all_that_the_format_describes`]. A new version gets new images, by
//!
//! ```text
//! FARFLASH_WRITE_IMAGES=tests/images/format-N cargo test -p volume --test engine images
//! ```
//!
//! and keeps those before it: they are never written again.

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, range, tags};
use crate::structures::{FoundNode, Structures};
use io_traits::{Buffer, Device};
use layout::{Entry, KEY_LIMIT, NodeView, VOLUME_TREE};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, Pba, Slo};
use uuid::Uuid;
use volume::{
    Blocks, FsckOptions, Shard, Terms, Volume, VolumeError, VolumeSpec, fsck, join_cluster,
};

const DEVICE_BLOCKS: u64 = 64 << 8;
/// Format version and images, for each version that this program opens.
const IMAGES: [(u32, &[u8]); 2] = [
    (1, include_bytes!("../images/format-1.img")),
    (1, include_bytes!("../images/format-1-metadata.img")),
];

/// A volume of several leaves, overwritten, shrunk and grown, with a checkpoint half way.
const PLAIN: Uuid = Uuid::from_u128(1);
/// Written in the journal only.
const JOURNALLED: Uuid = Uuid::from_u128(2);
/// Deleted: its space is free, its name not to be found.
const DELETED: Uuid = Uuid::from_u128(3);
/// Larger than any device, with a block at its end.
const SPARSE: Uuid = Uuid::from_u128(4);
const SPARSE_BLOCKS: u64 = 1 << 51;
/// Blocks have metadata; written before a checkpoint and behind it.
const METADATA: Uuid = Uuid::from_u128(5);
/// Blocks at the end of the ring behind the last checkpoint, and of older records that stay at either end of the rest.
const ROOM_AT_THE_END: u64 = 2;
const RECORDS_KEPT: u64 = 4;
/// Blocks of each run of the first volume: more than one leaf holds.
const PLAIN_RUN: u64 = 50;
/// Few blocks, far from each other, some of which are deallocated and not taken out of the map yet.
const WIDE: Uuid = Uuid::from_u128(6);
const WIDE_TAGS: [(u64, u8); 3] = [(5, 0x61), (3000, 0x62), (100_000, 0x63)];
const WIDE_UNMAPPED: LbaRange = LbaRange::new(Lba(2000), 3000);
/// Deleted, and its space not taken back yet.
const UNMAPPED: Uuid = Uuid::from_u128(7);
/// Created with a promise and access, and written, by the journal only: as much as needs another extent.
const BULK: Uuid = Uuid::from_u128(8);
const BULK_BLOCKS: u64 = 1000;
/// The cluster of the second image.
const CLUSTER: Uuid = Uuid::from_u128(77);

/// The access that the committed images have; a word of seven letters.
const ACCESS: [u8; 7] = *b"\x77hoever";

fn spec(uuid: Uuid, blocks: u64) -> VolumeSpec {
    VolumeSpec { uuid, name: format!("volume {}", uuid.as_u128()), blocks }
}

/// Writes what an image holds, and leaves the journal with changes that no checkpoint has.
fn fill() -> TestDevice {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, plain) = fresh(&device, None, 10_000);
    sim.run_ok(create_and_write(&plain));
    sim.run_ok(plain.shard().shutdown()).expect("writable");
    // After a reopen it has no map in memory. Deallocated blocks whose map cannot be read yet are
    // not taken back.
    let mut sim = Sim::new(device.after_crash(&mut Random(1)), 6);
    let (shard, device) = (open(&mut sim), sim.device.clone());
    let [wide, unmapped] = [WIDE, UNMAPPED].map(|uuid| shard.volume(uuid).expect("was created"));
    let nodes = nodes_of(&device, &[WIDE, UNMAPPED]);
    device.faults(|faults| faults.held_reads.extend(nodes));
    sim.run_ok(wide.unmap(WIDE_UNMAPPED)).expect("possible");
    sim.run_ok(shard.delete_volume(unmapped.uuid())).expect("possible");
    sim.run_ok(go_to_the_end_of_the_ring(&shard, &device));
    sim.run_ok(change_behind_the_checkpoint(&shard, &device));
    sim.settle();
    device.after_crash(&mut Random(1))
}

/// Returns the locations of the map nodes of some volumes.
fn nodes_of(device: &TestDevice, volumes: &[Uuid]) -> Vec<u64> {
    let descriptors = Structures::of(device).descriptors;
    let wanted = descriptors.iter().filter(|volume| volumes.contains(&volume.uuid));
    let trees: Vec<u32> = wanted.map(|volume| volume.number).collect();
    let is_wanted = |node: NodeView<'_>| trees.contains(&node.tree);
    let found = device.find_by(|block| NodeView::decode(block).is_ok_and(is_wanted));
    found.into_iter().map(|pba| pba.0).collect()
}

/// Makes the state that the checkpoint has.
async fn create_and_write(plain: &Volume<TestDevice>) {
    let shard = plain.shard();
    for n in 0..8 {
        plain.write(Lba(n * 1000), data(n as u8 + 1, PLAIN_RUN), None).await.expect("room");
    }
    plain.set_slo(Slo::Share { weight: 7 }).await.expect("durable");
    plain.set_access(b"who may open it").await.expect("durable");
    let deleted = shard.create_volume(spec(DELETED, 500)).await.expect("room");
    deleted.write(Lba(3), data(0xEE, 20), None).await.expect("room");
    let sparse = shard.create_volume(spec(SPARSE, SPARSE_BLOCKS)).await.expect("room");
    for lba in [0, SPARSE_BLOCKS - 1] {
        sparse.write(Lba(lba), data(0x77, 1), None).await.expect("room");
    }
    let wide = shard.create_volume(spec(WIDE, 1 << 20)).await.expect("room");
    for (lba, tag) in WIDE_TAGS {
        wide.write(Lba(lba), data(tag, 1), None).await.expect("room");
    }
    let unmapped = shard.create_volume(spec(UNMAPPED, 500)).await.expect("room");
    unmapped.write(Lba(7), data(0xBB, 20), None).await.expect("room");
}
/// Fills the journal with records of a block each until a checkpoint leaves two blocks before the end of its ring. What is
/// left there of these records is of no use: most of it becomes zeroes, which keeps the image small.
async fn go_to_the_end_of_the_ring(shard: &Shard<TestDevice>, device: &TestDevice) {
    let volume = shard.volume(SPARSE).expect("was created");
    let root = loop {
        let root = Structures::of(device).root;
        let left = root.journal.blocks - u64::from(root.replay.position);
        if left == ROOM_AT_THE_END {
            break root;
        }
        for _ in ROOM_AT_THE_END..left {
            volume.set_slo(Slo::default()).await.expect("durable");
        }
        shard.checkpoint().await.expect("writable");
    };
    let superseded = RECORDS_KEPT..u64::from(root.replay.position) - RECORDS_KEPT;
    superseded.for_each(|at| device.wipe(root.journal.start.plus(at)));
}

/// Makes the changes that only the journal has.
async fn change_behind_the_checkpoint(shard: &Shard<TestDevice>, device: &TestDevice) {
    let plain = shard.volume(PLAIN).expect("was created");
    let slo = Slo::Rate { reads_per_second: 9000, writes_per_second: 800 };
    let terms = Terms { slo, access: ACCESS.into(), ..Terms::default() };
    let bulk = shard.create_volume_under(spec(BULK, BULK_BLOCKS), terms).await.expect("room");
    // Two blocks of checksums, of which one would fit before the end of the ring.
    bulk.write(Lba(0), data(0, BULK_BLOCKS), None).await.expect("room");
    plain.write(Lba(1010), data(0x55, 5), None).await.expect("room");
    fail_to_write(&plain, device).await;
    plain.unmap(range(2005, 10)).await.expect("possible");
    plain.resize(7010).await.expect("possible");
    plain.resize(20_000).await.expect("possible");
    let journalled = shard.create_volume(spec(JOURNALLED, 100)).await.expect("room");
    journalled.write(Lba(40), data(0x22, 12), None).await.expect("room");
    journalled.set_access(b"and it").await.expect("durable");
    journalled.set_slo(Slo::Share { weight: 3 }).await.expect("durable");
    shard.delete_volume(DELETED).await.expect("possible");
}

/// A write whose data the device does not take, while its record is written: what was there is written down again.
async fn fail_to_write(volume: &Volume<TestDevice>, device: &TestDevice) {
    let superblock = Structures::of(device).superblock;
    // The journal fills the first extent.
    let data_blocks = superblock.extent(1).start.0..superblock.data_end().0;
    device.faults(|faults| faults.write_errors.extend(data_blocks.map(|pba| (pba, 1))));
    let failed = volume.write(Lba(1013), data(0x99, 4), None).await;
    assert!(matches!(failed, Err(VolumeError::Device(_))), "{failed:?}");
    device.faults(|faults| faults.write_errors.clear());
}

/// The same, taken back into use by a host of a cluster, and a volume with metadata of blocks.
fn fill_with_metadata() -> TestDevice {
    let mut sim = Sim::new(fill(), 5);
    let device = sim.device.clone();
    let joined = sim.run_ok(join_cluster(&device, CLUSTER)).expect("writable");
    assert_eq!(joined.cluster, Some(CLUSTER));
    let shard = open(&mut sim);
    sim.run_ok(async {
        let terms = Terms { metadata: MetadataSize::Bytes16, ..Terms::default() };
        let spec = spec(METADATA, 1000);
        let volume = shard.create_volume_under(spec, terms).await.expect("room");
        volume.write(Lba(100), tagged(0x33, 60), None).await.expect("room");
        volume.write(Lba(900), tagged(0x44, 1), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        volume.write(Lba(110), tagged(0x66, 3), None).await.expect("room");
        volume.unmap(range(120, 2)).await.expect("possible");
    });
    sim.settle();
    sim.device.after_crash(&mut Random(2))
}

/// Blocks whose metadata is one less than their data.
fn tagged(tag: u8, blocks: u64) -> Blocks {
    Blocks { data: data(tag, blocks), metadata: vec![tag - 1; blocks as usize * 16].into() }
}

fn expect_metadata(sim: &mut Sim, volume: &Volume<TestDevice>) {
    assert_eq!(volume.metadata_size(), MetadataSize::Bytes16);
    let found = sim.run_ok(volume.read(range(0, 1000))).expect("sound");
    let blocks = found.to_vec();
    for (lba, (block, metadata)) in
        blocks.chunks(BLOCK_SIZE).zip(found.metadata.chunks(16)).enumerate()
    {
        let tag = match lba {
            110..113 => 0x66_u8,
            120..122 => 0,
            100..160 => 0x33,
            900 => 0x44,
            _ => 0,
        };
        let of_metadata = tag.saturating_sub(1);
        let uniform = |bytes: &[u8], wanted: u8| bytes.iter().all(|byte| *byte == wanted);
        assert!(uniform(block, tag) && uniform(metadata, of_metadata), "block {lba}");
    }
}

/// Returns the tag last written to a block of the first volume.
fn plain_tag(lba: u64) -> u8 {
    match lba {
        1010..1015 => 0x55,
        2005..2015 | 7010.. => 0,
        _ if lba % 1000 < PLAIN_RUN => (lba / 1000) as u8 + 1,
        _ => 0,
    }
}

/// Reads all that [`fill`] wrote.
fn expect(sim: &mut Sim, shard: &Shard<TestDevice>) {
    // What was deallocated is taken back.
    sim.settle();
    let plain = shard.volume(PLAIN).expect("was created");
    assert_eq!((plain.blocks(), plain.name(), plain.mapped_blocks()), (20_000, "v", 350));
    assert_eq!(plain.slo(), Slo::Share { weight: 7 });
    assert_eq!(*plain.access(), *b"who may open it");
    let found = sim.run_ok(tags(&plain, 0, 9000));
    for (lba, tag) in (0_u64..).zip(found) {
        assert_eq!(tag, plain_tag(lba), "block {lba}");
    }
    if let Some(volume) = shard.volume(METADATA) {
        expect_metadata(sim, &volume);
    }
    let journalled = shard.volume(JOURNALLED).expect("was created");
    let found = sim.run_ok(tags(&journalled, 0, 100));
    let is_written = |lba: usize| (40..52).contains(&lba);
    assert!(found.iter().enumerate().all(|(lba, tag)| *tag == 0x22 * u8::from(is_written(lba))));
    assert_eq!(journalled.name(), "volume 2");
    assert_eq!(*journalled.access(), *b"and it");
    assert_eq!(journalled.slo(), Slo::Share { weight: 3 });
    assert!(shard.volume(DELETED).is_none() && shard.volume(UNMAPPED).is_none());
    let bulk = shard.volume(BULK).expect("was created");
    let slo = Slo::Rate { reads_per_second: 9000, writes_per_second: 800 };
    assert_eq!((bulk.mapped_blocks(), bulk.slo()), (BULK_BLOCKS, slo));
    assert_eq!(*bulk.access(), ACCESS);
    let wide = shard.volume(WIDE).expect("was created");
    for (lba, tag) in WIDE_TAGS {
        let unmapped = (WIDE_UNMAPPED.start..WIDE_UNMAPPED.end()).contains(&Lba(lba));
        assert_eq!(sim.run_ok(tags(&wide, lba, 2)), [if unmapped { 0 } else { tag }, 0], "{lba}");
    }
    let sparse = shard.volume(SPARSE).expect("was created");
    assert_eq!(sim.run_ok(tags(&sparse, 0, 2)), [0x77, 0]);
    assert_eq!(sim.run_ok(tags(&sparse, SPARSE_BLOCKS - 2, 2)), [0, 0x77]);
    let beyond = sim.run_ok(sparse.read(range(SPARSE_BLOCKS, 1)));
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
}

/// Blocks that are not zeroes, nor discarded.
fn encode(device: &TestDevice) -> Vec<u8> {
    let mut image = DEVICE_BLOCKS.to_le_bytes().to_vec();
    for pba in 0..DEVICE_BLOCKS {
        let block = device.block(Pba(pba));
        // What was discarded may read as anything.
        if device.is_blank(Pba(pba)) || block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut runs: Vec<(u16, &[u8])> = Vec::new();
        for word in block.chunks_exact(8) {
            match runs.last_mut() {
                Some((count, last)) if *last == word => *count += 1,
                _ => runs.push((1, word)),
            }
        }
        image.extend(pba.to_le_bytes());
        image.extend((runs.len() as u16).to_le_bytes());
        for (count, word) in runs {
            image.extend(count.to_le_bytes());
            image.extend(word);
        }
    }
    image
}

fn decode(image: &[u8]) -> TestDevice {
    let mut rest = image;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let device = TestDevice::new(number(take(8).expect("a size")), true);
    let mut sim = Sim::new(device.clone(), 1);
    while let Some(pba) = take(8) {
        let pba = Pba(number(pba));
        let mut block = Vec::new();
        for _ in 0..number(take(2).expect("runs")) {
            let count = number(take(2).expect("a count"));
            let word = take(8).expect("a word");
            (0..count).for_each(|_| block.extend(word));
        }
        assert_eq!(block.len(), BLOCK_SIZE, "{pba}");
        let write = device.write(pba, Buffer::from_bytes(&block).into_slice());
        sim.run_ok(write).expect("sound");
    }
    sim.run_ok(device.flush()).expect("sound");
    device
}

/// An image is checked, opened, read, written to, and opened again.
fn put_to_the_test(device: &TestDevice) {
    let mut sim = Sim::new(device.clone(), 2);
    let report = sim.run_ok(fsck(device, FsckOptions { read_data: true }, |_, _| {}));
    let report = report.expect("ours");
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    let shard = open(&mut sim);
    expect(&mut sim, &shard);
    check(&mut sim, &shard);
    let plain = shard.volume(PLAIN).expect("was created");
    sim.run_ok(plain.write(Lba(1010), data(0x55, 5), None)).expect("room");
    sim.run_ok(shard.shutdown()).expect("writable");
    let mut sim = Sim::new(device.after_crash(&mut Random(3)), 4);
    let shard = open(&mut sim);
    expect(&mut sim, &shard);
    check(&mut sim, &shard);
}

#[test]
fn images_of_all_format_versions_open_with_what_was_written() {
    for (version, image) in IMAGES {
        let device = decode(image);
        let superblock = device.block(Pba(0));
        assert_eq!(superblock[12..16], version.to_le_bytes(), "the image is of version {version}");
        put_to_the_test(&device);
    }
}

/// This build writes exactly the images that the tests expect. Also the way to make a new one.
#[test]
fn what_this_build_writes_is_what_images_hold() {
    for (fill, name) in
        [(fill as fn() -> TestDevice, ".img"), (fill_with_metadata, "-metadata.img")]
    {
        let image = encode(&fill());
        put_to_the_test(&decode(&image));
        if let Ok(prefix) = std::env::var("FARFLASH_WRITE_IMAGES") {
            let path = format!("{prefix}{name}");
            assert!(!std::path::Path::new(&path).exists(), "images are never written again");
            std::fs::write(path, image).expect("a writable place");
        }
    }
}

/// The first image has all that a device without metadata can have, the second one the rest.
///
/// Method: their structures are decoded one by one, as the format describes them.
#[test]
fn images_have_all_that_the_format_describes() {
    for device in [decode(IMAGES[0].1), fill()] {
        has_trees_and_volumes_of_all_kinds(&Structures::of(&device));
        has_a_journal_of_all_kinds(&Structures::of(&device));
    }
    for device in [decode(IMAGES[1].1), fill_with_metadata()] {
        let found = Structures::of(&device);
        assert_eq!(found.superblock.cluster, Some(CLUSTER));
        assert!(found.descriptors.iter().any(|volume| !volume.metadata.is_none()));
        assert!(found.nodes.iter().any(|node| node.has_metadata));
        let has_metadata = |entry: &Entry<'_>| matches!(entry, Entry::Write { metadata, .. } if !metadata.is_empty());
        assert!(entries(&found).any(has_metadata));
    }
}

fn has_trees_and_volumes_of_all_kinds(found: &Structures) {
    let of_maps = |node: &&FoundNode| node.tree < VOLUME_TREE;
    let nodes: Vec<_> = found.nodes.iter().filter(of_maps).collect();
    assert!(nodes.iter().any(|node| node.level > 0), "{nodes:?}");
    for width in [2, 4, 7] {
        assert!(nodes.iter().any(|n| n.level == 0 && n.width == width), "{width} of {nodes:?}");
    }
    let volumes = &found.descriptors;
    let whole = LbaRange::new(Lba(0), KEY_LIMIT - 1);
    assert!(volumes.iter().any(|v| v.deleted && v.map.is_some() && v.pending_unmaps == [whole]));
    assert!(volumes.iter().any(|v| !v.deleted && v.map.is_some() && !v.pending_unmaps.is_empty()));
    assert!(volumes.iter().any(|v| v.slo != Slo::default() && !v.access.is_empty()));
    assert!(volumes.iter().any(|v| v.blocks == SPARSE_BLOCKS));
}

fn entries(found: &Structures) -> impl Iterator<Item = &Entry<'static>> {
    found.records.iter().flat_map(|(_, record)| &record.entries)
}

fn has_a_journal_of_all_kinds(found: &Structures) {
    let all: Vec<_> = entries(found).collect();
    let is_there = |what: &str, is_meant: fn(&Entry<'static>) -> bool| {
        assert!(all.iter().any(|entry| is_meant(entry)), "{what}: {all:?}");
    };
    is_there("write", |entry| matches!(entry, Entry::Write { trusted: false, .. }));
    is_there("trusted write", |entry| matches!(entry, Entry::Write { trusted: true, .. }));
    is_there("unmap", |entry| matches!(entry, Entry::Unmap { .. }));
    is_there("reserve", |entry| matches!(entry, Entry::Reserve { .. }));
    is_there("create by default", |entry| match entry {
        Entry::Create { slo, access, .. } => *slo == Slo::default() && access.is_empty(),
        _ => false,
    });
    is_there("create with a promise and access", |entry| match entry {
        Entry::Create { slo, access, .. } => *slo != Slo::default() && !access.is_empty(),
        _ => false,
    });
    is_there("resize", |entry| matches!(entry, Entry::Resize { .. }));
    is_there("delete", |entry| matches!(entry, Entry::Delete { .. }));
    is_there("set SLO", |entry| matches!(entry, Entry::SetSlo { .. }));
    is_there("set access", |entry| matches!(entry, Entry::SetAccess { .. }));
    // The ring's end was too near for a record, so that it lies at the start.
    let ring = found.root.journal.blocks;
    let wraps = found.records.windows(2).any(|pair| {
        let end = pair[0].0 + u64::from(pair[0].1.blocks);
        end < ring && pair[1].0 == 0
    });
    let places: Vec<_> = found.records.iter().map(|(at, record)| (*at, record.blocks)).collect();
    assert!(wraps, "{places:?} of {ring} blocks");
}
