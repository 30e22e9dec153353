//! Reading a shard back: the last root, its tables, and the journal since then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Buffer, Device, DeviceError};
use layout::{
    BITMAP_SLOTS, DecodeError, Descriptor, EXTENT_TREE, Mapping, ReplayPoint, Root, Superblock,
    VOLUME_TREE,
};
use local_sync::Notify;
use situations::{Phase, Situation, during, situation, situation_if};
use slab::Slab;
use units::{Pba, PbaRange};

use super::admission::Admission;
use super::catalog::Catalog;
use super::checkpoint::Tables;
use super::committer::Committer;
use super::life::Life;
use super::nodes::{LoadError, read_node};
use super::paging::Paging;
use super::read_back::ReadBack;
use super::reclaim::Reclaims;
use super::replay::replay;
use super::requests::{CheckpointRequests, GivesBack};
use super::roots::read_roots;
use super::start::Recovered;
use super::{Inner, Loss, Mended, Shard};
use crate::io::join_all;
use crate::journal::{Journal, ring_blocks};
use crate::read::Room;
use crate::sabotage::{Sabotage, broken, tries};
use crate::state::VolumeState;
use crate::{ExtentAllocator, OpenError, ShardOptions, VolumeError};
use block_map::{Map, NodeCounters};
use space::Bits;
use space::Epochs;
use space::Pool;

/// Bitmaps and descriptors read at once.
const READS_AT_ONCE: usize = 32;
/// Attempts to read a bitmap before it is rebuilt, and a descriptor before its volume counts as
/// lost.
const BLOCK_READ_TRIES: u32 = 3;

impl<D: Device> Shard<D> {
    /// Damage that was found when it was read back, and cost nothing.
    #[must_use]
    pub fn mended(&self) -> std::cell::Ref<'_, [Mended]> {
        self.inner.read_back.mended()
    }

    /// Reads shard `index` back and claims its extents. Writes nothing.
    ///
    /// A volume whose descriptor is damaged is not there then (LOSS-1); [`Recovered::losses`] says so.
    ///
    /// # Errors
    /// The shard is damaged or the device cannot be read.
    pub async fn recover(
        device: D,
        superblock: Superblock,
        index: u16,
        extents: ExtentAllocator,
        options: ShardOptions,
    ) -> Result<Recovered<D>, OpenError> {
        if index >= superblock.shard_slots {
            return Err(OpenError::NoSuchShard(index));
        }
        let inner = Inner::new(device, superblock, index, extents, options);
        Ok(Self::read_back(Rc::new(inner)).await?.until_repersisted())
    }

    /// As [`Shard::recover`], without whatever is damaged: if it is started, that is lost (LOSS-2).
    pub(crate) async fn salvage(
        device: D,
        superblock: Superblock,
        index: u16,
        extents: ExtentAllocator,
    ) -> Result<Recovered<D>, OpenError> {
        let inner = Inner::new(device, superblock, index, extents, ShardOptions::default());
        inner.read_back.allow_data_loss(true);
        Ok(Self::read_back(Rc::new(inner)).await?.until_repersisted())
    }

    /// Returns how often the shard was taken into use, including this time and returns after a
    /// failure.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.inner.journal.borrow().incarnation
    }

    /// Returns whether it was not shut down before this start: there were changes to replay.
    #[must_use]
    pub fn was_cut_off(&self) -> bool {
        self.inner.read_back.has_replayed()
    }

    pub(super) async fn read_back(inner: Rc<Inner<D>>) -> Result<Recovered<D>, OpenError> {
        let roots = read_roots(&inner.device, &inner.superblock, inner.index).await?;
        let root = roots.newest;
        if let Some(root) = &root {
            inner.note_roots(&roots);
            inner.detect_rollback(&roots);
            if root.secret != 0 {
                inner.secret.set(root.secret);
            }
            inner.load_checkpoint(root).await?;
            inner.check_gone_back(&roots)?;
            let replaying = during(Phase::Replay);
            replay(&inner, root).await?;
            drop(replaying);
            situation_if(Situation::StartIsClean, || !inner.read_back.has_replayed());
            inner.claim_used_extents().await?;
            inner.pool.borrow_mut().mark_all_for_discard();
            inner.invalidate_lost_descriptors();
        }
        inner.note_superblocks().await?;
        Ok(Recovered::new(Self { inner }, root.is_none()))
    }
}

