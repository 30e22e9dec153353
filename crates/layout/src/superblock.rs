//! The superblock: what a device is, how large it was when formatted, where its parts lie, and to which cluster it
//! belongs.
//!
//! Nothing but the last changes after `format`. One copy is in the first block, one in the last.

use core::mem::{offset_of, size_of};

use units::{BLOCK_SIZE, Pba, PbaRange};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DecodeError, EXTENT_BLOCKS_MAX, EXTENT_BLOCKS_MIN, FORMAT_VERSION, seal, sealed};

/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"farflash";
/// Shards that every device has room for.
pub const SHARD_SLOTS: u16 = 64;
/// Fewest blocks of a device: 64 MiB.
pub const DEVICE_BLOCKS_MIN: u64 = (64 << 20) / BLOCK_SIZE as u64;
/// Most blocks of a device: what 40 bits can count, 4 PiB.
pub const DEVICE_BLOCKS_MAX: u64 = 1 << 40;
/// Most blocks of a journal: 64 MiB.
const JOURNAL_BLOCKS_MAX: u32 = (64 << 20) / BLOCK_SIZE as u32;
/// Such a part of a device is a shard's journal, if in bounds.
const JOURNAL_PART: u64 = 128;
/// Extents that a device has at least, so that several shards can share a small one.
const EXTENTS_WANTED: u64 = 64;
/// The first extent begins at a multiple of 1 MiB.
const DATA_ALIGNMENT_BLOCKS: u64 = 256;

/// Superblock, format 1. Integers are little-endian; byte ranges are given per field.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuperblockHeader {
    /// 0..8: `farflash`.
    magic: [u8; 8],
    /// 8..12: CRC-32C of bytes 12..4096, padding included.
    crc32c: U32,
    /// 12..16: format version.
    version: U32,
    /// 16..32: identity of the device.
    uuid: [u8; 16],
    /// 32..40: blocks of the device.
    blocks: U64,
    /// 40..44: blocks of an extent, a power of two.
    extent_blocks: U32,
    /// 44..48: blocks of a shard's journal.
    journal_blocks: U32,
    /// 48..50: shards there is room for.
    shard_slots: U16,
    /// 50..64: zero. Whatever will stand here some day is refused by programs that do not know it.
    reserved: [u8; 14],
    /// 64..80: identity of the cluster; zeroes if the device belongs to none.
    cluster: [u8; 16],
}

const _: () = {
    assert!(size_of::<SuperblockHeader>() == 80);
    assert!(offset_of!(SuperblockHeader, cluster) == 64);
    assert!(offset_of!(SuperblockHeader, crc32c) == 8);
    assert!(offset_of!(SuperblockHeader, blocks) == 32);
};

/// The identity of a device and the layout of its parts.
///
/// ```text
/// | superblock | roots | … | extent 0 | extent 1 | … | last extent | roots again | superblock |
/// 0            1           data_start, 1 MiB aligned                             blocks - 1
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Superblock {
    /// Identity of the device; a new one with every format.
    pub uuid: Uuid,
    /// Blocks of the device.
    pub blocks: u64,
    /// Blocks of an extent but the last: 32 768, or less where there would be fewer than 64 extents.
    pub extent_blocks: u32,
    /// Blocks of each shard's journal.
    pub journal_blocks: u32,
    /// Shards there is room for.
    pub shard_slots: u16,
    /// The cluster that it belongs to, if any: hosts of no other may serve it, nor one that is of none.
    pub cluster: Option<Uuid>,
}

impl Superblock {
    /// The layout of a device of `blocks` blocks, or `None` if it is too small or too large.
    #[must_use]
    pub fn for_device(uuid: Uuid, blocks: u64) -> Option<Self> {
        if !(DEVICE_BLOCKS_MIN..=DEVICE_BLOCKS_MAX).contains(&blocks) {
            return None;
        }
        let wanted = u32::try_from(blocks / EXTENTS_WANTED).unwrap_or(u32::MAX);
        let extent_blocks = wanted.clamp(EXTENT_BLOCKS_MIN, EXTENT_BLOCKS_MAX);
        Self::with_extents(uuid, blocks, 1 << extent_blocks.ilog2())
    }

