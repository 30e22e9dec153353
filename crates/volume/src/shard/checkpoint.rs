//! Checkpoints: the state moves from the journal into maps and tables on the device.
//!
//! A checkpoint is the state at one instant. It is taken by cloning pointers, and written while
//! requests go on:
//! - CHECKPOINT-1: maps, bitmaps and the replay point are of the same instant, between two records' effects.
//! - CHECKPOINT-2: nothing that the last durable root leads to is overwritten by this or a later checkpoint.
//!   Blocks that only it needs are released when the next root is durable.
//! - CHECKPOINT-3: the root is written when all that it leads to is durable.
//! - CHECKPOINT-4: an extent given back goes to the device's allocator when the root without it is durable.
//! - CHECKPOINT-5: one copy of a root is enough to read it back (`roots.rs`): where the device refuses the other, that is left as
//!   it was. The first root of each slot needs both: a slot with a copy of zeroes and no root that can be read was never written.
//! - CHECKPOINT-6: whatever a power cut makes of the copies that are being written, a root is left that was durable before, or
//!   none ever was. Both copies are written at the same time only while the other slot has such a root: the one before, which is
//!   flushed. The first root of a shard, and one that a start makes durable once more (REPERSIST-1), have none beside them: of
//!   these each copy is durable before the other is touched.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::{EXTENT_TREE, Mapping, ReplayPoint, Root, VOLUME_TREE};
use local_sync::yield_now;
use situations::{Phase, Situation, during, situation, situation_during, situation_if};
use units::{Pba, PbaRange};

use super::Inner;
use super::nodes::BlockWriter;
use super::reclaim::Reclaimed;
use super::refused::TRIES_MAX;
use crate::io::join_all;
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;
use crate::{JournalLoss, VolumeError};
use block_map::{Map, MapSnapshot, NodeCounters};
use space::{ExtentSnapshot, Returned, SpaceSnapshot};

/// Writes tried again without a pause.
pub(super) const TRIES_AT_ONCE: u32 = 3;
/// Bitmaps written at once.
const BITMAPS_AT_ONCE: usize = 16;

/// Why a checkpoint was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CheckpointError {
    /// The device could not be written or flushed.
    Device(DeviceError),
    /// Fewer blocks were set aside than it takes (SPACE-1).
    NoSpace,
    /// The journal was lost meanwhile, or a flush of another shard failed: what the media hold is unknown (COMMIT-4, COMMIT-5).
    Lost,
}

impl From<CheckpointError> for JournalLoss {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Device(error) => Self::Checkpoint(error),
            CheckpointError::NoSpace => Self::CheckpointSpace,
            // If the journal was lost before, that reason stays.
            CheckpointError::Lost => Self::FlushOfOthers,
        }
    }
}

impl From<DeviceError> for CheckpointError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// State that only checkpoints change.
pub(super) struct Tables {
    pub(super) generation: u64,
    /// Extent number to bitmap.
    pub(super) extents: Map,
    /// Volume number to descriptor.
    pub(super) volumes: Map,
}

impl Tables {
    /// Empty tables. Their nodes are accounted for as a whole, not one by one.
    pub(super) fn new() -> Self {
        let map = |tree| Map::new(tree, Rc::new(NodeCounters::default()));
        Self { generation: 0, extents: map(EXTENT_TREE), volumes: map(VOLUME_TREE) }
    }
}

struct VolumeSnapshot {
    state: Rc<VolumeState>,
    map: MapSnapshot,
    descriptor: layout::Descriptor,
    /// The volume is gone: all that is left of it is to be freed.
    gone: bool,
}

struct Snapshot {
    volumes: Vec<VolumeSnapshot>,
    /// Those among them that begin with this checkpoint.
    created: Vec<Rc<VolumeState>>,
    replay: ReplayPoint,
    journal_head: u64,
    next_volume: u32,
    request: u64,
    /// Blocks that the last root's maps name and those of this snapshot do not.
    reclaimed: Reclaimed,
}

impl<D: Device> Inner<D> {
    /// Wants a checkpoint unless one is wanted or under way.
    pub(super) fn suggest_checkpoint(&self) {
        if !self.checkpoints.is_coming() {
            self.ask_checkpoint();
        }
    }

    /// Wants a checkpoint, and returns which request this is.
    pub(super) fn ask_checkpoint(&self) -> u64 {
        let (request, is_new) = self.checkpoints.ask();
        if is_new {
            self.background.notify_all();
        }
        request
    }

