//! Every decoder of what lies on a device, over blocks with right and with wrong checksums.
//!
//! Promises: nothing panics; a checksum that does not match is an error, whatever the block holds.

use checksum::crc32c;
use layout::{Descriptor, Entry, NodeHead, NodeView, Record, Root, Superblock, encode_node};
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba, PbaRange};
use uuid::Uuid;

use crate::input::Input;

/// Entries of a run of bytes that are read before it is given up.
const ENTRIES_MAX: usize = 4096;
/// Where a sealed block keeps its checksum, which covers everything behind it.
const CRC_AT: usize = 4;

/// The input is which decoder and whether to seal, then the bytes.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.u8();
    let mut bytes = input.0.to_vec();
    let blocks = usize::from(Record::peek_blocks(&bytes).unwrap_or(1)).min(64);
    bytes.resize(blocks * BLOCK_SIZE, 0);
    if mode & 0x80 == 0 {
        let crc = crc32c(&bytes[CRC_AT + 4..]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
    match mode & 7 {
        0 => superblock(&bytes[..BLOCK_SIZE]),
        1 => drop(Root::decode(&bytes[..BLOCK_SIZE])),
        2 => drop(Descriptor::decode(&bytes[..BLOCK_SIZE])),
        3 => drop(Record::decode(&bytes)),
        4 => node(&bytes[..BLOCK_SIZE]),
        _ => entries(input.0),
    }
}

fn superblock(block: &[u8]) {
    let Ok(superblock) = Superblock::decode(block) else { return };
    assert!(superblock.data_start() <= superblock.data_end());
    let count = superblock.extent_count();
    for index in [0, count / 2, count.saturating_sub(1)] {
        if index < count {
            assert!(superblock.extent(index).end() <= superblock.data_end());
        }
    }
}

fn node(block: &[u8]) {
    let Ok(view) = NodeView::decode(block) else { return };
    assert!(view.keys().is_sorted_by(|a, b| a < b), "keys ascend");
    assert_eq!(view.entries().count(), view.count());
    assert_eq!(view.metadata().len(), view.count() * view.metadata_size.bytes());
}

fn entries(bytes: &[u8]) {
    let mut rest = bytes;
    for _ in 0..ENTRIES_MAX {
        match Entry::decode(rest) {
            Ok((entry, left)) => {
                assert!(left.len() < rest.len(), "an entry has a length");
                if let Entry::Write { crcs, metadata, .. } = entry {
                    let each = (metadata.len() / crcs.len()) as u64;
                    let size = MetadataSize::from_bytes(each).expect("a size that there is");
                    assert_eq!(metadata.len(), crcs.len() * size.bytes());
                }
                rest = left;
            }
            Err(_) => return,
        }
    }
}

/// A block of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let device = Superblock::for_device(Uuid::from_bytes([7; 16]), 1 << 20).expect("a usual size");
    let mut block = vec![0; BLOCK_SIZE];
    device.encode(&mut block);
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|mode| vec![mode; 4096]).collect();
    seeds.push([&[0], block.as_slice()].concat());
    for size in MetadataSize::ALL {
        let head = NodeHead { tree: 1, level: 0, metadata: size };
        let mapping = layout::Mapping { pba: Pba(5), crc: 6 }.into();
        let metadata = vec![7; 2 * size.bytes()];
        let (keys, mappings) = ([1, 2].into_iter(), [mapping; 2].into_iter());
        encode_node(&mut block, head, keys, mappings, &metadata);
        seeds.push([&[4], block.as_slice()].concat());
        let entry = Entry::Write {
            volume: 1,
            lba: Lba(2),
            trusted: false,
            runs: vec![PbaRange::new(Pba(5), 2)].into(),
            crcs: vec![3, 4].into(),
            metadata: metadata.into(),
        };
        let mut bytes = vec![0; entry.len_bytes()];
        entry.encode(&mut bytes);
        seeds.push([&[5], bytes.as_slice()].concat());
    }
    seeds
}
