//! Blocks of the disk that fail for good, and what must hold nevertheless.
//!
//! - BREAKING-1: what is acknowledged is there when the disk is mended, whatever failed meanwhile. Until then what can be read
//!   is what may be there.
//! - BREAKING-2: where blocks take no writes, volumes go on at others, a request fails a bounded number of times, and the
//!   disk can be opened. Bitmaps have their places and no others: those are not meant. Nor are superblocks; of
//!   roots one copy is.
//! - BREAKING-4: where a bitmap takes no writes, and nothing else is broken, all that was acknowledged can still be read, also
//!   when no checkpoint can be written any more and the shard has failed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use sim::{Defect, Rng, SimDevice};
use units::{Duration, Lba, LbaRange, Pba, PbaRange};
use uuid::Uuid;
use volume::Superblock;

use super::{Boot, DEVICE_BLOCKS, EXTENT_BLOCKS};
use crate::content;
use crate::model::VolumeModel;
use crate::rig::Rig;
use crate::run::{Leniency, Run};
use crate::target::Failure;

/// Ranges of a run that fail: the journal of so small a disk keeps off no more.
const RANGES_MAX: usize = 3;
/// Blocks of each.
const RANGE_BLOCKS_MAX: u64 = 12;
/// Runs that cannot be read where a flush covered all.
const RUNS_MAX: usize = 4;
/// Attempts within which a write succeeds (BREAKING-2): each block may fail twice, in several requests at once, before others
/// are taken, and the journal and each node may be lost once.
const GO_ON_TRIES: u64 = 100;
/// Blocks of each volume that are written so.
const GO_ON_BLOCKS: u64 = 24;
/// Least time until a shard that failed is back.
pub(super) const RETURN: Duration = Duration::from_millis(500);

/// Ranges that fail for good. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub(super) struct Broken(Rc<RefCell<Vec<(PbaRange, Defect, Place)>>>);

/// The kind of a broken location.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// Blocks of any kind, or of none yet.
    Anywhere,
    /// A block of a tenant.
    Data,
    /// A node of a map or a table, or a descriptor.
    Metadata,
    /// The last record of the journal, and where the next ones go.
    Journal,
    /// A bitmap.
    Bitmap,
    /// One copy of a root.
    Root,
}

const PLACES: [Place; 11] = [
    Place::Anywhere,
    Place::Anywhere,
    Place::Data,
    Place::Data,
    Place::Data,
    Place::Metadata,
    Place::Metadata,
    Place::Journal,
    Place::Journal,
    Place::Bitmap,
    Place::Root,
];

impl Place {
    fn is_at(self, block: &[u8]) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Data => content::owner(block).is_some(),
            Self::Metadata => block.starts_with(b"FMN1") || block.starts_with(b"FVD1"),
            Self::Journal => block.starts_with(b"FJR1"),
            Self::Bitmap | Self::Root => false,
        }
    }
}

