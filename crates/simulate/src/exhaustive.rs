//! Short programs, crashed at every event of the disk.
//!
//! A disk with one volume and one write in it is made once. Each program runs on a copy of it, again
//! and again, with the power cut one event later each time; of every state that the disk passes
//! through, several survivors are opened, compared with the model, and checked.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use io_traits::{Clock, Spawn};
use local_sync::Semaphore;
use sim::{SimDevice, SimWorld, Simulation, Survival, Trace};
use units::{BLOCK_SIZE, Duration, Lba, LbaRange, MetadataSize};
use uuid::Uuid;
use volume::{FormatOptions, Shard};

use crate::content::{self, Shown};
use crate::history::Fate;
use crate::model::VolumeModel;
use crate::rig::{self, Rig};
use crate::run::Run;
use crate::scenario::DEVICE_BLOCKS;
use crate::seam::{Seam, SeamDevice};
use crate::target::Target;

const EXTENT_BLOCKS: u32 = 1024;
const VOLUME_BLOCKS: u64 = 1300;
/// Blocks that programs write to.
const BLOCKS: u64 = 4;
/// What is tried of each state in which something is not flushed.
const SURVIVALS: [Survival; 4] =
    [Survival::Nothing, Survival::Everything, Survival::InFlight, Survival::Sectors];
/// How often it is looked whether the power is on.
const WATCH: Duration = Duration::from_micros(50);

/// One operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Writes blocks 0 to 2.
    Write,
    /// Writes blocks 1 to 3.
    Overlap,
    /// Deallocates blocks 0 to 2.
    Unmap,
    /// Deallocates everything.
    UnmapAll,
    /// Shrinks the volume to 2 blocks, or grows it again.
    Resize,
    /// Takes a checkpoint.
    Checkpoint,
}

impl Step {
    const ALL: [Self; 6] =
        [Self::Write, Self::Overlap, Self::Unmap, Self::UnmapAll, Self::Resize, Self::Checkpoint];
    const FEW: [Self; 4] = [Self::Write, Self::Overlap, Self::Unmap, Self::Checkpoint];
}

/// A few operations, one after the other or all at once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// The operations.
    pub steps: Vec<Step>,
    /// Whether they run at once.
    pub at_once: bool,
    /// Bytes of memory for the maps, if there is a limit.
    pub map_memory: Option<u64>,
}

/// All programs of up to three operations, in both ways, and all of four of the common ones, in order;
/// those of two also where a map has no memory to speak of.
#[must_use]
pub fn programs() -> Vec<Program> {
    let mut all = Vec::new();
    let mut longer: Vec<Vec<Step>> = vec![Vec::new()];
    for _ in 0..3 {
        longer = extend(&longer, &Step::ALL);
        for steps in &longer {
            let program =
                |at_once, map_memory| Program { steps: steps.clone(), at_once, map_memory };
            all.push(program(false, None));
            if steps.len() > 1 {
                all.push(program(true, None));
            }
            if steps.len() == 2 {
                all.extend([false, true].map(|at_once| program(at_once, Some(1))));
            }
        }
    }
    let few = (0..4).fold(vec![Vec::new()], |longer, _| extend(&longer, &Step::FEW));
    let in_order = |steps| Program { steps, at_once: false, map_memory: None };
    all.extend(few.into_iter().map(in_order));
    all
}

fn extend(shorter: &[Vec<Step>], steps: &[Step]) -> Vec<Vec<Step>> {
    let with = |before: &Vec<Step>, step: Step| before.iter().copied().chain([step]).collect();
    shorter.iter().flat_map(|before| steps.iter().map(move |step| with(before, *step))).collect()
}

