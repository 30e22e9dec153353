//! Every decoder of what lies on a device, over blocks with right and with wrong checksums.
//!
//! Promises: nothing panics; a checksum that does not match is an error, whatever the block holds.

use checksum::crc32c;
use layout::{
    ClaimMark, DecodeError, Descriptor, Entry, Mapping, NodeHead, NodeView, RECORD_HEADER_SIZE,
    Record, RecordHead, ReplayPoint, Root, Superblock, encode_node, record_blocks, seal_record,
};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, Pba, PbaRange, SectorSize, Slo};
use uuid::Uuid;

use crate::input::Input;

/// Entries of a run of bytes that are read before it is given up.
const ENTRIES_MAX: usize = 4096;
/// Leaves the checksum as it is, right or wrong.
const NOT_SEALED: u8 = 0x80;

const SUPERBLOCK: u8 = 0;
const ROOT: u8 = 1;
const DESCRIPTOR: u8 = 2;
const RECORD: u8 = 3;
const NODE: u8 = 4;
const ENTRIES: u8 = 5;
const CLAIM_MARK: u8 = 6;

/// The input is which decoder and whether to seal, then the bytes.
pub fn run(data: &[u8]) {
    let _ = decode(data);
}

/// Returns the offset of the checksum that covers the rest of a structure. That of a node is in the pointer to it.
const fn crc_at(kind: u8) -> Option<usize> {
    match kind {
        SUPERBLOCK => Some(8),
        ROOT | DESCRIPTOR | RECORD | CLAIM_MARK => Some(4),
        _ => None,
    }
}

fn decode(data: &[u8]) -> Result<(), DecodeError> {
    let mut input = Input(data);
    let mode = input.u8();
    let kind = mode & 7;
    let mut bytes = input.0.to_vec();
    let blocks = usize::from(Record::peek_blocks(&bytes).unwrap_or(1)).min(64);
    let blocks = if kind == RECORD { blocks } else { 1 };
    bytes.resize(blocks * BLOCK_SIZE, 0);
    if let Some(at) = crc_at(kind).filter(|_| mode & NOT_SEALED == 0) {
        let crc = crc32c(&bytes[at + 4..]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    match kind {
        SUPERBLOCK => superblock(&bytes),
        ROOT => Root::decode(&bytes).map(drop),
        DESCRIPTOR => Descriptor::decode(&bytes).map(drop),
        RECORD => Record::decode(&bytes).map(drop),
        NODE => node(&bytes),
        CLAIM_MARK => ClaimMark::decode(&bytes).map(drop),
        _ => entries(input.0),
    }
}

fn superblock(block: &[u8]) -> Result<(), DecodeError> {
    let superblock = Superblock::decode(block)?;
    assert!(superblock.data_start() <= superblock.data_end());
    let count = superblock.extent_count();
    for index in [0, count / 2, count.saturating_sub(1)] {
        if index < count {
            assert!(superblock.extent(index).end() <= superblock.data_end());
        }
    }
    Ok(())
}

fn node(block: &[u8]) -> Result<(), DecodeError> {
    let view = NodeView::decode(block)?;
    assert!(view.keys().is_sorted_by(|a, b| a < b), "keys ascend");
    assert_eq!(view.entries().count(), view.count());
    assert_eq!(view.metadata().len(), view.count() * view.metadata_size.bytes());
    Ok(())
}

fn entries(bytes: &[u8]) -> Result<(), DecodeError> {
    let mut rest = bytes;
    for _ in 0..ENTRIES_MAX {
        if rest.is_empty() {
            break;
        }
        let (entry, left) = Entry::decode(rest)?;
        assert!(left.len() < rest.len(), "an entry has a length");
        if let Entry::Write { crcs, metadata, .. } = entry {
            let each = (metadata.len() / crcs.len()) as u64;
            let size = MetadataSize::from_bytes(each).expect("a size that there is");
            assert_eq!(metadata.len(), crcs.len() * size.bytes());
        }
        rest = left;
    }
    Ok(())
}

/// Bytes without sense; all that decodes, of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|mode| vec![mode; 4096]).collect();
    seeds.extend(whole());
    seeds
}

/// A block of each kind, records of one and of several blocks, entries of each kind.
fn whole() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        seed(SUPERBLOCK, |block| device(None).encode(block)),
        seed(SUPERBLOCK, |block| device(Some(Uuid::from_bytes([8; 16]))).encode(block)),
        seed(ROOT, |block| root().encode(block)),
        [&[RECORD], record(&sample_entries()).as_slice()].concat(),
        [&[RECORD], record(&large_entries()).as_slice()].concat(),
    ];
    for size in MetadataSize::ALL {
        seeds.push(seed(DESCRIPTOR, |block| descriptor(size).encode(block)));
        for last in [2, 1 << 20, 1 << 40] {
            seeds.push(seed(NODE, |block| encode_leaf_or_inner(block, 0, size, last)));
        }
        let entry = write(size, false);
        seeds.push([&[ENTRIES], encoded(&[entry]).as_slice()].concat());
    }
    seeds.push(seed(NODE, |block| encode_leaf_or_inner(block, 2, MetadataSize::None, 500)));
    seeds.push([&[ENTRIES], encoded(&sample_entries()).as_slice()].concat());
    seeds
}

fn seed(kind: u8, encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![kind; 1 + BLOCK_SIZE];
    encode(&mut bytes[1..]);
    bytes
}

fn device(cluster: Option<Uuid>) -> Superblock {
    let device = Superblock::for_device(Uuid::from_bytes([7; 16]), 1 << 20);
    Superblock { cluster, ..device.expect("a usual size") }
}

