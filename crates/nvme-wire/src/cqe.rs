//! Completion queue entry: how a command ended (Base, clause 4.2).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// A completion.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// 0..8: dwords 0 and 1, what the command returns.
    pub result: U64,
    /// 8..10: SQ Head Pointer; 0 where flow control is off.
    pub sqhd: U16,
    /// 10..12: SQ Identifier; reserved on fabrics.
    pub sqid: U16,
    /// 12..14: Command Identifier.
    pub cid: U16,
    /// 14..16: status in bits 15:1; bit 0, the phase tag, is reserved on fabrics.
    pub status: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16 && offset_of!(Cqe, status) == 14);

impl Cqe {
    /// A completion that returns nothing but its status.
    #[must_use]
    pub fn new(cid: u16, status: Status) -> Self {
        Self::with_result(cid, status, 0)
    }

    /// A completion that returns `result`.
    #[must_use]
    pub fn with_result(cid: u16, status: Status, result: u64) -> Self {
        Self {
            result: result.into(),
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: cid.into(),
            status: status.to_field().into(),
        }
    }

    /// The status of the command.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }

    /// Dword 0 of the result.
    #[must_use]
    pub fn dw0(&self) -> u32 {
        let [b0, b1, b2, b3, ..] = self.result.to_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_matches_the_golden_bytes() {
        let cqe = Cqe {
            sqhd: 0x0A0B.into(),
            ..Cqe::with_result(0x1234, Status::LBA_OUT_OF_RANGE, 0x0102_0304)
        };
        #[rustfmt::skip]
        let golden = [
            0x04, 0x03, 0x02, 0x01,  0, 0, 0, 0,
            0x0B, 0x0A,  0, 0,  0x34, 0x12,  0x00, 0x01, // sqhd, sqid, cid, 80h << 1
        ];
        assert_eq!(cqe.as_bytes(), golden);
        assert_eq!(Cqe::read_from_bytes(&golden), Ok(cqe));
        assert_eq!(cqe.status(), Status::LBA_OUT_OF_RANGE);
        assert_eq!(cqe.dw0(), 0x0102_0304);
    }
}
