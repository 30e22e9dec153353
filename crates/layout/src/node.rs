//! Nodes of the B+ trees: volume maps, extent tables and volume tables are all the same.
//!
//! ```text
//! 0       4       5           6       8      12     16     24       32
//! +-------+-------+-----------+-------+------+------+------+--------+------------+------------+
//! | magic | level | key width | count | tree | meta | base | rsvd   | keys       | mappings   | ...
//! +-------+-------+-----------+-------+------+------+------+--------+------------+------------+
//!                                                            count x width  count x 9 B
//! ```
//! Behind the mappings of a leaf, if its volume has metadata of blocks: that of each entry.
//!
//! A node carries no checksum of its own: the pointer to it has the CRC-32C of the whole block.
//!
//! - NODE-FORMAT-1: keys ascend strictly. A key is stored as its distance from `base`, the first
//!   key.
//! - NODE-FORMAT-2: a leaf (level 0) uses the narrowest of the widths 2, 4 and 7 that its keys
//!   allow, an inner node always 7.
//! - NODE-FORMAT-3: an inner node has the first key that each child may hold; its own first one
//!   counts as "everything below the second".

use core::mem::size_of;

use units::{BLOCK_SIZE, MetadataSize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::metadata::{metadata_code, metadata_size};
use crate::{DecodeError, Mapping, PackedMapping};

const NODE_MAGIC: [u8; 4] = *b"FMN1";
/// Greatest level of a node: far more than 2^56 keys need.
pub const LEVEL_MAX: u8 = 10;
/// Keys are below this: they differ by at most 7 bytes.
pub const KEY_LIMIT: u64 = 1 << 56;
const MAPPING_SIZE: usize = size_of::<PackedMapping>();

/// Head of a node, format 1.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NodeHeader {
    /// 0..4: `FMN1`.
    magic: [u8; 4],
    /// 4: 0 for a leaf, else one more than its children have.
    level: u8,
    /// 5: bytes of a key.
    width: u8,
    /// 6..8: number of entries, at least one.
    count: U16,
    /// 8..12: volume number, or which table.
    tree: U32,
    /// 12: metadata of each entry of a leaf, as in a descriptor; zero in an inner node.
    metadata: u8,
    /// 13..16: zero.
    reserved: [u8; 3],
    /// 16..24: first key.
    base: U64,
    /// 24..32: zero.
    reserved_too: U64,
}

const HEADER_SIZE: usize = size_of::<NodeHeader>();
const _: () = assert!(HEADER_SIZE == 32 && MAPPING_SIZE == 9);

/// Bytes per key that a leaf needs whose last key is `span` above its first.
#[must_use]
pub const fn key_width(span: u64) -> usize {
    match span {
        0..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 7,
    }
}

/// Entries that fit into a leaf with keys of `width` bytes.
#[inline]
#[must_use]
pub const fn leaf_capacity(width: usize, metadata: MetadataSize) -> usize {
    (BLOCK_SIZE - HEADER_SIZE) / (width + MAPPING_SIZE + metadata.bytes())
}

/// Children that fit into an inner node.
pub const INNER_CAPACITY: usize = leaf_capacity(7, MetadataSize::None);

/// The head of a node to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct NodeHead {
    /// Volume number, or which table.
    pub tree: u32,
    /// 0 for a leaf.
    pub level: u8,
    /// Metadata of each block: of the tree, even in an inner node, which has none.
    pub metadata: MetadataSize,
}

