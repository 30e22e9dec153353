//! A shard's root: where its last checkpoint lies, and where its journal goes on from there.
//!
//! Two slots are written in turn, by the parity of the generation; each has two copies, far apart.

use core::mem::{offset_of, size_of};

use units::{BLOCK_SIZE, Pba, PbaRange};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mapping::PackedMapping;
use crate::{DecodeError, Mapping, seal, sealed};

const ROOT_MAGIC: [u8; 4] = *b"FSR1";
/// Generations, incarnations and record numbers are counted one by one and never reach this: a
/// higher number was not written by farflash, and counting on does not overflow.
pub const COUNT_MAX: u64 = 1 << 62;

/// Root of a shard, format 1.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootHeader {
    /// 0..4: `FSR1`.
    magic: [u8; 4],
    /// 4..8: CRC-32C of bytes 8..4096, padding included.
    crc32c: U32,
    /// 8..24: identity of the device.
    device: [u8; 16],
    /// 24..32: the higher of two valid roots counts.
    generation: U64,
    /// 32..40: what journal records behind this checkpoint carry.
    incarnation: U64,
    /// 40..48: sequence of the first record to replay.
    replay_sequence: U64,
    /// 48..56: first block of the journal.
    journal_start: U64,
    /// 56..60: blocks of the journal.
    journal_blocks: U32,
    /// 60..64: block of the journal at which the first record to replay is looked for.
    replay_position: U32,
    /// 64..68: checksum of the record before it.
    replay_previous_crc: U32,
    /// 68..72: number of the next volume.
    next_volume: U32,
    /// 72..74: which shard.
    shard: U16,
    /// 74..83: root of the extent table; address zero if empty.
    extents: PackedMapping,
    /// 83..92: root of the volume table; address zero if empty.
    volumes: PackedMapping,
    /// 92..100: what the shard's records carry; zero: nothing.
    secret: U64,
}

const _: () = {
    assert!(size_of::<RootHeader>() == 100 && size_of::<RootHeader>() <= BLOCK_SIZE);
    assert!(offset_of!(RootHeader, secret) == 92);
    assert!(offset_of!(RootHeader, journal_blocks) == 56 && offset_of!(RootHeader, extents) == 74);
};

/// The point in the journal where replay begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplayPoint {
    /// Sequence of the record.
    pub sequence: u64,
    /// Block of the journal at which it lies, or at 0 if it did not fit there.
    pub position: u32,
    /// Checksum of the record before it.
    pub previous_crc: u32,
}

/// The last checkpoint of a shard.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Root {
    /// Identity of the device.
    pub device: Uuid,
    /// The shard.
    pub shard: u16,
    /// Counts checkpoints.
    pub generation: u64,
    /// Counts starts of the shard.
    pub incarnation: u64,
    /// Location of the journal.
    pub journal: PbaRange,
    /// Start of replay.
    pub replay: ReplayPoint,
    /// Number of the next volume; numbers are never used again.
    pub next_volume: u32,
    /// Root of the extent table: extent number to bitmap.
    pub extents: Option<Mapping>,
    /// Root of the volume table: volume number to descriptor.
    pub volumes: Option<Mapping>,
    /// The secret that the shard's records carry, if it is not 0: no tenant knows it (JOURNAL-7).
    pub secret: u64,
}

/// A pointer that may be absent: address zero is the superblock, so no pointer has it.
pub(crate) fn pack_pointer(pointer: Option<Mapping>) -> PackedMapping {
    pointer.unwrap_or(Mapping { pba: Pba(0), crc: 0 }).into()
}

pub(crate) fn unpack_pointer(packed: PackedMapping) -> Option<Mapping> {
    let mapping = Mapping::from(packed);
    (mapping.pba != Pba(0)).then_some(mapping)
}

impl Root {
    /// Fills one block.
    pub fn encode(&self, block: &mut [u8]) {
        let header = RootHeader {
            magic: ROOT_MAGIC,
            crc32c: U32::ZERO,
            device: *self.device.as_bytes(),
            generation: self.generation.into(),
            incarnation: self.incarnation.into(),
            replay_sequence: self.replay.sequence.into(),
            journal_start: self.journal.start.0.into(),
            journal_blocks: u32::try_from(self.journal.blocks).expect("less than 2^32").into(),
            replay_position: self.replay.position.into(),
            replay_previous_crc: self.replay.previous_crc.into(),
            next_volume: self.next_volume.into(),
            shard: self.shard.into(),
            extents: pack_pointer(self.extents),
            volumes: pack_pointer(self.volumes),
            secret: self.secret.into(),
        };
        block.fill(0);
        block[..size_of::<RootHeader>()].copy_from_slice(header.as_bytes());
        seal(block, 4);
    }

    /// Reads one block.
    ///
    /// # Errors
    /// No root, or a damaged one.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let (header, _) = RootHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if header.magic != ROOT_MAGIC {
            return Err(DecodeError::Magic);
        }
        if !sealed(block, 4) {
            return Err(DecodeError::Checksum);
        }
        let start = Pba(header.journal_start.get());
        let blocks = u64::from(header.journal_blocks.get());
        if start.checked_add(blocks).is_none()
            || header.replay_position.get() > header.journal_blocks.get()
            || !(1..=COUNT_MAX).contains(&header.replay_sequence.get())
            || header.generation.get() > COUNT_MAX
            || header.incarnation.get() > COUNT_MAX
        {
            return Err(DecodeError::Field("journal of the root"));
        }
        Ok(Self {
            device: Uuid::from_bytes(header.device),
            shard: header.shard.get(),
            generation: header.generation.get(),
            incarnation: header.incarnation.get(),
            journal: PbaRange::new(start, blocks),
            replay: ReplayPoint {
                sequence: header.replay_sequence.get(),
                position: header.replay_position.get(),
                previous_crc: header.replay_previous_crc.get(),
            },
            next_volume: header.next_volume.get(),
            extents: unpack_pointer(header.extents),
            volumes: unpack_pointer(header.volumes),
            secret: header.secret.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            device: Uuid::from_u128(0x1234),
            shard: 5,
            generation: 6,
            incarnation: 7,
            journal: PbaRange::new(Pba(800), 900),
            replay: ReplayPoint { sequence: 10, position: 900, previous_crc: 12 },
            next_volume: 13,
            extents: Some(Mapping { pba: Pba(1 << 39), crc: 15 }),
            volumes: None,
            secret: 16,
        }
    }

    #[test]
    fn a_root_survives_encode_then_decode() {
        let mut block = vec![0xA5; BLOCK_SIZE];
        root().encode(&mut block);
        assert_eq!(Root::decode(&block), Ok(root()));
        assert_eq!(Root::decode(&block[..99]), Err(DecodeError::Short));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let mut block = vec![0; BLOCK_SIZE];
        root().encode(&mut block);
        for byte in 0..BLOCK_SIZE {
            block[byte] ^= 0x10;
            assert!(Root::decode(&block).is_err(), "byte {byte}");
            block[byte] ^= 0x10;
        }
    }
}
