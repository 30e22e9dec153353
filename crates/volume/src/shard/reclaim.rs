//! Large deallocations: their blocks come back in the background, leaf by leaf.
//!
//! From the moment a deallocation takes effect its range is a *pending unmap*: it reads as zeroes, whatever the
//! map still says. Pending unmaps are part of a checkpoint, so that a crash in between loses nothing.
//!
//! - RECLAIM-1: a reclaimed block is reused when a root is durable whose map does not name it. Replay thus
//!   need not know how far the reclaiming had come when a record was made.
//! - RECLAIM-2: a write into a pending unmap takes what the map says of its own blocks out first, under its own
//!   range lock. Entries leave the map and the unmap stops being pending in one step.
//! - RECLAIM-3: what cannot be taken out now stays pending and is tried again. Of a damaged node all of whose
//!   keys are unmapped, the blocks that it named are lost; no other data is.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;

use io_traits::Device;
use layout::KEY_LIMIT;
use local_sync::{Either, Permit, first_of, yield_now};
use situations::{Phase, Situation, during, situation};
use units::{Lba, LbaRange, Pba, PbaRange};

use super::{Inner, SpaceEffect, SpaceRequest};
use crate::VolumeError;
use crate::state::VolumeState;
use block_map::Missing;

/// Runs of reclaimed blocks that may wait for a checkpoint: a megabyte of them.
const RECLAIMED_RUNS_MAX: usize = 1 << 16;

/// Blocks that no map names any more, waiting for a checkpoint (RECLAIM-1).
#[derive(Debug, Default)]
pub(super) struct Reclaimed {
    pub(super) runs: Vec<PbaRange>,
    /// Blocks of all runs.
    pub(super) blocks: u64,
}

impl Reclaimed {
    fn push(&mut self, pba: Pba) {
        self.blocks += 1;
        match self.runs.last_mut() {
            Some(run) if run.end() == pba => run.blocks += 1,
            _ => self.runs.push(PbaRange::new(pba, 1)),
        }
    }
}

/// The reclaimer's work, and what it has brought.
#[derive(Default)]
pub(super) struct Reclaims {
    /// Volumes with pending unmaps that are to be taken out of their maps.
    queue: RefCell<VecDeque<Rc<VolumeState>>>,
    reclaimed: RefCell<Reclaimed>,
    /// The reclaimer could not go on, and tries again later.
    fails: Cell<bool>,
}

impl Reclaims {
    /// Returns whether the reclaimer will bring blocks, once it runs.
    pub(super) fn are_under_way(&self) -> bool {
        !self.queue.borrow().is_empty() && !self.fails.get()
    }

    pub(super) fn reclaimed_blocks(&self) -> u64 {
        self.reclaimed.borrow().blocks
    }

    /// Hands reclaimed blocks over to a checkpoint.
    pub(super) fn take_reclaimed(&self) -> Reclaimed {
        self.reclaimed.take()
    }

    /// Returns whether there is nothing left to reclaim, and only a checkpoint is missing for what was.
    fn await_checkpoint_only(&self) -> bool {
        self.reclaimed_blocks() > 0 && self.queue.borrow().is_empty()
    }

    fn queue(&self, state: &Rc<VolumeState>) {
        let mut queue = self.queue.borrow_mut();
        if !queue.iter().any(|queued| Rc::ptr_eq(queued, state)) {
            queue.push_back(state.clone());
        }
    }

    fn remove(&self, state: &Rc<VolumeState>) {
        self.queue.borrow_mut().retain(|queued| !Rc::ptr_eq(queued, state));
    }
}

impl<D: Device> Inner<D> {
    /// The volume has pending unmaps, or was deleted.
    pub(super) fn reclaim(&self, state: &Rc<VolumeState>) {
        self.reclaims.queue(state);
        self.publish_spare();
        self.background.notify_all();
    }

    /// A block that a reclaimed leaf named: in no map now, and not to be reused yet (RECLAIM-1).
    fn reclaim_block(&self, pba: Pba) {
        self.pool.borrow_mut().uncommit(PbaRange::new(pba, 1));
        self.reclaims.reclaimed.borrow_mut().push(pba);
    }

    /// Reclaims whatever there is, until told to stop.
    pub(super) async fn run_reclaimer(&self) {
        loop {
            let changed = self.background.notified();
            let ticked = self.ticked.notified();
            if self.life.is_stopping() {
                return;
            }
            let next = self.reclaims.queue.borrow().front().cloned();
            let Some(state) = next.filter(|_| !self.journal.borrow().is_lost()) else {
                changed.await;
                continue;
            };
            let Some(range) = state.shortest_pending_unmap() else {
                self.end_reclaim(&state);
                continue;
            };
            let outcome = self.finish_unmap_step(&state, range, &mut None).await;
            let fails = !matches!(outcome, Ok(()) | Err(VolumeError::CorruptMap { .. }));
            self.reclaims.fails.set(fails);
            if fails {
                situation(Situation::ReclaimerFails);
                self.notify_space();
                // The others come first, and this one again later (RECLAIM-3).
                self.reclaims.queue.borrow_mut().rotate_left(1);
                ticked.await;
            }
            if self.reclaims.reclaimed.borrow().runs.len() > RECLAIMED_RUNS_MAX {
                // Their number is bounded by letting a checkpoint release them.
                let _ = self.checkpoint_and_wait().await;
            }
            yield_now().await;
        }
    }

