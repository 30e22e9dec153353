//! One volume.

use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device};
use layout::{ACCESS_BYTES_MAX, VOLUME_BLOCKS_MAX};
use situations::{Phase, Situation, during, situation_if};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, SectorSize, Slo};
use uuid::Uuid;

use crate::blocks::{Blocks, compare_bytes};
use crate::holds::Holds;
use crate::locks::{RangeGuard, lock};
use crate::ops::{Change, Crcs, Op};
use crate::read::Source;
use crate::sabotage::{Sabotage, broken};
use crate::shard::{Inner, Shard, SpaceEffect, SpaceRequest};
use crate::state::VolumeState;
use crate::{CompareError, CutOff, ReadData, VolumeError, VolumeStats, WRITE_BLOCKS_MAX};

/// The range that changes of terms lock: behind all blocks, so that no request waits for them.
const TERMS: LbaRange = LbaRange::new(Lba(u64::MAX - 1), 1);

/// A thin volume. A cheap handle; clones are the same volume.
///
/// - Requests run concurrently. One that succeeded is seen by every later one.
/// - Writes, unmaps and compare-and-writes that overlap take effect one after the other, in the
///   order in which they were first polled, each as a whole. A read sees each of them wholly or not
///   at all.
/// - What was acknowledged survives a crash; what was not is there wholly or not at all.
/// - A future dropped half way leaves its request to finish by itself.
pub struct Volume<D: Device> {
    shard: Shard<D>,
    state: Rc<VolumeState>,
}

impl<D: Device> Clone for Volume<D> {
    fn clone(&self) -> Self {
        Self { shard: self.shard.clone(), state: self.state.clone() }
    }
}

impl<D: Device> Volume<D> {
    pub(crate) fn new(shard: Shard<D>, state: Rc<VolumeState>) -> Self {
        Self { shard, state }
    }

    pub(crate) fn state(&self) -> &Rc<VolumeState> {
        &self.state
    }

    pub(crate) fn inner(&self) -> &Rc<Inner<D>> {
        &self.shard.inner
    }

