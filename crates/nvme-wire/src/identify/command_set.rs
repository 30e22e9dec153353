//! Identify data structures of the NVM command set: CNS 05h, 06h, 08h and 1Ch (NVM, clause 4.1.5;
//! Base, clause 5.1.13.2).

use core::mem::{offset_of, size_of};

use alloc::vec;
use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// CNS 05h: I/O Command Set specific Identify Namespace, NVM command set.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmCommandSetNamespace {
    /// 0..8: Logical Block Storage Tag Mask.
    pub lbstm: U64,
    /// 8: Protection Information Capabilities.
    pub pic: u8,
    /// 9..12: reserved.
    pub reserved9: [u8; 3],
    /// 12..268: Extended LBA Formats 0 to 63.
    pub elbaf: [U32; 64],
    /// 268..4096: reserved.
    pub reserved268: [u8; 3828],
}

const _: () = assert!(size_of::<NvmCommandSetNamespace>() == IDENTIFY_LEN);

/// CNS 06h: I/O Command Set specific Identify Controller, NVM command set. The size limits are
/// powers of two in memory pages, 0 for no limit beyond MDTS.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NvmCommandSetController {
    /// 0: Verify Size Limit.
    pub vsl: u8,
    /// 1: Write Zeroes Size Limit.
    pub wzsl: u8,
    /// 2: Write Uncorrectable Size Limit.
    pub wusl: u8,
    /// 3: Dataset Management Ranges Limit, 0 for no limit.
    pub dmrl: u8,
    /// 4..8: Dataset Management Range Size Limit in blocks, 0 for no limit.
    pub dmrsl: U32,
    /// 8..16: Dataset Management Size Limit in blocks, 0 for no limit.
    pub dmsl: U64,
    /// 16..4096: reserved.
    pub reserved16: [u8; 4080],
}

const _: () = {
    assert!(size_of::<NvmCommandSetController>() == IDENTIFY_LEN);
    assert!(offset_of!(NvmCommandSetController, dmsl) == 8);
};

/// NSTAT: the namespace is ready.
pub const NSTAT_READY: u8 = 1 << 0;

/// CNS 08h: I/O Command Set Independent Identify Namespace.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandSetIndependentNamespace {
    /// 0: Common Namespace Features; bit 3 is UID reuse, bit 4 rotational media, bit 5 whether
    /// VWC does not apply.
    pub nsfeat: u8,
    /// 1: Namespace Multi-path I/O and Namespace Sharing Capabilities.
    pub nmic: u8,
    /// 2: Reservation Capabilities.
    pub rescap: u8,
    /// 3: Format Progress Indicator.
    pub fpi: u8,
    /// 4..8: ANA Group Identifier.
    pub anagrpid: U32,
    /// 8: Namespace Attributes.
    pub nsattr: u8,
    /// 9: reserved.
    pub reserved9: u8,
    /// 10..12: NVM Set Identifier.
    pub nvmsetid: U16,
    /// 12..14: Endurance Group Identifier.
    pub endgid: U16,
    /// 14: Namespace Status; bit 0 set when the namespace is ready.
    pub nstat: u8,
    /// 15..4096: reserved.
    pub reserved15: [u8; 4081],
}

const _: () = {
    assert!(size_of::<CommandSetIndependentNamespace>() == IDENTIFY_LEN);
    assert!(offset_of!(CommandSetIndependentNamespace, nstat) == 14);
};

/// CNS 1Ch: the I/O Command Set list of a controller that knows one combination: the NVM command
/// set alone.
#[must_use]
pub fn command_set_vectors() -> Vec<u8> {
    let mut bytes = vec![0; IDENTIFY_LEN];
    bytes[0] = 1;
    bytes
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut controller = NvmCommandSetController::new_zeroed();
        controller.dmrl = 255;
        controller.dmrsl = 0x0102_0304.into();
        assert_eq!(controller.as_bytes()[..9], [0, 0, 0, 255, 4, 3, 2, 1, 0]);
        let mut namespace = CommandSetIndependentNamespace::new_zeroed();
        namespace.anagrpid = 3.into();
        namespace.nstat = 1;
        assert_eq!(namespace.as_bytes()[..15], [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(command_set_vectors()[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
