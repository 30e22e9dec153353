//! A volume's descriptor: what a checkpoint knows of it besides the map.

use alloc::string::String;
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};

use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, SectorSize, Slo};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mapping::PackedMapping;
use crate::metadata::{metadata_code, metadata_size};
use crate::root::{pack_pointer, unpack_pointer};
use crate::slo::PackedSlo;
use crate::{DecodeError, Mapping, seal, sealed};

const DESCRIPTOR_MAGIC: [u8; 4] = *b"FVD1";
/// Most bytes of a volume's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Most blocks of a volume: 2^63 bytes.
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 51;
/// Most ranges of a volume that are deallocated but whose space was not yet taken back.
pub const PENDING_UNMAPS_MAX: usize = 64;
const NAME_AT: usize = 64;
const SLO_AT: usize = 320;
const PENDING_UNMAPS_AT: usize = 512;
const ACCESS_AT: usize = PENDING_UNMAPS_AT + PENDING_UNMAPS_MAX * 16;
/// Most bytes of a volume's access list.
pub const ACCESS_BYTES_MAX: usize = 2048;
const FLAG_DELETED: u16 = 1;
const FLAG_SECTORS_512: u16 = 2;
/// All flags that have a meaning.
const FLAGS_KNOWN: u16 = FLAG_DELETED | FLAG_SECTORS_512;

/// Head of a descriptor, format 1. The name follows at byte 64, the SLO at byte 320, the pending unmaps
/// (start and number of blocks, 8 bytes each) at byte 512, the access at byte 1536 (its length, 2 bytes,
/// and itself).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    /// 0..4: `FVD1`.
    magic: [u8; 4],
    /// 4..8: CRC-32C of bytes 8..4096, padding included.
    crc32c: U32,
    /// 8..24: identity of the volume.
    uuid: [u8; 16],
    /// 24..32: size in blocks.
    blocks: U64,
    /// 32..40: blocks that hold data.
    mapped: U64,
    /// 40..44: volume number.
    number: U32,
    /// 44..46: bit 0: deleted, and its space is being taken back; bit 1: hosts address it in logical blocks of 512 bytes.
    flags: U16,
    /// 46..48: bytes of the name.
    name_len: U16,
    /// 48..50: number of pending unmaps.
    pending_unmap_count: U16,
    /// 50..59: root of the map; address zero if empty.
    map: PackedMapping,
    /// 59: metadata of each block: 0 for none, or n for 2^n bytes.
    metadata: u8,
    // 60..64 reserved, zero: a reader that finds anything else does not know its meaning.
}

const _: () = {
    assert!(size_of::<DescriptorHeader>() == 60 && offset_of!(DescriptorHeader, map) == 50);
    assert!(NAME_AT + NAME_BYTES_MAX <= SLO_AT);
    assert!(SLO_AT + size_of::<PackedSlo>() <= PENDING_UNMAPS_AT);
    assert!(ACCESS_AT == 1536 && ACCESS_AT + 2 + ACCESS_BYTES_MAX <= BLOCK_SIZE);
};

/// The state of a volume in a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Descriptor {
    /// Volume number within its shard.
    pub number: u32,
    /// Identity.
    pub uuid: Uuid,
    /// Name for people.
    pub name: String,
    /// Size in blocks.
    pub blocks: u64,
    /// Metadata of each block.
    pub metadata: MetadataSize,
    /// Logical blocks, as hosts address the volume. Those of 512 bytes have no metadata.
    pub sector: SectorSize,
    /// Blocks that hold data.
    pub mapped: u64,
    /// True if the volume was deleted, and its space is being taken back.
    pub deleted: bool,
    /// The service level objective.
    pub slo: Slo,
    /// The access list; opaque here.
    pub access: Vec<u8>,
    /// Root of the map.
    pub map: Option<Mapping>,
    /// Deallocated ranges whose blocks the map may still name: they read as zeroes.
    pub pending_unmaps: Vec<LbaRange>,
}

