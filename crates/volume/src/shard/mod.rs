//! The part of a device that one core owns: extents, a journal, volumes.
//!
//! - `volumes.rs`: creates and deletes volumes.
//! - `commit.rs`: makes changes durable; `flush.rs`: flushes for that; `apply.rs`: applies them.
//! - `space.rs`: reserves blocks, and waits for free ones.
//! - `checkpoint.rs`: moves the state from the journal into maps and tables on the device.
//! - `refused.rs`: handles a device that refuses checkpoints, and chooses other places to write.
//! - `discard.rs`: tells the device which blocks are free.
//! - `reclaim.rs`: frees the space of large deallocations.
//! - `paging.rs`: bounds the memory of the maps.
//! - `walk.rs`: visits all that a map names. `beyond.rs`: counts the blocks that a smaller size
//!   cuts off.
//! - `recovery.rs`: recovers a shard from what `roots.rs` finds. `start.rs`: takes it into use.
//!   `reopen.rs`: does both again in the running process. `compare.rs`: finds out which of the last
//!   writes count. `repersist.rs`: makes recovered state durable first. `rollback.rs`: gives up
//!   extents after rolling back to an older root.
//! - `mend.rs`, `losses.rs`: handle damage met in recovery. `findings.rs`: records all known
//!   damage. `scrub.rs`: looks for it, `accounts.rs`: checks consistency, `heal.rs`: rewrites
//!   damaged blocks.

mod accounts;
mod admission;
mod apply;
mod beyond;
mod catalog;
mod checkpoint;
mod commit;
mod committer;
mod compare;
mod discard;
mod findings;
mod flush;
mod heal;
mod life;
mod losses;
mod mend;
mod nodes;
mod paging;
mod read_back;
mod reading;
mod reclaim;
mod records;
mod recovery;
mod refused;
mod releasing;
mod reopen;
mod repersist;
mod replay;
mod requests;
mod rollback;
mod roots;
mod scrub;
mod space;
mod start;
mod volumes;
mod waiting;
mod walk;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{Device, DeviceError};
use layout::{BITMAP_SLOTS, Superblock};
use local_sync::Notify;
use slab::Slab;
use units::{LbaRange, Pba, PbaRange};

use crate::holds::Holds;
use crate::io::{IoSlot, new_slot};
use crate::journal::Journal;
use crate::ops::{Change, Op};
use crate::read::{Ahead, Room};
use crate::state::VolumeState;
use crate::{ExtentAllocator, JournalLoss, ShardOptions, VolumeError};
use ::space::Epochs;
use ::space::{LARGE_BLOCKS, Pool, Runs};
use block_map::NodeCounters;

use admission::Admission;
pub(crate) use apply::UNMAP_AT_ONCE_MAX;
pub use beyond::CutOff;
use catalog::Catalog;
use checkpoint::Tables;
use committer::Committer;
use findings::Findings;
use life::Life;
pub use losses::Loss;
pub use mend::Mended;
pub(crate) use paging::Claim;
use paging::Paging;
use read_back::ReadBack;
pub(crate) use reading::ReadGuard;
use reclaim::Reclaims;
use requests::{CheckpointRequests, GivesBack};
pub use roots::active_shards;
pub(crate) use roots::{decode_meant, places_of_next};
pub use scrub::{Damaged, ScrubCursor, ScrubStep, Structure};
pub(crate) use space::{SpaceEffect, SpaceRequest};
pub use start::{Confirmed, Recovered};

/// The part of a device that one core owns: extents, a journal, volumes. A cheap handle; clones
/// share the shard.
pub struct Shard<D: Device> {
    pub(crate) inner: Rc<Inner<D>>,
}