    /// As [`Superblock::for_device`], with extents of another size, a power of two in bounds.
    #[must_use]
    pub fn with_extents(uuid: Uuid, blocks: u64, extent_blocks: u32) -> Option<Self> {
        if !(DEVICE_BLOCKS_MIN..=DEVICE_BLOCKS_MAX).contains(&blocks)
            || !(EXTENT_BLOCKS_MIN..=EXTENT_BLOCKS_MAX).contains(&extent_blocks)
            || !extent_blocks.is_power_of_two()
        {
            return None;
        }
        // Two bitmap slots come before the journal in its extent.
        let wanted = u32::try_from(blocks / JOURNAL_PART).unwrap_or(u32::MAX);
        let journal_blocks = wanted
            .clamp(crate::JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX)
            .min(extent_blocks - crate::BITMAP_SLOTS);
        let shard_slots = SHARD_SLOTS;
        Some(Self { uuid, blocks, extent_blocks, journal_blocks, shard_slots, cluster: None })
    }

    /// The place of the owner mark, behind the first copy of the claim mark.
    pub const OWNER_MARK: Pba = Pba(130);

    /// Chooses between two superblocks of one device: the one that names a cluster, if the other
    /// names none. Between two writes of its copies a device thus belongs to the cluster that it
    /// joins, or leaves. `other` is ignored if it is of another device.
    #[must_use]
    pub fn or_in_cluster(self, other: Self) -> Self {
        let is_same = Self { cluster: None, ..other } == self;
        if is_same { other } else { self }
    }

    /// Returns the places of the two copies of the superblock of a device of `blocks` blocks.
    #[must_use]
    pub const fn places(blocks: u64) -> [Pba; 2] {
        [Pba(0), Pba(blocks - 1)]
    }

    /// Returns the blocks that are unused on a device of `found` blocks, if it has grown.
    #[must_use]
    pub fn room_to_grow(&self, found: u64) -> Option<u64> {
        found.checked_sub(self.blocks).filter(|unused| *unused > 0)
    }

    /// Returns the places of the two copies of a root of shard `shard`; even and odd generations
    /// alternate.
    #[must_use]
    pub fn root_places(&self, shard: u16, generation: u64) -> [Pba; 2] {
        let slot = u64::from(shard) * 2 + generation % 2;
        [Pba(1 + slot), Pba(self.blocks - 1 - self.root_blocks() + slot)]
    }

    /// Returns the places of the two copies of the claim mark: behind the first copies of roots,
    /// and just before extent 0.
    #[must_use]
    pub fn claim_mark_places(&self) -> [Pba; 2] {
        [Pba(1 + self.root_blocks()), Pba(self.data_start().0 - 1)]
    }

    fn root_blocks(&self) -> u64 {
        u64::from(self.shard_slots) * 2
    }

    /// First block of extent 0.
    #[must_use]
    pub fn data_start(&self) -> Pba {
        Pba((1 + self.root_blocks()).next_multiple_of(DATA_ALIGNMENT_BLOCKS))
    }

    /// The block just behind the last extent.
    #[must_use]
    pub fn data_end(&self) -> Pba {
        Pba(self.blocks - 1 - self.root_blocks())
    }

    /// Number of extents, the last of which may be shorter. One too short for its own bitmaps and
    /// a block of data is not counted.
    #[must_use]
    pub fn extent_count(&self) -> u32 {
        let (whole, rest) = self.split(self.data_end().0 - self.data_start().0);
        let count = whole + u64::from(rest > u64::from(crate::BITMAP_SLOTS));
        u32::try_from(count).expect("2^40 blocks hold at most 2^30 extents")
    }

    /// The blocks of extent `index`.
    #[must_use]
    pub fn extent(&self, index: u32) -> PbaRange {
        let start = self.data_start().plus(u64::from(index) * u64::from(self.extent_blocks));
        let end = (start.0 + u64::from(self.extent_blocks)).min(self.data_end().0);
        PbaRange::new(start, end.saturating_sub(start.0))
    }

