//! The location and the checksum of a block.

use units::{Pba, PbaRange};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A block's place and its CRC-32C: what every pointer on the device is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mapping {
    /// Location of the block.
    pub pba: Pba,
    /// CRC-32C of its 4096 bytes.
    pub crc: u32,
}

/// A [`Mapping`] in nine bytes: a 40-bit block address and the checksum, both little-endian.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PackedMapping {
    /// 0..5: address in blocks.
    pba: [u8; 5],
    /// 5..9: CRC-32C.
    crc: [u8; 4],
}

impl From<Mapping> for PackedMapping {
    #[inline]
    fn from(mapping: Mapping) -> Self {
        let [p0, p1, p2, p3, p4, rest @ ..] = mapping.pba.0.to_le_bytes();
        debug_assert!(rest == [0; 3], "a device has at most 2^40 blocks");
        Self { pba: [p0, p1, p2, p3, p4], crc: mapping.crc.to_le_bytes() }
    }
}

impl From<PackedMapping> for Mapping {
    #[inline]
    fn from(packed: PackedMapping) -> Self {
        let [p0, p1, p2, p3, p4] = packed.pba;
        let pba = Pba(u64::from_le_bytes([p0, p1, p2, p3, p4, 0, 0, 0]));
        Self { pba, crc: u32::from_le_bytes(packed.crc) }
    }
}

impl PackedMapping {
    /// Reads nine bytes. Panics on fewer.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        Self::read_from_bytes(&bytes[..9]).expect("nine bytes")
    }
}

/// Most blocks that one run can name.
pub const RUN_BLOCKS_MAX: u64 = (1 << 24) - 1;

/// A run of blocks as the journal has it: address in the low 40 bits, length in the high 24.
pub(crate) fn pack_run(run: PbaRange) -> u64 {
    assert!(run.start.0 < 1 << 40 && (1..=RUN_BLOCKS_MAX).contains(&run.blocks));
    run.start.0 | run.blocks << 40
}

pub(crate) fn unpack_run(packed: u64) -> PbaRange {
    PbaRange::new(Pba(packed & ((1 << 40) - 1)), packed >> 40)
}