fn root() -> Root {
    Root {
        device: Uuid::from_bytes([7; 16]),
        shard: 1,
        generation: 5,
        incarnation: 2,
        journal: PbaRange::new(Pba(258), 8192),
        replay: ReplayPoint { sequence: 77, position: 12, previous_crc: 13 },
        next_volume: 4,
        extents: Some(Mapping { pba: Pba(9000), crc: 14 }),
        volumes: Some(Mapping { pba: Pba(9001), crc: 15 }),
        secret: 16,
    }
}

fn descriptor(metadata: MetadataSize) -> Descriptor {
    Descriptor {
        number: 3,
        uuid: Uuid::from_bytes([6; 16]),
        name: "volume".into(),
        blocks: 1 << 30,
        metadata,
        sector: if metadata.is_none() { SectorSize::Bytes512 } else { SectorSize::Bytes4096 },
        mapped: 17,
        deleted: metadata.is_none(),
        slo: Slo::Rate { reads_per_second: 1000, writes_per_second: 100 },
        access: vec![1, 2, 3],
        map: Some(Mapping { pba: Pba(9002), crc: 16 }),
        pending_unmaps: vec![LbaRange::new(Lba(10), 2000), LbaRange::new(Lba(5000), 5000)],
    }
}

/// A node of two entries, the second with the key `last`.
fn encode_leaf_or_inner(block: &mut [u8], level: u8, metadata: MetadataSize, last: u64) {
    let head = NodeHead { tree: 1, level, metadata };
    let mapping = Mapping { pba: Pba(5), crc: 6 }.into();
    let of_blocks = vec![7; if level == 0 { 2 * metadata.bytes() } else { 0 }];
    encode_node(block, head, [1, last].into_iter(), [mapping; 2].into_iter(), &of_blocks);
}

fn write(size: MetadataSize, trusted: bool) -> Entry<'static> {
    Entry::Write {
        volume: 1,
        lba: Lba(2),
        trusted,
        runs: vec![PbaRange::new(Pba(5), 1), PbaRange::new(Pba(1 << 39), 1)].into(),
        crcs: vec![3, 4].into(),
        metadata: vec![7; 2 * size.bytes()].into(),
    }
}

/// An entry of each kind.
fn sample_entries() -> Vec<Entry<'static>> {
    let create = |slo, access: Vec<u8>| Entry::Create {
        volume: 2,
        uuid: Uuid::from_bytes([5; 16]),
        blocks: 1000,
        slo,
        name: "another".into(),
        access: access.into(),
    };
    vec![
        write(MetadataSize::None, true),
        write(MetadataSize::Bytes8, false),
        Entry::Unmap { volume: 1, range: LbaRange::new(Lba(9), 1 << 40) },
        Entry::Reserve { extent: 6 },
        create(Slo::default(), Vec::new()),
        create(Slo::Share { weight: 3 }, vec![1, 2, 3, 4, 5]),
        Entry::Resize { volume: 2, blocks: 500 },
        Entry::SetSlo { volume: 2, slo: Slo::Rate { reads_per_second: 7, writes_per_second: 8 } },
        Entry::SetAccess { volume: 2, access: vec![9; 77].into() },
        Entry::Delete { volume: 2 },
    ]
}

/// A write whose checksums take more than a block.
fn large_entries() -> Vec<Entry<'static>> {
    let blocks = layout::WRITE_BLOCKS_MAX;
    vec![Entry::Write {
        volume: 1,
        lba: Lba(2),
        trusted: false,
        runs: vec![PbaRange::new(Pba(5), blocks)].into(),
        crcs: (0..blocks as u32).collect(),
        metadata: Vec::new().into(),
    }]
}

fn encoded(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let at = bytes.len();
        bytes.resize(at + entry.len_bytes(), 0);
        entry.encode(&mut bytes[at..]);
    }
    bytes
}

fn record(entries: &[Entry<'_>]) -> Vec<u8> {
    let body = encoded(entries);
    let mut bytes = vec![0; record_blocks(body.len()) * BLOCK_SIZE];
    bytes[RECORD_HEADER_SIZE..][..body.len()].copy_from_slice(&body);
    let head = RecordHead {
        sequence: 77,
        incarnation: 2,
        device: Uuid::from_bytes([7; 16]),
        shard: 1,
        settled: 70,
        previous_crc: 13,
        generation: 5,
        applied: 74,
        failed: 2,
        secret: 99,
    };
    seal_record(&mut bytes, &head, entries.len() as u32, body.len());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutations begin at what decodes: of each kind, sealed by the target or as it was encoded.
    #[test]
    fn every_whole_seed_decodes() {
        for (number, seed) in whole().into_iter().enumerate() {
            assert_eq!(decode(&seed), Ok(()), "seed {number} of kind {}", seed[0]);
            let not_sealed = [&[seed[0] | NOT_SEALED], &seed[1..]].concat();
            assert_eq!(decode(&not_sealed), Ok(()), "seed {number} of kind {}", seed[0]);
        }
        let kinds = [SUPERBLOCK, ROOT, DESCRIPTOR, RECORD, NODE, ENTRIES];
        assert!(kinds.iter().all(|kind| whole().iter().any(|seed| seed[0] == *kind)));
    }

    /// Checks that a change after the checksum reaches the fields if the block is sealed, and not otherwise.
    #[test]
    fn a_changed_block_is_stopped_by_its_checksum_unless_it_is_sealed() {
        for mut seed in whole() {
            let Some(at) = crc_at(seed[0]) else { continue };
            // The last byte of all: padding, of which no decoder wants anything.
            let last = seed.len() - 1;
            seed[last] ^= 1;
            assert_eq!(decode(&seed), Ok(()), "sealed at byte {at}");
            seed[0] |= NOT_SEALED;
            assert_eq!(decode(&seed), Err(DecodeError::Checksum));
        }
    }
}