    /// The extent that `pba` lies in, and which of its blocks it is.
    #[must_use]
    #[inline]
    pub fn locate(&self, pba: Pba) -> Option<(u32, u32)> {
        let offset = pba.0.checked_sub(self.data_start().0)?;
        let (index, block) = self.split(offset);
        let (index, block) = (u32::try_from(index).ok()?, u32::try_from(block).ok()?);
        (index < self.extent_count() && pba < self.data_end()).then_some((index, block))
    }

    /// Returns whether one of an extent's two bitmaps has its place there.
    #[must_use]
    pub fn is_bitmap(&self, pba: Pba) -> bool {
        self.locate(pba).is_some_and(|(_, block)| block < crate::BITMAP_SLOTS)
    }

    /// Blocks as whole extents and the rest. Each request does this several times, hence without a division.
    fn split(&self, blocks: u64) -> (u64, u64) {
        let extent = u64::from(self.extent_blocks);
        debug_assert!(extent.is_power_of_two(), "checked by the code that made this");
        (blocks >> extent.trailing_zeros(), blocks & (extent - 1))
    }

    /// Fills one block.
    pub fn encode(&self, block: &mut [u8]) {
        let header = SuperblockHeader {
            magic: SUPERBLOCK_MAGIC,
            crc32c: U32::ZERO,
            version: FORMAT_VERSION.into(),
            uuid: *self.uuid.as_bytes(),
            blocks: self.blocks.into(),
            extent_blocks: self.extent_blocks.into(),
            journal_blocks: self.journal_blocks.into(),
            shard_slots: self.shard_slots.into(),
            reserved: [0; 14],
            cluster: self.cluster.unwrap_or_default().into_bytes(),
        };
        block.fill(0);
        block[..size_of::<SuperblockHeader>()].copy_from_slice(header.as_bytes());
        seal(block, 8);
    }