    pub(super) async fn checkpoint_and_wait(&self) -> Result<(), VolumeError> {
        let request = self.ask_checkpoint();
        let _waits = self.checkpoints.wait();
        loop {
            let changed = self.checkpoints.changed();
            if self.checkpoints.is_served(request) {
                return Ok(());
            }
            if self.journal.borrow().is_lost() {
                return Err(self.loss_error());
            }
            if self.life.has_ended() {
                return Err(VolumeError::ShutDown);
            }
            changed.await;
        }
    }

    /// Checkpoints and reclaims, until told to stop and the committer has ended.
    pub(super) async fn run_background(&self) {
        let mut reclaimer = pin!(self.run_reclaimer());
        let mut checkpointer = pin!(self.run_checkpoints());
        let mut discarder = pin!(self.run_discarder());
        let (mut reclaiming, mut discarding) = (true, true);
        self.life.begin();
        std::future::poll_fn(|context| {
            if reclaiming && reclaimer.as_mut().poll(context).is_ready() {
                reclaiming = false;
            }
            if discarding && discarder.as_mut().poll(context).is_ready() {
                discarding = false;
            }
            // A reclaimer that still waits for space is dropped with its unmap pending, as it is in
            // the last checkpoint.
            checkpointer.as_mut().poll(context)
        })
        .await;
        // What is discarded late must not hit the blocks of a successor: of one that reads the shard back, or that
        // gets the device when this one has given it up.
        let is_lost = self.journal.borrow().is_lost();
        if discarding && !is_lost {
            discarder.as_mut().await;
        }
        self.life.end();
        self.paging.notify();
        self.checkpoints.notify();
        if discarding && is_lost {
            discarder.await;
        }
        self.life.be_quiet();
        self.committer.wake();
    }

    async fn run_checkpoints(&self) {
        loop {
            let changed = self.background.notified();
            let last = self.life.has_committer_ended();
            let lost = self.journal.borrow().is_lost();
            if !lost && (last || self.checkpoints.is_wanted()) {
                // Waiters learn of a failure: the journal is lost then.
                let _ = self.take_checkpoint().await;
            }
            if last {
                return;
            }
            if lost || !self.checkpoints.is_wanted() {
                changed.await;
            }
        }
    }

    /// Takes a checkpoint; failing that, the journal is lost, since its space never comes back.
    pub(super) async fn take_checkpoint(&self) -> Result<(), CheckpointError> {
        let _under_way = during(Phase::Checkpoint);
        let (snapshot, space) = self.snapshot();
        let request = snapshot.request;
        let outcome = self.write_checkpoint(snapshot, space).await;
        match outcome {
            Ok(()) => {
                self.checkpoint_is_written();
                self.checkpoints.serve(request);
            }
            Err(error) => self.lose_journal(error.into()),
        }
        self.publish_spare();
        self.checkpoints.notify();
        self.background.notify_all();
        self.notify_space();
        self.committer.wake();
        outcome
    }

    /// The state of this instant (CHECKPOINT-1).
    fn snapshot(&self) -> (Snapshot, SpaceSnapshot) {
        let request = self.checkpoints.start();
        self.journal.borrow_mut().pass_over();
        let (replay, journal_head) = self.journal.borrow().replay_point();
        situation_if(Situation::CheckpointBesideUndoing, || self.journal.borrow().has_holds());
        let mut volumes = Vec::new();
        let gone = self.volumes.take_gone();
        let created = self.volumes.by_checkpoint();
        for (state, gone) in (self.volumes.all().values().cloned().map(|state| (state, false)))
            .chain(created.iter().cloned().map(|state| (state, false)))
            .chain(gone.into_iter().map(|state| (state, true)))
        {
            let mut map = state.map.borrow_mut();
            let changed = match broken(Sabotage::UnmarkLate) {
                true => state.changed().is_marked(),
                false => state.changed().take(),
            };
            if changed && self.read_back.has_replayed() {
                situation_during(Phase::FirstCheckpoint, Situation::CheckpointWritesReplayedTerms);
            }
            let keeps = broken(Sabotage::KeepOldDescriptor) && state.descriptor.get().is_some();
            let changed = changed && !keeps;
            if !(map.is_dirty() || changed || gone) {
                continue;
            }
            let map_snapshot = map.snapshot();
            drop(map);
            let descriptor = state.describe(None, map_snapshot.entries);
            volumes.push(VolumeSnapshot { state, map: map_snapshot, descriptor, gone });
        }
        let nodes = self.counters.live.take();
        self.counters.snapshot.set(nodes);
        self.counters.writing.set(nodes);
        let blocks = nodes + self.blocks_for_tables();
        let releases_quarantine =
            || !broken(Sabotage::CheckpointGetsNoPardon) && self.release_quarantine();
        while self.pool.borrow().free() < blocks && (self.reserve_extent() || releases_quarantine())
        {
        }
        let spares = self.spares(blocks);
        self.return_all_extents.set(false);
        let space = self.pool.borrow_mut().snapshot(blocks, spares);
        situation_if(Situation::CheckpointReturnsExtents, || !space.returned.is_empty());
        self.gives_back.extents.set(u32::try_from(space.returned.len()).unwrap_or(u32::MAX));
        let next_volume = self.volumes.next_number();
        let reclaimed = self.reclaims.take_reclaimed();
        self.gives_back.reclaimed.set(reclaimed.blocks);
        let snapshot =
            Snapshot { volumes, created, replay, journal_head, next_volume, request, reclaimed };
        (snapshot, space)
    }