/// Makes the empty pool of a shard of `device`.
fn pool_of<D: Device>(device: &D, superblock: Superblock) -> Pool {
    let mut pool = Pool::new(superblock);
    pool.set_discards(device.limits().discards);
    pool
}

impl<D: Device> Inner<D> {
    /// A shard with nothing in it.
    pub(super) fn new(
        device: D,
        superblock: Superblock,
        index: u16,
        extents: ExtentAllocator,
        options: ShardOptions,
    ) -> Self {
        Self {
            life: Life::new(),
            ahead: Room::of(&device),
            volatile: options.volatile_cache.unwrap_or(device.limits().volatile_cache),
            pool: RefCell::new(pool_of(&device, superblock)),
            device,
            superblock,
            index,
            options,
            flush_failures: extents.flushes().failures(),
            extents,
            epochs: RefCell::new(Epochs::default()),
            journal: RefCell::new(Journal::nowhere()),
            ops: RefCell::new(Slab::new()),
            volumes: Catalog::new(),
            counters: Rc::default(),
            paging: Rc::new(Paging::new(options.map_memory)),
            admission: Admission::new(),
            tables: RefCell::new(Tables::new()),
            generation: Cell::new(0),
            secret: Cell::new(options.secret),
            started_again: Cell::new(0),
            reclaims: Reclaims::default(),
            committer: Committer::default(),
            background: Notify::new(),
            checkpoints: CheckpointRequests::default(),
            gives_back: GivesBack::default(),
            ticked: Notify::new(),
            extents_exhausted: Cell::new(false),
            discarding: Cell::new(false),
            findings: Rc::default(),
            read_back: ReadBack::default(),
            return_all_extents: Cell::new(false),
        }
    }

    /// Gives a new shard its first extents: the journal's, and one with room for tables and data.
    pub(super) fn lay_out_journal(&self) -> Result<(), OpenError> {
        let reserve = || self.extents.reserve(self.index).ok_or(OpenError::NoExtent);
        let first = reserve()?;
        let extent = first.extent;
        let range = self.superblock.extent(extent);
        let start = range.start.plus(u64::from(BITMAP_SLOTS));
        let area = PbaRange::new(start, u64::from(ring_blocks(self.superblock.journal_blocks)));
        let with_room =
            if area.end() <= range.end() { reserve() } else { Err(OpenError::NoExtent) };
        let with_room = with_room.inspect_err(|_| self.extents.release(first))?;
        let replay = ReplayPoint { sequence: 1, position: 0, previous_crc: 0 };
        self.journal.replace(Journal::new(area, 1, replay));
        let mut pool = self.pool.borrow_mut();
        pool.add(extent, None);
        pool.commit(area);
        pool.add(with_room.extent, None);
        // The first root names both; no record ever does.
        for taken in [first, with_room] {
            pool.set_owned_durably(taken.extent);
            if taken.is_stale {
                pool.mark_for_discard(taken.extent);
            }
        }
        Ok(())
    }

    async fn load_checkpoint(&self, root: &Root) -> Result<(), OpenError> {
        let mut tables = Tables::new();
        tables.generation = root.generation;
        self.generation.set(root.generation);
        let (mut bitmaps, mut damaged_table) = (Vec::new(), None);
        match self.load_table(EXTENT_TREE, root.extents).await {
            Ok(loaded) => (tables.extents, bitmaps) = loaded,
            Err(OpenError::Damaged { pba, .. }) => damaged_table = Some(pba),
            Err(error) => return Err(error),
        }
        let damaged = self.load_bitmaps(&bitmaps).await?;
        let (volumes, descriptors) = self.load_table(VOLUME_TREE, root.volumes).await?;
        tables.volumes = volumes;
        self.load_descriptors(&descriptors, &mut tables.volumes).await?;
        self.volumes.pass_numbers(root.next_volume);
        self.tables.replace(tables);
        if let Some(pba) = damaged_table {
            self.mend_extents(pba, root.journal).await?;
        } else if !damaged.is_empty() {
            self.mend_bitmaps(&damaged, root.journal).await?;
        }
        Ok(())
    }