    /// Nothing more can be taken out of the volume's map.
    fn end_reclaim(&self, state: &Rc<VolumeState>) {
        self.reclaims.remove(state);
        self.notify_space();
        let gone = state.deleted.get() && !state.has_pending_unmaps();
        if gone {
            situation(Situation::DeletedVolumeIsGone);
            self.volumes.has_gone(state);
        }
        if gone || self.reclaims.await_checkpoint_only() {
            self.ask_checkpoint();
        }
    }

    /// A place among the pending unmaps of a volume. There may be none before some are reclaimed, which a
    /// lost journal puts an end to.
    pub(crate) async fn pending_unmap_permit(
        &self,
        state: &VolumeState,
    ) -> Result<Permit, VolumeError> {
        let mut acquire = pin!(state.pending_unmap_permits.acquire(1));
        loop {
            self.check_open()?;
            let changed = self.checkpoints.changed();
            if let Either::First(permit) = first_of(acquire.as_mut(), changed).await {
                return Ok(permit);
            }
        }
    }

    /// Takes the pending unmaps in `range` out of the map. The caller has locked the range (RECLAIM-2).
    pub(crate) async fn finish_unmap(
        &self,
        state: &VolumeState,
        range: LbaRange,
    ) -> Result<(), VolumeError> {
        let mut permit = None;
        while let Some(piece) = state.pending_unmap_in(range) {
            situation(Situation::WriteIntoDeadRange);
            if state.splits(piece) && permit.is_none() {
                permit = Some(self.pending_unmap_permit(state).await?);
                continue;
            }
            // By itself: a write that meets no pending unmap need not have room for it.
            Box::pin(self.finish_unmap_step(state, piece, &mut permit)).await?;
        }
        Ok(())
    }

    /// Takes the first entries of a pending unmap out of the map, those of one leaf.
    async fn finish_unmap_step(
        &self,
        state: &VolumeState,
        range: LbaRange,
        permit: &mut Option<Permit>,
    ) -> Result<(), VolumeError> {
        let _reclaiming = during(Phase::Reclaiming);
        let height = state.map.borrow().height();
        let request =
            SpaceRequest { data: 0, metadata: 2 * height + 2, effect: SpaceEffect::Reclaiming };
        let first = LbaRange::new(range.start, 1);
        let _claim = self.claim(state, &[first, first], SpaceEffect::Reclaiming).await?;
        let mut _pin = None;
        let _set_aside = self.set_aside(request).await?;
        let mut entries = Vec::new();
        loop {
            // Someone else may have been here meanwhile.
            let Some(piece) = state.pending_unmap_in(range) else { return Ok(()) };
            if state.splits(piece) && permit.is_none() {
                return Ok(());
            }
            let (start, end) = (piece.start.0, piece.end().0);
            let next = state.map.borrow_mut().remove_some(start, end, &mut entries);
            match next {
                Ok(next) => {
                    self.admission.note_deallocated(entries.len() as u64);
                    entries.iter().for_each(|(_, old)| self.reclaim_block(old.pba));
                    state.clear_unmap(LbaRange::new(piece.start, next - start), permit);
                    return Ok(());
                }
                Err(missing) => {
                    _pin = self.is_paged().then(|| state.pin(start, missing.key.saturating_add(1)));
                    let loaded = self.load(state, missing).await;
                    loaded.or_else(|error| self.give_up(state, piece, missing, error))?;
                }
            }
        }
    }

    /// A node cannot be loaded. If it is damaged and all of its keys are unmapped, it goes (RECLAIM-3).
    fn give_up(
        &self,
        state: &VolumeState,
        piece: LbaRange,
        missing: Missing,
        error: VolumeError,
    ) -> Result<(), VolumeError> {
        let VolumeError::CorruptMap { .. } = error else { return Err(error) };
        let bounds = state.map.borrow().bounds(missing);
        let Some((low, high)) = bounds else { return Ok(()) };
        let keys = LbaRange::new(Lba(low), high.min(KEY_LIMIT - 1) - low);
        if state.is_unmap_pending_for_all(keys) {
            state.map.borrow_mut().give_up(missing);
            state.count(|stats| stats.lost_nodes += 1);
            return Ok(());
        }
        situation(Situation::DeadRangeIsStuck);
        state.set_stuck(piece.start, keys.end());
        Err(error)
    }
}
