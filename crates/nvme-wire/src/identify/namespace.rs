//! Identify Namespace of the NVM command set, CNS 00h (NVM, figure "Identify Namespace Data
//! Structure, NVM Command Set").

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// NSFEAT: thin provisioning; NCAP may be less than NSZE, and NUSE is true.
pub const NSFEAT_THIN: u8 = 1 << 0;
/// NSFEAT: NAWUN, NAWUPF and NACWU hold for this namespace.
pub const NSFEAT_ATOMICS: u8 = 1 << 1;
/// NSFEAT: reads of deallocated blocks can be made to fail.
pub const NSFEAT_DEALLOCATED_ERROR: u8 = 1 << 2;
/// NSFEAT: NGUID and EUI64 are never reused.
pub const NSFEAT_UID_REUSE: u8 = 1 << 3;
/// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are defined.
pub const NSFEAT_OPTIMAL_PERFORMANCE: u8 = 1 << 4;
/// FLBAS: metadata is transferred behind each block's data, as one longer block.
pub const FLBAS_EXTENDED_LBA: u8 = 1 << 4;
/// MC: the namespace can transfer metadata behind each block's data.
pub const MC_EXTENDED_LBA: u8 = 1 << 0;
/// NMIC: the namespace may be attached to more than one controller.
pub const NMIC_SHARED: u8 = 1 << 0;
/// DLFEAT: deallocated blocks read as zeroes.
pub const DLFEAT_READS_ZEROES: u8 = 0b001;
/// DLFEAT: Write Zeroes may deallocate.
pub const DLFEAT_DEALLOCATE_WRITE_ZEROES: u8 = 1 << 3;

/// A format that a namespace can have.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LbaFormat {
    /// 0..2: Metadata Size in bytes.
    pub ms: U16,
    /// 2: LBA Data Size, a power of two.
    pub lbads: u8,
    /// 3: Relative Performance in bits 1:0, 0 is best.
    pub rp: u8,
}

/// Properties of a namespace.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// 0..8: Namespace Size in blocks.
    pub nsze: U64,
    /// 8..16: Namespace Capacity in blocks.
    pub ncap: U64,
    /// 16..24: Namespace Utilization in blocks.
    pub nuse: U64,
    /// 24: Namespace Features.
    pub nsfeat: u8,
    /// 25: Number of LBA Formats, 0's based.
    pub nlbaf: u8,
    /// 26: Formatted LBA Size: format index in bits 3:0 and 6:5, extended LBA in bit 4.
    pub flbas: u8,
    /// 27: Metadata Capabilities.
    pub mc: u8,
    /// 28: End-to-end Data Protection Capabilities.
    pub dpc: u8,
    /// 29: End-to-end Data Protection Type Settings.
    pub dps: u8,
    /// 30: Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: u8,
    /// 31: Reservation Capabilities.
    pub rescap: u8,
    /// 32: Format Progress Indicator.
    pub fpi: u8,
    /// 33: Deallocate Logical Block Features.
    pub dlfeat: u8,
    /// 34..36: Namespace Atomic Write Unit Normal, 0's based blocks.
    pub nawun: U16,
    /// 36..38: Namespace Atomic Write Unit Power Fail, 0's based blocks.
    pub nawupf: U16,
    /// 38..40: Namespace Atomic Compare & Write Unit, 0's based blocks.
    pub nacwu: U16,
    /// 40..42: Namespace Atomic Boundary Size Normal, 0 for no boundary.
    pub nabsn: U16,
    /// 42..44: Namespace Atomic Boundary Offset.
    pub nabo: U16,
    /// 44..46: Namespace Atomic Boundary Size Power Fail, 0 for no boundary.
    pub nabspf: U16,
    /// 46..48: Namespace Optimal I/O Boundary in blocks, 0 for none.
    pub noiob: U16,
    /// 48..64: NVM Capacity in bytes.
    pub nvmcap: U128,
    /// 64..66: Namespace Preferred Write Granularity, 0's based blocks.
    pub npwg: U16,
    /// 66..68: Namespace Preferred Write Alignment, 0's based blocks.
    pub npwa: U16,
    /// 68..70: Namespace Preferred Deallocate Granularity, 0's based blocks.
    pub npdg: U16,
    /// 70..72: Namespace Preferred Deallocate Alignment, 0's based blocks.
    pub npda: U16,
    /// 72..74: Namespace Optimal Write Size, 0's based blocks.
    pub nows: U16,
    /// 74..76: Maximum Single Source Range Length of Copy.
    pub mssrl: U16,
    /// 76..80: Maximum Copy Length.
    pub mcl: U32,
    /// 80: Maximum Source Range Count of Copy, 0's based.
    pub msrc: u8,
    /// 81..92: reserved.
    pub reserved81: [u8; 11],
    /// 92..96: ANA Group Identifier.
    pub anagrpid: U32,
    /// 96..99: reserved.
    pub reserved96: [u8; 3],
    /// 99: Namespace Attributes; bit 0 is write protection.
    pub nsattr: u8,
    /// 100..102: NVM Set Identifier.
    pub nvmsetid: U16,
    /// 102..104: Endurance Group Identifier.
    pub endgid: U16,
    /// 104..120: Namespace Globally Unique Identifier.
    pub nguid: [u8; 16],
    /// 120..128: IEEE Extended Unique Identifier.
    pub eui64: [u8; 8],
    /// 128..384: LBA formats 0 to 63.
    pub lbaf: [LbaFormat; 64],
    /// 384..4096: vendor specific.
    pub vs: [u8; 3712],
}

