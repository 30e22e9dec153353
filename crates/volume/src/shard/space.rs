//! Who may take blocks, and when to wait for some.
//!
//! - A1: a checkpoint always finds the blocks it needs: free blocks are never fewer than dirty nodes,
//!   the nodes that operations under way will make dirty, and the tables' share together.
//! - A2: what adds blocks stops short of a reserve, so that a full device can still be overwritten,
//!   deallocated from, and checkpointed.
//! - A3: extents are reserved ahead of need; the device's allocator is not asked on the data path
//!   while the pool is well filled.

use io_traits::Device;

use super::{Inner, detached};
use crate::VolumeError;
use crate::ops::Change;

/// Blocks kept back from whatever adds blocks (A2).
const RESERVE_BLOCKS: u64 = 128;
/// Dirty nodes beyond which a checkpoint is due, whatever room the journal has: 64 MiB.
const DIRTY_NODES_MAX: u64 = 16_384;
/// Checkpoints that a request for new blocks waits for before it learns that there is no space.
const ROUNDS_NEW: u32 = 2;
/// The same for requests that give back as much as they take.
const ROUNDS_REPLACING: u32 = 16;

/// What an operation takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Blocks of data.
    pub(crate) data: u64,
    /// Map nodes that it may make dirty.
    pub(crate) metadata: u64,
    /// Whether it leaves more blocks in use than before.
    pub(crate) grows: bool,
}

impl<D: Device> Inner<D> {
    /// Blocks that free ones must exceed for A1. Those of the running checkpoint are set aside.
    fn claims(&self) -> u64 {
        self.dirty.live.get() + self.credit.get() + self.table_claims()
    }

    /// Blocks that a checkpoint needs besides those for map nodes: descriptors, nodes of the volume
    /// table, nodes of the extent table, with splits.
    pub(super) fn table_claims(&self) -> u64 {
        let volumes = (self.volumes.borrow().len() + self.gone.borrow().len()) as u64;
        let extents = self.pool.borrow().owned().len() as u64;
        16 + volumes + volumes / 64 + extents / 64
    }

    /// Blocks that stay free beyond those set aside for a checkpoint when extents are given back.
    pub(super) fn floor(&self) -> u64 {
        self.credit.get() + self.table_claims() + RESERVE_BLOCKS + self.quarter()
    }

    /// Free blocks below which one more extent is reserved (A3).
    fn quarter(&self) -> u64 {
        u64::from(self.superblock.extent_blocks) / 4
    }

    /// Sets blocks aside for an operation, or says that there are none now.
    pub(crate) fn try_admit(&self, need: Need) -> Option<u64> {
        let reserve = if need.grows { RESERVE_BLOCKS } else { 0 };
        let wanted = need.data + need.metadata + reserve + self.claims();
        let quarter = self.quarter();
        if self.dirty.live.get() > DIRTY_NODES_MAX {
            self.suggest_checkpoint();
        }
        while self.pool.borrow().free() < wanted + quarter {
            if !self.reserve_extent() {
                break;
            }
        }
        if self.pool.borrow().free() < wanted {
            return None;
        }
        self.credit.set(self.credit.get() + need.metadata);
        Some(need.metadata)
    }

    /// Sets blocks aside for an operation, and waits for checkpoints that may free some.
    ///
    /// The credit returned belongs in the operation.
    pub(crate) async fn admit(&self, need: Need) -> Result<u64, VolumeError> {
        let rounds = if need.grows { ROUNDS_NEW } else { ROUNDS_REPLACING };
        for _ in 0..rounds {
            if let Some(credit) = self.try_admit(need) {
                return Ok(credit);
            }
            if need.grows && !self.may_find(need) {
                break;
            }
            self.checkpoint_and_wait().await?;
        }
        self.try_admit(need).ok_or(VolumeError::PoolFull)
    }

    /// Whether a checkpoint could free enough.
    fn may_find(&self, need: Need) -> bool {
        let free = self.pool.borrow().free();
        let hoped = self.dirty.total() + self.credit.get() + self.superseded.get();
        let reclaimed = self.reclaimed.borrow().blocks + self.releasing.get();
        let waiting = self.epochs.borrow().pending() + self.returning() + reclaimed;
        free + hoped + waiting >= need.data + need.metadata || !self.reclaims.borrow().is_empty()
    }

    /// Blocks of extents that come back to the device with the running checkpoint.
    fn returning(&self) -> u64 {
        u64::from(self.returning_extents.get()) * u64::from(self.superblock.extent_blocks)
    }

    /// Takes one more extent of the device (A3). The entry that says so goes ahead of whatever uses
    /// the extent.
    pub(super) fn reserve_extent(&self) -> bool {
        if self.extents_exhausted.get() {
            return false;
        }
        let Some(extent) = self.extents.reserve(self.index) else {
            self.extents_exhausted.set(true);
            return false;
        };
        self.pool.borrow_mut().add(extent, None);
        self.enqueue(detached(Change::Reserve { extent }));
        true
    }
}