    /// Takes in the extents with their bitmaps. Returns of which the bitmap is damaged, and where it lies.
    async fn load_bitmaps(&self, bitmaps: &[(u64, Mapping)]) -> Result<Vec<(u32, Pba)>, OpenError> {
        let mut damaged = Vec::new();
        for chunk in bitmaps.chunks(READS_AT_ONCE) {
            let reads = chunk.iter().map(|(_, at)| self.device.read(at.pba, Buffer::new(1)));
            for ((extent, at), block) in chunk.iter().zip(join_all(reads).await) {
                let extent = u32::try_from(*extent)
                    .ok()
                    .filter(|extent| *extent < self.superblock.extent_count())
                    .ok_or_else(|| {
                        self.damaged("extent table", at.pba, DecodeError::Field("extent"))
                    })?;
                let PbaRange { start: first, blocks } = self.superblock.extent(extent);
                if !(first..first.plus(u64::from(BITMAP_SLOTS))).contains(&at.pba) {
                    let error = DecodeError::Field("place of the bitmap");
                    return Err(self.damaged("extent table", at.pba, error));
                }
                self.claim_extent(extent)?;
                let block = match block {
                    Ok(block) => {
                        let is_stale = |_: &[u8]| broken(Sabotage::TakeStaleBitmap);
                        self.read_on(*at, block, is_stale).await
                    }
                    Err(error) => Err(error),
                };
                let bits = match block {
                    Ok(block) => block.map(|block| Bits::decode(block.as_bytes())),
                    Err(DeviceError::Io { .. }) => None,
                    Err(error) => return Err(error.into()),
                };
                // Behind the extent's end there is nothing to be in use.
                let blocks = u32::try_from(blocks).expect("at most 32 768");
                let bits = bits.filter(|bits| bits.count() == bits.count_below(blocks));
                if bits.is_none() {
                    damaged.push((extent, at.pba));
                }
                let bits = bits.unwrap_or_else(Bits::zeroes);
                self.pool.borrow_mut().add(extent, Some((bits, *at)));
            }
        }
        Ok(damaged)
    }

    /// Takes in the volumes that `table` lists, but for those whose descriptor is damaged (LOSS-1).
    async fn load_descriptors(
        &self,
        descriptors: &[(u64, Mapping)],
        table: &mut Map,
    ) -> Result<(), OpenError> {
        for chunk in descriptors.chunks(READS_AT_ONCE) {
            let reads = chunk.iter().map(|(_, at)| self.device.read(at.pba, Buffer::new(1)));
            for ((number, at), block) in chunk.iter().zip(join_all(reads).await) {
                let forgotten = broken(Sabotage::RepairForgetsVolume) && self.hides_blocks();
                let is_stale = |block: &[u8]| {
                    broken(Sabotage::TakeStaleDescriptor) && Descriptor::decode(block).is_ok()
                };
                let found = self.read_on(*at, block?, is_stale).await?.filter(|_| !forgotten);
                let Some(block) = found else {
                    let lost = u32::try_from(*number).unwrap_or(u32::MAX);
                    situation(Situation::DescriptorIsLost);
                    self.lose(Loss::Volume { number: lost, pba: at.pba });
                    if self.read_back.allows_data_loss() {
                        let removed = table.remove_some(*number, number + 1, &mut Vec::new());
                        removed.expect("the volume table is in memory");
                    }
                    continue;
                };
                // Whole, and not to be understood: another program's.
                let descriptor = Descriptor::decode(block.as_bytes());
                let descriptor = descriptor.map_err(|error| match error {
                    DecodeError::Unknown(what) => {
                        OpenError::Later { shard: self.index, pba: at.pba, what }
                    }
                    error => self.damaged("volume descriptor", at.pba, error),
                })?;
                if u64::from(descriptor.number) != *number {
                    let error = DecodeError::Field("volume number");
                    return Err(self.damaged("volume descriptor", at.pba, error));
                }
                let state = VolumeState::from_descriptor(descriptor, at.pba, self.counters.clone());
                self.volumes.insert(Rc::new(state));
            }
        }
        Ok(())
    }

