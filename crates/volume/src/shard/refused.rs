//! A device that does not take what the shard has to write for itself.
//!
//! - REFUSED-1: a checkpoint that cannot be written is tried again, and changes go on, for as long as the
//!   journal and the memory of the maps have room and no task waits for the checkpoint. If one
//!   does, the journal is lost after [`TRIES_MAX`] tries (COMMIT-4): waiting tasks are told, and the
//!   shard comes back when it can be written.
//! - REFUSED-2: where a device refused what others could have held, others are taken: of data when it has
//!   refused the same block twice, of a map's node and of the journal's records when the shard
//!   comes back, or begins. A bitmap has its places and no others, a root one more (CHECKPOINT-5).
//! - REFUSED-3: at most [`BLOCKS_MAX`] such blocks are remembered, until the process ends.
//! - REFUSED-4: what was refused counts as free before a checkpoint, or what gives back as much as it
//!   takes, finds no room (SPACE-1, SPACE-2): it may be taken now, and without it nothing is.
//! - REFUSED-5: a scrub, which only needs that no checkpoint is under way, is told after as many ticks,
//!   and nothing else comes of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use io_traits::{Device, DeviceError};
use layout::{BITMAP_SLOTS, RECORD_BLOCKS_MAX};
use local_sync::first_of;
use situations::{Situation, situation, situation_if};
use units::{Pba, PbaRange};

use super::{Inner, Shard};
use crate::sabotage::{Sabotage, broken};

/// Tries of a block of a checkpoint before waiting tasks are told (REFUSED-1). Except for the first few,
/// one with each tick.
pub(super) const TRIES_MAX: u32 = 32;
/// Ticks for which a scrub waits for a checkpoint that is refused (REFUSED-5).
pub(super) const SCRUB_TICKS_MAX: u32 = TRIES_MAX;
/// Blocks remembered (REFUSED-3).
const BLOCKS_MAX: usize = 4096;

/// Blocks that a device refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    blocks: RefCell<BTreeSet<Pba>>,
    /// Data was refused there once.
    suspects: RefCell<BTreeSet<Pba>>,
    /// Why the checkpoint under way does not get on.
    checkpoint: Cell<Option<DeviceError>>,
}

impl Refused {
    /// Remembers the blocks of a write that failed. Of a device without space, all are alike.
    pub(super) fn note(&self, error: DeviceError) {
        let DeviceError::Io { range, .. } = error else { return };
        remember(&mut self.blocks.borrow_mut(), range);
    }

    /// The same of a write of data. Returns the blocks that are not to be handed out again.
    fn note_data(&self, error: DeviceError) -> Vec<Pba> {
        let DeviceError::Io { range, .. } = error else { return Vec::new() };
        let mut suspects = self.suspects.borrow_mut();
        let again: Vec<Pba> = suspects.range(range.start..range.end()).copied().collect();
        remember(&mut suspects, range);
        again
            .iter()
            .for_each(|pba| remember(&mut self.blocks.borrow_mut(), PbaRange::new(*pba, 1)));
        again
    }
}

/// REFUSED-3.
fn remember(blocks: &mut BTreeSet<Pba>, range: PbaRange) {
    for block in 0..range.blocks.min(BLOCKS_MAX as u64) {
        if blocks.len() == BLOCKS_MAX {
            blocks.clear();
        }
        blocks.insert(range.start.plus(block));
    }
}

impl<D: Device> Inner<D> {
    /// The device refused data.
    pub(super) fn data_was_refused(&self, error: DeviceError) {
        let again = self.findings.refused.note_data(error);
        if broken(Sabotage::BanNothing) {
            return;
        }
        situation_if(Situation::BlockIsBanned, || !again.is_empty());
        again.into_iter().for_each(|pba| self.pool.borrow_mut().ban(pba));
    }

    /// The shard was read back (REFUSED-2).
    pub(super) fn avoid_what_was_refused(&self) {
        let blocks = self.findings.refused.blocks.borrow();
        if !broken(Sabotage::JournalInsists) {
            self.journal.borrow_mut().keep_off(&blocks);
        }
        blocks.iter().for_each(|pba| self.pool.borrow_mut().ban(*pba));
    }

    /// Returns whether refused blocks may be placed elsewhere when the shard is recovered (REFUSED-2).
    pub(super) fn could_go_elsewhere(&self, error: DeviceError) -> bool {
        let DeviceError::Io { range, .. } = error else { return false };
        if broken(Sabotage::StartOnce) {
            return false;
        }
        self.superblock.locate(range.start).is_some_and(|(_, bit)| bit >= BITMAP_SLOTS)
    }

    /// Lets refused blocks be handed out again, if they are not in use (REFUSED-4). Data that is refused
    /// there once more shows it at once; of the rest what is refused from now on counts.
    pub(super) fn release_quarantine(&self) -> bool {
        if self.pool.borrow().withheld() == 0 {
            return false;
        }
        situation(Situation::BannedBlocksReleased);
        self.findings.refused.blocks.borrow_mut().clear();
        self.pool.borrow_mut().release_quarantine();
        self.notify_space();
        true
    }

    /// A block of the checkpoint under way was refused, and is tried again later.
    pub(super) fn checkpoint_is_held_up(&self, error: DeviceError) {
        if self.findings.refused.checkpoint.replace(Some(error)).is_none() {
            self.findings.count_device_error();
        }
    }

    /// Waits until no checkpoint is under way, and for one that is refused so many ticks at most (REFUSED-5).
    pub(super) async fn no_checkpoint(&self, ticks_max: u32) -> Result<(), DeviceError> {
        let mut ticks = 0;
        loop {
            let changed = self.checkpoints.changed();
            let ticked = self.ticked.notified();
            if !self.checkpoints.is_under_way() || self.journal.borrow().is_lost() {
                return Ok(());
            }
            if let Some(error) = self.findings.refused.checkpoint.get() {
                if ticks == ticks_max {
                    return Err(error);
                }
                ticks += 1;
            }
            first_of(changed, ticked).await;
        }
    }

    pub(super) fn checkpoint_is_written(&self) {
        self.findings.refused.checkpoint.set(None);
    }

    /// Returns whether a task can only continue after the checkpoint under way (REFUSED-1).
    pub(super) fn is_checkpoint_awaited(&self) -> bool {
        let journal = self.journal.borrow();
        let is_full = journal.place(u64::from(RECORD_BLOCKS_MAX)).is_none();
        (is_full && !journal.queue.is_empty())
            || self.paging.is_stuck()
            || self.checkpoints.is_awaited()
            || self.admission.is_awaited()
    }
}

impl<D: Device> Shard<D> {
    /// Why the checkpoint under way does not get on: the device refuses it. Changes go on until the journal, the memory of
    /// the maps or the device is full.
    #[must_use]
    pub fn checkpoint_error(&self) -> Option<DeviceError> {
        self.inner.findings.refused.checkpoint.get()
    }
}