impl Descriptor {
    /// Fills one block. Panics if the name, the access or the list of pending unmaps is too long.
    pub fn encode(&self, block: &mut [u8]) {
        assert!(
            self.name.len() <= NAME_BYTES_MAX && self.pending_unmaps.len() <= PENDING_UNMAPS_MAX
        );
        let small = |n: usize| U16::new(u16::try_from(n).expect("bounded above"));
        let header = DescriptorHeader {
            magic: DESCRIPTOR_MAGIC,
            crc32c: U32::ZERO,
            uuid: *self.uuid.as_bytes(),
            blocks: self.blocks.into(),
            mapped: self.mapped.into(),
            number: self.number.into(),
            flags: self.flags().into(),
            name_len: small(self.name.len()),
            pending_unmap_count: small(self.pending_unmaps.len()),
            map: pack_pointer(self.map),
            metadata: metadata_code(self.metadata),
        };
        block.fill(0);
        block[..size_of::<DescriptorHeader>()].copy_from_slice(header.as_bytes());
        block[NAME_AT..NAME_AT + self.name.len()].copy_from_slice(self.name.as_bytes());
        let slo = PackedSlo::from(self.slo);
        block[SLO_AT..SLO_AT + size_of::<PackedSlo>()].copy_from_slice(slo.as_bytes());
        assert!(self.access.len() <= ACCESS_BYTES_MAX);
        let (len, access) = block[ACCESS_AT..].split_at_mut(2);
        len.copy_from_slice(small(self.access.len()).as_bytes());
        access[..self.access.len()].copy_from_slice(&self.access);
        for (place, range) in
            block[PENDING_UNMAPS_AT..].chunks_exact_mut(16).zip(&self.pending_unmaps)
        {
            place[..8].copy_from_slice(&range.start.0.to_le_bytes());
            place[8..].copy_from_slice(&range.blocks.to_le_bytes());
        }
        seal(block, 4);
    }

    fn flags(&self) -> u16 {
        let deleted = if self.deleted { FLAG_DELETED } else { 0 };
        let sector = match self.sector {
            SectorSize::Bytes4096 => 0,
            SectorSize::Bytes512 => FLAG_SECTORS_512,
        };
        deleted | sector
    }

    /// Reads one block.
    ///
    /// # Errors
    /// No descriptor, a damaged one, or one of a later release ([`DecodeError::Unknown`]).
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let (header, _) =
            DescriptorHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if block.len() < BLOCK_SIZE {
            return Err(DecodeError::Short);
        }
        if header.magic != DESCRIPTOR_MAGIC {
            return Err(DecodeError::Magic);
        }
        if !sealed(block, 4) {
            return Err(DecodeError::Checksum);
        }
        if block[size_of::<DescriptorHeader>()..NAME_AT].iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Unknown("properties"));
        }
        let flags = header.flags.get();
        if flags & !FLAGS_KNOWN != 0 {
            return Err(DecodeError::Unknown("flags"));
        }
        let metadata = metadata_size(header.metadata);
        let metadata = metadata.map_err(|_| DecodeError::Unknown("metadata of blocks"))?;
        let has_small_sectors = flags & FLAG_SECTORS_512 != 0;
        if has_small_sectors && !metadata.is_none() {
            return Err(DecodeError::Unknown("flags beside metadata of blocks"));
        }
        let name_len = usize::from(header.name_len.get());
        let pending_unmap_count = usize::from(header.pending_unmap_count.get());
        if name_len > NAME_BYTES_MAX || pending_unmap_count > PENDING_UNMAPS_MAX {
            return Err(DecodeError::Field("descriptor lengths"));
        }
        let name = core::str::from_utf8(&block[NAME_AT..NAME_AT + name_len])
            .map_err(|_| DecodeError::Field("volume name"))?;
        let (slo, _) =
            PackedSlo::ref_from_prefix(&block[SLO_AT..]).map_err(|_| DecodeError::Short)?;
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let pending_unmaps: Vec<_> = block[PENDING_UNMAPS_AT..]
            .chunks_exact(16)
            .take(pending_unmap_count)
            .map(|pair| LbaRange::new(Lba(word(&pair[..8])), word(&pair[8..])))
            .collect();
        if pending_unmaps.iter().any(|range| range.checked_end().is_none())
            || header.blocks.get() > VOLUME_BLOCKS_MAX
        {
            return Err(DecodeError::Field("volume size"));
        }
        let (len, access) = block[ACCESS_AT..].split_at(2);
        let access_len = usize::from(u16::from_le_bytes([len[0], len[1]]));
        if access_len > ACCESS_BYTES_MAX {
            return Err(DecodeError::Field("access length"));
        }
        Ok(Self {
            number: header.number.get(),
            uuid: Uuid::from_bytes(header.uuid),
            name: name.into(),
            blocks: header.blocks.get(),
            metadata,
            sector: if has_small_sectors { SectorSize::Bytes512 } else { SectorSize::Bytes4096 },
            mapped: header.mapped.get(),
            deleted: flags & FLAG_DELETED != 0,
            slo: slo.unpack()?,
            access: access[..access_len].into(),
            map: unpack_pointer(header.map),
            pending_unmaps,
        })
    }
}