pub(crate) struct Inner<D: Device> {
    life: Life,
    pub(crate) device: D,
    pub(crate) superblock: Superblock,
    index: u16,
    options: ShardOptions,
    /// True if a completed write needs a flush to be durable.
    volatile: bool,
    /// For what is read ahead; none where that is of no use.
    ahead: Option<Rc<Room>>,
    extents: ExtentAllocator,
    /// Flushes of the device that had failed when it was read back (COMMIT-5).
    flush_failures: u64,
    pool: RefCell<Pool>,
    epochs: RefCell<Epochs>,
    journal: RefCell<Journal>,
    ops: RefCell<Slab<Op>>,
    volumes: Catalog,
    pub(crate) counters: Rc<NodeCounters>,
    paging: Rc<Paging>,
    admission: Admission,
    tables: RefCell<Tables>,
    /// Generation of the last durable root.
    generation: Cell<u64>,
    /// The secret that its records carry (JOURNAL-7).
    secret: Cell<u64>,
    /// The last start that an attempt to bring this shard back may have written (REOPEN-2).
    started_again: Cell<u64>,
    reclaims: Reclaims,
    committer: Committer,
    /// Something for the checkpointer or the reclaimer to look at.
    background: Notify,
    checkpoints: CheckpointRequests,
    /// By the checkpoint under way.
    gives_back: GivesBack,
    /// Some time has passed: what failed may be tried again.
    ticked: Notify,
    /// No extent could be reserved since the last checkpoint.
    extents_exhausted: Cell<bool>,
    /// Free blocks are being discarded, and come back.
    discarding: Cell<bool>,
    /// Damage found, and errors of the device.
    findings: Rc<Findings>,
    read_back: ReadBack,
    /// The next checkpoint gives back every extent that is not needed (SPACE-5).
    return_all_extents: Cell<bool>,
}

impl<D: Device> Clone for Shard<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Device> Shard<D> {
    /// Returns the index of the shard on its device.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.inner.index
    }

    /// The device that it lies on.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.inner.superblock
    }

    /// Writes journal records; the caller runs it as a task. Ends after [`Shard::shutdown`].
    pub async fn run_committer(&self) {
        self.inner.run_committer().await;
    }

    /// Takes checkpoints and reclaims space; the caller runs it as a task. Ends after
    /// [`Shard::shutdown`].
    pub async fn run_checkpointer(&self) {
        self.inner.run_background().await;
    }

    /// Does periodic work. The caller calls this a few times a second, as the engine has no clock.
    /// It has the journal say that all data is on the media, once no request is under way, so that
    /// recovery need not read it; and lets the background try again what the device failed.
    pub fn settle(&self) {
        let inner = &self.inner;
        inner.share_extents();
        inner.free_space_below();
        inner.ticked.notify_all();
        inner.change_ahead(Ahead::age);
        let wanted = {
            let journal = inner.journal.borrow();
            journal.is_idle() && !journal.is_lost() && journal.is_settled_unknown()
        };
        if wanted && !inner.life.is_stopping() {
            inner.journal.borrow_mut().say_settled = true;
            inner.committer.wake();
        }
    }

    /// Drops prefetched data, for a caller that does not [settle](Shard::settle) for a while.
    pub fn forget_read_ahead(&self) {
        self.inner.change_ahead(Ahead::clear);
    }

    /// Takes a checkpoint now.
    ///
    /// # Errors
    /// The device cannot be written.
    pub async fn checkpoint(&self) -> Result<(), VolumeError> {
        self.inner.checkpoint_and_wait().await
    }

    /// Lets requests under way finish, refuses new ones, takes a checkpoint, and ends both loops.
    /// Needs both to run. A shard that is merely dropped loses nothing either, but must replay its
    /// journal at the next start.
    ///
    /// # Errors
    /// The last checkpoint could not be written.
    pub async fn shutdown(&self) -> Result<(), VolumeError> {
        let inner = &self.inner;
        inner.life.stop();
        inner.ticked.notify_all();
        inner.committer.wake();
        loop {
            let changed = inner.checkpoints.changed();
            if inner.life.has_ended() {
                break;
            }
            inner.background.notify_all();
            changed.await;
        }
        if inner.journal.borrow().is_lost() { Err(VolumeError::JournalLost) } else { Ok(()) }
    }

    /// Returns the fill level of the journal, from 0 to 1. A checkpoint begins when it is half
    /// full; when it is full, changes wait for one.
    #[must_use]
    pub fn journal_used(&self) -> f64 {
        let journal = self.inner.journal.borrow();
        journal.used() as f64 / journal.area().blocks as f64
    }

    /// Returns whether data that the device has taken is durable only after a flush, so that writes
    /// wait for one.
    #[must_use]
    pub fn flushes(&self) -> bool {
        self.inner.volatile
    }
}

impl<D: Device> Inner<D> {
    /// Returns whether changes are still taken.
    pub(crate) fn check_open(&self) -> Result<(), VolumeError> {
        if self.journal.borrow().is_lost() {
            return Err(self.loss_error());
        }
        if self.life.is_stopping() {
            return Err(VolumeError::ShutDown);
        }
        Ok(())
    }

