//! Reading all that lies on the device while the shard is in use, to find damage before someone needs
//! the block.
//!
//! - SCRUB-1: each step looks up places at one instant and reads them before any of these blocks can be
//!   reused (a read guard), so that nothing sound is ever called damaged.
//! - SCRUB-2: what is not in memory is read and not kept, but for inner nodes on the way.
//! - SCRUB-3: bitmap slots and roots are written in turn, guard or not: what differs there is looked up and
//!   read again before it counts.
//! - SCRUB-4: a node gets its place a little before it is written there: one that differs is looked up and
//!   read again while no checkpoint is under way.
//! - SCRUB-5: records of the journal are not read, but made superfluous: a scrub begins with a checkpoint, which all that
//!   they say is in. One that rots before the next checkpoint would keep the shard from being opened after a crash.
//! - SCRUB-6: when all was read, it is found out whether it fits together (`accounts.rs`).
//!
//! The engine has no clock: the caller paces the steps.

use std::fmt;

use io_traits::{Buffer, Device, DeviceError};
use layout::{Mapping, NodeView, Root, Superblock};
use local_sync::yield_now;
use situations::{Situation, situation_if};
use smallvec::SmallVec;
use units::{BLOCK_SIZE, Lba, Pba, PbaRange};
use uuid::Uuid;

use super::accounts::Accounts;
use super::refused::SCRUB_TICKS_MAX;
use super::{Inner, Shard};
use crate::VolumeError;
use crate::format::ROOTS_WRITTEN;
use crate::io::join_all;
use crate::sabotage::{Sabotage, tries};
use crate::state::VolumeState;
use block_map::{LeafBody, Node};

/// Blocks of tables read in one step.
const TABLE_STEP: usize = 64;
/// Blocks read with one request.
const RUN_BLOCKS: u64 = 128;
/// Requests at once.
const RUNS_AT_ONCE: usize = 8;
/// Attempts to read a block before it counts as damaged.
const BLOCK_READ_TRIES: u32 = 2;

/// The kind of a damaged block, or the fault of a whole one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Structure {
    /// A superblock. The other copy counts, and it is rewritten from that.
    Superblock,
    /// A copy of a root. The other copy counts.
    Root,
    /// A node of the extent or volume table, a descriptor. All are in memory, and are rewritten.
    Table,
    /// A bitmap. In memory, and rewritten.
    Bitmap,
    /// A node of a volume's map. If it is in memory, it is rewritten.
    Node,
    /// A tenant's block.
    Data,
    /// A whole block that two name. Each of them is told.
    Shared,
    /// A whole block that is named and was free. It is in use from now on.
    Free,
    /// A block that is named and that no volume can have.
    Outside,
    /// A block that is in use and has no owner.
    Leaked,
    /// A count that is wrong: the free blocks of the extent that begins here, or the mapped blocks of a volume whose
    /// descriptor this is.
    Count,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::Root => "root",
            Self::Table => "table",
            Self::Bitmap => "bitmap",
            Self::Node => "node",
            Self::Data => "data",
            Self::Shared => "shared",
            Self::Free => "free",
            Self::Outside => "outside",
            Self::Leaked => "leaked",
            Self::Count => "count",
        })
    }
}

/// A damaged block, or one that does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damaged {
    /// Its location.
    pub pba: Pba,
    /// Its kind.
    pub structure: Structure,
    /// Its volume.
    pub volume: Option<(Uuid, String)>,
    /// The block of the volume, or the first that a node describes.
    pub lba: Option<Lba>,
}

/// The position of a scrub.
#[derive(Debug)]
pub struct ScrubCursor {
    stage: Stage,
    /// Blocks read.
    pub done: u64,
    /// Blocks in use when it began.
    pub total: u64,
}

#[derive(Debug)]
enum Stage {
    Copies,
    Tables { left: Vec<(Mapping, Structure)> },
    Volume { number: u32, at: u64 },
    Accounts(Accounts),
}

/// The outcome of a step.
#[derive(Debug, Default)]
pub struct ScrubStep {
    /// Blocks read.
    pub blocks: u64,
    /// The cost of the step for its pacing: blocks read, and an equivalent for the processor's
    /// work.
    pub cost: u64,
    /// Damaged blocks, and what does not fit.
    pub damaged: Vec<Damaged>,
}