    async fn write_checkpoint(
        &self,
        snapshot: Snapshot,
        space: SpaceSnapshot,
    ) -> Result<(), CheckpointError> {
        let mut tables = std::mem::replace(&mut *self.tables.borrow_mut(), Tables::new());
        let mut writer = BlockWriter::new(self, space);
        for volume in snapshot.volumes {
            self.write_volume(&mut writer, &mut tables.volumes, volume).await?;
        }
        let volume_table = tables.volumes.snapshot();
        let volumes = writer.write_tree(&volume_table).await?;
        writer.write_out().await?;
        let extents = self.write_extents(&mut writer, &mut tables.extents).await?;
        if !broken(Sabotage::RootBeforeFlush) {
            self.flush_if_volatile().await?;
        }
        // The snapshot holds what took effect before: that must not outlive a failed flush (CHECKPOINT-3, COMMIT-4).
        if self.journal.borrow().is_lost() {
            situation(Situation::CheckpointUnprovenByFlush);
            return Err(CheckpointError::Lost);
        }
        tables.generation += 1;
        let root = {
            let journal = self.journal.borrow();
            Root {
                device: self.superblock.uuid,
                shard: self.index,
                generation: tables.generation,
                incarnation: journal.incarnation,
                journal: journal.area(),
                replay: match broken(Sabotage::LateReplayPoint) {
                    true => journal.replay_point().0,
                    false => snapshot.replay,
                },
                next_volume: snapshot.next_volume,
                extents,
                volumes,
                secret: self.secret.get(),
            }
        };
        if broken(Sabotage::ReleaseExtentsEarly) {
            self.release_extents(&mut writer.space.returned);
        }
        self.write_root(&root).await?;
        self.generation.set(tables.generation);
        self.tables.replace(tables);
        let replay = (snapshot.journal_head, snapshot.replay.sequence);
        for state in snapshot.created {
            situation(Situation::CheckpointFoundsVolume);
            self.volumes.is_created(state);
        }
        self.finish_checkpoint(&mut writer, replay);
        let superseded = writer.superseded.into_iter().map(|pba| PbaRange::new(pba, 1));
        self.release_in_steps(superseded, &self.gives_back.superseded).await;
        self.release_in_steps(snapshot.reclaimed.runs.into_iter(), &self.gives_back.reclaimed)
            .await;
        Ok(())
    }

    async fn write_volume(
        &self,
        writer: &mut BlockWriter<'_, D>,
        table: &mut Map,
        volume: VolumeSnapshot,
    ) -> Result<(), CheckpointError> {
        let VolumeSnapshot { state, map, mut descriptor, gone } = volume;
        descriptor.map = writer.write_tree(&map).await?;
        let number = u64::from(state.number);
        if gone {
            situation(Situation::CheckpointLosesVolume);
            if let Some(old) = state.descriptor.take() {
                writer.supersede(old);
            }
            if broken(Sabotage::KeepGone) {
                return Ok(());
            }
            let removed = table.remove_some(number, number + 1, &mut Vec::new());
            removed.expect("the volume table is in memory");
            return Ok(());
        }
        let pointer = writer.write_block(1, |block| descriptor.encode(block)).await?;
        if let Some(old) = state.descriptor.replace(Some(pointer.pba)) {
            writer.supersede(old);
        }
        table.insert(number, pointer);
        if broken(Sabotage::UnmarkLate) {
            state.changed().take();
        }
        Ok(())
    }