/// The disk on which every program starts.
pub struct Base {
    disk: SimDevice,
    metadata: MetadataSize,
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
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let disk = SimDevice::new(&world, DEVICE_BLOCKS);
        let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
        let made = simulation.run(async move {
            let options = FormatOptions { uuid: Uuid::from_u128(7) };
            let formatted = volume::format_with_extents(&device, &options, EXTENT_BLOCKS).await;
            formatted.expect("a sound disk");
            let shards = rig::open(&device, 1, None).await.expect("a sound disk");
            let rig = Rig::start(&world, shards, false, false);
            let (run, model) = known(metadata);
            rig.create(&model, VOLUME_BLOCKS).await.expect("room");
            let target = rig.target(&model).await.expect("created");
            let first = *model.history.borrow().get(1).expect("the first write");
            let data = content::data(model.id, 0, first.range.blocks, first.tag);
            target.write(Lba(0), data).await.expect("room");
            rig.checkpoint().await.expect("a sound disk");
            drop(run);
        });
        made.expect("nothing waits forever");
        Self { disk, metadata }
    }

    /// Crashes the program everywhere; returns how many survivors were looked at.
    ///
    /// # Errors
    /// What is wrong, and where the power was cut.
    pub fn crash_everywhere(&self, program: &Program) -> Result<u64, String> {
        let (mut looked, mut before) = (0, None);
        for event in 0.. {
            let (run, model, disk) = self.run_until(program, event);
            let state = (disk.version(), run.now());
            let over = !disk.has_crashed();
            // What is seen, and what was answered, is as it was an event earlier.
            if !over && before.replace(state) == Some(state) {
                continue;
            }
            let survivals = if disk.has_unflushed() { &SURVIVALS[..] } else { &SURVIVALS[..1] };
            run.close();
            for survival in survivals {
                look(&run, &model, &disk, *survival);
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
    fn run_until(&self, program: &Program, event: u64) -> (Run, Rc<VolumeModel>, SimDevice) {
        let simulation = Simulation::with_trace(2, Trace::default());
        let world = simulation.world();
        let disk = self.disk.after_crash_with(&world, Survival::Everything);
        let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
        let (run, model) = known(self.metadata);
        let (r, m, program, d) = (run.clone(), model.clone(), program.clone(), disk.clone());
        let ended = simulation.run(async move {
            let shards = rig::open(&device, 1, program.map_memory).await.expect("a sound disk");
            let rig = Rig::start(&world, shards, false, false);
            d.crash_at_event(d.events() + event);
            let running = run_program(world.clone(), r, m, rig, program);
            until_crash(&world, &d, running).await;
        });
        if let Err(stalled) = ended {
            run.fail(format!("nothing goes on: {stalled:?}"));
        }
        (run, model, disk)
    }
}

/// What is known of the disk at the start: one volume, one write.
fn known(metadata: MetadataSize) -> (Run, Rc<VolumeModel>) {
    let run = Run::default();
    run.set_metadata(metadata);
    let model = run.new_volume(0, VOLUME_BLOCKS);
    model.created.set(Fate::Done);
    let tag = run.begin(&model, LbaRange::new(Lba(0), BLOCKS), false);
    run.end(&model, tag, Ok(()));
    (run, model)
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

async fn run_program(
    world: SimWorld,
    run: Run,
    model: Rc<VolumeModel>,
    rig: Rig,
    program: Program,
) {
    let Some(target) = rig.target(&model).await else { return };
    let all = Semaphore::new(program.steps.len() as u64);
    for step in program.steps.iter().copied() {
        let permit = all.try_acquire(1).expect("one for each");
        let (run, model, rig, target) = (run.clone(), model.clone(), rig.clone(), target.clone());
        let step = async move {
            take(step, &run, &model, &rig, &target).await;
            drop(permit);
        };
        if program.at_once { world.spawn(step) } else { step.await }
    }
    drop(all.acquire(program.steps.len() as u64).await);
}

async fn take(step: Step, run: &Run, model: &VolumeModel, rig: &Rig, target: &Target) {
    let size = model.likely_size();
    let range = |start: u64, blocks: u64| LbaRange::new(Lba(start), blocks);
    let (range, zero) = match step {
        Step::Write => (range(0, 3), false),
        Step::Overlap => (range(1, 3), false),
        Step::Unmap => (range(0, 3), true),
        Step::UnmapAll => (range(0, size), true),
        Step::Resize => {
            let blocks = if size == VOLUME_BLOCKS { 2 } else { VOLUME_BLOCKS };
            let tag = run.begin_resize(model, blocks);
            let outcome = rig.resize(model, blocks).await;
            return run.end_resize(model, tag, outcome);
        }
        Step::Checkpoint => {
            return run.check_checkpoint(rig.checkpoint().await.map_err(Into::into));
        }
    };
    let tag = run.begin(model, range, zero);
    let outcome = if zero {
        target.clear(range, true).await
    } else {
        target.write(range.start, content::data(model.id, range.start.0, range.blocks, tag)).await
    };
    run.end(model, tag, outcome);
}

/// Opens a survivor, and looks at everything.
fn look(run: &Run, model: &Rc<VolumeModel>, disk: &SimDevice, survival: Survival) {
    let simulation = Simulation::with_trace(3, Trace::default());
    let world = simulation.world();
    let survivor = disk.after_crash_with(&world, survival);
    let device = SeamDevice::new(&world, survivor, Seam::Honest);
    let (r, model) = (run.clone(), model.clone());
    let looked = simulation.run(async move {
        match rig::open(&device, 1, None).await {
            Ok(mut shards) => look_at(&r, &model, &world, shards.remove(0)).await,
            Err(error) => r.fail(format!("the disk cannot be opened: {error}")),
        }
    });
    if let Err(stalled) = looked {
        run.fail(format!("nothing goes on: {stalled:?}"));
    }
}

async fn look_at(run: &Run, model: &VolumeModel, world: &SimWorld, shard: Shard<SeamDevice>) {
    let Some(volume) = shard.volume(model.uuid()) else {
        return run.fail("the volume is gone".into());
    };
    let now = run.now();
    if !model.sizes(now, now).contains(&volume.blocks()) {
        return run.fail(format!("the volume has {} blocks", volume.blocks()));
    }
    let blocks = volume.blocks().min(BLOCKS + 1);
    match Target::Engine(volume).read(LbaRange::new(Lba(0), blocks)).await {
        Ok(bytes) => {
            let blocks = (0..).zip(bytes.chunks(BLOCK_SIZE));
            let shown: Vec<Shown> =
                blocks.map(|(lba, block)| content::shown(model.id, lba, block)).collect();
            run.check_shown(model, 0, &shown, (now, run.now()));
        }
        Err(error) => run.fail(format!("the volume cannot be read: {error:?}")),
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