impl ScrubCursor {
    /// Returns whether all was read and is consistent.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(&self.stage, Stage::Accounts(accounts) if accounts.is_over())
    }
}

impl<D: Device> Shard<D> {
    /// Begins to read all that lies on the device.
    #[must_use]
    pub fn scrub(&self) -> ScrubCursor {
        ScrubCursor { stage: Stage::Copies, done: 0, total: self.blocks_in_use() }
    }

    /// Reads some more, up to a few hundred blocks. Damaged blocks that are whole in memory are
    /// rewritten by a checkpoint that begins soon.
    ///
    /// # Errors
    /// The device is gone or does not take a checkpoint (REFUSED-5), or the shard is shut down.
    pub async fn scrub_step(&self, cursor: &mut ScrubCursor) -> Result<ScrubStep, VolumeError> {
        let inner = &self.inner;
        if inner.life.is_stopping() {
            return Err(VolumeError::ShutDown);
        }
        let mut step = ScrubStep::default();
        match &mut cursor.stage {
            Stage::Copies => {
                // SCRUB-5.
                if inner.journal.borrow().used() > 0 {
                    inner.ask_checkpoint();
                }
                inner.scrub_copies(&mut step).await?;
                cursor.stage = Stage::Tables { left: inner.table_pointers().await? };
            }
            Stage::Tables { left } => {
                let batch = left.split_off(left.len().saturating_sub(TABLE_STEP));
                let done = left.is_empty();
                inner.scrub_tables(batch, &mut step).await?;
                if done {
                    cursor.stage = inner.volume_from(0);
                }
            }
            Stage::Volume { number, at } => {
                let (number, at) = (*number, *at);
                let state = inner.volumes.get(number);
                let next = match state {
                    Some(state) => inner.scrub_leaf(&state, at, &mut step).await?,
                    None => None,
                };
                cursor.stage = match next {
                    Some(at) => Stage::Volume { number, at },
                    None => inner.volume_from(number.saturating_add(1)),
                };
            }
            // In a box, or everyone's scrub would be larger by it.
            Stage::Accounts(accounts) => Box::pin(inner.account_step(accounts, &mut step)).await?,
        }
        step.cost += step.blocks;
        inner.check_not_succeeded()?;
        step.damaged.iter().for_each(|damaged| inner.findings.note(damaged));
        inner.heal(&step.damaged).await;
        cursor.done += step.blocks;
        Ok(step)
    }
}

impl<D: Device> Inner<D> {
    fn volume_from(&self, number: u32) -> Stage {
        match self.volumes.first_from(number) {
            Some(state) => Stage::Volume { number: state.number, at: 0 },
            None => Stage::Accounts(self.begin_accounts()),
        }
    }