/// Fills one block with a node. `keys` ascend, and there are as many mappings, and in a leaf as much
/// metadata. Panics if the node cannot hold them: the tree splits before.
pub fn encode_node(
    block: &mut [u8],
    head: NodeHead,
    keys: impl ExactSizeIterator<Item = u64> + Clone,
    mappings: impl ExactSizeIterator<Item = PackedMapping>,
    metadata: &[u8],
) {
    let NodeHead { tree, level, .. } = head;
    let size = if level == 0 { head.metadata } else { MetadataSize::None };
    let count = keys.len();
    assert!(count > 0 && count == mappings.len(), "a node has as many keys as mappings");
    let base = keys.clone().next().expect("not empty");
    let last = keys.clone().last().expect("not empty");
    let width = if level == 0 { key_width(last - base) } else { 7 };
    assert!(
        count <= leaf_capacity(width, size) && last < KEY_LIMIT,
        "the node overflows its block"
    );
    assert!(metadata.len() == count * size.bytes(), "each entry has its metadata");
    let header = NodeHeader {
        magic: NODE_MAGIC,
        level,
        width: u8::try_from(width).expect("at most 7"),
        count: u16::try_from(count).expect("less than a block has bytes").into(),
        tree: tree.into(),
        metadata: metadata_code(size),
        reserved: [0; 3],
        base: base.into(),
        reserved_too: U64::ZERO,
    };
    block[..HEADER_SIZE].copy_from_slice(header.as_bytes());
    let (key_bytes, rest) = block[HEADER_SIZE..].split_at_mut(count * width);
    for (place, key) in key_bytes.chunks_exact_mut(width).zip(keys) {
        place.copy_from_slice(&(key - base).to_le_bytes()[..width]);
    }
    let (mapping_bytes, rest) = rest.split_at_mut(count * MAPPING_SIZE);
    for (place, mapping) in mapping_bytes.chunks_exact_mut(MAPPING_SIZE).zip(mappings) {
        place.copy_from_slice(mapping.as_bytes());
    }
    let (metadata_bytes, padding) = rest.split_at_mut(metadata.len());
    metadata_bytes.copy_from_slice(metadata);
    padding.fill(0);
}

/// A node as it lies in a block, checked.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Volume number, or which table.
    pub tree: u32,
    /// 0 for a leaf.
    pub level: u8,
    /// Metadata of each entry.
    pub metadata_size: MetadataSize,
    base: u64,
    width: usize,
    keys: &'a [u8],
    mappings: &'a [u8],
    metadata: &'a [u8],
}

impl<'a> NodeView<'a> {
    /// Reads a node. The caller has compared the block with the checksum in the pointer to it; this
    /// checks that a node with a right checksum has sense, too.
    ///
    /// # Errors
    /// The block is no node, or breaks NODE-FORMAT-1 or NODE-FORMAT-2.
    pub fn decode(block: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) = NodeHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if header.magic != NODE_MAGIC {
            return Err(DecodeError::Magic);
        }
        let count = usize::from(header.count.get());
        let width = usize::from(header.width);
        let level = header.level;
        let width_fits = if level == 0 { matches!(width, 2 | 4 | 7) } else { width == 7 };
        if !width_fits || level > LEVEL_MAX {
            return Err(DecodeError::Field("node level or key width"));
        }
        let metadata_size = metadata_size(header.metadata)?;
        if level > 0 && !metadata_size.is_none() {
            return Err(DecodeError::Field("metadata of blocks"));
        }
        if count == 0 || count > leaf_capacity(width, metadata_size) {
            return Err(DecodeError::Field("node entry count"));
        }
        let (keys, rest) = body.split_at_checked(count * width).ok_or(DecodeError::Short)?;
        let (mappings, rest) =
            rest.split_at_checked(count * MAPPING_SIZE).ok_or(DecodeError::Short)?;
        let metadata = rest.get(..count * metadata_size.bytes()).ok_or(DecodeError::Short)?;
        let (tree, base) = (header.tree.get(), header.base.get());
        let view = Self { tree, level, metadata_size, base, width, keys, mappings, metadata };
        let ascending = (1..count).all(|i| view.distance(i - 1) < view.distance(i));
        let bounded = view.distance(count - 1) < KEY_LIMIT.saturating_sub(view.base);
        if view.distance(0) == 0 && ascending && bounded {
            Ok(view)
        } else {
            Err(DecodeError::Field("node keys"))
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mappings.len() / MAPPING_SIZE
    }