impl Broken {
    /// Returns true if no range is broken.
    pub(super) fn is_sound(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Returns true if some of these blocks cannot be read.
    pub(super) fn hides(&self, blocks: PbaRange) -> bool {
        let overlaps = |range: &PbaRange| range.start < blocks.end() && blocks.start < range.end();
        let broken = self.0.borrow();
        broken.iter().any(|(range, defect, _)| *defect != Defect::Writes && overlaps(range))
    }

    /// Returns true if all that is broken can still be read, and can be replaced by other blocks (BREAKING-2). Otherwise it
    /// may keep the disk from being opened.
    pub(super) fn goes_on(&self) -> bool {
        let broken = self.0.borrow();
        broken.iter().all(|(_, defect, place)| *defect == Defect::Writes && *place != Place::Bitmap)
    }

    /// Returns true if checkpoints may have ended for good, and nothing else is amiss (BREAKING-4).
    fn is_stuck(&self) -> bool {
        let broken = self.0.borrow();
        broken.iter().all(|(_, defect, _)| *defect == Defect::Writes)
            && broken.iter().any(|(.., place)| *place == Place::Bitmap)
    }

    /// Returns true if a copy of a root may be torn, which a look at the disk finds.
    pub(super) fn tears_roots(&self) -> bool {
        self.0.borrow().iter().any(|(.., place)| *place == Place::Root)
    }

    /// Has reads fail of some runs that were written last, for good or for a while, now and then: of those that no flush
    /// covered if there are any. Of a write that is torn some runs can be read then, and others cannot.
    pub(super) fn deafen(
        &self,
        run: &Run,
        disk: &SimDevice,
        unflushed: &BTreeSet<Pba>,
        rng: &mut Rng,
    ) {
        let all = run.last_runs();
        let is_unflushed = |run: &PbaRange| unflushed.range(run.start..run.end()).next().is_some();
        let mut runs: Vec<PbaRange> = all.iter().copied().filter(is_unflushed).collect();
        if runs.is_empty() {
            runs = all.into_iter().take(RUNS_MAX).collect();
        }
        if runs.is_empty() || rng.one_in(4) {
            return;
        }
        for mut range in runs.into_iter().filter(|_| rng.one_in(2)).collect::<Vec<_>>() {
            if rng.one_in(3) {
                range = PbaRange::new(range.start.plus(rng.below(range.blocks)), 1);
            }
            run.note_unread(range);
            match rng.one_in(2) {
                true => disk.fail_reads_of(range, 1 << rng.between(0, 5)),
                false => disk.break_blocks(range, Defect::Reads),
            }
            self.0.borrow_mut().push((range, Defect::Reads, Place::Data));
        }
        run.set_leniency(Leniency { device_errors: true, ..run.leniency() });
    }

    /// Breaks some blocks.
    pub(super) fn break_some(&self, run: &Run, disk: &SimDevice, rng: &mut Rng) {
        if self.0.borrow().len() == RANGES_MAX {
            return;
        }
        let defects = [Defect::Reads, Defect::Writes, Defect::Writes, Defect::Both];
        let mut defect = defects[rng.below(4) as usize];
        let mut place = PLACES[rng.below(PLACES.len() as u64) as usize];
        // Most runs that go on do so to their end.
        if !self.is_sound() && self.goes_on() && !rng.one_in(4) {
            defect = Defect::Writes;
            place = if place == Place::Bitmap { Place::Data } else { place };
        }
        // One that cannot be read beside one that was not written would be both copies.
        if place == Place::Root {
            defect = Defect::Writes;
        }
        let Some(range) = find(place, disk, rng) else { return };
        disk.break_blocks(range, defect);
        self.0.borrow_mut().push((range, defect, place));
        run.count(|counts| counts.broken += range.blocks);
        run.set_leniency(Leniency { device_errors: true, ..run.leniency() });
    }
}

/// Blocks at such a place.
fn find(place: Place, disk: &SimDevice, rng: &mut Rng) -> Option<PbaRange> {
    let superblock = Superblock::with_extents(Uuid::nil(), DEVICE_BLOCKS, EXTENT_BLOCKS)?;
    let (start, end) = (superblock.data_start().0, superblock.data_end().0);
    let written_where = |is_meant: &dyn Fn(Pba) -> bool| -> Vec<u64> {
        let written = disk.written_blocks().into_iter();
        written.filter(|pba| is_meant(*pba)).map(|pba| pba.0).collect()
    };
    if place == Place::Bitmap {
        let used = written_where(&|pba| superblock.is_bitmap(pba));
        return pick(&used, rng).map(|pba| PbaRange::new(Pba(pba), 1));
    }
    if place == Place::Root {
        // Never both copies of one root, nor one that was not written once: the first roots need both.
        let [first, _] = superblock.root_places(0, rng.below(2));
        return disk.peek(first).starts_with(b"FSR1").then(|| PbaRange::new(first, 1));
    }
    let first = match place {
        Place::Anywhere => rng.between(start, start + (end - start) / 4),
        _ => {
            let all = written_where(&|pba| pba.0 >= start && place.is_at(&disk.peek(pba)));
            match place == Place::Journal {
                // Where the next records go.
                true => all.last()? + rng.below(RANGE_BLOCKS_MAX),
                false => pick(&all, rng)?,
            }
        }
    };
    let first = first.saturating_sub(rng.below(RANGE_BLOCKS_MAX / 2)).max(start);
    let most = if rng.one_in(2) { 1 } else { RANGE_BLOCKS_MAX };
    let blocks = rng.between(1, most);
    // BREAKING-2: those of others than were meant, too.
    let has_others =
        |pba: &u64| superblock.locate(Pba(*pba)).is_some() && !superblock.is_bitmap(Pba(*pba));
    let mut kept = (first..first + blocks).skip_while(|pba| !has_others(pba));
    let first = kept.next()?;
    let blocks = 1 + kept.take_while(has_others).count() as u64;
    Some(PbaRange::new(Pba(first), blocks.min(end - first)))
}

fn pick(all: &[u64], rng: &mut Rng) -> Option<u64> {
    (!all.is_empty()).then(|| all[rng.below(all.len() as u64) as usize])
}

impl Boot {
    /// The disk works again, as if all that it took had been copied to another one.
    pub(super) fn mend(&self) {
        if !self.broken.is_sound() {
            self.broken.0.borrow_mut().clear();
            self.disk().mend_blocks();
            self.run.set_leniency(Leniency { device_errors: false, ..self.run.leniency() });
        }
    }