    /// Reads one block; `None` if the device cannot.
    async fn scrub_block(&self, pba: Pba) -> Result<Option<Buffer>, VolumeError> {
        match self.device.read(pba, Buffer::new(1)).await {
            Ok(block) => Ok(Some(block)),
            Err(DeviceError::Io { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn scrub_copies(&self, step: &mut ScrubStep) -> Result<(), VolumeError> {
        let mut places: SmallVec<[(Pba, Structure); 6]> = SmallVec::new();
        let superblocks = Superblock::places(self.superblock.blocks);
        places.extend(superblocks.map(|pba| (pba, Structure::Superblock)));
        for parity in [0, 1] {
            let roots = self.superblock.root_places(self.index, parity);
            places.extend(roots.map(|pba| (pba, Structure::Root)));
        }
        for (pba, structure) in places {
            step.blocks += 1;
            let sound = |block: Option<Buffer>| {
                block.is_some_and(|block| self.is_sound_copy(structure, pba, block.as_bytes()))
            };
            if sound(self.scrub_block(pba).await?) {
                continue;
            }
            // SCRUB-3.
            self.no_checkpoint(SCRUB_TICKS_MAX).await?;
            if !sound(self.scrub_block(pba).await?) {
                step.damaged.push(Damaged { pba, structure, volume: None, lba: None });
            }
        }
        Ok(())
    }

    fn is_sound_copy(&self, structure: Structure, pba: Pba, block: &[u8]) -> bool {
        match structure {
            Structure::Superblock => Superblock::decode(block) == Ok(self.superblock),
            _ => match Root::decode(block) {
                Ok(root) => {
                    let places = self.superblock.root_places(self.index, root.generation % 2);
                    let is_own = root.device == self.superblock.uuid && root.shard == self.index;
                    is_own && places.contains(&pba)
                }
                Err(_) => {
                    let written = self.generation.get() >= ROOTS_WRITTEN;
                    !written && block.iter().all(|byte| *byte == 0)
                }
            },
        }
    }

    /// Pointers to all that is neither data nor a node of a volume's map.
    async fn table_pointers(&self) -> Result<Vec<(Mapping, Structure)>, VolumeError> {
        self.no_checkpoint(SCRUB_TICKS_MAX).await?;
        Ok(self.current_tables())
    }

    fn current_tables(&self) -> Vec<(Mapping, Structure)> {
        let tables = self.tables.borrow();
        let nodes = [&tables.extents, &tables.volumes].into_iter().flat_map(|map| map.pointers());
        let mut all: Vec<_> = nodes.map(|pointer| (pointer, Structure::Table)).collect();
        let listed = tables.volumes.for_each(0, u64::MAX, |_, descriptor| {
            all.push((descriptor, Structure::Table));
        });
        listed.expect("the volume table is in memory");
        let pool = self.pool.borrow();
        all.extend(pool.bitmaps().map(|bitmap| (bitmap, Structure::Bitmap)));
        all
    }

    async fn scrub_tables(
        &self,
        batch: Vec<(Mapping, Structure)>,
        step: &mut ScrubStep,
    ) -> Result<(), VolumeError> {
        for (pointer, structure) in batch {
            step.blocks += 1;
            if self.matches(pointer).await? {
                continue;
            }
            // SCRUB-3: it may have been superseded and its place reused.
            self.no_checkpoint(SCRUB_TICKS_MAX).await?;
            let _reading = self.begin_read();
            let current = self.current_tables().contains(&(pointer, structure));
            if current && !self.matches(pointer).await? {
                let pba = pointer.pba;
                step.damaged.push(Damaged { pba, structure, volume: None, lba: None });
            }
        }
        Ok(())
    }

    /// Returns whether the expected block lies there. A mismatch is read again: a read may have
    /// gone astray.
    async fn matches(&self, pointer: Mapping) -> Result<bool, VolumeError> {
        for _ in 0..tries(BLOCK_READ_TRIES, Sabotage::ServeByOneRead) {
            let block = self.scrub_block(pointer.pba).await?;
            if block.is_some_and(|block| checksum::crc32c(block.as_bytes()) == pointer.crc) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the leaf of the keys from `at` on, and the blocks that it names. Returns where to go on.
    pub(crate) async fn scrub_leaf(
        &self,
        state: &VolumeState,
        at: u64,
        step: &mut ScrubStep,
    ) -> Result<Option<u64>, VolumeError> {
        let node_damaged = |pba: Pba| {
            let volume = Some((state.uuid, state.name.clone()));
            Damaged { pba, structure: Structure::Node, volume, lba: Some(Lba(at)) }
        };
        let _pin = self.is_paged().then(|| state.pin(at, at.saturating_add(1)));
        let mut again = false;
        loop {
            if again {
                let is_under_way = || self.checkpoints.is_under_way();
                situation_if(Situation::ScrubAwaitsCheckpoint, is_under_way);
                self.no_checkpoint(SCRUB_TICKS_MAX).await?;
            }
            // SCRUB-1: the guard comes before the look-up.
            let _reading = self.begin_read();
            let site = {
                let map = state.map.borrow();
                map.leaf_at(at).map(|site| {
                    let entries = match site.leaf {
                        LeafBody::Absent => Ok(Vec::new()),
                        LeafBody::InMemory(entries) => Ok(entries),
                        LeafBody::OnDisk(pointer) => Err(pointer),
                    };
                    (site.end, site.pointers, entries)
                })
            };
            let (end, pointers, entries) = match site {
                Ok(site) => site,
                Err(missing) => {
                    step.blocks += 1;
                    match self.load(state, missing).await {
                        Ok(()) => continue,
                        Err(VolumeError::Device(DeviceError::Io { .. }))
                        | Err(VolumeError::CorruptMap { .. }) => {
                            step.damaged.push(node_damaged(missing.pointer.pba));
                            let bounds = state.map.borrow().bounds(missing);
                            let high = bounds.map(|(_, high)| high);
                            return Ok(high.filter(|high| *high > at && *high < u64::MAX));
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let mut differing = Vec::new();
            for pointer in pointers {
                step.blocks += 1;
                if !self.matches(pointer).await? {
                    differing.push(node_damaged(pointer.pba));
                }
            }
            // SCRUB-4.
            if !differing.is_empty() && !std::mem::replace(&mut again, true) {
                continue;
            }
            step.damaged.append(&mut differing);
            self.scrub_entries(state, at, entries, step).await?;
            return Ok((end < u64::MAX).then_some(end));
        }
    }

    /// Reads the blocks that the leaf of the keys from `at` on names: `entries`, or those of the leaf
    /// where it lies on the device.
    async fn scrub_entries(
        &self,
        state: &VolumeState,
        at: u64,
        entries: Result<Vec<(u64, Mapping)>, Mapping>,
        step: &mut ScrubStep,
    ) -> Result<(), VolumeError> {
        let damaged = |pba, structure, lba| {
            let volume = Some((state.uuid, state.name.clone()));
            Damaged { pba, structure, volume, lba: Some(lba) }
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(pointer) => {
                step.blocks += 1;
                let entries = self.leaf_on_disk(state, pointer).await?;
                if entries.is_none() {
                    step.damaged.push(damaged(pointer.pba, Structure::Node, Lba(at)));
                }
                entries.unwrap_or_default()
            }
        };
        let lost = self.scrub_data(state, &entries, step).await?;
        self.check_not_succeeded()?;
        for (pba, lba) in lost {
            step.damaged.push(damaged(pba, Structure::Data, lba));
        }
        // A device that answers at once must not keep the core from its requests.
        yield_now().await;
        Ok(())
    }

    /// The entries of a leaf that is not in memory (SCRUB-2); `None` if it is damaged.
    pub(super) async fn leaf_on_disk(
        &self,
        state: &VolumeState,
        pointer: Mapping,
    ) -> Result<Option<Vec<(u64, Mapping)>>, VolumeError> {
        for _ in 0..tries(BLOCK_READ_TRIES, Sabotage::ServeByOneRead) {
            let Some(block) = self.scrub_block(pointer.pba).await? else { return Ok(None) };
            if Node::decode(block.as_bytes(), state.tree(), pointer, &self.counters).is_ok() {
                let view = NodeView::decode(block.as_bytes()).expect("just decoded");
                return Ok((view.level == 0).then(|| view.entries().collect()));
            }
        }
        Ok(None)
    }

    /// Reads and checks blocks. Returns those that are damaged.
    async fn scrub_data(
        &self,
        state: &VolumeState,
        entries: &[(u64, Mapping)],
        step: &mut ScrubStep,
    ) -> Result<Vec<(Pba, Lba)>, VolumeError> {
        let mut runs: Vec<(PbaRange, Vec<(Lba, u32)>)> = Vec::new();
        for &(key, Mapping { pba, crc }) in entries {
            let lba = Lba(key);
            if state.is_unmap_pending(lba) {
                continue;
            }
            match runs.last_mut() {
                Some((run, blocks)) if run.end() == pba && run.blocks < RUN_BLOCKS => {
                    run.blocks += 1;
                    blocks.push((lba, crc));
                }
                _ => runs.push((PbaRange::new(pba, 1), vec![(lba, crc)])),
            }
        }
        let mut damaged = Vec::new();
        for batch in runs.chunks(RUNS_AT_ONCE) {
            let read = |(run, _): &(PbaRange, Vec<_>)| {
                let blocks = usize::try_from(run.blocks).expect("bounded above");
                self.device.read(run.start, Buffer::new(blocks))
            };
            let buffers = join_all(batch.iter().map(read)).await;
            for ((run, blocks), buffer) in batch.iter().zip(buffers) {
                step.blocks += run.blocks;
                let buffer = buffer.ok();
                for (index, (lba, crc)) in blocks.iter().enumerate() {
                    let pba = run.start.plus(index as u64);
                    let sound = buffer.as_ref().is_some_and(|buffer| {
                        let bytes = &buffer.as_bytes()[index * BLOCK_SIZE..][..BLOCK_SIZE];
                        checksum::crc32c(bytes) == *crc
                    });
                    if !sound && !self.matches(Mapping { pba, crc: *crc }).await? {
                        damaged.push((pba, *lba));
                    }
                }
            }
        }
        Ok(damaged)
    }
}
