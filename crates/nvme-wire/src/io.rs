//! Fields of the NVM command set's I/O commands (NVM, clause 3.3).

use core::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IoOpcode, SglDescriptor, Sqe};

/// PRINFO: Protection Information Action.
pub const PRINFO_PRACT: u8 = 1 << 3;

/// A run of logical blocks with its options: Read, Write, Compare, Write Zeroes, Verify.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockCommand {
    /// Starting LBA.
    pub slba: u64,
    /// Number of Logical Blocks, converted from 0's based: 1 to 65 536.
    pub nlb: u32,
    /// Limited Retry.
    pub lr: bool,
    /// Force Unit Access.
    pub fua: bool,
    /// Protection Information Field, bits 29:26.
    pub prinfo: u8,
    /// Deallocate (Write Zeroes only).
    pub deac: bool,
    /// Storage Tag Check.
    pub stc: bool,
    /// Directive Type (Write only).
    pub dtype: u8,
}

impl BlockCommand {
    /// Most blocks that a command can name.
    pub const NLB_MAX: u32 = 1 << 16;

    /// `nlb` blocks from `slba`, without options.
    #[must_use]
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self { slba, nlb, ..Self::default() }
    }

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        let [_, _, _, high] = sqe.cdw12.to_bytes();
        let [_, _, third, _] = sqe.cdw12.to_bytes();
        Self {
            slba: sqe.cdw10_11(),
            nlb: (cdw12 & 0xFFFF) + 1,
            lr: cdw12 & 1 << 31 != 0,
            fua: cdw12 & 1 << 30 != 0,
            prinfo: high >> 2 & 0xF,
            deac: cdw12 & 1 << 25 != 0,
            stc: cdw12 & 1 << 24 != 0,
            dtype: third >> 4,
        }
    }

    /// The command `opcode` on `nsid` that moves `data_len` bytes over the transport (0 for
    /// none).
    #[must_use]
    pub fn encode(&self, opcode: IoOpcode, nsid: u32, data_len: u32) -> Sqe {
        let mut sqe = Sqe::new(opcode.0, nsid);
        if data_len > 0 {
            sqe.dptr = SglDescriptor::transport(data_len);
        }
        sqe.set_cdw10_11(self.slba);
        let cdw12 = self.nlb.saturating_sub(1) & 0xFFFF
            | u32::from(self.lr) << 31
            | u32::from(self.fua) << 30
            | u32::from(self.prinfo & 0xF) << 26
            | u32::from(self.deac) << 25
            | u32::from(self.stc) << 24
            | u32::from(self.dtype & 0xF) << 20;
        sqe.cdw12 = cdw12.into();
        sqe
    }

    /// The LBA behind the last block, or `None` beyond the 64-bit space.
    #[must_use]
    pub fn checked_end(&self) -> Option<u64> {
        self.slba.checked_add(u64::from(self.nlb))
    }
}

/// A Dataset Management command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DatasetManagement {
    /// Number of Ranges, converted from 0's based: 1 to 256.
    pub nr: u32,
    /// Attribute: the host will read the ranges as a whole.
    pub integral_read: bool,
    /// Attribute: the host will write the ranges as a whole.
    pub integral_write: bool,
    /// Attribute: the ranges are no longer needed.
    pub deallocate: bool,
}

impl DatasetManagement {
    /// Most ranges of a command.
    pub const NR_MAX: u32 = 256;

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let attributes = sqe.cdw11.get();
        Self {
            nr: (sqe.cdw10.get() & 0xFF) + 1,
            integral_read: attributes & 1 << 0 != 0,
            integral_write: attributes & 1 << 1 != 0,
            deallocate: attributes & 1 << 2 != 0,
        }
    }

    /// The command that deallocates `nr` ranges (1 to 256); its data is `nr` [`DsmRange`]s.
    #[must_use]
    pub fn deallocate(nsid: u32, nr: u32) -> Sqe {
        let mut sqe = Sqe::new(IoOpcode::DATASET_MANAGEMENT.0, nsid);
        sqe.dptr = SglDescriptor::transport(nr.min(Self::NR_MAX) * DSM_RANGE_LEN);
        sqe.cdw10 = (nr.saturating_sub(1) & 0xFF).into();
        sqe.cdw11 = (1 << 2).into();
        sqe
    }

    /// Bytes of data that the ranges take.
    #[must_use]
    pub const fn data_len(&self) -> u32 {
        self.nr * DSM_RANGE_LEN
    }
}

/// Length of a [`DsmRange`].
pub const DSM_RANGE_LEN: u32 = 16;

/// A range of a Dataset Management command.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// 0..4: Context Attributes.
    pub cattr: U32,
    /// 4..8: Length in logical blocks, not 0's based; 0 is an empty range.
    pub nlb: U32,
    /// 8..16: Starting LBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == DSM_RANGE_LEN as usize);

impl DsmRange {
    /// `nlb` blocks from `slba`.
    #[must_use]
    pub fn new(slba: u64, nlb: u32) -> Self {
        Self { cattr: U32::ZERO, nlb: nlb.into(), slba: slba.into() }
    }
}

/// The ranges in the data of a Dataset Management command, or `None` if it is shorter than `nr`
/// ranges.
#[must_use]
pub fn dsm_ranges(data: &[u8], nr: u32) -> Option<&[DsmRange]> {
    let (ranges, _) = <[DsmRange]>::ref_from_prefix_with_elems(data, nr as usize).ok()?;
    Some(ranges)
}

/// An Abort command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub sqid: u16,
    /// Its Command Identifier.
    pub cid: u16,
}

impl Abort {
    /// Bit 0 of the completion's dword 0: the command was not aborted.
    pub const NOT_ABORTED: u32 = 1 << 0;

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [sqid0, sqid1, cid0, cid1] = sqe.cdw10.to_bytes();
        Self { sqid: u16::from_le_bytes([sqid0, sqid1]), cid: u16::from_le_bytes([cid0, cid1]) }
    }

    /// The command.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new(crate::AdminOpcode::ABORT.0, 0);
        sqe.cdw10 = (u32::from(self.sqid) | u32::from(self.cid) << 16).into();
        sqe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_commands_make_the_round_trip() {
        let command = BlockCommand {
            lr: true,
            fua: true,
            prinfo: 0b1001,
            deac: true,
            stc: true,
            dtype: 5,
            ..BlockCommand::new(0x1_0000_0002, 65_536)
        };
        let sqe = command.encode(IoOpcode::WRITE, 1, 4096);
        assert_eq!(sqe.cdw12.get(), 0xE750_FFFF);
        assert_eq!(BlockCommand::decode(&sqe), command);
        assert_eq!(BlockCommand::new(u64::MAX, 2).checked_end(), None);
    }

    #[test]
    fn deallocate_matches_the_golden_bytes() {
        let sqe = DatasetManagement::deallocate(1, 2);
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get(), sqe.dptr.length.get()), (1, 4, 32));
        let command = DatasetManagement::decode(&sqe);
        assert_eq!((command.nr, command.deallocate, command.data_len()), (2, true, 32));
        let ranges = [DsmRange::new(5, 8), DsmRange::new(100, 1)];
        let data = ranges.as_bytes();
        assert_eq!(data[..16], [0, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(dsm_ranges(data, 2), Some(&ranges[..]));
        assert_eq!(dsm_ranges(data, 3), None);
    }

    #[test]
    fn abort_makes_the_round_trip() {
        let abort = Abort { sqid: 1, cid: 0x0203 };
        assert_eq!(abort.encode().cdw10.get(), 0x0203_0001);
        assert_eq!(Abort::decode(&abort.encode()), abort);
    }
}
