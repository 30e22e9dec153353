//! Short programs, crashed at every event of the disk.
//!
//! A disk with one volume and one write in it is made once. Each program runs on a copy of it, again
//! and again, with the power cut one event later each time; of every state that the disk passes
//! through, several survivors are opened, compared with the model, and checked.
//!
//! The programs are in `exhaustive/program.rs`; selections of them, each with a disk, in `exhaustive/crashes.rs`.

mod crashes;
mod program;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use io_traits::{Buffer, Clock, Spawn};
use local_sync::Semaphore;
use sim::{SimDevice, SimWorld, Simulation, Survival, Trace};
use units::{BLOCK_SIZE, Duration, Lba, LbaRange, MetadataSize};
use uuid::Uuid;
use volume::{FormatOptions, NodeCapacity, Shard, Volume};

pub use self::crashes::Crashes;
pub use self::program::{Program, Step, programs, shape_programs, tall_programs};
use crate::content::{self, Shown};
use crate::history::Fate;
use crate::model::VolumeModel;
use crate::rig::{self, Rig, Service};
use crate::run::Run;
use crate::scenario::{DEVICE_BLOCKS, EXTENT_BLOCKS};
use crate::seam::{Seam, SeamDevice};
use crate::tall;
use crate::target::{Compared, Expected, Failure, Target};

const VOLUME_BLOCKS: u64 = 1300;
/// Blocks that programs write to.
const BLOCKS: u64 = 4;
/// Outcomes of a crash that are tried in each state in which something is not flushed.
const SURVIVALS: [Survival; 4] =
    [Survival::Nothing, Survival::Everything, Survival::InFlight, Survival::Sectors];
/// Step between the leaves that are read, of those leaves of a tall map that no program writes to.
const FAR_STEP: usize = 30;
/// Interval at which the power is checked.
const WATCH: Duration = Duration::from_micros(50);
/// Blocks of a volume with a map of many levels. Leaves begin at each fourth block, inner nodes at each sixteenth, and those above
/// at each 64th.
const SHAPED_BLOCKS: u64 = 96;
const SHAPED_NODES: NodeCapacity = NodeCapacity { leaf: 4, inner: 4 };
/// Range that is deallocated again: the first entry of the last leaf below the first inner node, which has room
/// then.
const THIN: LbaRange = LbaRange::new(Lba(12), 1);
/// Blocks of the journal. A start reads all of it, and no program writes more than a few records.
const JOURNAL_BLOCKS: u32 = 128;
/// An event that no program reaches.
const NEVER: u64 = 1 << 32;

/// The disk on which every program starts.
pub struct Base {
    disk: SimDevice,
    start: Start,
}

/// The volume on the disk at the start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Start {
    /// Small, with so much metadata of each block.
    Small(MetadataSize),
    /// With a map of three levels.
    Tall,
    /// Full, with a map of four levels: nodes take few entries.
    Shaped,
}

impl Start {
    /// Blocks that are written.
    fn written(self) -> u64 {
        if self == Self::Shaped { SHAPED_BLOCKS } else { BLOCKS }
    }
}

/// Has nodes take few entries, if that is what a disk is about, until it is dropped.
struct Nodes;

impl Nodes {
    fn of(start: Start) -> Self {
        volume::set_node_capacity((start == Start::Shaped).then_some(SHAPED_NODES));
        Self
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        volume::set_node_capacity(None);
    }
}

impl Default for Base {
    fn default() -> Self {
        Self::new(MetadataSize::None)
    }
}

impl Base {
    /// Makes it, with so much metadata of each block.
    ///
    /// # Panics
    /// The engine fails on a sound disk.
    #[must_use]
    pub fn new(metadata: MetadataSize) -> Self {
        Self::fresh(Start::Small(metadata))
    }

    /// One with a full volume whose map has four levels, of nodes that take few entries.
    ///
    /// # Panics
    /// The engine fails on a sound disk.
    #[must_use]
    pub fn shaped() -> Self {
        Self::fresh(Start::Shaped)
    }

    fn fresh(start: Start) -> Self {
        let _nodes = Nodes::of(start);
        volume::set_journal_blocks(Some(JOURNAL_BLOCKS));
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let disk = SimDevice::new(&world, DEVICE_BLOCKS);
        let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
        let made = simulation.run(async move {
            let options = FormatOptions { uuid: Uuid::from_u128(7) };
            let formatted = volume::format_with_extents(&device, &options, EXTENT_BLOCKS).await;
            formatted.expect("a sound disk");
            let rig = begin(&world, &device).await;
            let (_, model) = known(start);
            rig.create(&model, blocks_of(start)).await.expect("room");
            write_first(&rig, &model, start).await;
        });
        volume::set_journal_blocks(None);
        made.expect("nothing waits forever");
        Self { disk, start }
    }

