//! GET LBA STATUS (SBC-3, clause 5.5).

use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::{Cdb, Sense};

use super::{Unit, truncated};

/// Bytes before the descriptors.
const HEADER_LEN: usize = 8;
/// Bytes of an LBA status descriptor.
const DESCRIPTOR_LEN: usize = 16;
/// Descriptors of one answer; an initiator asks again for what lies behind them.
const DESCRIPTORS_MAX: usize = 256;
/// Provisioning status: mapped, or not known.
const MAPPED: u8 = 0;
/// Provisioning status: deallocated.
const DEALLOCATED: u8 = 1;

/// A GET LBA STATUS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LbaStatus {
    /// The first block that is asked for.
    pub lba: u64,
    /// Blocks from there to the end of the unit.
    pub blocks: u64,
    /// Bytes that are wanted.
    len: usize,
}

/// Consecutive blocks with one provisioning status.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// Their number.
    pub blocks: u64,
    /// They hold data; others are deallocated.
    pub is_mapped: bool,
}

impl LbaStatus {
    pub(super) fn decode(cdb: &Cdb, unit: &Unit<'_>) -> Result<Self, Sense> {
        let lba = cdb.u64_at(2);
        match unit.blocks.checked_sub(lba) {
            None | Some(0) => Err(Sense::LBA_OUT_OF_RANGE.with_information(lba)),
            Some(blocks) => Ok(Self { lba, blocks, len: cdb.u32_at(10) as usize }),
        }
    }

    /// Returns how many descriptors are wanted; one at least, since the answer tells how long it would be.
    #[must_use]
    pub fn descriptors_max(&self) -> usize {
        (self.len.saturating_sub(HEADER_LEN) / DESCRIPTOR_LEN).clamp(1, DESCRIPTORS_MAX)
    }

    /// Encodes the answer: `runs` are known of the blocks from the first one on.
    #[must_use]
    pub fn answer(&self, runs: impl IntoIterator<Item = Run>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        let (mut lba, end) = (self.lba, self.lba + self.blocks);
        let room = HEADER_LEN + DESCRIPTOR_LEN * self.descriptors_max();
        for Run { blocks, is_mapped } in runs {
            let run_end = end.min(lba.saturating_add(blocks));
            // A count has 32 bits.
            while lba < run_end && bytes.len() < room {
                let count = u32::try_from(run_end - lba).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&lba.to_be_bytes());
                bytes.extend_from_slice(&count.to_be_bytes());
                bytes.extend([if is_mapped { MAPPED } else { DEALLOCATED }, 0, 0, 0]);
                lba += u64::from(count);
            }
        }
        let len = u32::try_from(bytes.len() - 4).expect("at most 256 descriptors");
        bytes[..4].copy_from_slice(&len.to_be_bytes());
        truncated(bytes, self.len)
    }
}