    /// The keys, ascending.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = u64> + Clone + use<'a> {
        let view = *self;
        (0..view.count()).map(move |index| view.base + view.distance(index))
    }

    /// Returns the mappings of the keys.
    pub fn mappings(&self) -> impl ExactSizeIterator<Item = PackedMapping> + use<'a> {
        self.mappings.chunks_exact(MAPPING_SIZE).map(PackedMapping::read)
    }

    /// The metadata of all entries, one after the other.
    #[must_use]
    pub fn metadata(&self) -> &'a [u8] {
        self.metadata
    }

    /// Keys and mappings together.
    pub fn entries(&self) -> impl Iterator<Item = (u64, Mapping)> + use<'a> {
        self.keys().zip(self.mappings().map(Mapping::from))
    }

    fn distance(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..self.width].copy_from_slice(&self.keys[index * self.width..][..self.width]);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use units::Pba;

    use super::*;

    fn mapping(n: u64) -> PackedMapping {
        Mapping { pba: Pba(n * 3 + (1 << 39)), crc: 0xF000_0000 | n as u32 }.into()
    }

    fn round_trip(level: u8, size: MetadataSize, keys: &[u64]) {
        let mut block = vec![0xA5; BLOCK_SIZE];
        let mappings = (0..keys.len() as u64).map(mapping).collect::<Vec<_>>();
        let of_leaf = if level == 0 { size.bytes() } else { 0 };
        let metadata: Vec<u8> = (0..keys.len() * of_leaf).map(|n| n as u8).collect();
        let head = NodeHead { tree: 77, level, metadata: size };
        let (key_list, mapping_list) = (keys.iter().copied(), mappings.iter().copied());
        encode_node(&mut block, head, key_list, mapping_list, &metadata);
        let view = NodeView::decode(&block).expect("just encoded");
        assert_eq!((view.tree, view.level, view.count()), (77, level, keys.len()));
        assert!(view.keys().eq(keys.iter().copied()));
        assert!(view.mappings().eq(mappings));
        assert_eq!((view.metadata_size.bytes(), view.metadata()), (of_leaf, metadata.as_slice()));
    }

    #[test]
    fn nodes_of_every_width_survive_encode_then_decode() {
        let capacities = |size| [2, 4, 7].map(|width| leaf_capacity(width, size));
        assert_eq!(capacities(MetadataSize::None), [369, 312, 254]);
        assert_eq!(capacities(MetadataSize::Bytes8), [213, 193, 169]);
        assert_eq!(capacities(MetadataSize::Bytes16), [150, 140, 127]);
        assert_eq!(capacities(MetadataSize::Bytes64), [54, 52, 50]);
        for size in MetadataSize::ALL {
            let [narrow, wide, widest] = capacities(size).map(|count| count as u64);
            round_trip(0, size, &(1000..1000 + narrow).collect::<Vec<_>>());
            round_trip(0, size, &(0..wide).map(|i| 5 + i * 70_000).collect::<Vec<_>>());
            round_trip(0, size, &(0..widest).map(|i| i << 47).collect::<Vec<_>>());
            round_trip(3, size, &(7..261).collect::<Vec<_>>());
            round_trip(0, size, &[KEY_LIMIT - 1]);
        }
    }

    #[test]
    fn a_leaf_has_the_bytes_of_the_picture() {
        let mut block = vec![0xA5; BLOCK_SIZE];
        let mappings = [Mapping { pba: Pba(0x01_0203_0405), crc: 0xA1B2_C3D4 }.into(); 2];
        let head = NodeHead { tree: 9, level: 0, metadata: MetadataSize::None };
        encode_node(&mut block, head, [0x20, 0x123].into_iter(), mappings.into_iter(), &[]);
        assert_eq!(block[..16], *b"FMN1\x00\x02\x02\x00\x09\x00\x00\x00\x00\x00\x00\x00");
        assert_eq!(block[16..32], [0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[32..36], [0, 0, 0x03, 0x01]);
        assert_eq!(block[36..45], [5, 4, 3, 2, 1, 0xD4, 0xC3, 0xB2, 0xA1]);
        assert!(block[54..].iter().all(|byte| *byte == 0));
        let head = NodeHead { metadata: MetadataSize::Bytes8, ..head };
        let metadata = [0x77; 16];
        encode_node(&mut block, head, [0x20, 0x123].into_iter(), mappings.into_iter(), &metadata);
        assert_eq!(block[12..16], [3, 0, 0, 0]);
        assert_eq!((block[53], block[54..70] == metadata, block[70]), (0xA1, true, 0));
    }

    #[test]
    fn senseless_nodes_are_refused() {
        let mut block = vec![0; BLOCK_SIZE];
        let head = NodeHead { tree: 1, level: 0, metadata: MetadataSize::None };
        let mappings = [mapping(1), mapping(2)];
        encode_node(&mut block, head, [1, 2].into_iter(), mappings.into_iter(), &[]);
        for (at, value, error) in [
            (0, 0, DecodeError::Magic),
            (4, 11, DecodeError::Field("node level or key width")),
            (5, 3, DecodeError::Field("node level or key width")),
            (6, 0, DecodeError::Field("node entry count")),
            (7, 2, DecodeError::Field("node entry count")),
            (12, 5, DecodeError::Field("metadata of blocks")),
            (34, 0, DecodeError::Field("node keys")),
            (32, 1, DecodeError::Field("node keys")),
            (23, 1, DecodeError::Field("node keys")),
        ] {
            let mut broken = block.clone();
            broken[at] = value;
            assert_eq!(NodeView::decode(&broken).err(), Some(error), "byte {at}");
        }
    }
}
