//! Reserves space for operations, and makes them wait for it.
//!
//! - SPACE-1: a checkpoint always finds the blocks it needs: free blocks are never fewer than dirty
//!   nodes, the nodes that operations under way will make dirty, and the tables' share together.
//! - SPACE-2: what adds blocks stops short of a reserve, so that a full device can still be overwritten,
//!   deallocated from, and checkpointed.
//! - SPACE-3: extents are reserved ahead of need; the device's allocator is not asked on the data path
//!   while the pool is well filled.
//! - SPACE-4: a request without room waits in a queue, so that no large request starves. It waits for
//!   requests under way, then for a checkpoint if that frees anything, then for the reclaimer. Only
//!   when nothing of the kind is left there is no space. What it waits for ends: later requests for
//!   room wait behind it, so that the reclaimer alone goes on, and has ever less to take out of maps.
//! - SPACE-5: a shard that finds no extent says so, and others give back what they have empty beyond
//!   their own reserve. It waits for that only while others have any.
//! - SPACE-8: on a full device as much can be written as was deallocated since it was full. Such a write
//!   takes the blocks set aside for its map nodes out of the reserve of SPACE-2, and may leave the
//!   reserve short of a few.

use io_traits::Device;
use situations::{Phase, Situation, is_during, situation, situation_if};
use units::PbaRange;

use super::{Inner, Shard, detached};
use crate::ops::Change;
use crate::sabotage::{Sabotage, broken};
use crate::{Capacity, VolumeError};
use space::{ReturnableExtents, Returned};

/// Blocks kept back from whatever adds blocks (SPACE-2): the largest write and what a good number of
/// overwrites make dirty. A small device has less, but enough for a write of 1 MiB.
const RESERVE_MAX: u64 = 2304;
const RESERVE_MIN: u64 = 320;
/// Such a part of the device is kept back.
const RESERVE_PART: u64 = 256;
/// Blocks of the reserve that writes of what was deallocated may leave in use (SPACE-8).
const REFILL_NODES: u64 = 8;
/// A device of which more than this part is unowned has extents to spare for large runs.
const PLENTY_PART: u32 = 8;
/// Dirty nodes beyond which a checkpoint is due, whatever room the journal has: 64 MiB.
const DIRTY_NODES_MAX: u64 = 16_384;
/// Ticks for which a request waits for extents that other shards can give back.
const EXTENT_WAITS: u32 = 16;
/// Checkpoints that a request waits for that gives back as much as it takes: more than any should need.
const ROUNDS_REPLACING: u32 = 64;

/// The space that an operation takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceRequest {
    /// Blocks of data.
    pub(crate) data: u64,
    /// Map nodes that it may make dirty.
    pub(crate) metadata: u64,
    /// Its effect on the number of blocks in use.
    pub(crate) effect: SpaceEffect,
}

/// The effect of an operation on the number of blocks in use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SpaceEffect {
    /// It leaves more in use than before.
    Growing,
    /// It gives back as much as it takes, or more.
    Replacing,
    /// As [`Kind::Replacing`], and others may be waiting for it.
    Reclaiming,
}

/// Blocks set aside for what is no operation: they come back when this is dropped, whatever became of it.
pub(super) struct SetAside<'a, D: Device> {
    inner: &'a Inner<D>,
    blocks: u64,
}

impl<D: Device> Drop for SetAside<'_, D> {
    fn drop(&mut self) {
        self.inner.give_back(self.blocks);
    }
}

impl<D: Device> Inner<D> {
    /// Gives blocks back that were set aside and are not used.
    pub(crate) fn give_back(&self, blocks: u64) {
        self.admission.give_back(blocks);
        self.notify_space();
    }

    /// Blocks that free ones must exceed for SPACE-1. Those of the running checkpoint are set aside.
    fn required_free_blocks(&self) -> u64 {
        self.counters.live.get() + self.admission.reserved() + self.blocks_for_tables()
    }

    /// Blocks that a checkpoint needs besides those for map nodes: descriptors, nodes of the volume
    /// table, nodes of the extent table, with splits.
    pub(super) fn blocks_for_tables(&self) -> u64 {
        let volumes = self.volumes.count_for_tables() as u64;
        let extents = self.pool.borrow().owned().len() as u64;
        16 + volumes + volumes / 64 + extents / 64
    }

    /// Blocks that stay free beyond those set aside for a checkpoint, also if others want extents
    /// (SPACE-5).
    pub(super) fn least_floor(&self) -> u64 {
        self.admission.reserved() + self.blocks_for_tables() + self.reserve()
    }