    /// The error of a change that is not begun, since the journal is lost. Where there was no space below, that is what
    /// the host is told: the change succeeds once there is some again, and nothing is broken.
    pub(super) fn loss_error(&self) -> VolumeError {
        let loss = self.journal.borrow().loss();
        match loss {
            Some(
                JournalLoss::Record(error @ DeviceError::NoSpace { .. })
                | JournalLoss::Checkpoint(error @ DeviceError::NoSpace { .. })
                | JournalLoss::Flush(error @ DeviceError::NoSpace { .. }),
            ) => VolumeError::Device(error),
            _ => VolumeError::JournalLost,
        }
    }

    /// Refuses new data while there is no space below: what is freed there is for what frees more.
    pub(crate) fn check_space_below(&self, range: LbaRange) -> Result<(), VolumeError> {
        match self.device.is_full_below() {
            true => {
                let range = PbaRange::new(Pba(0), range.blocks);
                Err(VolumeError::Device(DeviceError::NoSpace { range }))
            }
            false => Ok(()),
        }
    }

    /// Takes space below for the blocks that are written in place again and again, so that a
    /// deallocation can be recorded when there is no space left.
    async fn allocate_below(&self) {
        let slots = [0, 1].map(|slot| self.superblock.root_places(self.index, slot));
        let roots = slots.into_iter().flatten().map(|pba| PbaRange::new(pba, 1));
        for range in std::iter::once(self.journal_area()).chain(roots) {
            self.device.allocate(range).await;
        }
    }

    /// While there is no space below: has what was freed given back soon, which takes a checkpoint.
    fn free_space_below(&self) {
        if self.device.is_full_below()
            && self.checkpoint_helps()
            && !self.life.is_stopping()
            && !self.journal.borrow().is_lost()
        {
            self.suggest_checkpoint();
        }
    }

    fn take_slot(&self) -> Box<dyn IoSlot> {
        self.committer.idle_slot().unwrap_or_else(|| new_slot(&self.device))
    }

    /// Hands out blocks for data. The caller was admitted.
    pub(crate) fn alloc(&self, state: &VolumeState, range: LbaRange) -> Runs {
        let count = u32::try_from(range.blocks).expect("bounded by one write");
        let run = match count >= LARGE_BLOCKS {
            true => self.alloc_large(count),
            false => self.pool.borrow_mut().alloc_near(state.map.borrow().neighbours(range), count),
        };
        match run {
            Some(run) => Runs::from_slice(&[run]),
            None => self.pool.borrow_mut().alloc(count),
        }
    }
}

/// For checks: everything as it is, without a change.
impl<D: Device> Inner<D> {
    /// All volumes of which anything is left.
    pub(crate) fn states(&self) -> Vec<Rc<VolumeState>> {
        self.volumes.all_left()
    }

    pub(crate) fn for_each_table_place(&self, mut visit: impl FnMut(Pba)) {
        let tables = self.tables.borrow();
        tables.extents.for_each_place(&mut visit);
        tables.volumes.for_each_place(&mut visit);
    }

    pub(crate) fn journal_area(&self) -> PbaRange {
        self.journal.borrow().area()
    }

    pub(crate) fn for_each_bitmap_slot(&self, mut visit: impl FnMut(Pba)) {
        for extent in self.pool.borrow().owned() {
            let start = self.superblock.extent(*extent).start;
            (0..BITMAP_SLOTS).for_each(|slot| visit(start.plus(u64::from(slot))));
        }
    }

    pub(crate) fn for_each_committed(&self, visit: impl FnMut(Pba)) {
        self.pool.borrow().for_each_committed(visit);
    }

    /// Returns counts: name, stored value and recomputed value.
    pub(crate) fn counts(&self) -> [(&'static str, u64, u64); 7] {
        let pool = self.pool.borrow();
        let (committed, free) = pool.recount();
        let (scattered, found_scattered) = pool.recount_scattered();
        let reclaimed = self.reclaims.reclaimed_blocks();
        let pending = self.epochs.borrow().pending() + reclaimed + pool.withheld();
        let dirty: usize = self.states().iter().map(|s| s.map.borrow().dirty_nodes()).sum();
        [
            ("blocks in use", pool.committed(), committed),
            ("free blocks", pool.free(), free),
            ("free blocks in extents that are all but full", scattered, found_scattered),
            ("blocks neither free nor in use", pool.total() - free - committed, pending),
            ("dirty nodes", self.counters.total(), dirty as u64),
            ("blocks reserved by operations under way", self.admission.reserved(), 0),
            ("operations under way", self.ops.borrow().len() as u64, 0),
        ]
    }
}

/// Makes an operation that no task waits for.
fn detached(change: Change) -> Op {
    let mut op = Op::new(change, None, Holds::default());
    op.detached = true;
    op
}