    /// One with a volume whose map has three levels. A thread makes its disk once.
    ///
    /// # Panics
    /// The engine fails on a sound disk.
    #[must_use]
    pub fn tall() -> Self {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let disk = tall::disk(&world);
        let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
        let made = simulation.run(async move {
            let rig = begin(&world, &device).await;
            write_first(&rig, &known(Start::Tall).1, Start::Tall).await;
        });
        made.expect("nothing waits forever");
        Self { disk, start: Start::Tall }
    }

    /// Crashes the program everywhere, or in its last operation if it runs in order; returns how many survivors
    /// were looked at.
    ///
    /// # Errors
    /// What is wrong, and where the power was cut.
    pub fn crash_everywhere(&self, program: &Program) -> Result<u64, String> {
        let _nodes = Nodes::of(self.start);
        let (mut looked, mut before) = (0, None);
        // What comes before is another program's, and goes the same way in that.
        for event in self.run_until(program, NEVER).last_began.. {
            let Cut { run, disk, .. } = self.run_until(program, event);
            let state = (disk.version(), run.now());
            let over = !disk.has_crashed();
            // What is seen, and what was answered, is as it was an event earlier.
            if !over && before.replace(state) == Some(state) {
                continue;
            }
            let survivals = if disk.has_unflushed() { &SURVIVALS[..] } else { &SURVIVALS[..1] };
            run.close();
            run.check_orders();
            for survival in survivals {
                look(&run, &disk, *survival);
                looked += 1;
                if let Some(finding) = run.failure() {
                    let how = format!("{program:?} cut at event {event}, {survival:?}");
                    return Err(format!("{how}: {finding}"));
                }
            }
            if over {
                break;
            }
        }
        Ok(looked)
    }

    /// Runs the program on a copy of the disk until the event with this number.
    fn run_until(&self, program: &Program, event: u64) -> Cut {
        let simulation = Simulation::with_trace(2, Trace::default());
        let world = simulation.world();
        let disk = self.disk.after_crash_with(&world, Survival::Everything);
        let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
        let (run, model) = known(self.start);
        let (r, program, d) = (run.clone(), program.clone(), disk.clone());
        let last_began = Rc::new(Cell::new(0));
        let last = last_began.clone();
        let ended = simulation.run(async move {
            let shards = rig::open(&device, &[0], program.map_memory).await.expect("a sound disk");
            let rig = Rig::start(&world, shards, Service::default());
            let target = rig.target(&model).await.expect("it is there");
            let volumes = RefCell::new(vec![(model, target)]);
            let actor = Rc::new(Actor { run: r, rig, volumes });
            let began = d.events();
            d.crash_at_event(began + event);
            let note = || last.set(d.events() - began);
            let running = Box::pin(run_program(&world, &actor, &program, note));
            until_crash(&world, &d, running).await;
        });
        if let Err(stalled) = ended {
            run.fail(format!("nothing goes on: {stalled:?}"));
        }
        Cut { run, disk, last_began: last_began.get() }
    }
}

/// A program that ran until the power was cut.
struct Cut {
    run: Run,
    disk: SimDevice,
    /// Events before its last operation; none if all ran at once.
    last_began: u64,
}

async fn begin(world: &SimWorld, device: &SeamDevice) -> Rig {
    let shards = rig::open(device, &[0], None).await.expect("a sound disk");
    Rig::start(world, shards, Service::default())
}

/// Writes what every program begins with, the last that is known.
async fn write_first(rig: &Rig, model: &VolumeModel, start: Start) {
    let target = rig.target(model).await.expect("created");
    let tag = match model.history.borrow().guess(0) {
        Shown::Tag(tag) => tag,
        shown => unreachable!("written, and not {shown:?}"),
    };
    let data = content::data(model.id, 0, start.written(), tag);
    target.write(Lba(0), data).await.expect("room");
    if start == Start::Shaped {
        target.clear(THIN, true).await.expect("a sound disk");
    }
    rig.checkpoint().await.expect("a sound disk");
}

/// Returns the known state of the disk at the start: one volume, and what is written in it.
fn known(start: Start) -> (Run, Rc<VolumeModel>) {
    let run = Run::default();
    let model = match start {
        Start::Tall => tall::known(&run),
        Start::Small(_) | Start::Shaped => {
            if let Start::Small(metadata) = start {
                run.set_metadata(metadata);
            }
            let model = run.new_volume(0, blocks_of(start));
            model.created.set(Fate::Done);
            model
        }
    };
    let tag = run.begin(&model, LbaRange::new(Lba(0), start.written()), false);
    run.end(&model, tag, Ok(()));
    if start == Start::Shaped {
        let tag = run.begin(&model, THIN, true);
        run.end(&model, tag, Ok(()));
    }
    (run, model)
}