    /// Blocks kept back from whatever adds blocks (SPACE-2).
    fn reserve(&self) -> u64 {
        (self.superblock.blocks / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Blocks that have to be free for a request, beside those for checkpoints: its own, and those that it must leave (SPACE-2,
    /// SPACE-8).
    fn beside_checkpoints(&self, request: SpaceRequest) -> u64 {
        let SpaceRequest { data, metadata, effect } = request;
        match effect {
            SpaceEffect::Growing if self.admission.is_refill(data) => {
                data + metadata.max(self.reserve() - REFILL_NODES)
            }
            SpaceEffect::Growing => data + metadata + self.reserve(),
            SpaceEffect::Replacing | SpaceEffect::Reclaiming => data + metadata,
        }
    }

    /// Free blocks below which one more extent is reserved (SPACE-3).
    fn quarter(&self) -> u64 {
        u64::from(self.superblock.extent_blocks) / 4
    }

    /// Sets blocks aside for an operation, or says that there are none now or that others wait.
    #[inline]
    pub(crate) fn try_admit(&self, request: SpaceRequest) -> Option<u64> {
        if self.admission.is_awaited() || !self.has_room(request) {
            return None;
        }
        self.admission.reserve(request.metadata);
        Some(request.metadata)
    }

    /// Returns whether there are blocks for the request, including those of extents reserved for it
    /// now.
    fn has_room(&self, request: SpaceRequest) -> bool {
        let wanted = self.beside_checkpoints(request) + self.required_free_blocks();
        let quarter = self.quarter();
        if self.counters.live.get() > DIRTY_NODES_MAX {
            self.suggest_checkpoint();
        }
        while self.is_short_of(wanted + quarter) {
            if !self.reserve_extent() {
                break;
            }
        }
        self.pool.borrow().free() >= wanted
    }

    /// Returns whether fewer blocks are reserved ahead of need (SPACE-3) than `ahead`. As long as the
    /// device has plenty, those that lie scattered are left to overwrites, and do not count.
    fn is_short_of(&self, ahead: u64) -> bool {
        let (free, roomy) = {
            let pool = self.pool.borrow();
            (pool.free(), pool.free_in_roomy_extents())
        };
        free < ahead || roomy < ahead && self.is_plenty()
    }

    fn is_plenty(&self) -> bool {
        self.extents.unowned() > self.superblock.extent_count() / PLENTY_PART
    }

    /// Sets blocks aside for an operation. Where there are none now, it waits its turn for what is
    /// under way to end, and for checkpoints as long as they can free any (SPACE-4).
    ///
    /// The credit returned belongs in the operation.
    pub(crate) async fn admit(&self, request: SpaceRequest) -> Result<u64, VolumeError> {
        if let Some(reserved_blocks) = self.try_admit(request) {
            return Ok(reserved_blocks);
        }
        let _waits = self.admission.wait();
        let _turn = match request.effect {
            SpaceEffect::Reclaiming => None,
            _ => Some(self.admission.turn().await),
        };
        let (mut checkpoints, mut waits) = (0, 0);
        loop {
            let freed = self.admission.freed();
            if self.has_room(request) {
                self.admission.reserve(request.metadata);
                return Ok(request.metadata);
            }
            if self.journal.borrow().is_lost() {
                return Err(self.loss_error());
            }
            let grows = request.effect == SpaceEffect::Growing;
            if grows && !self.may_find(request) {
                if self.wait_for_extent(&mut waits).await {
                    continue;
                }
                situation(Situation::PoolIsFull);
                return Err(VolumeError::PoolFull);
            }
            let pending = self.epochs.borrow().pending();
            let reclaiming = request.effect != SpaceEffect::Reclaiming && self.is_reclaiming();
            if self.committer.unfinished() + self.admission.reserved() + pending > 0 {
                situation(Situation::RequestAwaitsSpace);
                freed.await;
            } else if self.checkpoint_helps() && (grows || checkpoints < ROUNDS_REPLACING) {
                situation(Situation::RequestAwaitsCheckpoint);
                self.checkpoint_and_wait().await?;
                checkpoints += 1;
            } else if reclaiming {
                situation(Situation::RequestAwaitsReclaimer);
                freed.await;
            } else if (grows
                || broken(Sabotage::OverwriteGetsNoPardon)
                || !self.release_quarantine())
                && !self.wait_for_extent(&mut waits).await
            {
                return Err(VolumeError::PoolFull);
            }
        }
    }

    /// As [`Inner::admit`], for what is no operation.
    pub(super) async fn set_aside(
        &self,
        request: SpaceRequest,
    ) -> Result<SetAside<'_, D>, VolumeError> {
        Ok(SetAside { inner: self, blocks: self.admit(request).await? })
    }

    /// Waits for a tick, if other shards may give an extent back until then (SPACE-5), or blocks that are being
    /// discarded come back.
    async fn wait_for_extent(&self, waits: &mut u32) -> bool {
        let ticked = self.ticked.notified();
        if *waits == EXTENT_WAITS
            || self.life.is_stopping()
            || (self.extents.unowned() + self.extents.spare_of_others(self.index) == 0
                && !self.discarding.get())
        {
            return false;
        }
        *waits += 1;
        situation(Situation::RequestAwaitsExtent);
        ticked.await;
        self.extents_exhausted.set(false);
        true
    }

    /// Says how many extents others could get; returns how many there are already.
    pub(super) fn publish_spare(&self) -> u32 {
        let floor = self.least_floor() + self.counters.live.get();
        let spare = self.pool.borrow().spares(floor);
        let coming = self.is_reclaiming() || self.superseded_blocks() > 0;
        self.extents.set_spare(self.index, spare + u32::from(coming));
        spare
    }

    /// Now and then: gives back what others want (SPACE-5), or soon may.
    pub(super) fn share_extents(&self) {
        let spare = self.publish_spare();
        if spare > 0 && self.extents.is_wanted_by_others(self.index) {
            self.return_all_extents.set(true);
            self.suggest_checkpoint();
        } else if spare > 0 && self.extents.shortage(self.index) > 0 {
            let spares = self.spares(self.counters.live.get() + self.blocks_for_tables());
            if !self.pool.borrow().choose_spares(spares).is_empty() {
                self.suggest_checkpoint();
            }
        }
    }

    /// Returns the extents that a checkpoint that takes `blocks` blocks may give back.
    pub(super) fn spares(&self, blocks: u64) -> ReturnableExtents {
        if self.return_all_extents.get() {
            return ReturnableExtents {
                floor: blocks + self.least_floor(),
                keep: 0,
                undiscarded: u32::MAX,
            };
        }
        let undiscarded = self.extents.shortage(self.index);
        ReturnableExtents {
            floor: blocks + self.least_floor() + self.quarter(),
            keep: 1,
            undiscarded,
        }
    }

    /// Something gave blocks or credit back.
    pub(super) fn notify_space(&self) {
        self.paging.notify();
        self.admission.tell();
    }

    /// Returns whether the reclaimer will bring blocks.
    fn is_reclaiming(&self) -> bool {
        self.reclaims.are_under_way() && self.life.has_begun()
    }

    /// Blocks that checkpoints, the running one and the next, give back.
    fn superseded_blocks(&self) -> u64 {
        let reclaimed = self.reclaims.reclaimed_blocks() + self.gives_back.reclaimed.get();
        self.counters.snapshot.get()
            + self.gives_back.superseded.get()
            + self.returning()
            + reclaimed
    }

    /// Returns whether a checkpoint would free blocks or claims.
    pub(super) fn checkpoint_helps(&self) -> bool {
        let running = self.checkpoints.is_under_way();
        running || self.counters.live.get() + self.superseded_blocks() > 0
    }

    /// Returns whether enough for new blocks could come free.
    fn may_find(&self, request: SpaceRequest) -> bool {
        let free = self.pool.borrow().free();
        let hoped = self.superseded_blocks() + self.epochs.borrow().pending();
        let wanted = self.beside_checkpoints(request) + self.blocks_for_tables();
        free + hoped >= wanted || self.is_reclaiming()
    }

    /// Blocks of extents that come back to the device with the running checkpoint.
    fn returning(&self) -> u64 {
        u64::from(self.gives_back.extents.get()) * u64::from(self.superblock.extent_blocks)
    }

    /// Hands out blocks that lie together, for a large write (ALLOC-1).
    pub(super) fn alloc_large(&self, count: u32) -> Option<PbaRange> {
        let found = self.pool.borrow_mut().alloc_large(count);
        if found.is_some() {
            return found;
        }
        if !(self.is_plenty() && self.reserve_extent()) {
            return None;
        }
        self.pool.borrow_mut().alloc_empty(count)
    }

    /// Takes one more extent of the device (SPACE-3). The entry that says so goes ahead of whatever uses
    /// the extent.
    pub(super) fn reserve_extent(&self) -> bool {
        // What another shard reads back is no longer ours to add to.
        if self.journal.borrow().is_lost() {
            return false;
        }
        if self.extents_exhausted.get() && self.extents.unowned() == 0 {
            return false;
        }
        let Some(Returned { extent, is_stale }) = self.extents.reserve(self.index) else {
            self.extents_exhausted.set(true);
            return false;
        };
        // Of its own checkpoint it is not the root that counts.
        let is_others = || is_during(Phase::RootWrite) && !self.checkpoints.is_under_way();
        situation_if(Situation::ExtentTakenInRootWrite, is_others);
        self.pool.borrow_mut().add(extent, None);
        if is_stale {
            self.pool.borrow_mut().mark_for_discard(extent);
        }
        self.enqueue(detached(Change::Reserve { extent }));
        true
    }
}

impl<D: Device> Shard<D> {
    /// Space, as of now.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let inner = &self.inner;
        let superblock = &inner.superblock;
        let pool = inner.pool.borrow();
        let volumes = inner.volumes.all();
        let mapped = volumes.values().map(|state| state.map.borrow().entries());
        let data = mapped.fold(0, u64::saturating_add);
        Capacity {
            device_total: superblock.data_end().0 - superblock.data_start().0,
            device_unreserved: inner.extents.unowned_blocks(),
            owned: pool.total(),
            free: pool.free(),
            data,
            metadata: pool.committed().saturating_sub(data),
        }
    }
}