const _: () = {
    assert!(size_of::<LbaFormat>() == 4);
    assert!(size_of::<IdentifyNamespace>() == super::IDENTIFY_LEN);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
};

impl IdentifyNamespace {
    /// The format that the namespace has, or `None` if FLBAS names none.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        // Bits 6:5 count only where there can be more than sixteen formats.
        let high = if self.nlbaf > 15 { self.flbas >> 5 & 0x3 } else { 0 };
        let index = usize::from(self.flbas & 0xF | high << 4);
        self.lbaf.get(index).copied().filter(|format| format.lbads != 0)
    }

    /// Bytes in a block, or `None` if the format is missing or beyond 2^63.
    #[must_use]
    pub fn block_bytes(&self) -> Option<u64> {
        1u64.checked_shl(u32::from(self.format()?.lbads))
    }

    /// Blocks that a write may have and still be atomic across a power failure, given the
    /// controller's 0's based `awupf`.
    #[must_use]
    pub fn atomic_write_blocks(&self, awupf: u16) -> u32 {
        let zeroes_based =
            if self.nsfeat & NSFEAT_ATOMICS != 0 { self.nawupf.get() } else { awupf };
        u32::from(zeroes_based) + 1
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut namespace = IdentifyNamespace::new_zeroed();
        namespace.nsze = 0x1_0000.into();
        namespace.nsfeat = NSFEAT_THIN | NSFEAT_ATOMICS;
        namespace.nawupf = 255.into();
        namespace.eui64 = [8; 8];
        namespace.lbaf[0] = LbaFormat { ms: 0.into(), lbads: 12, rp: 0 };
        let bytes = namespace.as_bytes();
        assert_eq!(bytes[..8], [0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[24], bytes[36], bytes[120], bytes[130]), (3, 255, 8, 12));
        assert_eq!(namespace.block_bytes(), Some(4096));
        assert_eq!(namespace.atomic_write_blocks(0), 256);
    }

    #[test]
    fn a_missing_format_is_none() {
        let mut namespace = IdentifyNamespace::new_zeroed();
        assert_eq!(namespace.format(), None);
        namespace.lbaf[0].lbads = 64;
        assert_eq!(namespace.block_bytes(), None);
        namespace.flbas = 0x7F;
        namespace.nlbaf = 63;
        assert_eq!(namespace.format(), None, "index 63 is empty");
    }
}