    /// Reads one block.
    ///
    /// # Errors
    /// No superblock, a damaged one, or one of a format that this program does not know.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let (header, _) =
            SuperblockHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if header.magic != SUPERBLOCK_MAGIC {
            return Err(DecodeError::Magic);
        }
        if !sealed(block, 8) {
            return Err(DecodeError::Checksum);
        }
        if header.version.get() != FORMAT_VERSION {
            return Err(DecodeError::Version(header.version.get()));
        }
        let found = Self {
            uuid: Uuid::from_bytes(header.uuid),
            blocks: header.blocks.get(),
            extent_blocks: header.extent_blocks.get(),
            journal_blocks: header.journal_blocks.get(),
            shard_slots: header.shard_slots.get(),
            cluster: Some(Uuid::from_bytes(header.cluster)).filter(|id| !id.is_nil()),
        };
        if header.reserved != [0; 14] {
            return Err(DecodeError::Unknown("properties"));
        }
        let sound = (DEVICE_BLOCKS_MIN..=DEVICE_BLOCKS_MAX).contains(&found.blocks)
            && found.extent_blocks.is_power_of_two()
            && (EXTENT_BLOCKS_MIN..=EXTENT_BLOCKS_MAX).contains(&found.extent_blocks)
            && found.journal_blocks >= crate::JOURNAL_BLOCKS_MIN
            && found.journal_blocks <= found.extent_blocks - crate::BITMAP_SLOTS
            && (1..=1024).contains(&found.shard_slots);
        if sound { Ok(found) } else { Err(DecodeError::Field("superblock geometry")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_encode_then_decode_and_notices_a_flipped_bit() {
        let superblock = Superblock::for_device(Uuid::from_u128(7), 1 << 21).expect("8 GiB");
        let mut block = vec![0xA5; BLOCK_SIZE];
        superblock.encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(superblock));
        for byte in 0..BLOCK_SIZE {
            block[byte] ^= 0x10;
            assert!(Superblock::decode(&block).is_err(), "byte {byte}");
            block[byte] ^= 0x10;
        }
        block[12] = 2;
        seal(&mut block, 8);
        assert_eq!(Superblock::decode(&block), Err(DecodeError::Version(2)));
    }

    /// The copies are the first and the last block, and a device that has grown says by how much.
    #[test]
    fn a_device_has_a_superblock_at_either_end_and_knows_what_it_does_not_use() {
        assert_eq!(Superblock::places(1 << 21), [Pba(0), Pba((1 << 21) - 1)]);
        let superblock = Superblock::for_device(Uuid::from_u128(7), 1 << 21).expect("8 GiB");
        let room = |found| superblock.room_to_grow(found);
        assert_eq!(
            [1 << 20, 1 << 21, (1 << 21) + 1, 1 << 22].map(room),
            [None, None, Some(1), Some(1 << 21)]
        );
    }

    /// The bytes of a cluster are where the format has them, and zeroes are none; what is reserved is refused.
    #[test]
    fn a_superblock_says_to_which_cluster_its_device_belongs() {
        let alone = Superblock::for_device(Uuid::from_u128(7), 1 << 21).expect("8 GiB");
        let member = Superblock { cluster: Some(Uuid::from_bytes([0xC7; 16])), ..alone };
        let mut blocks = [vec![0; BLOCK_SIZE], vec![0; BLOCK_SIZE]];
        alone.encode(&mut blocks[0]);
        member.encode(&mut blocks[1]);
        assert!(blocks[0][48..].iter().all(|byte| [0, 64].contains(byte)), "but for the slots");
        assert_eq!(blocks[1][64..80], [0xC7; 16]);
        assert_eq!([&blocks[0][12..64], &blocks[0][80..]], [&blocks[1][12..64], &blocks[1][80..]]);
        assert_eq!(Superblock::decode(&blocks[0]), Ok(alone));
        assert_eq!(Superblock::decode(&blocks[1]), Ok(member));
        for byte in 50..64 {
            let mut unknown = blocks[1].clone();
            unknown[byte] = 1;
            seal(&mut unknown, 8);
            assert_eq!(Superblock::decode(&unknown), Err(DecodeError::Unknown("properties")));
        }
    }

    /// The one of two copies that names a cluster counts, in either order; one of another device
    /// never does.
    #[test]
    fn a_device_between_two_states_belongs_to_the_cluster() {
        let alone = Superblock::for_device(Uuid::from_u128(7), 1 << 21).expect("8 GiB");
        let member = |id| Superblock { cluster: Some(Uuid::from_u128(id)), ..alone };
        assert_eq!(alone.or_in_cluster(alone), alone);
        assert_eq!(alone.or_in_cluster(member(1)), member(1));
        assert_eq!(member(1).or_in_cluster(alone), member(1));
        assert_eq!(member(1).or_in_cluster(member(2)), member(1), "never two");
        let stranger = Superblock { uuid: Uuid::from_u128(8), ..member(1) };
        assert_eq!(alone.or_in_cluster(stranger), alone);
    }

    /// Extents, roots and superblocks never overlap, and every block of an extent is found again.
    #[test]
    fn parts_of_devices_of_every_size_are_disjoint() {
        let sizes = [DEVICE_BLOCKS_MIN, 16_385, 17_000, 100_000, (1 << 21) + 5, 1 << 28, 1 << 40];
        for blocks in sizes {
            let layout = Superblock::for_device(Uuid::nil(), blocks).expect("in bounds");
            let last = layout.extent_count() - 1;
            assert!(layout.extent(0).start > layout.root_places(63, 1)[0], "{blocks}");
            assert!(layout.extent(last).end() <= layout.root_places(0, 0)[1], "{blocks}");
            assert!(layout.root_places(63, 1)[1] < Superblock::places(blocks)[1], "{blocks}");
            let [mark, other_mark] = layout.claim_mark_places();
            assert_eq!([mark, other_mark], [Pba(129), Pba(255)], "{blocks}");
            assert!(layout.root_places(63, 1)[0] < mark && other_mark < layout.extent(0).start);
            assert!(layout.extent(last).blocks > u64::from(crate::BITMAP_SLOTS), "{blocks}");
            for extent in [0, last] {
                let range = layout.extent(extent);
                let end = u32::try_from(range.blocks - 1).expect("small");
                assert_eq!(layout.locate(range.start), Some((extent, 0)));
                assert_eq!(layout.locate(range.start.plus(range.blocks - 1)), Some((extent, end)));
            }
            assert_eq!(layout.locate(layout.data_end()), None);
            assert_eq!(layout.locate(Pba(layout.data_start().0 - 1)), None);
        }
    }
}
