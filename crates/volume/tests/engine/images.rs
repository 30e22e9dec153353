//! Devices as earlier builds left them: each format version has an image here, which every later build
//! must open and read.
//!
//! An image holds the blocks that are not zeroes: its size in blocks (8 bytes), then for each such block
//! where it lies (8), the number of runs (2), and the runs: how often (2) which eight bytes follow. What
//! is written to make it is in [`fill`], what must be read from it in [`expect`]. A new version gets a new
//! image, by
//!
//! ```text
//! FARFLASH_WRITE_IMAGE=tests/images/format-N.img cargo test -p volume --test engine images
//! ```
//!
//! and keeps those before it: they are never written again.

use crate::common::{Random, Sim, TestDevice, check, data, fresh, open, range, tags};
use io_traits::{Buffer, Device};
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba, Slo};
use uuid::Uuid;
use volume::{Blocks, FsckOptions, Shard, Terms, Volume, VolumeError, VolumeSpec, fsck};

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

fn spec(uuid: Uuid, blocks: u64) -> VolumeSpec {
    VolumeSpec { uuid, name: format!("volume {}", uuid.as_u128()), blocks }
}

/// Writes what an image holds, and leaves the journal with changes that no checkpoint has.
fn fill() -> TestDevice {
    let device = TestDevice::new(DEVICE_BLOCKS, true);
    let (mut sim, plain) = fresh(&device, None, 10_000);
    sim.run_ok(async {
        let shard = plain.shard();
        // 30 blocks in each of several leaves.
        for n in 0..8 {
            plain.write(Lba(n * 1000), data(n as u8 + 1, 30), None).await.expect("room");
        }
        plain.set_slo(Slo::Share { weight: 7 }).await.expect("durable");
        plain.set_access(b"who may open it").await.expect("durable");
        let deleted = shard.create_volume(spec(DELETED, 500)).await.expect("room");
        deleted.write(Lba(3), data(0xEE, 20), None).await.expect("room");
        let sparse = shard.create_volume(spec(SPARSE, SPARSE_BLOCKS)).await.expect("room");
        sparse.write(Lba(SPARSE_BLOCKS - 1), data(0x77, 1), None).await.expect("room");
        shard.checkpoint().await.expect("writable");
        plain.write(Lba(1010), data(0x55, 5), None).await.expect("room");
        plain.unmap(range(2005, 10)).await.expect("possible");
        plain.resize(7010).await.expect("possible");
        plain.resize(20_000).await.expect("possible");
        let journalled = shard.create_volume(spec(JOURNALLED, 100)).await.expect("room");
        journalled.write(Lba(40), data(0x22, 12), None).await.expect("room");
        journalled.set_access(b"and it").await.expect("durable");
        shard.delete_volume(DELETED).await.expect("possible");
    });
    sim.settle();
    device.after_crash(&mut Random(1))
}

/// The same, and a volume with metadata of blocks.
fn fill_with_metadata() -> TestDevice {
    let mut sim = Sim::new(fill(), 5);
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

/// What each block of the first volume was last written with.
fn plain_tag(lba: u64) -> u8 {
    match lba {
        1010..1015 => 0x55,
        2005..2015 | 7010.. => 0,
        _ if lba % 1000 < 30 => (lba / 1000) as u8 + 1,
        _ => 0,
    }
}

/// Reads all that [`fill`] wrote.
fn expect(sim: &mut Sim, shard: &Shard<TestDevice>) {
    let plain = shard.volume(PLAIN).expect("was created");
    assert_eq!((plain.blocks(), plain.name(), plain.mapped_blocks()), (20_000, "v", 210));
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
    assert!(shard.volume(DELETED).is_none());
    let sparse = shard.volume(SPARSE).expect("was created");
    assert_eq!(sim.run_ok(tags(&sparse, SPARSE_BLOCKS - 2, 2)), [0, 0x77]);
    let beyond = sim.run_ok(sparse.read(range(SPARSE_BLOCKS, 1)));
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })));
}

/// Blocks that are not zeroes.
fn encode(device: &TestDevice) -> Vec<u8> {
    let mut image = DEVICE_BLOCKS.to_le_bytes().to_vec();
    for pba in 0..DEVICE_BLOCKS {
        let block = device.block(Pba(pba));
        if block.iter().all(|byte| *byte == 0) {
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

/// What the test expects of images is what this build writes. Also the way to make a new one.
#[test]
fn what_this_build_writes_is_what_images_hold() {
    put_to_the_test(&decode(&encode(&fill())));
    let image = encode(&fill_with_metadata());
    put_to_the_test(&decode(&image));
    if let Some(path) = std::env::var_os("FARFLASH_WRITE_IMAGE") {
        assert!(!std::path::Path::new(&path).exists(), "images are never written again");
        std::fs::write(path, image).expect("a writable place");
    }
}
