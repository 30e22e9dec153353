//! A full disk that takes nothing for a while, and what must hold nevertheless.
//!
//! - BREAKING-3: when it takes everything again, the shard comes back, and what gives back as much as it takes finds room:
//!   the blocks that were refused are all that is free.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::Spawn;
use sim::{Defect, Rng};
use units::{Duration, Lba, LbaRange, Pba, PbaRange};
use uuid::Uuid;
use volume::Superblock;

use super::breaking::RETURN;
use super::{Boot, DEVICE_BLOCKS, EXTENT_BLOCKS};
use crate::content;
use crate::model::VolumeModel;
use crate::profile::Breaks;
use crate::rig::Rig;
use crate::run::Leniency;
use crate::target::Failure;

/// Blocks that are written over again and again, with one request.
const OVERWRITTEN: u64 = 8;
/// Requests of which each is refused: more than it takes to be refused all free blocks twice.
const WRITES_MAX: u64 = 400;
/// A request that takes longer waits for room.
const ANSWER: Duration = Duration::from_millis(100);
/// Range of the time for which bringing a shard back fails, in milliseconds: each time some blocks are refused.
const IN_VAIN_MS: (u64, u64) = (1_000, 20_000);
/// Attempts within which a request is done (BREAKING-3).
const TRIES: u32 = 20;

impl Boot {
    /// Is refused everything, or all but the journal, until no block is left that was not; then proves BREAKING-3.
    pub(super) async fn be_refused(&self, rig: &Rig, mut rng: Rng) {
        let Some(model) = self.run.volumes().into_iter().find(|model| model.is_usable()) else {
            return;
        };
        let range = LbaRange::new(Lba(0), OVERWRITTEN);
        // From now on a write of these blocks gives back as much as it takes.
        if self.insist(rig, &model, range, false).await != Ok(()) {
            return;
        }
        self.run.set_leniency(Leniency { device_errors: true, ..self.run.leniency() });
        let (start, end) = (self.superblock().data_start().0, self.superblock().data_end().0);
        let takes_records = rng.one_in(2);
        for extent in (start..end).step_by(EXTENT_BLOCKS as usize) {
            let blocks = PbaRange::new(Pba(extent), u64::from(EXTENT_BLOCKS).min(end - extent));
            if !(takes_records && self.is_journal(extent)) {
                self.disk().break_blocks(blocks, Defect::Writes);
            }
        }
        let waiting = self.write_in_vain(rig, &model, range).await;
        if !takes_records {
            let (least, most) = IN_VAIN_MS;
            rig.pause(Duration::from_millis(rng.between(least, most))).await;
        }
        self.disk().mend_blocks();
        while waiting.get() {
            rig.pause(ANSWER).await;
        }
        for zero in [false, true] {
            let outcome = self.insist(rig, &model, range, zero).await;
            if outcome != Ok(()) && !self.run.has_failed() {
                let id = model.id;
                self.run.fail(format!("volume {id} does not go on when it may: {outcome:?}"));
            }
        }
    }

    /// The disk that a boot finds takes everything.
    pub(super) fn stop_refusing(&self) {
        if self.profile.breaks == Breaks::AllForAWhile {
            self.disk().mend_blocks();
            self.run.set_leniency(Leniency { device_errors: false, ..self.run.leniency() });
        }
    }

    fn superblock(&self) -> Superblock {
        Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS).expect("large enough")
    }

    /// Returns true if the extent is some shard's journal: on so small a disk it fills one.
    fn is_journal(&self, extent: u64) -> bool {
        self.disk().peek(Pba(extent + 2)).starts_with(b"FJR1")
    }

    /// Writes until the journal is lost or a request waits for room. Returns whether one still does.
    async fn write_in_vain(
        &self,
        rig: &Rig,
        model: &Rc<VolumeModel>,
        range: LbaRange,
    ) -> Rc<Cell<bool>> {
        let waiting = Rc::new(Cell::new(false));
        for _ in 0..WRITES_MAX {
            let Some(target) = rig.target(model).await else { break };
            let outcome = Rc::new(Cell::new(None));
            let (run, writing, told) = (self.run.clone(), model.clone(), outcome.clone());
            let still = waiting.clone();
            still.set(true);
            self.world.spawn(async move {
                let tag = run.begin(&writing, range, false);
                let data = content::data(writing.id, range.start.0, range.blocks, tag);
                let done = target.write(range.start, data).await;
                run.end(&writing, tag, done);
                if done == Err(Failure::NoSpace) {
                    run.fail(format!("volume {}: an overwrite finds no room", writing.id));
                }
                told.set(Some(done));
                still.set(false);
            });
            rig.pause(ANSWER).await;
            if !matches!(outcome.get(), Some(Ok(()) | Err(Failure::Device))) {
                break;
            }
        }
        waiting
    }

    /// Writes blocks, or zeroes, until that is done, a bounded number of times; fails with the last failure.
    async fn insist(
        &self,
        rig: &Rig,
        model: &VolumeModel,
        range: LbaRange,
        zero: bool,
    ) -> Result<(), Failure> {
        let mut last = Err(Failure::Lost);
        for _ in 0..TRIES {
            if let Some(target) = rig.target(model).await {
                let tag = self.run.begin(model, range, zero);
                last = match zero {
                    true => target.clear(range, true).await,
                    false => {
                        let data = content::data(model.id, range.start.0, range.blocks, tag);
                        target.write(range.start, data).await
                    }
                };
                self.run.end(model, tag, last);
            }
            if matches!(last, Ok(()) | Err(Failure::NoSpace | Failure::OutOfRange)) {
                return last;
            }
            rig.pause(RETURN).await;
        }
        last
    }
}
