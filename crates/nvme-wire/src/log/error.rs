//! Error Information, LID 01h: an array of entries, newest first.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One error.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// 0..8: Error Count, from 1 over the controller's life; 0 marks an unused entry.
    pub error_count: U64,
    /// 8..10: Submission Queue ID.
    pub sqid: U16,
    /// 10..12: Command ID.
    pub cid: U16,
    /// 12..14: Status Information, the completion's status field.
    pub status: U16,
    /// 14..16: Parameter Error Location: byte in bits 7:0, bit in bits 10:8; FFFFh for none.
    pub parameter_error_location: U16,
    /// 16..24: first LBA with the error.
    pub lba: U64,
    /// 24..28: Namespace.
    pub nsid: U32,
    /// 28: Vendor Specific Information Available.
    pub vsia: u8,
    /// 29: Transport Type.
    pub trtype: u8,
    /// 30: Command Set Indicator.
    pub csi: u8,
    /// 31: opcode, valid where the log page version is 1.
    pub opcode: u8,
    /// 32..40: Command Specific Information.
    pub command_specific: U64,
    /// 40..42: Transport Type Specific Information.
    pub ttsi: U16,
    /// 42..63: reserved.
    pub reserved42: [u8; 21],
    /// 63: Log Page Version.
    pub version: u8,
}

const _: () = {
    assert!(size_of::<ErrorLogEntry>() == 64);
    assert!(offset_of!(ErrorLogEntry, lba) == 16 && offset_of!(ErrorLogEntry, ttsi) == 40);
};

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::Status;

    #[test]
    fn an_entry_matches_the_golden_bytes() {
        let entry = ErrorLogEntry {
            error_count: 2.into(),
            sqid: 1.into(),
            cid: 0x0304.into(),
            status: Status::UNRECOVERED_READ_ERROR.to_field().into(),
            parameter_error_location: 0xFFFF.into(),
            lba: 0x0506.into(),
            nsid: 1.into(),
            trtype: 3,
            ..ErrorLogEntry::new_zeroed()
        };
        #[rustfmt::skip]
        assert_eq!(entry.as_bytes()[..32], [
            2, 0, 0, 0, 0, 0, 0, 0,  1, 0, 4, 3, 0x02, 0x05, 0xFF, 0xFF,
            6, 5, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0, 0, 3, 0, 0,
        ]);
    }
}