/// Blocks of the volume.
fn blocks_of(start: Start) -> u64 {
    match start {
        Start::Small(_) => VOLUME_BLOCKS,
        Start::Tall => tall::BLOCKS,
        Start::Shaped => SHAPED_BLOCKS,
    }
}

async fn until_crash(world: &SimWorld, disk: &SimDevice, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    while !disk.has_crashed() {
        let mut timer = pin!(world.sleep_until(world.now() + WATCH));
        let done = std::future::poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => timer.as_mut().poll(context).map(|()| false),
        });
        if done.await {
            return;
        }
    }
}

async fn run_program(world: &SimWorld, actor: &Rc<Actor>, program: &Program, note_last: impl Fn()) {
    let all = Semaphore::new(program.steps.len() as u64);
    for (place, step) in program.steps.iter().copied().enumerate() {
        if program.at_once {
            let (actor, permit) = (actor.clone(), all.try_acquire(1).expect("one for each"));
            world.spawn(async move {
                actor.take(step).await;
                drop(permit);
            });
        } else {
            if place + 1 == program.steps.len() {
                note_last();
            }
            actor.take(step).await;
        }
    }
    drop(all.acquire(program.steps.len() as u64).await);
}

/// Takes the steps of a program.
struct Actor {
    run: Run,
    rig: Rig,
    /// All volumes, as they were created.
    volumes: RefCell<Vec<(Rc<VolumeModel>, Target)>>,
}

impl Actor {
    async fn take(&self, step: Step) {
        let (model, target) = self.volumes.borrow().last().expect("one at least").clone();
        let size = model.likely_size();
        let range = |start: u64, blocks: u64| LbaRange::new(Lba(start), blocks);
        match step {
            Step::Write => self.write(&model, &target, range(0, 3)).await,
            Step::Overlap => self.write(&model, &target, range(1, 3)).await,
            Step::Unmap => self.clear(&model, &target, range(0, 3)).await,
            Step::UnmapAll => self.clear(&model, &target, range(0, size)).await,
            Step::Swap => self.swap(&model, &target, None).await,
            Step::SwapWrongly => self.swap(&model, &target, Some(Shown::Tag(u64::MAX))).await,
            Step::Resize => {
                let blocks = if size == VOLUME_BLOCKS { 2 } else { VOLUME_BLOCKS };
                self.resize(&model, blocks).await;
            }
            Step::Across => self.write(&model, &target, range(13, 7)).await,
            Step::ClearAcross => self.clear(&model, &target, range(14, 9)).await,
            Step::ClearWide => self.clear(&model, &target, range(30, 61)).await,
            Step::CutInside => {
                let blocks = if size == SHAPED_BLOCKS { 18 } else { SHAPED_BLOCKS };
                self.resize(&model, blocks).await;
            }
            Step::Create => self.create().await,
            Step::Delete if model.is_usable() => {
                self.run.begin_delete(&model);
                let outcome = self.rig.delete(&model).await;
                self.run.end_delete(&model, outcome);
            }
            // Again: there is nothing that could come of it.
            Step::Delete => {
                let outcome = self.rig.delete(&model).await;
                if outcome != Err(Failure::Deleted) {
                    self.run.fail(format!("a second deletion: {outcome:?}"));
                }
            }
            Step::Checkpoint => {
                let outcome = self.rig.checkpoint().await;
                self.run.check_checkpoint(outcome.map_err(Into::into));
            }
        }
    }

    async fn resize(&self, model: &VolumeModel, blocks: u64) {
        let tag = self.run.begin_resize(model, blocks);
        let outcome = self.rig.resize(model, blocks).await;
        self.run.end_resize(model, tag, outcome);
    }

    async fn write(&self, model: &VolumeModel, target: &Target, range: LbaRange) {
        let tag = self.run.begin(model, range, false);
        let data = content::data(model.id, range.start.0, range.blocks, tag);
        self.run.end(model, tag, target.write(range.start, data).await);
    }

    async fn clear(&self, model: &VolumeModel, target: &Target, range: LbaRange) {
        let tag = self.run.begin(model, range, true);
        self.run.end(model, tag, target.clear(range, true).await);
    }

