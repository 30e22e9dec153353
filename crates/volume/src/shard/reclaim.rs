//! Large deallocations: their blocks come back in the background, leaf by leaf.
//!
//! From the moment a deallocation takes effect its range is *dead*: it reads as zeroes, whatever the
//! map still says. The range stays locked until the map no longer names any of it. Dead ranges are
//! part of a checkpoint, so that a crash in between loses nothing.
//!
//! - Q1: a reclaimed block is reused when a root is durable whose map does not name it. Replay thus
//!   need not know how far the reclaiming had come when a record was made.

use std::rc::Rc;

use io_traits::Device;
use local_sync::Permit;
use units::{Lba, LbaRange, Pba, PbaRange};

use super::{Inner, Need};
use crate::VolumeError;
use crate::io::yield_now;
use crate::locks::RangeGuard;
use crate::state::VolumeState;

/// Runs of reclaimed blocks that may wait for a checkpoint: a megabyte of them.
const RECLAIMED_RUNS_MAX: usize = 1 << 16;

/// A dead range to be taken out of its map.
pub(super) struct Reclaim {
    pub(super) state: Rc<VolumeState>,
    pub(super) range: LbaRange,
    /// Keeps writes out until it is done.
    pub(super) guard: Option<RangeGuard>,
    /// Bounds the number of dead ranges of a volume.
    pub(super) permit: Option<Permit>,
}

/// Blocks that no map names any more, waiting for a checkpoint (Q1).
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

impl<D: Device> Inner<D> {
    /// A block that a reclaimed leaf named: in no map now, and not to be reused yet (Q1).
    fn reclaim_block(&self, pba: Pba) {
        self.pool.borrow_mut().uncommit(pba);
        self.reclaimed.borrow_mut().push(pba);
    }

    /// Reclaims whatever there is, until told to stop.
    pub(super) async fn run_reclaimer(&self) {
        loop {
            let changed = self.background.notified();
            let next = self.reclaims.borrow_mut().pop_front();
            match next {
                _ if self.stopping.get() => return,
                Some(reclaim) => self.reclaim_range(reclaim).await,
                None => changed.await,
            }
        }
    }

    async fn reclaim_range(&self, reclaim: Reclaim) {
        let Reclaim { state, range, guard, permit } = reclaim;
        let (mut at, end) = (range.start, range.end());
        let mut removed = Vec::new();
        while at < end {
            if self.stopping.get() {
                return;
            }
            let next = match self
                .reclaim_some(&state, LbaRange::new(at, end.0 - at.0), &mut removed)
                .await
            {
                Ok(next) => next,
                // The map cannot be read, or the device is gone: what is left stays as it is. It
                // is dead no longer, so that reads of it report the damage.
                Err(_) => end,
            };
            state.shrink_dead(at, next);
            at = next;
            removed.drain(..).for_each(|pba| self.reclaim_block(pba));
            if self.reclaimed.borrow().runs.len() > RECLAIMED_RUNS_MAX {
                // Their number is bounded by letting a checkpoint release them.
                let _ = self.checkpoint_and_wait().await;
            }
            yield_now().await;
        }
        if self.reclaimed.borrow().blocks > 0 && self.reclaims.borrow().is_empty() {
            self.ask_checkpoint();
        }
        drop(guard);
        drop(permit);
        if state.deleted.get() && state.dead.borrow().is_empty() {
            self.volumes.borrow_mut().remove(&state.number);
            self.gone.borrow_mut().push(state);
            self.ask_checkpoint();
        }
    }

    /// Takes out the entries of one leaf, and says where to go on.
    async fn reclaim_some(
        &self,
        state: &VolumeState,
        range: LbaRange,
        removed: &mut Vec<Pba>,
    ) -> Result<Lba, VolumeError> {
        let height = state.map.borrow().height();
        let need = Need { data: 0, metadata: 2 * height + 2, grows: false };
        let credit = self.admit(need).await?;
        let mut entries = Vec::new();
        let outcome = loop {
            let next =
                state.map.borrow_mut().remove_some(range.start.0, range.end().0, &mut entries);
            match next {
                Ok(next) => break Ok(Lba(next)),
                Err(missing) => {
                    if let Err(error) = self.load(state, missing).await {
                        break Err(error);
                    }
                }
            }
        };
        self.credit.set(self.credit.get() - credit);
        removed.extend(entries.iter().map(|(_, old)| old.pba));
        outcome
    }
}
