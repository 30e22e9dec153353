//! One run: what is known, and whether each answer agrees with it.

mod damage;
mod harm;
mod terms;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use sim::{SimDevice, Trace};
use units::{Instant, Lba, LbaRange, MetadataSize, Pba, PbaRange, SectorSize};
use volume::{Damaged, Structure};

use crate::content::{self, Shown, Tag};
use crate::history::{Change, Fate, Moment, Observation};
use crate::model::{VolumeModel, text};
use crate::target::{Compared, Failure};
use crate::{image, linear};
use harm::{Harm, Written};
pub(crate) use terms::{Allotted, TENANTS, Terms};

/// Failures that are excused, and their causes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Leniency {
    /// The disk fails requests.
    pub device_errors: bool,
    /// The disk, or the pool, may be full.
    pub no_space: bool,
    /// Connections are cut.
    pub cuts: bool,
    /// A shard that failed is read back, and requests to the failed one are refused.
    pub returns: bool,
    /// Copies of roots were torn by a power cut.
    pub roots: bool,
}

/// Counts of a run's operations.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Requests issued.
    pub requests: u64,
    /// Requests that failed for a reason that is excused.
    pub failed: u64,
    /// Blocks read and compared with the model.
    pub blocks_checked: u64,
    /// Starts of the server.
    pub boots: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Blocks damaged.
    pub damaged: u64,
    /// Blocks that came to fail for good.
    pub broken: u64,
    /// Blocks whose history had too many orders to be checked.
    pub unchecked: u64,
}

/// A run in progress. Cheap to clone; clones are the same run.
#[derive(Clone, Default)]
pub(crate) struct Run {
    shared: Rc<Shared>,
    /// The host whose requests are noted.
    host: usize,
}

#[derive(Default)]
struct Shared {
    trace: Trace,
    moment: Cell<Moment>,
    next_tag: Cell<Tag>,
    volumes: RefCell<Vec<Rc<VolumeModel>>>,
    leniency: Cell<Leniency>,
    /// Metadata of each block of new volumes.
    metadata: Cell<MetadataSize>,
    /// Logical blocks of new volumes.
    sector: Cell<SectorSize>,
    /// Blocks that the disk damaged: volume, block, write.
    harmed: RefCell<BTreeSet<(u64, u64, Tag)>>,
    /// The damaged locations, and the volume's block that was there.
    spoiled: RefCell<BTreeSet<(Pba, Lba)>>,
    /// Blocks that some boot could not read: as it could not compare them, it took them for present.
    unread: RefCell<BTreeSet<Pba>>,
    /// The contents of written locations.
    written: RefCell<Written>,
    /// The damage to structures.
    harm: RefCell<Harm>,
    counts: Cell<Counts>,
    failure: RefCell<Option<String>>,
    disk: RefCell<Option<SimDevice>>,
    /// The limit of the volumes of each tenant, and their size when it was set.
    allotted: RefCell<[Option<Allotted>; TENANTS.len()]>,
    /// True if anything was bounded so far.
    was_bounded: Cell<bool>,
}

impl Run {
    /// A run that notes its events in `trace`.
    #[must_use]
    pub(crate) fn new(trace: Trace) -> Self {
        Self { shared: Rc::new(Shared { trace, ..Shared::default() }), host: 0 }
    }

    /// The same run, for requests of a host.
    #[must_use]
    pub(crate) fn of_host(&self, host: usize) -> Self {
        Self { shared: self.shared.clone(), host }
    }

    /// Returns the trace of the run.
    #[must_use]
    pub(crate) fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// The next moment.
    #[must_use]
    pub(crate) fn now(&self) -> Moment {
        self.shared.moment.set(self.shared.moment.get() + 1);
        self.shared.moment.get()
    }

    fn tag(&self) -> Tag {
        self.shared.next_tag.set(self.shared.next_tag.get() + 1);
        self.shared.next_tag.get()
    }