    /// Writes the bitmaps that changed, each to the slot that the last checkpoint does not use, and
    /// the extent table.
    ///
    /// The table's own nodes change bitmaps, so blocks for them are handed out until that changes
    /// no further extent.
    async fn write_extents(
        &self,
        writer: &mut BlockWriter<'_, D>,
        table: &mut Map,
    ) -> Result<Option<Mapping>, CheckpointError> {
        for returned in &writer.space.returned {
            let extent = u64::from(returned.extent);
            let removed = table.remove_some(extent, extent + 1, &mut Vec::new());
            removed.expect("the extent table is in memory");
        }
        let mut touched = BTreeSet::new();
        let mut places: Vec<Pba> = Vec::new();
        loop {
            for (&index, extent) in writer.space.extents.iter().filter(|(_, e)| e.changed) {
                if touched.insert(index) {
                    table.insert(u64::from(index), Mapping { pba: extent.next_slot(), crc: 0 });
                }
            }
            table.take_old_places(|old| writer.supersede(old));
            let missing = table.dirty_nodes() - places.len();
            for _ in 0..missing {
                let run = self.pool.borrow_mut().alloc_metadata(&mut writer.space, 1);
                places.push(run.ok_or(CheckpointError::NoSpace)?.start);
            }
            let left = |(index, extent): (&u32, &ExtentSnapshot)| {
                extent.changed && !touched.contains(index)
            };
            if !writer.space.extents.iter().any(left) {
                break;
            }
            situation(Situation::CheckpointTouchesMoreExtents);
        }
        self.pool.borrow_mut().release_set_aside(&mut writer.space);
        self.write_bitmaps(writer, table, &touched).await?;
        for (pba, block) in table.place_dirty(&mut places.into_iter()) {
            self.write_again(pba, block.into_slice()).await?;
        }
        Ok(table.root_pointer())
    }

    async fn write_bitmaps(
        &self,
        writer: &mut BlockWriter<'_, D>,
        table: &mut Map,
        touched: &BTreeSet<u32>,
    ) -> Result<(), CheckpointError> {
        let indexes: Vec<u32> = touched.iter().copied().collect();
        for chunk in indexes.chunks(BITMAPS_AT_ONCE) {
            let mut writes = Vec::new();
            for &index in chunk {
                let extent = &writer.space.extents[&index];
                let mut block = Buffer::new(1);
                extent.bits.encode(block.as_mut_bytes());
                let crc = checksum::crc32c(block.as_bytes());
                let place = Mapping { pba: extent.next_slot(), crc };
                table.insert(u64::from(index), place);
                writer.bitmaps.push((index, place));
                writes.push(self.write_again(place.pba, block.into_slice()));
            }
            join_all(writes.into_iter()).await.into_iter().collect::<Result<(), _>>()?;
            yield_now().await;
        }
        Ok(())
    }

    /// Writes a block of a checkpoint, again and again.
    pub(super) async fn write_again(&self, pba: Pba, data: BufferSlice) -> Result<(), DeviceError> {
        self.insist(|| self.device.write(pba, data.clone())).await
    }

    /// Makes a write that can only help once the root of a checkpoint is durable. A failure is
    /// tried again, soon at first, then with each tick, for as long as the shard runs and no task
    /// waits (REFUSED-1).
    pub(super) async fn insist<F>(&self, write: impl Fn() -> F) -> Result<(), DeviceError>
    where
        F: Future<Output = Result<(), DeviceError>>,
    {
        let mut failures = 0;
        loop {
            let ticked = self.ticked.notified();
            let error = match write().await {
                Ok(()) => return Ok(()),
                Err(error @ (DeviceError::Io { .. } | DeviceError::NoSpace { .. })) => error,
                Err(error) => return Err(error),
            };
            failures += 1;
            if let DeviceError::NoSpace { .. } = error {
                self.device.needs_space_below();
            }
            situation(Situation::CheckpointTriedAgain);
            if failures <= TRIES_AT_ONCE {
                yield_now().await;
                continue;
            }
            let ends = self.life.is_stopping()
                || !self.life.has_begun()
                || self.journal.borrow().is_lost();
            if ends || (failures > TRIES_MAX && self.is_checkpoint_awaited()) {
                self.findings.refused.note(error);
                situation(Situation::CheckpointGivenUp);
                return Err(error);
            }
            situation(Situation::CheckpointHeldUp);
            self.checkpoint_is_held_up(error);
            ticked.await;
        }
    }

    fn release_extents(&self, returned: &mut Vec<Returned>) {
        returned.drain(..).for_each(|returned| self.extents.release(returned));
    }

    /// The new root is durable: extents that only the old one needed go (CHECKPOINT-4), and the journal before it.
    fn finish_checkpoint(
        &self,
        writer: &mut BlockWriter<'_, D>,
        (journal_head, sequence): (u64, u64),
    ) {
        let mut pool = self.pool.borrow_mut();
        for (index, place) in &writer.bitmaps {
            pool.set_on_disk(*index, *place, &writer.space.extents[index].bits);
        }
        self.release_extents(&mut writer.space.returned);
        self.gives_back.extents.set(0);
        self.extents_exhausted.set(false);
        self.counters.snapshot.set(0);
        self.counters.writing.set(0);
        self.journal.borrow_mut().truncate(journal_head, sequence);
    }
}