    /// Identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.state.uuid
    }

    /// Name for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.state.blocks.get()
    }

    /// Returns the metadata size of each block.
    #[must_use]
    pub fn metadata_size(&self) -> MetadataSize {
        self.state.metadata
    }

    /// Returns the size of the logical blocks in which hosts address it. The engine counts in blocks in any case.
    #[must_use]
    pub fn sector_size(&self) -> SectorSize {
        self.state.sector
    }

    /// Returns the first key of each node of the map in memory, with the level of the node.
    #[cfg(feature = "small-structures")]
    #[must_use]
    pub fn node_bounds(&self) -> Vec<(u8, u64)> {
        self.state.map.borrow().node_bounds()
    }

    /// Blocks that hold data.
    #[must_use]
    pub fn mapped_blocks(&self) -> u64 {
        self.state.map.borrow().entries()
    }

    /// Returns the service level objective.
    #[must_use]
    pub fn slo(&self) -> Slo {
        self.state.slo.get()
    }

    /// Returns the access list, as set by [`Volume::set_access`].
    #[must_use]
    pub fn access(&self) -> Rc<[u8]> {
        self.state.access()
    }

    /// Returns the volume's counters.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        let damaged_blocks = self.inner().damaged_blocks(self.state.uuid);
        VolumeStats { damaged_blocks, ..self.state.stats.get() }
    }

    /// Damaged blocks found of the volume and of what all volumes of its shard rest on, each once, and
    /// requests of the volume that the device failed.
    #[must_use]
    pub fn media_errors(&self) -> u64 {
        let VolumeStats { damaged_blocks, device_errors, .. } = self.stats();
        damaged_blocks + self.inner().damaged_structures() + device_errors
    }

    /// The shard it lies in.
    #[must_use]
    pub fn shard(&self) -> &Shard<D> {
        &self.shard
    }

    pub(crate) fn check(&self, range: LbaRange) -> Result<(), VolumeError> {
        if self.state.deleted.get() {
            return Err(VolumeError::Deleted);
        }
        let blocks = self.blocks();
        match range.checked_end() {
            Some(end) if end.0 <= blocks => Ok(()),
            _ => Err(VolumeError::OutOfRange { range, blocks }),
        }
    }

    /// The blocks of the volume that `blocks` would fill from `lba` on.
    fn range_of(&self, lba: Lba, blocks: &Blocks) -> Result<LbaRange, VolumeError> {
        let len_bytes = blocks.data.len_bytes();
        let count = len_bytes / BLOCK_SIZE;
        if !len_bytes.is_multiple_of(BLOCK_SIZE) || count as u64 > WRITE_BLOCKS_MAX {
            return Err(VolumeError::Length { len_bytes });
        }
        let (len_bytes, wanted_bytes) =
            (blocks.metadata.len(), count * self.state.metadata.bytes());
        if len_bytes != wanted_bytes {
            return Err(VolumeError::Metadata { len_bytes, wanted_bytes });
        }
        let range = LbaRange::new(lba, count as u64);
        self.check(range)?;
        Ok(range)
    }

    /// Reads blocks, each checked against its checksum, with their metadata. Unwritten ones are zeroes.
    ///
    /// Data of a device in memory is [pinned](BufferSlice::is_pinned): its blocks cannot be reused, nor any that were
    /// freed since, until it is let go.
    ///
    /// # Errors
    /// Out of range, corrupt, or the device failed.
    pub async fn read(&self, range: LbaRange) -> Result<ReadData, VolumeError> {
        self.check(range)?;
        if broken(Sabotage::ReadsEndWithJournal) {
            self.inner().check_open()?;
        }
        let data = if range.blocks == 1 && self.state.metadata.is_none() {
            self.inner().read_block(&self.state, range.start).await
        } else {
            // By itself: the future of a short read, which is copied on its way to its task, stays small.
            Box::pin(self.inner().read_range(&self.state, range, Source::Ahead)).await
        };
        self.counted_read(data, range.blocks)
    }

    /// Counts a read of so many blocks, and returns what it brought.
    pub(crate) fn counted_read(
        &self,
        data: Result<ReadData, VolumeError>,
        blocks: u64,
    ) -> Result<ReadData, VolumeError> {
        if data.is_ok() {
            self.state.count(|stats| {
                stats.reads += 1;
                stats.blocks_read += blocks;
            });
        }
        self.counted(data)
    }

    /// Counts what the device failed, and returns the outcome.
    pub(crate) fn counted<T>(&self, outcome: Result<T, VolumeError>) -> Result<T, VolumeError> {
        self.inner().note_outcome(&self.state, outcome.as_ref().err());
        outcome
    }

    /// Reads and checks blocks, and returns nothing of them.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn verify(&self, range: LbaRange) -> Result<(), VolumeError> {
        self.check(range)?;
        let (mut at, end) = (range.start, range.end());
        while at < end {
            let blocks = (end.0 - at.0).min(WRITE_BLOCKS_MAX);
            let part = LbaRange::new(at, blocks);
            // By itself, as in [`Volume::read`]; so is what is compared.
            let read = Box::pin(self.inner().read_range(&self.state, part, Source::Device)).await;
            self.counted(read)?;
            self.state.count(|stats| stats.blocks_read += blocks);
            at = at.plus(blocks);
        }
        Ok(())
    }

    /// Writes whole blocks from `lba` on, atomically, up to [`crate::WRITE_BLOCKS_MAX`] of them.
    /// Durable when it returns. `crcs`: CRC-32C of each block, if the caller has verified them. Where the
    /// volume's blocks have metadata, it comes with each of them.
    ///
    /// # Errors
    /// Out of range, other metadata than the blocks have, no space, the device failed, or the journal is lost.
    pub async fn write(
        &self,
        lba: Lba,
        blocks: impl Into<Blocks>,
        crcs: Option<&[u32]>,
    ) -> Result<(), VolumeError> {
        let blocks = blocks.into();
        let range = self.range_of(lba, &blocks)?;
        if range.blocks == 0 {
            return Ok(());
        }
        let crcs = match crcs {
            Some(crcs) if crcs.len() as u64 == range.blocks => Crcs::from_slice(crcs),
            _ => checksums(&blocks.data),
        };
        situation_if(Situation::WriteAwaitsRange, || !self.state.locks.borrow().is_open(range));
        let guard = lock(&self.state.locks, range).await;
        let written = self.write_locked(guard, range, blocks, crcs).await;
        self.counted(written)
    }

    pub(crate) async fn write_locked(
        &self,
        guard: RangeGuard,
        range: LbaRange,
        blocks: Blocks,
        crcs: Crcs,
    ) -> Result<(), VolumeError> {
        let inner = self.inner();
        // The volume may have changed while this waited for its range.
        let checked = self.check(range);
        situation_if(Situation::RequestBehindShrink, || {
            matches!(checked, Err(VolumeError::OutOfRange { .. }))
        });
        inner.check_open()?;
        self.check(range)?;
        inner.check_space_below(range)?;
        if self.state.has_pending_unmaps() {
            inner.finish_unmap(&self.state, range).await?;
        }
        let claim = match inner.is_paged() {
            true => inner.claim(&self.state, &[range], SpaceEffect::Growing).await?,
            false => None,
        };
        let holds = Holds::range(guard).and_node_memory(claim);
        if self.state.map.borrow().may_miss() {
            inner.preload(&self.state, range).await?;
        } else {
            inner.note_hit();
        }
        let holds = holds.and_allowance(self.take_allowance(range)?);
        let request = self.space_of_write(range);
        let node_blocks = match inner.try_admit(request) {
            Some(node_blocks) => node_blocks,
            None => inner.admit(SpaceRequest { effect: self.effect(range), ..request }).await?,
        };
        let holds = holds.and_node_blocks(node_blocks);
        let runs = inner.alloc(&self.state, range);
        // In a block of its own: else the future would keep room for the operation until it is over.
        let submitted = {
            let Blocks { data, metadata } = blocks;
            let change = Change::Write { lba: range.start, runs, crcs, metadata };
            let op = Op::new(change, Some(self.state.clone()), holds);
            inner.submit_write(op, &data)
        };
        let outcome = submitted.await;
        if outcome.is_ok() {
            self.state.count_write(range.blocks);
        }
        outcome
    }

    /// Returns the space that a write of `range` takes.
    pub(crate) fn space_of_write(&self, range: LbaRange) -> SpaceRequest {
        let height = self.state.map.borrow().height();
        // With a neighbour on either side, which full leaves share entries with.
        let nodes = range.blocks / self.state.leaf_entries_low() + 4;
        let metadata = nodes + height + 2;
        SpaceRequest { data: range.blocks, metadata, effect: SpaceEffect::Growing }
    }

    /// Returns the space effect of a write of `range`, whose map is loaded.
    fn effect(&self, range: LbaRange) -> SpaceEffect {
        if self.added(range) > 0 { SpaceEffect::Growing } else { SpaceEffect::Replacing }
    }

    /// Blocks that a write of `range`, whose map is loaded, adds; at most.
    pub(crate) fn added(&self, range: LbaRange) -> u64 {
        let mut mapped = 0;
        let map = self.state.map.borrow();
        let visited = map.for_each(range.start.0, range.end().0, |_, _| mapped += 1);
        if visited.is_err() { range.blocks } else { range.blocks - mapped }
    }

    /// Every acknowledged write is durable already: does nothing.
    ///
    /// # Errors
    /// None today.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Compares blocks, and their metadata, with `expected`. Where they differ is counted as if the metadata of
    /// each block came behind its data.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`].
    pub async fn compare(&self, lba: Lba, expected: impl Into<Blocks>) -> Result<(), CompareError> {
        self.compare_blocks(lba, &expected.into()).await
    }

    async fn compare_blocks(&self, lba: Lba, expected: &Blocks) -> Result<(), CompareError> {
        let range = self.range_of(lba, expected)?;
        let found = self.read_to_compare(range).await?;
        compare_bytes(&found, expected, self.state.metadata)
    }

    async fn read_to_compare(&self, range: LbaRange) -> Result<ReadData, VolumeError> {
        let found = Box::pin(self.inner().read_range(&self.state, range, Source::Device)).await;
        self.counted_read(found, range.blocks)
    }

    /// Compares blocks with `expected`, as [`Volume::compare`] does, and, if they are equal, writes `blocks`
    /// there; nothing comes between. Both have the same length.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`] and [`Volume::write`].
    pub async fn compare_and_write(
        &self,
        lba: Lba,
        expected: impl Into<Blocks>,
        blocks: impl Into<Blocks>,
    ) -> Result<(), CompareError> {
        let (expected, blocks) = (expected.into(), blocks.into());
        let range = self.range_of(lba, &blocks)?;
        if self.range_of(lba, &expected)? != range {
            let len_bytes = expected.data.len_bytes();
            return Err(VolumeError::Length { len_bytes }.into());
        }
        if range.blocks == 0 {
            return Ok(());
        }
        let crcs = checksums(&blocks.data);
        if broken(Sabotage::CompareUnlocked) {
            self.compare_blocks(lba, &expected).await?;
            let guard = lock(&self.state.locks, range).await;
            let written = self.write_locked(guard, range, blocks, crcs).await;
            return self.counted(written).map_err(CompareError::Write);
        }
        let is_held = || !self.state.locks.borrow().is_open(range);
        situation_if(Situation::CompareAndWriteAwaitsRange, is_held);
        let guard = lock(&self.state.locks, range).await;
        self.check(range)?;
        let found = self.read_to_compare(range).await?;
        let compared = compare_bytes(&found, &expected, self.state.metadata);
        situation_if(Situation::CompareAndWriteDiffers, || compared.is_err());
        if compared.is_err() && broken(Sabotage::MiscompareWrites) {
            self.counted(self.write_locked(guard, range, blocks, crcs).await)?;
            return compared;
        }
        compared?;
        // The write may take long, and what is pinned would be so for as long.
        drop(found);
        let written = self.write_locked(guard, range, blocks, crcs).await;
        self.counted(written).map_err(CompareError::Write)
    }

    /// Changes what the volume is promised. The engine keeps it, and leaves it to others to hold it.
    ///
    /// # Errors
    /// The volume is deleted, or the journal is lost.
    pub async fn set_slo(&self, slo: Slo) -> Result<(), VolumeError> {
        let guard = self.lock_terms().await?;
        let change = Change::SetSlo { slo };
        let op = Op::new(change, Some(self.state.clone()), Holds::range(guard));
        self.submit_terms(op, Sabotage::AckSloEarly).await
    }

    /// Changes the access list of the volume: at most [`layout::ACCESS_BYTES_MAX`] bytes, which the
    /// engine keeps and does not look into.
    ///
    /// # Errors
    /// Too many bytes, the volume is deleted, or the journal is lost.
    pub async fn set_access(&self, access: &[u8]) -> Result<(), VolumeError> {
        if access.len() > ACCESS_BYTES_MAX {
            return Err(VolumeError::Spec);
        }
        let guard = self.lock_terms().await?;
        let change = Change::SetAccess { access: access.into() };
        let op = Op::new(change, Some(self.state.clone()), Holds::range(guard));
        self.submit_terms(op, Sabotage::AckAccessEarly).await
    }

    async fn submit_terms(&self, op: Op, if_not: Sabotage) -> Result<(), VolumeError> {
        let submitted = self.inner().submit(op);
        if broken(if_not) {
            return Ok(());
        }
        submitted.await
    }

    /// Has a record name the volume, and changes nothing. The record builds on the root that has the volume (JOURNAL-5): if that
    /// is lost, the shard does not open without it, as if the volume had never been.
    pub(crate) async fn journal_noop(&self) -> Result<(), VolumeError> {
        let guard = self.lock_terms().await?;
        let change = Change::SetSlo { slo: self.slo() };
        let op = Op::new(change, Some(self.state.clone()), Holds::range(guard));
        self.inner().submit(op).await
    }

    /// Keeps the volume from being deleted or resized meanwhile: no record may name it behind that of its deletion, which a
    /// checkpoint without the volume may be ahead of.
    async fn lock_terms(&self) -> Result<RangeGuard, VolumeError> {
        self.inner().check_open()?;
        let guard = lock(&self.state.locks, TERMS).await;
        self.inner().check_open()?;
        if self.state.deleted.get() { Err(VolumeError::Deleted) } else { Ok(guard) }
    }

    /// Grows or shrinks the volume. What lies beyond the new end is gone for good; returned is how much that was, if the
    /// volume was made smaller.
    ///
    /// # Errors
    /// The size is out of bounds, or the journal is lost.
    pub async fn resize(&self, blocks: u64) -> Result<Option<CutOff>, VolumeError> {
        self.resize_if(blocks, |_| Ok(())).await
    }

    /// As [`Volume::resize`], unless `check` refuses. It is asked when the change is next: no request to what is cut off is under way then, and none
    /// begins before the change is made, or has failed.
    ///
    /// # Errors
    /// As `check` refuses, or as [`Volume::resize`].
    pub async fn resize_if<E: From<VolumeError>>(
        &self,
        blocks: u64,
        check: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<Option<CutOff>, E> {
        if blocks > VOLUME_BLOCKS_MAX {
            return Err(VolumeError::Spec.into());
        }
        let inner = self.inner();
        // Everything behind the smaller size, so that resizes exclude each other and what they cut.
        let guard = loop {
            let start = blocks.min(self.blocks());
            let behind = LbaRange::new(Lba(start), u64::MAX - start);
            situation_if(Situation::ShrinkAwaitsRequests, || {
                blocks < self.blocks() && !self.state.locks.borrow().is_open(behind)
            });
            let guard = lock(&self.state.locks, behind).await;
            if self.blocks() >= start {
                break guard;
            }
        };
        let permit = inner.pending_unmap_permit(&self.state).await?;
        inner.check_open()?;
        if self.state.deleted.get() {
            return Err(VolumeError::Deleted.into());
        }
        check(self)?;
        let cut_off = match blocks < self.blocks() {
            true => Some(inner.count_beyond(&self.state, Lba(blocks)).await),
            false => None,
        };
        let holds = Holds::range(guard).and_unmap_place(permit);
        let op = Op::new(Change::Resize { blocks }, Some(self.state.clone()), holds);
        let _shrinking = cut_off.is_some().then(|| during(Phase::Shrinking));
        inner.submit(op).await?;
        Ok(cut_off)
    }
}

fn checksums(data: &BufferSlice) -> Crcs {
    checksum::crc32c_of_blocks(data.as_bytes()).collect()
}

/// The data where a device can take it from: copied if it does not begin at a block boundary.
pub(crate) fn aligned(data: BufferSlice) -> BufferSlice {
    if data.as_bytes().as_ptr().addr().is_multiple_of(BLOCK_SIZE) {
        data
    } else {
        Buffer::from_bytes(data.as_bytes()).into_slice()
    }
}
