//! Structures of the device at the bounds of their fields.
//!
//! Method: a whole structure is encoded, one field is overwritten at the bytes that the format gives it, and the block
//! is sealed again, so that only the field can be the reason of a refusal.

use alloc::vec::Vec;

use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange, MetadataSize, Pba, PbaRange, SectorSize, Slo};
use uuid::Uuid;

use crate::{
    ACCESS_BYTES_MAX, BITMAP_SLOTS, COUNT_MAX, DEVICE_BLOCKS_MAX, DEVICE_BLOCKS_MIN, DecodeError,
    Descriptor, EXTENT_BLOCKS_MAX, EXTENT_BLOCKS_MIN, Entry, JOURNAL_BLOCKS_MIN, KEY_LIMIT,
    Mapping, NodeHead, NodeView, RECORD_ENTRIES_MAX, RUN_BLOCKS_MAX, ReplayPoint, Root, Superblock,
    VOLUME_BLOCKS_MAX, encode_node, leaf_capacity, overhead, seal,
};

/// Little-endian bytes that overwrite a field, and where they go.
type Patch<'a> = (usize, &'a [u8]);

fn patched(mut block: Vec<u8>, patches: &[Patch<'_>], seal_at: Option<usize>) -> Vec<u8> {
    for (at, bytes) in patches {
        block[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    if let Some(at) = seal_at {
        seal(&mut block, at);
    }
    block
}

fn superblock() -> Superblock {
    Superblock::for_device(Uuid::from_u128(7), 1 << 21).expect("8 GiB")
}

#[test]
fn the_geometry_of_a_superblock_is_taken_up_to_its_bounds() {
    let mut block = vec![0; BLOCK_SIZE];
    superblock().encode(&mut block);
    let with =
        |patches: &[Patch<'_>]| Superblock::decode(&patched(block.clone(), patches, Some(8)));
    let refused = Err(DecodeError::Field("superblock geometry"));
    let blocks = |count: u64| with(&[(32, &count.to_le_bytes())]);
    let extent = |count: u32, journal: u32| {
        with(&[(40, &count.to_le_bytes()), (44, &journal.to_le_bytes())])
    };
    let slots = |count: u16| with(&[(48, &count.to_le_bytes())]);
    for count in [DEVICE_BLOCKS_MIN, DEVICE_BLOCKS_MAX] {
        assert_eq!(blocks(count), Ok(Superblock { blocks: count, ..superblock() }));
    }
    for count in [0, DEVICE_BLOCKS_MIN - 1, DEVICE_BLOCKS_MAX + 1] {
        assert_eq!(blocks(count), refused, "{count} blocks");
    }
    for (extent_blocks, journal_blocks) in [
        (EXTENT_BLOCKS_MIN, JOURNAL_BLOCKS_MIN),
        (EXTENT_BLOCKS_MAX, JOURNAL_BLOCKS_MIN),
        (EXTENT_BLOCKS_MAX, EXTENT_BLOCKS_MAX - BITMAP_SLOTS),
    ] {
        let expected = Superblock { extent_blocks, journal_blocks, ..superblock() };
        assert_eq!(extent(extent_blocks, journal_blocks), Ok(expected));
    }
    for (extent_blocks, journal_blocks) in [
        (EXTENT_BLOCKS_MIN / 2, JOURNAL_BLOCKS_MIN),
        (EXTENT_BLOCKS_MAX * 2, JOURNAL_BLOCKS_MIN),
        (EXTENT_BLOCKS_MAX - 1, JOURNAL_BLOCKS_MIN),
        (EXTENT_BLOCKS_MAX, JOURNAL_BLOCKS_MIN - 1),
        (EXTENT_BLOCKS_MAX, EXTENT_BLOCKS_MAX - BITMAP_SLOTS + 1),
    ] {
        assert_eq!(extent(extent_blocks, journal_blocks), refused, "{extent_blocks}");
    }
    for count in [1, 1024] {
        assert_eq!(slots(count), Ok(Superblock { shard_slots: count, ..superblock() }));
    }
    assert_eq!([slots(0), slots(1025)], [refused; 2]);
}

/// The sizes that `docs/on-disk-format.md` promises: 64 extents or more, a journal of a part in 128, both within bounds.
#[test]
fn extents_and_journals_have_the_sizes_of_their_device() {
    for (blocks, extent_blocks, journal_blocks) in [
        (DEVICE_BLOCKS_MIN, 1024, 1022),
        (100_000, 1024, 1022),
        (1 << 17, 2048, 1024),
        (300_000, 4096, 2343),
        (1 << 20, 16_384, 8192),
        (1 << 21, 32_768, 16_384),
        (1 << 30, 32_768, 16_384),
        (DEVICE_BLOCKS_MAX, 32_768, 16_384),
    ] {
        let layout = Superblock::for_device(Uuid::nil(), blocks).expect("in bounds");
        assert_eq!((layout.extent_blocks, layout.journal_blocks), (extent_blocks, journal_blocks));
    }
    for blocks in [DEVICE_BLOCKS_MIN - 1, DEVICE_BLOCKS_MAX + 1] {
        assert_eq!(Superblock::for_device(Uuid::nil(), blocks), None);
        assert_eq!(Superblock::with_extents(Uuid::nil(), blocks, EXTENT_BLOCKS_MIN), None);
    }
    for extent_blocks in [0, 512, 1025, 3072, 65_536] {
        assert_eq!(Superblock::with_extents(Uuid::nil(), 1 << 21, extent_blocks), None);
    }
    let small = Superblock::with_extents(Uuid::nil(), 1 << 21, 1024).expect("in bounds");
    assert_eq!((small.extent_blocks, small.journal_blocks), (1024, 1022));
}

#[test]
fn the_copies_of_roots_alternate_in_place_by_generation() {
    let layout = superblock();
    let end = layout.blocks - 1 - 128;
    for (shard, generation, slot) in [(0, 0, 0), (0, 1, 1), (5, 6, 10), (5, 7, 11), (63, 1, 127)] {
        assert_eq!(layout.root_places(shard, generation), [Pba(1 + slot), Pba(end + slot)]);
    }
    // 255 blocks lie before the data of such a device, and one more root would need the next MiB.
    for (shard_slots, start) in [(1, 256), (127, 256), (128, 512), (1024, 2304)] {
        let layout = Superblock { shard_slots, ..layout };
        assert_eq!(layout.data_start(), Pba(start));
        assert_eq!(layout.data_end(), Pba(layout.blocks - 1 - u64::from(shard_slots) * 2));
        let mark = 1 + u64::from(shard_slots) * 2;
        assert_eq!(layout.claim_mark_places(), [Pba(mark), Pba(start - 1)]);
    }
}

/// The last extent may be short, but not so short that it holds nothing besides its bitmaps.
#[test]
fn the_rest_of_a_device_is_an_extent_if_it_has_a_block_of_data() {
    let whole = 20;
    for (rest, count) in [(0, 20), (1, 20), (2, 20), (3, 21), (1023, 21)] {
        let blocks = 256 + whole * 1024 + rest + 128 + 1;
        let layout = Superblock::for_device(Uuid::nil(), blocks).expect("in bounds");
        assert_eq!((layout.extent_blocks, layout.extent_count()), (1024, count), "{rest}");
        for index in 0..count {
            let range = layout.extent(index);
            let expected = if index < 20 { 1024 } else { rest };
            assert_eq!((range.start.0, range.blocks), (256 + u64::from(index) * 1024, expected));
            for block in [0, 1, 2, expected - 1] {
                let pba = range.start.plus(block);
                let place = u32::try_from(block).expect("small");
                assert_eq!(layout.locate(pba), Some((index, place)));
                assert_eq!(layout.is_bitmap(pba), block < 2, "{pba:?}");
            }
        }
        for outside in [255, 256 + whole * 1024 + if count == 20 { 0 } else { rest }] {
            assert_eq!(layout.locate(Pba(outside)), None, "rest of {rest}");
            assert!(!layout.is_bitmap(Pba(outside)));
        }
    }
}

/// 4 MiB, 8 MiB for each shard, 3 times its two extents, and a hundredth for maps; whole blocks.
#[test]
fn the_overhead_of_a_capacity_is_the_sum_of_its_parts() {
    const MIB: u64 = 1 << 20;
    for (capacity, shards, extents, maps) in [
        (64 * MIB, 3, 4 * MIB, 671_088),
        (1024 * MIB, 1, 16 * MIB, 10_737_418),
        (65_536 * MIB, 2, 128 * MIB, 687_194_767),
    ] {
        let parts = 4 * MIB + shards * 8 * MIB + shards * 3 * 2 * extents + maps;
        let found = overhead(ByteLen(capacity), u16::try_from(shards).expect("small")).0;
        assert_eq!((found % 4096, found / 4096), (0, parts / 4096 + 1), "{capacity}");
    }
    assert_eq!(overhead(ByteLen(1 << 30), 0), overhead(ByteLen(1 << 30), 1));
}

fn root() -> Root {
    Root {
        device: Uuid::from_u128(0x1234),
        shard: 5,
        generation: 6,
        incarnation: 7,
        journal: PbaRange::new(Pba(800), 900),
        replay: ReplayPoint { sequence: 10, position: 11, previous_crc: 12 },
        next_volume: 13,
        extents: None,
        volumes: Some(Mapping { pba: Pba(1), crc: 0 }),
        secret: 16,
    }
}

#[test]
fn the_numbers_of_a_root_are_taken_up_to_their_bounds() {
    let mut block = vec![0; BLOCK_SIZE];
    root().encode(&mut block);
    let with = |at: usize, bytes: &[u8]| {
        Root::decode(&patched(block.clone(), &[(at, bytes)], Some(4))).map_err(|error| {
            assert_eq!(error, DecodeError::Field("journal of the root"), "byte {at}");
        })
    };
    let long = |at, value: u64| with(at, &value.to_le_bytes());
    let most = COUNT_MAX;
    assert_eq!(long(24, most), Ok(Root { generation: most, ..root() }));
    assert_eq!(long(32, most), Ok(Root { incarnation: most, ..root() }));
    for sequence in [1, most] {
        let replay = ReplayPoint { sequence, ..root().replay };
        assert_eq!(long(40, sequence), Ok(Root { replay, ..root() }));
    }
    for (at, value) in [(24, most + 1), (24, u64::MAX), (32, most + 1), (32, u64::MAX)] {
        assert_eq!(long(at, value), Err(()), "byte {at}");
    }
    assert_eq!([long(40, 0), long(40, most + 1), long(48, u64::MAX - 10)], [Err(()); 3]);
    for position in [0, 899, 900] {
        let replay = ReplayPoint { position, ..root().replay };
        assert_eq!(with(60, &position.to_le_bytes()), Ok(Root { replay, ..root() }));
    }
    assert_eq!(with(60, &901_u32.to_le_bytes()), Err(()));
}

fn descriptor() -> Descriptor {
    Descriptor {
        number: 3,
        uuid: Uuid::from_u128(99),
        name: "a".repeat(255),
        blocks: 1000,
        metadata: MetadataSize::None,
        sector: SectorSize::Bytes4096,
        mapped: 17,
        deleted: false,
        slo: Slo::default(),
        access: vec![0x5A; ACCESS_BYTES_MAX],
        map: None,
        pending_unmaps: (0..64).map(|i| LbaRange::new(Lba(i * 10), i)).collect(),
    }
}

#[test]
fn the_numbers_of_a_descriptor_are_taken_up_to_their_bounds() {
    let mut block = vec![0; BLOCK_SIZE];
    descriptor().encode(&mut block);
    let with = |at: usize, bytes: &[u8]| {
        Descriptor::decode(&patched(block.clone(), &[(at, bytes)], Some(4)))
    };
    assert_eq!(with(0, b"F"), Ok(descriptor()));
    assert_eq!(with(44, &[1]), Ok(Descriptor { deleted: true, ..descriptor() }));
    let sector = SectorSize::Bytes512;
    assert_eq!(with(44, &[2]), Ok(Descriptor { sector, ..descriptor() }));
    let most = Descriptor { blocks: VOLUME_BLOCKS_MAX, ..descriptor() };
    assert_eq!(with(24, &VOLUME_BLOCKS_MAX.to_le_bytes()), Ok(most));
    let refused = |what| Err(DecodeError::Field(what));
    for blocks in [VOLUME_BLOCKS_MAX + 1, u64::MAX] {
        assert_eq!(with(24, &blocks.to_le_bytes()), refused("volume size"));
    }
    assert_eq!(with(512, &[0xFF; 16]), refused("volume size"));
    assert_eq!(with(46, &256_u16.to_le_bytes()), refused("descriptor lengths"));
    assert_eq!(with(46, &u16::MAX.to_le_bytes()), refused("descriptor lengths"));
    assert_eq!(with(48, &65_u16.to_le_bytes()), refused("descriptor lengths"));
    assert_eq!(with(48, &u16::MAX.to_le_bytes()), refused("descriptor lengths"));
    assert_eq!(with(1536, &2049_u16.to_le_bytes()), refused("access length"));
    assert_eq!(with(64, &[0xFF]), refused("volume name"));
    assert_eq!(Descriptor::decode(&block[..BLOCK_SIZE - 1]), Err(DecodeError::Short));
    assert_eq!(Descriptor::decode(&block[..59]), Err(DecodeError::Short));
}

#[test]
fn the_numbers_of_an_entry_are_taken_up_to_their_bounds() {
    let taken = |entry: &Entry<'static>| {
        let mut bytes = vec![0xA5; entry.len_bytes()];
        entry.encode(&mut bytes);
        Entry::decode(&bytes).map(|(decoded, rest)| {
            assert_eq!((&decoded, rest), (entry, &[][..]));
        })
    };
    let resize = |blocks| taken(&Entry::Resize { volume: 1, blocks });
    let unmap = |start, blocks| {
        taken(&Entry::Unmap { volume: 1, range: LbaRange::new(Lba(start), blocks) })
    };
    let create = |blocks, name: usize, slo| {
        let (name, access) = ("n".repeat(name).into(), vec![7; 5].into());
        taken(&Entry::Create { volume: 1, uuid: Uuid::from_u128(2), blocks, slo, name, access })
    };
    assert_eq!([resize(0), resize(VOLUME_BLOCKS_MAX)], [Ok(()); 2]);
    let refused = |what| Err(DecodeError::Field(what));
    for blocks in [VOLUME_BLOCKS_MAX + 1, u64::MAX] {
        assert_eq!(resize(blocks), refused("entry kind or size"));
    }
    assert_eq!([unmap(0, KEY_LIMIT - 1), unmap(KEY_LIMIT - 2, 1)], [Ok(()); 2]);
    assert_eq!([unmap(0, KEY_LIMIT), unmap(KEY_LIMIT - 1, 1)], [refused("entry range"); 2]);
    // A name so long that it would be read as a promise.
    for slo in [Slo::default(), Slo::Share { weight: 3 }] {
        for name in [0, 24, 255] {
            assert_eq!(create(VOLUME_BLOCKS_MAX, name, slo), Ok(()));
        }
        assert_eq!(create(VOLUME_BLOCKS_MAX + 1, 4, slo), refused("volume name or size"));
        assert_eq!(create(u64::MAX, 4, slo), refused("volume name or size"));
        assert_eq!(create(1, 256, slo), refused("volume name or size"));
        assert_eq!(create(1, 300, slo), refused("volume name or size"));
    }
}

#[test]
fn the_numbers_of_a_node_are_taken_up_to_their_bounds() {
    let encoded = |level, metadata, keys: &[u64]| {
        let mut block = vec![0; BLOCK_SIZE];
        let mapping = Mapping { pba: Pba(5), crc: 6 }.into();
        let size = if level == 0 { metadata } else { MetadataSize::None };
        let bytes = vec![1; keys.len() * size.bytes()];
        let head = NodeHead { tree: 1, level, metadata };
        let mappings = core::iter::repeat_n(mapping, keys.len());
        encode_node(&mut block, head, keys.iter().copied(), mappings, &bytes);
        block
    };
    let with = |block: &[u8], patches: &[Patch<'_>]| {
        NodeView::decode(&patched(block.to_vec(), patches, None)).map(|view| view.count())
    };
    let refused = |what| Err(DecodeError::Field(what));
    let inner = encoded(1, MetadataSize::None, &[1, 2]);
    assert_eq!(with(&inner, &[(4, &[10])]), Ok(2));
    for level in [11, 12, 255] {
        assert_eq!(with(&inner, &[(4, &[level])]), refused("node level or key width"));
    }
    assert_eq!(with(&inner, &[(12, &[3])]), refused("metadata of blocks"));
    assert_eq!(with(&inner, &[(16, &(KEY_LIMIT - 2).to_le_bytes())]), Ok(2));
    for base in [KEY_LIMIT - 1, KEY_LIMIT, KEY_LIMIT + 1] {
        assert_eq!(with(&inner, &[(16, &base.to_le_bytes())]), refused("node keys"));
    }
    let one = encoded(1, MetadataSize::None, &[1]);
    assert_eq!(with(&one, &[(16, &(KEY_LIMIT - 1).to_le_bytes())]), Ok(1));
    assert_eq!(with(&one, &[(16, &KEY_LIMIT.to_le_bytes())]), refused("node keys"));
    // Equal keys do not ascend.
    assert_eq!(with(&inner, &[(39, &[0])]), refused("node keys"));
    // The width goes by the distance of the keys, however large they are.
    let narrow = leaf_capacity(2, MetadataSize::None) as u64;
    let keys: Vec<u64> = (0..narrow).map(|n| (1 << 50) + n).collect();
    assert_eq!(with(&encoded(0, MetadataSize::None, &keys), &[]), Ok(keys.len()));
}

/// As docs/on-disk-format.md has them.
#[test]
fn bounds_are_those_of_the_format() {
    assert_eq!(
        RECORD_ENTRIES_MAX,
        64 * 4096 - 72 - 24,
        "between the header and the end of a record"
    );
    assert_eq!(RUN_BLOCKS_MAX, 0xff_ffff, "24 bits");
    assert_eq!(JOURNAL_BLOCKS_MIN + BITMAP_SLOTS, EXTENT_BLOCKS_MIN, "one extent");
}
