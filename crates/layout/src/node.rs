//! Nodes of the B+ trees: volume maps, extent tables and volume tables are all the same.
//!
//! ```text
//! 0       4       5           6       8      12     16     24       32
//! +-------+-------+-----------+-------+------+------+------+--------+------------+------------+
//! | magic | level | key width | count | tree | rsvd | base | rsvd   | keys       | mappings   |
//! +-------+-------+-----------+-------+------+------+------+--------+------------+------------+
//!                                                            count x width  count x 9 B
//! ```
//! A node carries no checksum of its own: the pointer to it has the CRC-32C of the whole block.
//!
//! - N1: keys ascend strictly. A key is stored as its distance from `base`, the first key.
//! - N2: a leaf (level 0) uses the narrowest of the widths 2, 4 and 7 that its keys allow, an inner
//!   node always 7.
//! - N3: an inner node has the first key that each child may hold; its own first one counts as
//!   "everything below the second".

use core::mem::size_of;

use units::BLOCK_SIZE;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

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
    /// 12..16: zero.
    reserved: U32,
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
#[must_use]
pub const fn leaf_capacity(width: usize) -> usize {
    (BLOCK_SIZE - HEADER_SIZE) / (width + MAPPING_SIZE)
}

/// Children that fit into an inner node.
pub const INNER_CAPACITY: usize = leaf_capacity(7);

/// Fills one block with a node. `keys` ascend, and there are as many mappings. Panics if the node
/// cannot hold them: the tree splits before.
pub fn encode_node(
    block: &mut [u8],
    tree: u32,
    level: u8,
    keys: impl ExactSizeIterator<Item = u64> + Clone,
    mappings: impl ExactSizeIterator<Item = PackedMapping>,
) {
    let count = keys.len();
    assert!(count > 0 && count == mappings.len(), "a node has as many keys as mappings");
    let base = keys.clone().next().expect("not empty");
    let last = keys.clone().last().expect("not empty");
    let width = if level == 0 { key_width(last - base) } else { 7 };
    assert!(count <= leaf_capacity(width) && last < KEY_LIMIT, "the node overflows its block");
    let header = NodeHeader {
        magic: NODE_MAGIC,
        level,
        width: u8::try_from(width).expect("at most 7"),
        count: u16::try_from(count).expect("less than a block has bytes").into(),
        tree: tree.into(),
        reserved: U32::ZERO,
        base: base.into(),
        reserved_too: U64::ZERO,
    };
    block[..HEADER_SIZE].copy_from_slice(header.as_bytes());
    let (key_bytes, rest) = block[HEADER_SIZE..].split_at_mut(count * width);
    for (place, key) in key_bytes.chunks_exact_mut(width).zip(keys) {
        place.copy_from_slice(&(key - base).to_le_bytes()[..width]);
    }
    let (mapping_bytes, padding) = rest.split_at_mut(count * MAPPING_SIZE);
    for (place, mapping) in mapping_bytes.chunks_exact_mut(MAPPING_SIZE).zip(mappings) {
        place.copy_from_slice(mapping.as_bytes());
    }
    padding.fill(0);
}

/// A node as it lies in a block, checked.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// Volume number, or which table.
    pub tree: u32,
    /// 0 for a leaf.
    pub level: u8,
    base: u64,
    width: usize,
    keys: &'a [u8],
    mappings: &'a [u8],
}

impl<'a> NodeView<'a> {
    /// Reads a node. The caller has compared the block with the checksum in the pointer to it; this
    /// checks that a node with a right checksum has sense, too.
    ///
    /// # Errors
    /// The block is no node, or breaks N1 or N2.
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
        if count == 0 || count > leaf_capacity(width) {
            return Err(DecodeError::Field("node entry count"));
        }
        let keys = body.get(..count * width).ok_or(DecodeError::Short)?;
        let mappings =
            body.get(count * width..count * (width + MAPPING_SIZE)).ok_or(DecodeError::Short)?;
        let view =
            Self { tree: header.tree.get(), level, base: header.base.get(), width, keys, mappings };
        let ascending = (1..count).all(|i| view.distance(i - 1) < view.distance(i));
        let bounded = view.base < KEY_LIMIT && view.distance(count - 1) < KEY_LIMIT - view.base;
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

    /// What the keys lead to.
    pub fn mappings(&self) -> impl ExactSizeIterator<Item = PackedMapping> + use<'a> {
        self.mappings.chunks_exact(MAPPING_SIZE).map(PackedMapping::read)
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

    fn round_trip(level: u8, keys: &[u64]) {
        let mut block = vec![0xA5; BLOCK_SIZE];
        let mappings = (0..keys.len() as u64).map(mapping).collect::<Vec<_>>();
        encode_node(&mut block, 77, level, keys.iter().copied(), mappings.iter().copied());
        let view = NodeView::decode(&block).expect("just encoded");
        assert_eq!((view.tree, view.level, view.count()), (77, level, keys.len()));
        assert!(view.keys().eq(keys.iter().copied()));
        assert!(view.mappings().eq(mappings));
    }

    #[test]
    fn nodes_of_every_width_survive_encode_then_decode() {
        assert_eq!((leaf_capacity(2), leaf_capacity(4), INNER_CAPACITY), (369, 312, 254));
        round_trip(0, &(1000..1369).collect::<Vec<_>>());
        round_trip(0, &(0..312).map(|i| 5 + i * 70_000).collect::<Vec<_>>());
        round_trip(0, &(0..254).map(|i| i << 47).collect::<Vec<_>>());
        round_trip(3, &(7..261).collect::<Vec<_>>());
        round_trip(0, &[KEY_LIMIT - 1]);
    }

    #[test]
    fn a_leaf_has_the_bytes_of_the_picture() {
        let mut block = vec![0xA5; BLOCK_SIZE];
        let mappings = [Mapping { pba: Pba(0x01_0203_0405), crc: 0xA1B2_C3D4 }.into(); 2];
        encode_node(&mut block, 9, 0, [0x20, 0x123].into_iter(), mappings.into_iter());
        assert_eq!(block[..16], *b"FMN1\x00\x02\x02\x00\x09\x00\x00\x00\x00\x00\x00\x00");
        assert_eq!(block[16..32], [0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(block[32..36], [0, 0, 0x03, 0x01]);
        assert_eq!(block[36..45], [5, 4, 3, 2, 1, 0xD4, 0xC3, 0xB2, 0xA1]);
        assert!(block[54..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn senseless_nodes_are_refused() {
        let mut block = vec![0; BLOCK_SIZE];
        encode_node(&mut block, 1, 0, [1, 2].into_iter(), [mapping(1), mapping(2)].into_iter());
        for (at, value, error) in [
            (0, 0, DecodeError::Magic),
            (4, 11, DecodeError::Field("node level or key width")),
            (5, 3, DecodeError::Field("node level or key width")),
            (6, 0, DecodeError::Field("node entry count")),
            (7, 2, DecodeError::Field("node entry count")),
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
