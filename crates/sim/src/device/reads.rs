//! Reads, and misdirected reads: repeating a read returns the right blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use io_traits::{Buffer, DeviceError};
use units::{BLOCK_SIZE, Pba, PbaRange};

use super::{DamageKind, EIO, SimDevice};

/// Sound reads of a block after a misdirected one: among all reads that may be under way at once is the second
/// attempt of the one that got the wrong block.
const SPARED: u32 = 16;

/// Number of reads, by block, that are sound whatever chance says.
#[derive(Debug, Default)]
pub(super) struct Astray(RefCell<BTreeMap<u64, u32>>);

impl Astray {
    /// Returns true if a read of `range` is spared; counts it.
    pub(super) fn spares(&self, range: PbaRange) -> bool {
        let mut spared = self.0.borrow_mut();
        let mut found = false;
        for (_, left) in spared.range_mut(range.start.0..range.end().0) {
            found |= *left > 0;
            *left = left.saturating_sub(1);
        }
        found
    }

    /// A read of `range` goes astray.
    pub(super) fn note(&self, range: PbaRange) {
        let blocks = range.start.0..range.end().0;
        self.0.borrow_mut().extend(blocks.map(|block| (block, SPARED)));
    }
}

impl SimDevice {
    /// Carries out a read that took its time.
    pub(super) fn finish_read(&self, pba: Pba, buffer: &mut Buffer) -> Result<(), DeviceError> {
        let range = PbaRange::new(pba, buffer.len_blocks() as u64);
        let is_spared = self.state.astray.spares(range);
        let astray = self.chance(self.state.faults.get().misdirected_read_one_in) && !is_spared;
        if astray {
            self.state.astray.note(range);
        }
        self.give(range, astray, buffer)
    }

    /// Returns the content of `range`, or of another range.
    pub(super) fn give(
        &self,
        range: PbaRange,
        astray: bool,
        buffer: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let pba = range.start;
        let fails = self.state.triggers.fails_read(range);
        if self.chance(self.state.faults.get().read_error_one_in) || fails {
            self.world.note(format_args!("disk: read error at {}", pba.0));
            return Err(DeviceError::Io { range, errno: EIO });
        }
        let start = if astray { self.elsewhere(range) } else { pba.0 };
        let disk = self.state.disk.borrow();
        for (n, out) in (0..).zip(buffer.as_mut_bytes().chunks_mut(BLOCK_SIZE)) {
            if disk.unreadable.contains(&(start + n)) || !disk.defects.can_read(start + n) {
                let range = PbaRange::new(Pba(start + n), 1);
                return Err(DeviceError::Io { range, errno: EIO });
            }
            disk.read_block(start + n, out);
            if astray {
                let at = pba.0 + n;
                self.damaged(DamageKind::MisdirectedRead, Pba(at), disk.block(at));
            }
        }
        Ok(())
    }
}