    /// Notes the blocks that cannot be read when the disk is opened next.
    pub(super) fn note_unread(&self) {
        let broken = self.broken.0.borrow();
        let unread = broken.iter().filter(|(_, defect, _)| *defect != Defect::Writes);
        unread.for_each(|(range, ..)| self.run.note_unread(*range));
    }

    /// BREAKING-2.
    pub(super) async fn prove_going_on(&self, rig: &Rig) {
        if self.broken.is_sound() || !self.broken.goes_on() {
            return;
        }
        let volumes = self.run.volumes().into_iter().filter(|model| model.is_usable());
        // Twice: what a write leaves is for another one.
        let places = volumes.flat_map(|model| {
            (0..2 * GO_ON_BLOCKS).map(move |turn| (model.clone(), turn % GO_ON_BLOCKS))
        });
        for (model, lba) in places {
            if let Err(failure) = self.write_again(rig, &model, lba).await {
                let id = model.id;
                self.run.fail(format!(
                    "volume {id} does not go on beside {:?}: {failure:?}",
                    self.broken.0
                ));
            }
        }
    }

    /// BREAKING-4.
    pub(super) async fn prove_reading(&self, rig: &Rig) {
        if !self.broken.is_stuck() || self.profile.plane {
            return;
        }
        for model in self.run.volumes().into_iter().filter(|model| model.is_usable()) {
            let Some(target) = rig.target(&model).await else { continue };
            for lba in 0..GO_ON_BLOCKS.min(model.likely_size()) {
                let (range, invoked) = (LbaRange::new(Lba(lba), 1), self.run.now());
                let outcome = target.read(range).await;
                self.run.check_read(&model, range, invoked, &outcome);
                if !matches!(outcome, Ok(_) | Err(Failure::OutOfRange)) {
                    let (id, failure) = (model.id, outcome.err());
                    self.run
                        .fail(format!("volume {id} cannot be read beside a bitmap: {failure:?}"));
                }
            }
        }
    }

    /// Writes a block until it is taken, a bounded number of times; fails with the last failure.
    async fn write_again(&self, rig: &Rig, model: &VolumeModel, lba: u64) -> Result<(), Failure> {
        let range = LbaRange::new(Lba(lba), 1);
        let mut last = Ok(());
        for _ in 0..GO_ON_TRIES {
            if self.run.has_failed() || model.likely_size() <= lba {
                return Ok(());
            }
            if let Some(target) = rig.target(model).await {
                let tag = self.run.begin(model, range, false);
                let data = content::data(model.id, lba, 1, tag);
                last = target.write(range.start, data).await;
                self.run.end(model, tag, last);
                // No reason of the kind that is looked for.
                if matches!(last, Ok(()) | Err(Failure::OutOfRange | Failure::NoSpace)) {
                    return Ok(());
                }
            }
            if last != Err(Failure::Device) {
                rig.pause(RETURN).await;
            }
        }
        last
    }
}
