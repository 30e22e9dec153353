//! Submission queue entry: a command (Base, clause 4.1.1).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::SglDescriptor;

/// A command in the common format. A Fabrics command has its own fields in the same bytes; see
/// [`crate::fabrics`].
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// 0: opcode.
    pub opcode: u8,
    /// 1: FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    /// 2..4: Command Identifier.
    pub cid: U16,
    /// 4..8: Namespace Identifier.
    pub nsid: U32,
    /// 8..12: Command Dword 2.
    pub cdw2: U32,
    /// 12..16: Command Dword 3.
    pub cdw3: U32,
    /// 16..24: Metadata Pointer.
    pub mptr: U64,
    /// 24..40: Data Pointer, always an SGL descriptor on fabrics.
    pub dptr: SglDescriptor,
    /// 40..44: Command Dword 10.
    pub cdw10: U32,
    /// 44..48: Command Dword 11.
    pub cdw11: U32,
    /// 48..52: Command Dword 12.
    pub cdw12: U32,
    /// 52..56: Command Dword 13.
    pub cdw13: U32,
    /// 56..60: Command Dword 14.
    pub cdw14: U32,
    /// 60..64: Command Dword 15.
    pub cdw15: U32,
}

const _: () = {
    assert!(size_of::<Sqe>() == 64);
    assert!(offset_of!(Sqe, dptr) == 24 && offset_of!(Sqe, cdw10) == 40);
};

/// NSID that stands for every namespace.
pub const NSID_ALL: u32 = 0xFFFF_FFFF;

/// FUSE: whether a command is half of a fused operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fuse {
    /// On its own.
    Normal,
    /// First half.
    First,
    /// Second half.
    Second,
    /// The value that is reserved.
    Reserved,
}

impl Sqe {
    /// PSDT: an SGL segment is used, MPTR points at a contiguous buffer; what fabrics ask for.
    pub const PSDT_SGL: u8 = 0x40;
    /// FUSE: first command of a fused operation.
    pub const FUSE_FIRST: u8 = 0x01;
    /// FUSE: second command of a fused operation.
    pub const FUSE_SECOND: u8 = 0x02;

    /// A command for namespace `nsid` without data, its other fields zero.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, flags: Self::PSDT_SGL, nsid: nsid.into(), ..Self::new_zeroed() }
    }

    /// The part of a fused operation that the command is, if any.
    #[must_use]
    pub const fn fuse(&self) -> Fuse {
        match self.flags & 0x03 {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// PRP or SGL for Data Transfer: 1 is the only value that fabrics allow.
    #[must_use]
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// The 64-bit value in dwords 10 and 11, such as SLBA.
    #[must_use]
    pub fn cdw10_11(&self) -> u64 {
        u64::from(self.cdw10.get()) | u64::from(self.cdw11.get()) << 32
    }

    /// Sets the 64-bit value in dwords 10 and 11.
    pub fn set_cdw10_11(&mut self, value: u64) {
        let [low, high] = split(value);
        self.cdw10 = low;
        self.cdw11 = high;
    }
}

/// The low and the high dword of `value`.
pub(crate) fn split(value: u64) -> [U32; 2] {
    let bytes = value.to_le_bytes();
    let [b0, b1, b2, b3, b4, b5, b6, b7] = bytes;
    [U32::from_bytes([b0, b1, b2, b3]), U32::from_bytes([b4, b5, b6, b7])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_matches_the_golden_bytes() {
        let mut read = Sqe::new(0x02, 1);
        read.cid = 0x0405.into();
        read.dptr = SglDescriptor::transport(0x1000);
        read.set_cdw10_11(0x1122_3344_5566_7788);
        read.cdw12 = 7.into();
        #[rustfmt::skip]
        let golden = [
            0x02, 0x40, 0x05, 0x04,  0x01, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
            0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
            0x00, 0x10, 0, 0,  0, 0, 0, 0x5A,
            0x88, 0x77, 0x66, 0x55,  0x44, 0x33, 0x22, 0x11,  0x07, 0, 0, 0,
            0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
        ];
        assert_eq!(read.as_bytes(), golden);
        assert_eq!(Sqe::read_from_bytes(&golden), Ok(read));
        assert_eq!(read.cdw10_11(), 0x1122_3344_5566_7788);
        assert_eq!((read.fuse(), read.psdt()), (Fuse::Normal, 1));
    }
}