    /// The block meant, if it can be read at last; `block` is what the first attempt gave.
    ///
    /// A mutant says what it takes besides.
    async fn read_on(
        &self,
        at: Mapping,
        block: Buffer,
        takes: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Buffer>, DeviceError> {
        let is_meant = |block: &Buffer| {
            let block = block.as_bytes();
            checksum::crc32c(block) == at.crc || takes(block)
        };
        let mut block = block;
        for _ in 1..tries(BLOCK_READ_TRIES, Sabotage::RecoverByOneRead) {
            if is_meant(&block) {
                break;
            }
            block = self.device.read(at.pba, block).await?;
            situation_if(Situation::BlockReadAgain, || is_meant(&block));
        }
        Ok(is_meant(&block).then_some(block))
    }

    /// Loads all of a table.
    async fn load_table(
        &self,
        tree: u32,
        root: Option<Mapping>,
    ) -> Result<(Map, Vec<(u64, Mapping)>), OpenError> {
        let counters = Rc::new(NodeCounters::default());
        let Some(root) = root else { return Ok((Map::new(tree, counters), Vec::new())) };
        let mut map = Map::on_disk(tree, root, 0, counters);
        let mut entries: Vec<(u64, Mapping)> = Vec::new();
        loop {
            let from = entries.last().map_or(0, |(key, _)| key + 1);
            match map.for_each(from, u64::MAX, |key, mapping| entries.push((key, mapping))) {
                Ok(()) => break,
                Err(missing) => {
                    let node = read_node(&self.device, map.tree(), missing, map.counters()).await;
                    let pba = missing.pointer.pba;
                    let is_damaged = match &node {
                        Ok(node) => !map.fits(missing, node),
                        Err(error) => matches!(error, LoadError::Decode(_)),
                    };
                    if is_damaged && tree == VOLUME_TREE && self.read_back.allows_data_loss() {
                        situation(Situation::TableNodeGivenUp);
                        map.give_up(missing);
                        self.lose(Loss::Volumes { pba });
                        continue;
                    }
                    let node = node.map_err(|error| match error {
                        LoadError::Device(error) => OpenError::Device(error),
                        LoadError::Decode(error) => self.damaged("table node", pba, error),
                    })?;
                    if !map.fits(missing, &node) {
                        let error = DecodeError::Field("node keys");
                        return Err(self.damaged("table node", pba, error));
                    }
                    map.attach(missing, node);
                }
            }
        }
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "a table names each number once");
        map.set_entries(entries.len() as u64);
        Ok((map, entries))
    }

    pub(super) fn damaged(&self, what: &'static str, pba: Pba, error: DecodeError) -> OpenError {
        OpenError::Damaged { shard: self.index, what, pba, error }
    }

    /// Resumes in the background what the last run had not reclaimed.
    pub(super) fn resume_reclaims(&self) {
        for state in self.volumes.all().values() {
            if state.deleted.get() || state.has_pending_unmaps() {
                self.reclaim(state);
            }
        }
    }

    /// Why a volume's map could not be read during replay.
    pub(super) fn replay_error(&self, error: &VolumeError) -> OpenError {
        match error {
            VolumeError::Device(error) => OpenError::Device(*error),
            VolumeError::CorruptMap { pba, .. } => {
                self.damaged("map node", *pba, DecodeError::Checksum)
            }
            _ => OpenError::Root(self.index),
        }
    }
}