    /// Writes blocks 0 to 2 if they hold their known content, or `wrong` in the last of them.
    async fn swap(&self, model: &VolumeModel, target: &Target, wrong: Option<Shown>) {
        let range = LbaRange::new(Lba(0), 3);
        let mut guess: Vec<Shown> =
            (0..range.blocks).map(|lba| model.history.borrow().guess(lba)).collect();
        guess[2] = wrong.unwrap_or(guess[2]);
        let bytes =
            (0..).zip(&guess).flat_map(|(lba, shown)| content::bytes(model.id, lba, *shown));
        let data = Buffer::from_bytes(&bytes.collect::<Vec<u8>>()).into_slice();
        let expected = Expected { data, altered: None };
        let invoked = self.run.now();
        let tag = self.run.begin(model, range, false);
        model.history.borrow_mut().expect(tag, guess.clone());
        let data = content::data(model.id, 0, range.blocks, tag);
        match target.compare_and_write(range.start, expected, data).await {
            Ok(Compared::Equal) => self.run.end(model, tag, Ok(())),
            Ok(compared) => {
                self.run.cancel(model, tag);
                let window = (invoked, self.run.now());
                self.run.check_compared(model, 0, &guess, compared, window);
            }
            Err(failure) => self.run.end(model, tag, Err(failure)),
        }
    }

    async fn create(&self) {
        let model = self.run.new_volume(0, VOLUME_BLOCKS);
        let outcome = self.rig.create(&model, VOLUME_BLOCKS).await;
        self.run.end_create(&model, outcome);
        match self.rig.target(&model).await {
            Some(target) => self.volumes.borrow_mut().push((model, target)),
            None => self.run.fail("a new volume is not there".into()),
        }
    }
}

/// Opens a survivor, and looks at everything.
fn look(run: &Run, disk: &SimDevice, survival: Survival) {
    let simulation = Simulation::with_trace(3, Trace::default());
    let world = simulation.world();
    let survivor = disk.after_crash_with(&world, survival);
    let device = SeamDevice::new(&world, survivor, Seam::Honest);
    let r = run.clone();
    let looked = simulation.run(async move {
        match rig::open(&device, &[0], None).await {
            Ok(mut shards) => look_at(&r, &world, shards.remove(0)).await,
            Err(error) => r.fail(format!("the disk cannot be opened: {error}")),
        }
    });
    if let Err(stalled) = looked {
        run.fail(format!("nothing goes on: {stalled:?}"));
    }
}

async fn look_at(run: &Run, world: &SimWorld, shard: Shard<SeamDevice>) {
    for model in run.volumes() {
        let volume = shard.volume(model.uuid());
        if model.must_exist().is_some_and(|must| must != volume.is_some()) {
            let word = if volume.is_some() { "is there again" } else { "is gone" };
            return run.fail(format!("volume {} {word}", model.id));
        }
        if let Some(volume) = volume {
            look_at_volume(run, &model, volume).await;
        }
    }
    let (committing, checkpointing) = (shard.clone(), shard.clone());
    world.spawn(async move { committing.run_committer().await });
    world.spawn(async move { checkpointing.run_checkpointer().await });
    if let Err(error) = shard.checkpoint().await {
        return run.fail(format!("no checkpoint: {error}"));
    }
    world.sleep_until(world.now() + Duration::from_millis(20)).await;
    let report = shard.check(true).await;
    if let Some(finding) = report.findings.first() {
        run.fail(format!("the check finds {finding:?}"));
    }
}

async fn look_at_volume(run: &Run, model: &VolumeModel, volume: Volume<SeamDevice>) {
    let now = run.now();
    if !model.sizes(now, now).contains(&volume.blocks()) {
        return run.fail(format!("volume {} has {} blocks", model.id, volume.blocks()));
    }
    let most = if volume.blocks() <= SHAPED_BLOCKS { SHAPED_BLOCKS } else { BLOCKS + 1 };
    let blocks = volume.blocks().min(most);
    let is_tall = volume.blocks() == tall::BLOCKS;
    let target = Target::Engine(volume);
    look_at_range(run, model, &target, LbaRange::new(Lba(0), blocks)).await;
    let far = tall::places().step_by(FAR_STEP).filter(|_| is_tall);
    for lba in far.chain(tall::places().last().filter(|_| is_tall)) {
        look_at_range(run, model, &target, LbaRange::new(Lba(lba), 2)).await;
    }
}

async fn look_at_range(run: &Run, model: &VolumeModel, target: &Target, range: LbaRange) {
    let now = run.now();
    match target.read(range).await {
        Ok(bytes) => {
            let blocks = (range.start.0..).zip(bytes.chunks(BLOCK_SIZE));
            let shown: Vec<Shown> =
                blocks.map(|(lba, block)| content::shown(model.id, lba, block)).collect();
            run.check_shown(model, range.start.0, &shown, (now, run.now()));
        }
        Err(error) => run.fail(format!("volume {} cannot be read: {error:?}", model.id)),
    }
}