    /// Returns the counts so far.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        self.shared.counts.get()
    }

    /// Counts.
    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.shared.counts.get();
        change(&mut counts);
        self.shared.counts.set(counts);
    }

    /// Returns the failures that are excused.
    #[must_use]
    pub(crate) fn leniency(&self) -> Leniency {
        self.shared.leniency.get()
    }

    /// Changes what is excused.
    pub(crate) fn set_leniency(&self, leniency: Leniency) {
        self.shared.leniency.set(leniency);
    }

    /// A boot begins on a disk of which these blocks cannot be read.
    pub(crate) fn note_unread(&self, range: PbaRange) {
        let blocks = (range.start.0..range.end().0).map(Pba);
        self.shared.unread.borrow_mut().extend(blocks);
    }

    /// Changes what blocks of new volumes have beside their data.
    pub(crate) fn set_metadata(&self, metadata: MetadataSize) {
        self.shared.metadata.set(metadata);
    }

    /// Changes what logical blocks new volumes have.
    pub(crate) fn set_sector(&self, sector: SectorSize) {
        self.shared.sector.set(sector);
    }

    /// Something is wrong. The first such finding ends the run.
    pub(crate) fn fail(&self, finding: String) {
        self.shared.failure.borrow_mut().get_or_insert(finding);
    }

    /// Returns the failure, if any.
    #[must_use]
    pub(crate) fn failure(&self) -> Option<String> {
        self.shared.failure.borrow().clone()
    }

    /// Returns true if the run has to stop.
    #[must_use]
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.failure.borrow().is_some()
    }

    /// A volume of `blocks` blocks of 4096 bytes that is about to be created.
    #[must_use]
    pub(crate) fn new_volume(&self, shard: usize, blocks: u64) -> Rc<VolumeModel> {
        let id = self.shared.volumes.borrow().len() as u64 + 1;
        // Every other one has what the run says.
        let metadata = match id % 2 {
            1 => self.shared.metadata.get(),
            _ => MetadataSize::None,
        };
        let volume = Rc::new(VolumeModel::new(
            id,
            shard,
            (blocks, metadata, self.shared.sector.get()),
            self.now(),
        ));
        self.shared.volumes.borrow_mut().push(volume.clone());
        volume
    }

    /// All volumes that ever were.
    #[must_use]
    pub(crate) fn volumes(&self) -> Vec<Rc<VolumeModel>> {
        self.shared.volumes.borrow().clone()
    }

    /// Notes that a change is issued.
    #[must_use]
    pub(crate) fn begin(&self, volume: &VolumeModel, range: LbaRange, zero: bool) -> Tag {
        let tag = self.tag();
        self.count(|counts| counts.requests += 1);
        let now = self.now();
        let kind = if zero { "clear" } else { "write" };
        self.note(now, format_args!("{kind} {tag}: volume {}, {}", volume.id, text(range)));
        volume.history.borrow_mut().begin(tag, range, zero, now);
        tag
    }

    /// Notes what came of changes that one command asks for: one that fails may have made some of them.
    pub(crate) fn end_several(
        &self,
        volume: &VolumeModel,
        tags: &[Tag],
        outcome: Result<(), Failure>,
    ) {
        let Err(failure) = outcome else {
            return tags.iter().for_each(|tag| self.end(volume, *tag, outcome));
        };
        let changes: Vec<Change> = {
            let history = volume.history.borrow();
            tags.iter().filter_map(|tag| history.get(*tag).copied()).collect()
        };
        let now = self.now();
        let start = changes.iter().map(|change| change.range.start.0).min().unwrap_or(0);
        let end = changes.iter().map(|change| change.range.end().0).max().unwrap_or(0);
        let invoked = changes.first().map_or(now, |change| change.invoked);
        self.check_failure(volume, LbaRange::new(Lba(start), end - start), (invoked, now), failure);
        self.note(now, format_args!("{tags:?}: {outcome:?}"));
        tags.iter().for_each(|tag| volume.history.borrow_mut().end(*tag, Fate::Open, now));
    }

    /// Notes what came of a change, and whether that may be.
    pub(crate) fn end(&self, volume: &VolumeModel, tag: Tag, outcome: Result<(), Failure>) {
        let (range, invoked) = {
            let history = volume.history.borrow();
            let change = history.get(tag).expect("it was begun");
            (change.range, change.invoked)
        };
        let now = self.now();
        let fate = match outcome {
            Ok(()) => {
                self.check_bounds(volume, range, (invoked, now));
                Fate::Done
            }
            Err(failure) => {
                self.check_failure(volume, range, (invoked, now), failure);
                // A host repeats what it was not answered: what is refused now may have been done.
                if self.leniency().cuts { Fate::Open } else { failure.fate() }
            }
        };
        self.note(now, format_args!("{tag}: {outcome:?}"));
        let ended = match fate {
            Fate::Done => volume.effective_by(self.host, (invoked, now)),
            Fate::Open | Fate::Refused => now,
        };
        volume.history.borrow_mut().end(tag, fate, ended);
    }

    /// Notes in the trace what the harness does; its moments are no times.
    pub(crate) fn note(&self, now: Moment, event: std::fmt::Arguments<'_>) {
        self.shared.trace.note(Instant(now * 1000), format_args!("host: {event}"));
    }

    /// Notes that a resize is issued.
    #[must_use]
    pub(crate) fn begin_resize(&self, volume: &VolumeModel, blocks: u64) -> Tag {
        // What lies behind the new end is gone.
        let range = LbaRange::new(Lba(blocks), (1 << 32) - blocks);
        let tag = self.begin(volume, range, true);
        volume.sizes.borrow_mut().begin(tag, blocks, self.now());
        tag
    }

    /// Notes what came of it.
    pub(crate) fn end_resize(&self, volume: &VolumeModel, tag: Tag, outcome: Result<(), Failure>) {
        let now = self.now();
        let fate = outcome.map_or_else(Failure::fate, |()| Fate::Done);
        if let Err(failure) = outcome {
            self.check_failure(volume, LbaRange::new(Lba(0), 0), (now, now), failure);
        }
        volume.history.borrow_mut().end(tag, fate, now);
        volume.sizes.borrow_mut().end(tag, fate, now);
    }

    /// A change that was decided against: it never was.
    pub(crate) fn cancel(&self, volume: &VolumeModel, tag: Tag) {
        let now = self.now();
        self.note(now, format_args!("{tag}: not equal"));
        volume.history.borrow_mut().end(tag, Fate::Refused, now);
    }

    /// Notes what came of a creation.
    pub(crate) fn end_create(&self, volume: &VolumeModel, outcome: Result<(), Failure>) {
        let nowhere = LbaRange::new(Lba(0), 0);
        let now = self.now();
        if let Err(failure) = outcome {
            self.check_failure(volume, nowhere, (now, now), failure);
        }
        self.note(now, format_args!("volume {}: created: {outcome:?}", volume.id));
        volume.created.set(outcome.map_or_else(Failure::fate, |()| Fate::Done));
        volume.created_at.set(now);
    }

    /// Notes that a deletion is asked for.
    pub(crate) fn begin_delete(&self, volume: &VolumeModel) {
        volume.deleted.set(Some(Fate::Open));
    }

    /// Notes what came of it.
    pub(crate) fn end_delete(&self, volume: &VolumeModel, outcome: Result<(), Failure>) {
        let nowhere = LbaRange::new(Lba(0), 0);
        let now = self.now();
        if let Err(failure) = outcome {
            self.check_failure(volume, nowhere, (now, now), failure);
        }
        self.note(now, format_args!("volume {}: deleted: {outcome:?}", volume.id));
        let fate = outcome.map_or_else(Failure::fate, |()| Fate::Done);
        volume.deleted.set((fate != Fate::Refused).then_some(fate));
        volume.deleted_at.set(now);
    }

    /// Checks that a checkpoint may fail like this.
    pub(crate) fn check_checkpoint(&self, outcome: Result<(), Failure>) {
        self.take_damage();
        let lenient = self.leniency();
        if let Err(failure) = outcome
            && !lenient.device_errors
        {
            self.fail(format!("a checkpoint fails without reason: {failure:?}"));
        }
    }

    /// Checks that a step of a scrub which began at `invoked` may call these blocks damaged.
    pub(crate) fn check_scrub(&self, damaged: &[Damaged], invoked: Moment) {
        self.take_damage();
        let lenient = self.leniency();
        let excused = |block: &&Damaged| {
            if block.structure == Structure::Root && lenient.roots {
                return true;
            }
            let lba = block.lba.filter(|_| block.structure == Structure::Data);
            let is_lost = |lba| self.is_lost_at(block.pba, lba, invoked) || self.any_goes_back();
            lba.is_some_and(is_lost) || self.excuses_damage(block.structure, block.pba)
        };
        if !lenient.device_errors
            && let Some(block) = damaged.iter().find(|block| !excused(block))
        {
            self.fail(format!("a scrub finds a sound block damaged: {block:?}"));
        }
    }

    /// Checks what a read gave, which began at `invoked`.
    pub(crate) fn check_read(
        &self,
        volume: &VolumeModel,
        range: LbaRange,
        invoked: Moment,
        outcome: &Result<Vec<u8>, Failure>,
    ) {
        let now = self.now();
        match outcome {
            Ok(bytes) => {
                self.check_bounds(volume, range, (invoked, now));
                let blocks = bytes.chunks(volume.sector.bytes()).zip(range.start.0..);
                let shown: Vec<Shown> =
                    blocks.map(|(block, lba)| content::shown(volume.id, lba, block)).collect();
                if shown.len() as u64 != range.blocks {
                    self.fail(format!("volume {}: a read of the wrong length", volume.id));
                }
                self.check_shown(volume, range.start.0, &shown, (invoked, now));
            }
            Err(failure) => self.check_failure(volume, range, (invoked, now), *failure),
        }
    }

    /// Checks blocks as they were seen.
    pub(crate) fn check_shown(
        &self,
        volume: &VolumeModel,
        start: u64,
        shown: &[Shown],
        window: (Moment, Moment),
    ) {
        self.count(|counts| counts.blocks_checked += shown.len() as u64);
        let mut history = volume.history.borrow_mut();
        if let Err(finding) = image::check(&history, start, shown, window) {
            self.fail(format!("volume {}: {finding}", volume.id));
        }
        for (lba, shown) in (start..).zip(shown.iter().copied()) {
            if shown != Shown::Unknown {
                let (invoked, ended) = window;
                history.observe(Observation { lba, shown, differs: false, invoked, ended });
            }
        }
    }

    /// Notes what a comparison with `expected` said of the blocks from `start` on.
    pub(crate) fn check_compared(
        &self,
        volume: &VolumeModel,
        start: u64,
        expected: &[Shown],
        compared: Compared,
        (invoked, ended): (Moment, Moment),
    ) {
        let mut history = volume.history.borrow_mut();
        let equal = match compared {
            Compared::Equal => expected.len(),
            Compared::Differs(None) if expected.len() == 1 => 0,
            Compared::Differs(None) => return,
            Compared::Differs(Some(byte)) => {
                usize::try_from(byte).unwrap_or(0) / volume.sector.bytes()
            }
        };
        for (place, (lba, shown)) in (start..).zip(expected.iter().copied()).enumerate() {
            let differs = place == equal;
            if place <= equal {
                history.observe(Observation { lba, shown, differs, invoked, ended });
            }
        }
        if equal == expected.len()
            && let Err(finding) = image::check(&history, start, expected, (invoked, ended))
        {
            self.fail(format!("volume {}: compared as equal: {finding}", volume.id));
        }
    }

    /// A request that ended behind the volume must not succeed.
    fn check_bounds(&self, volume: &VolumeModel, range: LbaRange, (from, to): (Moment, Moment)) {
        let sizes = volume.sizes(from, to);
        let end = range.start.0 + range.blocks;
        if range.blocks < 1 << 30 && !sizes.iter().any(|blocks| end <= *blocks) {
            let range = text(range);
            self.fail(format!("volume {}: {range} is behind its end {sizes:?}", volume.id));
        }
    }

    /// Checks that a request may fail like this.
    fn check_failure(
        &self,
        volume: &VolumeModel,
        range: LbaRange,
        (from, to): (Moment, Moment),
        failure: Failure,
    ) {
        self.take_damage();
        let lenient = self.leniency();
        let excused = match failure {
            Failure::OutOfRange => {
                let end = range.start.0 + range.blocks;
                volume.sizes(from, to).iter().any(|blocks| end > *blocks)
            }
            Failure::NoSpace => lenient.no_space || self.is_bounded(volume),
            Failure::Corrupt(place) => {
                let may_be_map = place.is_none() && self.is_map_harmed(volume, None);
                let reached = may_be_map || self.goes_back(volume.shard);
                reached || self.is_lost(volume, volume.around(range), from, place)
            }
            Failure::CorruptMap(pba) => {
                self.goes_back(volume.shard) || self.is_map_harmed(volume, Some(pba))
            }
            Failure::Device | Failure::JournalLost => lenient.device_errors,
            Failure::Deleted => volume.deleted.get().is_some_and(|fate| fate != Fate::Refused),
            Failure::Lost => {
                lenient.cuts
                    || lenient.returns
                    || volume.deleted.get().is_some()
                    || volume.is_cut.get()
            }
            // `check_excluded` knows the host.
            Failure::Conflict | Failure::Aborted => true,
            Failure::Unexpected => false,
        };
        self.count(|counts| counts.failed += 1);
        if !excused {
            let range = text(range);
            self.fail(format!("volume {}: {range} fails without reason: {failure:?}", volume.id));
        }
    }

    /// The disk of this boot.
    pub(crate) fn set_disk(&self, disk: &SimDevice) {
        self.shared.disk.replace(Some(disk.clone()));
    }

    /// The server is gone: what was open took effect by now, or never does.
    pub(crate) fn close(&self) {
        self.take_damage();
        let now = self.now();
        for volume in self.volumes() {
            volume.close(now);
        }
    }

    /// Checks the order of everything that was seen.
    pub(crate) fn check_orders(&self) {
        for volume in self.volumes() {
            match linear::check_all(&volume.history.borrow()) {
                Ok(unchecked) => self.count(|counts| counts.unchecked += unchecked),
                Err(finding) => self.fail(format!("volume {}: {finding}", volume.id)),
            }
        }
    }
}
