//! Writes that have to wait for nothing but their journal record.

use io_traits::{BufferSlice, Device};
use situations::{Situation, situation};
use units::{BLOCK_SIZE, LbaRange};

use crate::allowance::Taken;
use crate::holds::Holds;
use crate::locks::try_lock;
use crate::ops::{Change, Op, Told};
use crate::{Crcs, Tell, Volume, WRITE_BLOCKS_MAX};

/// A write whose outcome is told by a call.
pub struct Unattended {
    /// Whole blocks, as many as the range has; pinned or not: it is let go before [`HeldWrite::write`] returns.
    pub data: BufferSlice,
    /// CRC-32C of each block, if the caller has verified them.
    pub crcs: Option<Crcs>,
    /// Called once, when the write is over. If the shard goes before, it is dropped.
    pub tell: Tell,
}

/// A write that has to wait for nothing but its journal record, and holds all that it needs. Gives that back if it is dropped.
pub struct HeldWrite<D: Device> {
    volume: Volume<D>,
    range: LbaRange,
    holds: Holds,
}

impl<D: Device> HeldWrite<D> {
    /// Writes, as [`Volume::write`] does. The shard's committer runs. Panics if the data is not as long as the range, or has
    /// checksums for another number of blocks.
    pub fn write(mut self, write: Unattended) {
        situation(Situation::WriteWithoutTask);
        let (inner, state, range) = (self.volume.inner(), self.volume.state(), self.range);
        inner.note_hit();
        let runs = inner.alloc(state, range);
        let Unattended { data, crcs, tell } = write;
        let crcs = crcs.unwrap_or_default();
        assert!(crcs.is_empty() || crcs.len() as u64 == range.blocks, "one for each block");
        assert_eq!(data.len_bytes() as u64, range.blocks * BLOCK_SIZE as u64, "whole blocks");
        let change = Change::Write { lba: range.start, runs, crcs, metadata: Box::default() };
        let op = Op::new(change, Some(state.clone()), std::mem::take(&mut self.holds));
        let told = Some(Told { blocks: range.blocks, tell });
        inner.begin_write(Op { told, ..op }, &data);
    }
}

impl<D: Device> Drop for HeldWrite<D> {
    fn drop(&mut self) {
        let inner = self.volume.inner();
        let node_blocks = self.holds.take_node_blocks();
        self.holds.take_allowance().into_iter().for_each(Taken::give_back);
        drop(std::mem::take(&mut self.holds));
        if node_blocks > 0 {
            inner.give_back(node_blocks);
        }
    }
}

impl<D: Device> Volume<D> {
    /// Returns whether [`Volume::hold_write`] may ever succeed; constant.
    #[inline]
    #[must_use]
    pub fn may_hold_writes(&self) -> bool {
        self.inner().device.limits().pins && self.state().metadata.is_none()
    }

    /// Takes all that a write of `range` needs, if the device is memory and nothing has to be waited for. `None`: it has to
    /// wait, or would fail, which [`Volume::write`] tells.
    #[must_use]
    pub fn hold_write(&self, range: LbaRange) -> Option<HeldWrite<D>> {
        let (inner, state) = (self.inner(), self.state());
        if !self.may_hold_writes() || state.has_pending_unmaps() {
            return None;
        }
        if range.blocks == 0 || range.blocks > WRITE_BLOCKS_MAX {
            return None;
        }
        self.check(range).ok()?;
        inner.check_open().ok()?;
        inner.check_space_below(range).ok()?;
        let holds = Holds::range(try_lock(&state.locks, range)?);
        let holds = holds.and_node_memory(inner.try_claim(state, range).ok()?);
        state.map.borrow().touch_if_may_miss(range.start.0, range.end().0).ok()?;
        let holds = holds.and_allowance(self.take_allowance(range).ok()?);
        // From here on it gives all of that back if there is no room.
        let mut held = HeldWrite { volume: self.clone(), range, holds };
        let node_blocks = inner.try_admit(self.space_of_write(range))?;
        held.holds = std::mem::take(&mut held.holds).and_node_blocks(node_blocks);
        Some(held)
    }
}