#[cfg(test)]
mod tests {
    use units::Pba;

    use super::*;

    fn descriptor() -> Descriptor {
        Descriptor {
            number: 3,
            uuid: Uuid::from_u128(99),
            name: "é".repeat(127),
            blocks: 1 << 51,
            metadata: MetadataSize::Bytes64,
            sector: SectorSize::Bytes4096,
            mapped: 17,
            deleted: true,
            slo: Slo::Rate { reads_per_second: 1 << 40, writes_per_second: 7 },
            access: vec![0x5A; ACCESS_BYTES_MAX],
            map: Some(Mapping { pba: Pba(5), crc: 6 }),
            pending_unmaps: (0..64).map(|i| LbaRange::new(Lba(i * 10), i)).collect(),
        }
    }

    #[test]
    fn a_descriptor_survives_encode_then_decode() {
        let mut block = vec![0xA5; BLOCK_SIZE];
        descriptor().encode(&mut block);
        assert_eq!(Descriptor::decode(&block), Ok(descriptor()));
        for metadata in MetadataSize::ALL {
            let descriptor = Descriptor { metadata, ..descriptor() };
            descriptor.encode(&mut block);
            assert_eq!((Descriptor::decode(&block), block[60]), (Ok(descriptor), 0));
        }
        let (metadata, sector) = (MetadataSize::None, SectorSize::Bytes512);
        for deleted in [false, true] {
            let descriptor = Descriptor { metadata, sector, deleted, ..descriptor() };
            descriptor.encode(&mut block);
            assert_eq!(block[44], 2 | u8::from(deleted));
            assert_eq!(Descriptor::decode(&block), Ok(descriptor));
        }
    }

    /// Volumes of a later release are not taken for known ones.
    ///
    /// Method: set each flag that has no meaning, alone and beside those that have one; give the metadata every other
    /// code; set each bit of the reserved bytes. Neither the flags that are known nor what they say of the volume matter.
    #[test]
    fn what_only_a_later_release_knows_is_refused() {
        let unknown_flags = (2..16).map(|bit| (44 + bit / 8, 1 << (bit % 8), "flags"));
        let codes = (0..=u8::MAX).filter(|code| metadata_size(*code).is_err());
        let metadata = codes.map(|code| (59, code, "metadata of blocks"));
        let reserved = (0..32).map(|bit| (60 + bit / 8, 1 << (bit % 8), "properties"));
        let mut block = vec![0; BLOCK_SIZE];
        for (byte, value, what) in unknown_flags.chain(metadata).chain(reserved) {
            for deleted in [false, true] {
                Descriptor { deleted, ..descriptor() }.encode(&mut block);
                if byte == 44 {
                    block[byte] |= value;
                } else {
                    block[byte] = value;
                }
                seal(&mut block, 4);
                let refused = Err(DecodeError::Unknown(what));
                assert_eq!(Descriptor::decode(&block), refused, "byte {byte}: {value:#x}");
            }
        }
        descriptor().encode(&mut block);
        block[44] |= 2;
        seal(&mut block, 4);
        let refused = Err(DecodeError::Unknown("flags beside metadata of blocks"));
        assert_eq!(Descriptor::decode(&block), refused);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let mut block = vec![0; BLOCK_SIZE];
        descriptor().encode(&mut block);
        for byte in 0..BLOCK_SIZE {
            block[byte] ^= 0x01;
            assert!(Descriptor::decode(&block).is_err(), "byte {byte}");
            block[byte] ^= 0x01;
        }
    }
}
