//! One worker's requests: drawn, issued, checked.

mod reserving;
pub(crate) mod terms;

use std::rc::Rc;

use io_traits::{Buffer, BufferSlice};
use sim::Rng;
use units::{Duration, Lba, LbaRange};

use crate::content::{self, Shown, Tag};
use crate::model::VolumeModel;
use crate::profile::{Breaks, Profile, Workload};
use crate::rig::Rig;
use crate::run::Run;
use crate::target::{Compared, Expected, Failure, Target};

/// Most volumes at a time.
const VOLUMES_MAX: usize = 5;
/// Readers that linger do so for up to so many microseconds, as a power of two: as long as some checkpoints take.
const LINGER_SCALE: u64 = 13;
/// Content that no write put anywhere.
const FOREIGN_TAG: Shown = Shown::Tag(u64::MAX);
/// Time that a worker whose shard failed waits for it to come back.
const RETURN: Duration = Duration::from_millis(400);

/// Makes requests, one at a time.
pub(crate) struct Worker {
    /// The run.
    pub run: Run,
    /// The target of its requests.
    pub rig: Rig,
    /// The profile of the run.
    pub profile: Profile,
    /// The chance behind them.
    pub rng: Rng,
    /// Number of the host.
    pub host: usize,
}

impl Worker {
    /// Makes as many requests as the profile says; ends early if no more can succeed.
    pub(crate) async fn work(mut self) {
        for _ in 0..self.profile.requests {
            if self.run.has_failed() {
                return;
            }
            let outcome = self.step().await;
            // A host that was cut comes again, as one that knows what opens the volume now.
            if outcome == Err(Failure::Lost) && self.may_be_cut() {
                continue;
            }
            let comes_back = self.rig.core().is_some() && self.run.leniency().returns;
            let returns = self.profile.breaks != Breaks::Nothing || comes_back;
            if returns && matches!(outcome, Err(Failure::JournalLost | Failure::Lost)) {
                self.rig.pause(RETURN).await;
                continue;
            }
            let over = matches!(outcome, Err(Failure::JournalLost))
                || (outcome == Err(Failure::Lost) && !self.profile.cuts);
            if over {
                return;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let mix = self.profile.mix;
        let choices = [
            mix.write,
            mix.clear,
            mix.clear_wide,
            mix.read,
            mix.compare,
            mix.swap,
            mix.resize,
            mix.churn,
            mix.checkpoint,
            mix.scrub,
            mix.share,
            mix.clear_several,
            mix.slo,
            mix.access,
            mix.look,
            mix.knock,
            mix.allot,
            mix.reserve,
        ];
        let mut left = self.rng.below(choices.iter().sum());
        let choice = choices.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        match choice.expect("below the sum") {
            7 => return self.churn().await,
            8 => return self.checkpoint().await,
            9 => return self.scrub().await,
            10 => {
                self.rig.share(&mut self.rng, &self.run.volumes());
                return Ok(());
            }
            6 => return self.resize().await,
            12 => return self.change_slo().await,
            13 => return self.change_access().await,
            14 => {
                self.rig.look(&self.run);
                return Ok(());
            }
            15 => {
                self.knock().await;
                return Ok(());
            }
            16 => {
                self.allot();
                return Ok(());
            }
            17 => return self.reserve().await,
            _ => {}
        }
        let Some((model, target)) = self.pick().await else { return Ok(()) };
        let (choice, from) = (choice.expect("below the sum"), self.run.now());
        let outcome = self.ask(choice, &model, &target).await;
        if self.profile.mix.reserve > 0 {
            let reads = [3, 4].contains(&choice);
            self.check_excluded(&model, !reads, from, outcome);
        }
        if outcome == Err(Failure::Lost) && self.may_be_cut() {
            self.rig.forget_host(&model, self.host);
        }
        outcome
    }

    /// Returns true if connections end by changes of access.
    fn may_be_cut(&self) -> bool {
        self.rig.core().is_some() && self.profile.mix.access > 0
    }

    async fn ask(
        &mut self,
        choice: usize,
        model: &VolumeModel,
        target: &Target,
    ) -> Result<(), Failure> {
        match choice {
            0 => self.write(model, target).await,
            1 => self.clear(model, target, false).await,
            2 => self.clear(model, target, true).await,
            3 if self.profile.mix.reserve == 0 && self.rng.one_in(6) => {
                self.read_in_order(model, target).await
            }
            3 => self.read(model, target).await,
            4 => self.compare(model, target).await,
            11 => self.clear_several(model, target).await,
            _ => self.swap(model, target).await,
        }
    }

    fn pick_model(&mut self) -> Option<Rc<VolumeModel>> {
        let mut usable = self.run.volumes();
        usable.retain(|model| model.is_usable());
        let count = usable.len() as u64;
        (count > 0).then(|| usable.swap_remove(self.rng.below(count) as usize))
    }

    async fn pick(&mut self) -> Option<(Rc<VolumeModel>, Target)> {
        let (model, from) = (self.pick_model()?, self.rig.instant(&self.run));
        let target = self.rig.target_of(&model, self.host).await;
        let must_open = self.rig.must_open(&self.run, &model, (self.host, from));
        if target.is_none() && model.is_usable() && must_open && !self.profile.cuts {
            self.run.fail(format!("volume {} cannot be opened", model.id));
        }
        Some((model, target?))
    }

    /// A range for a request: mostly small, mostly in the hot part, seldom behind the end.
    fn range(&mut self, model: &VolumeModel, blocks_max: u64) -> LbaRange {
        let size = model.likely_size();
        let bound = self.bound(model);
        let rng = &mut self.rng;
        let blocks = match rng.below(20) {
            0..10 if self.profile.tight || self.profile.trades => rng.between(32, 256),
            0..10 => 1,
            10..17 => rng.between(2, 8),
            17..19 => rng.between(9, 64),
            _ => rng.between(65, 256),
        };
        let blocks = blocks.min(blocks_max);
        if rng.one_in(60) {
            return LbaRange::new(Lba(size.saturating_sub(blocks / 2)), blocks);
        }
        let hot = if rng.one_in(5) { size } else { size.min(self.profile.hot_blocks) };
        let blocks = blocks.min(size.max(1));
        let start = match bound {
            Some(bound) => bound.saturating_sub(rng.below(blocks + 2)),
            None => rng.below(hot.max(1)),
        };
        LbaRange::new(Lba(start.min(size.saturating_sub(blocks))), blocks)
    }

    /// Returns the first key of some node of the volume's map, in a run that is about these. One of an inner node
    /// as often as one of a leaf.
    fn bound(&mut self, model: &VolumeModel) -> Option<u64> {
        if self.profile.workload != Workload::Tall || self.rng.one_in(3) {
            return None;
        }
        let volume = self.rig.shards()[model.shard].volume(model.uuid())?;
        let bounds = volume.node_bounds();
        let levels = u64::from(bounds.iter().map(|(level, _)| level + 1).max()?);
        let level = self.rng.below(levels);
        let of_level: Vec<u64> = bounds
            .into_iter()
            .filter(|(of, _)| u64::from(*of) == level)
            .map(|(_, bound)| bound)
            .collect();
        of_level.get(self.rng.below(of_level.len().max(1) as u64) as usize).copied()
    }

    async fn write(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let range = self.range(model, target.transfer_blocks_max());
        let tag = self.run.begin(model, range, false);
        let data = data_of(model, range, tag);
        let outcome = target.write(range.start, data).await;
        self.run.end(model, tag, outcome);
        outcome
    }

    async fn clear(
        &mut self,
        model: &VolumeModel,
        target: &Target,
        wide: bool,
    ) -> Result<(), Failure> {
        let mut range = self.range(model, 256);
        if wide {
            let start = if self.rng.one_in(2) { 0 } else { range.start.0 };
            range = LbaRange::new(Lba(start), model.likely_size().saturating_sub(start).max(1));
        }
        let tags = self.begin_clear(model, range);
        let outcome = target.clear(range, self.rng.one_in(2)).await;
        match tags.as_slice() {
            [tag] => self.run.end(model, *tag, outcome),
            tags => self.run.end_several(model, tags, outcome),
        }
        outcome
    }

    /// Notes that a range is to be cleared: whole blocks together, and parts of other blocks each by itself.
    fn begin_clear(&self, model: &VolumeModel, range: LbaRange) -> Vec<Tag> {
        let per_block = model.sector.per_block();
        let begin = |start: u64, end: u64| {
            let part = LbaRange::new(Lba(start), end - start);
            (start < end).then(|| self.run.begin(model, part, true))
        };
        let (start, end) = (range.start.0, range.end().0);
        let first = start.next_multiple_of(per_block).min(end);
        let last = (end - end % per_block).max(first);
        let parts = [(start, first), (first, last), (last, end)];
        parts.into_iter().filter_map(|(start, end)| begin(start, end)).collect()
    }

    /// Deallocates several ranges by one command; some may touch or overlap.
    async fn clear_several(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let mut ranges: Vec<LbaRange> = Vec::new();
        for _ in 0..self.rng.between(2, 6) {
            let mut range = self.range(model, 64);
            if let Some(last) = ranges.last().filter(|_| self.rng.one_in(3)) {
                range.start = Lba(last.end().0.saturating_sub(self.rng.below(3)));
            }
            ranges.push(range);
        }
        let tags: Vec<_> =
            ranges.iter().flat_map(|range| self.begin_clear(model, *range)).collect();
        let outcome = target.clear_several(&ranges).await;
        self.run.end_several(model, &tags, outcome);
        outcome
    }

    async fn read(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let range = self.range(model, target.transfer_blocks_max());
        self.read_range(model, target, range).await
    }

    /// Reads on from somewhere, with others in between, until the end of the volume or until it is enough.
    async fn read_in_order(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let size = model.likely_size();
        let start = self.rng.below(size.min(self.profile.hot_blocks).max(1));
        let mut range = LbaRange::new(Lba(start), self.rng.between(2, 6));
        for _ in 0..self.rng.between(5, 20) {
            if range.end().0 > size || self.run.has_failed() {
                break;
            }
            self.read_range(model, target, range).await?;
            range.start = range.end();
            if self.rng.one_in(3) {
                self.rig.pause(Duration::from_micros(1 << self.rng.between(4, 10))).await;
            }
        }
        Ok(())
    }

    async fn read_range(
        &mut self,
        model: &VolumeModel,
        target: &Target,
        range: LbaRange,
    ) -> Result<(), Failure> {
        let invoked = self.run.now();
        self.run.count(|counts| counts.requests += 1);
        let outcome = match self.profile.lingers {
            true => {
                let long = Duration::from_micros(1 << self.rng.between(4, LINGER_SCALE));
                target.read_for(range, self.rig.pause(long)).await
            }
            false => target.read(range).await,
        };
        self.run.check_read(model, range, invoked, &outcome);
        outcome.map(drop)
    }

    /// Returns the known content of the range, now and then with one block wrong, which may be its metadata alone.
    fn guess(&mut self, model: &VolumeModel, range: LbaRange) -> (Vec<Shown>, Expected) {
        let history = model.history.borrow();
        let lbas = range.start.0..range.start.0 + range.blocks;
        let mut guess: Vec<Shown> = lbas.clone().map(|lba| history.guess(lba)).collect();
        let mut known = guess.clone();
        let mut altered = None;
        if self.rng.one_in(6) {
            let wrong = self.rng.below(range.blocks) as usize;
            guess[wrong] = FOREIGN_TAG;
            altered = Some(wrong).filter(|_| !model.metadata.is_none() && self.rng.one_in(2));
            if altered.is_none() {
                known[wrong] = FOREIGN_TAG;
            }
        }
        let blocks = lbas
            .zip(&known)
            .map(|(lba, shown)| content::bytes_in(model.sector, model.id, lba, *shown));
        let bytes: Vec<u8> = blocks.flatten().collect();
        let data = Buffer::from_bytes(&bytes).into_slice().slice(0..bytes.len());
        (guess, Expected { data, altered })
    }

    async fn compare(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let range = self.range(model, target.transfer_blocks_max().min(16));
        let (guess, data) = self.guess(model, range);
        let invoked = self.run.now();
        self.run.count(|counts| counts.requests += 1);
        match target.compare(range.start, data).await {
            Ok(compared) => {
                let window = (invoked, self.run.now());
                self.run.check_compared(model, range.start.0, &guess, compared, window);
                Ok(())
            }
            Err(failure) => {
                self.run.check_read(model, range, invoked, &Err(failure));
                Err(failure)
            }
        }
    }

    async fn swap(&mut self, model: &VolumeModel, target: &Target) -> Result<(), Failure> {
        let range = self.range(model, target.transfer_blocks_max().min(16));
        let (guess, expected) = self.guess(model, range);
        let invoked = self.run.now();
        let tag = self.run.begin(model, range, false);
        model.history.borrow_mut().expect(tag, guess.clone());
        let data = data_of(model, range, tag);
        let outcome = match self.rng.one_in(2) {
            true => target.fused(range.start, expected, data).await,
            false => target.compare_and_write(range.start, expected, data).await,
        };
        match outcome {
            Ok(Compared::Equal) => {
                self.run.end(model, tag, Ok(()));
                Ok(())
            }
            Ok(compared) => {
                self.run.cancel(model, tag);
                let window = (invoked, self.run.now());
                self.run.check_compared(model, range.start.0, &guess, compared, window);
                Ok(())
            }
            Err(failure) => {
                self.run.end(model, tag, Err(failure));
                Err(failure)
            }
        }
    }

    async fn resize(&mut self) -> Result<(), Failure> {
        let Some(model) = self.pick_model() else { return Ok(()) };
        let most = self.profile.volume_blocks * 3 / 2;
        let bound = self.bound(&model);
        let blocks = match self.rng.below(3) {
            _ if bound.is_some() => (bound.unwrap_or(0) + self.rng.below(5)).clamp(1, most),
            0 => self.rng.between(1, self.profile.hot_blocks + 1),
            _ => self.rng.between(1, most),
        };
        let tag = self.run.begin_resize(&model, blocks * model.sector.per_block());
        let outcome = self.rig.resize(&model, blocks).await;
        self.run.end_resize(&model, tag, outcome);
        outcome
    }

    async fn churn(&mut self) -> Result<(), Failure> {
        let live = self.run.volumes().iter().filter(|model| model.is_usable()).count();
        if live == 0 || (live < VOLUMES_MAX && self.rng.one_in(2)) {
            let shards = match self.profile.joins {
                true => self.rig.shards().len() as u64,
                false => self.profile.busy_shards.into(),
            };
            let shard = self.rng.below(shards) as usize;
            let model = self.run.new_volume(shard, self.profile.volume_blocks);
            terms::first_terms(&self.run, &model, &mut self.rng);
            let created = create(&self.run, &self.rig, &model, self.profile.volume_blocks).await;
            // As the server does: a volume that is promised nothing waits for long below a ceiling.
            self.rig.share(&mut self.rng, &self.run.volumes());
            return created;
        }
        let Some(model) = self.pick_model() else { return Ok(()) };
        self.run.begin_delete(&model);
        let outcome = self.rig.delete(&model).await;
        self.run.end_delete(&model, outcome);
        outcome
    }

    /// Reads all that lies on the disk; finds damage only where there is some.
    async fn scrub(&mut self) -> Result<(), Failure> {
        for shard in self.rig.shards() {
            let mut cursor = shard.scrub();
            while !cursor.is_over() && !self.run.has_failed() {
                let invoked = self.run.now();
                match shard.scrub_step(&mut cursor).await {
                    Ok(step) => self.run.check_scrub(&step.damaged, invoked),
                    Err(error) => {
                        let failure = Failure::from(error);
                        self.run.check_checkpoint(Err(failure));
                        return Err(failure);
                    }
                }
            }
        }
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), Failure> {
        let outcome = self.rig.checkpoint().await.map_err(Failure::from);
        self.run.check_checkpoint(outcome);
        outcome
    }
}

/// The data of write `tag` in a range of a volume.
fn data_of(model: &VolumeModel, range: LbaRange, tag: Tag) -> BufferSlice {
    content::data_in(model.sector, model.id, (range.start.0, range.blocks), tag)
}

/// Creates a volume.
///
/// # Errors
/// Why not.
pub(crate) async fn create(
    run: &Run,
    rig: &Rig,
    model: &VolumeModel,
    blocks: u64,
) -> Result<(), Failure> {
    let outcome = rig.create(model, blocks).await;
    run.end_create(model, outcome);
    outcome
}
