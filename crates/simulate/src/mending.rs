//! A disk that is damaged at rest, and repaired.
//!
//! Three volumes are filled, some checkpoints taken, the journal goes on from there, and the power goes. Then
//! one or two structures are damaged. The repair may be cut off by the power anywhere, and is made once more.
//! - MENDING-1: what a repair says it mends, it mends, and that is still so behind a power cut.
//! - MENDING-2: a repair that was cut off is finished by another, and costs nothing more.
//! - MENDING-3: what the damage does not touch is as it was, and stays so when more is written.

mod damage;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use io_traits::{Buffer, Clock, Device, Spawn};
use sim::{Rng, SimDevice, SimWorld, Simulation, Survival};
use units::{BLOCK_SIZE, Duration, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    Finding, FormatOptions, FsckOptions, OpenError, Problem, Shard, Volume, VolumeError, VolumeSpec,
};

use crate::content::{self, Shown, Tag};
use crate::rig;
use crate::run::Run;
use crate::scenario::DEVICE_BLOCKS;
use crate::seam::{Seam, SeamDevice};
use damage::Harm;

const EXTENT_BLOCKS: u32 = 1024;
/// Volumes and their blocks: each has some leaves.
const VOLUMES: u64 = 3;
const VOLUME_BLOCKS: u64 = 500;
/// Blocks of a write that fills a volume, and of a read.
const STEP: u64 = 100;
/// Limit of the times that a repair is cut off.
const CUTS_MAX: u64 = 3;
/// Time for the journal to record that all data is on the media.
const QUIET: Duration = Duration::from_millis(10);
/// Writes of [`STEP`] blocks behind a repair.
const MORE: u64 = 12;

/// The successive contents of each block of the volumes.
#[derive(Default)]
struct Known {
    held: Vec<Vec<Vec<Shown>>>,
    next_tag: Tag,
}

impl Known {
    fn new() -> Self {
        let volume = vec![vec![Shown::Zero]; VOLUME_BLOCKS as usize];
        Self { held: vec![volume; VOLUMES as usize], next_tag: 1 }
    }

    fn held(&mut self, id: u64, lba: u64) -> &mut Vec<Shown> {
        &mut self.held[id as usize - 1][lba as usize]
    }
}

/// A run that is about to begin.
pub(crate) struct Mending {
    run: Run,
    rng: Rng,
    seam: Seam,
    disk: SimDevice,
    known: Rc<RefCell<Known>>,
    harm: Rc<RefCell<Harm>>,
}

fn uuid_of(id: u64) -> Uuid {
    Uuid::from_u128(id.into())
}

impl Mending {
    #[must_use]
    pub(crate) fn new(run: Run, seam: Seam, mut rng: Rng) -> Self {
        let nowhere = Simulation::new(rng.next_u64()).world();
        let disk = SimDevice::new(&nowhere, DEVICE_BLOCKS).with_volatile_cache(!rng.one_in(3));
        let known = Rc::new(RefCell::new(Known::new()));
        Self { run, rng, seam, disk, known, harm: Rc::default() }
    }

    /// Runs it; what it finds is in its [`Run`].
    pub(crate) fn run(mut self) {
        if let Err(finding) = self.go_on() {
            self.run.fail(finding);
        }
    }

    fn go_on(&mut self) -> Result<(), String> {
        let (known, rng) = (self.known.clone(), self.rng.fork());
        self.within(None, |world, device| fill(world, device, known, rng))?.expect("no cut")?;
        let blocks = self.within(None, |_, device| survey(device))?.expect("no cut");
        let damaged = self.damage(&blocks);
        self.run.count(|counts| counts.damaged += damaged);
        if self.rng.one_in(2) {
            self.repair(false)?;
        }
        self.repair(true)?;
        let (run, known, harm) = (self.run.clone(), self.known.clone(), self.harm.clone());
        self.within(None, |world, device| look(run, world, device, known, harm))?.expect("no cut")
    }

    /// The next boot, in a world of its own; `None` if the power was cut at the event with the number `cut`.
    fn within<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        cut: Option<u64>,
        work: impl FnOnce(SimWorld, SeamDevice) -> F,
    ) -> Result<Option<T>, String> {
        let trace = self.run.trace().clone();
        let simulation = Simulation::with_trace(self.rng.next_u64(), trace);
        let world = simulation.world();
        let survival = Survival::ALL[self.rng.below(Survival::ALL.len() as u64) as usize];
        world.note(format_args!("boot {survival:?}"));
        self.disk = self.disk.after_crash_with(&world, survival);
        self.disk.crash_at_event(cut.unwrap_or(u64::MAX));
        self.run.count(|counts| counts.boots += 1);
        let device = SeamDevice::new(&world, self.disk.clone(), self.seam);
        match simulation.run(work(world, device)) {
            Ok(output) => Ok(Some(output)),
            Err(_) if self.disk.has_crashed() => {
                self.run.count(|counts| counts.crashes += 1);
                Ok(None)
            }
            Err(stalled) => Err(format!("nothing goes on: {stalled:?}")),
        }
    }

    /// Repairs the disk, cut off now and then (MENDING-2), and looks whether it did what it should
    /// (MENDING-1).
    fn repair(&mut self, consent: bool) -> Result<(), String> {
        let mut cuts_left = if self.rng.one_in(3) { 0 } else { self.rng.between(1, CUTS_MAX) };
        let outcome = loop {
            let cut = (cuts_left > 0).then(|| self.draw_cut(consent));
            cuts_left = cuts_left.saturating_sub(1);
            let outcome = self.within(cut, |_, device| async move {
                volume::repair(&device, consent, |_, _| ()).await
            })?;
            if let Some(outcome) = outcome {
                break outcome;
            }
        };
        if let Err(error) = &outcome
            && consent
        {
            return Err(format!("the disk cannot be repaired: {error}"));
        }
        let report = self.within(None, |_, device| async move {
            volume::fsck(&device, FsckOptions { read_data: true }, |_, _| {}).await
        })?;
        let faults = report.expect("no cut").map_err(|error| format!("fsck: {error}"))?.faults;
        let harm = self.harm.borrow();
        let left = faults.iter().find(|fault| match fault.problem.repair() {
            Some(repair) => outcome.is_ok() && (consent || !repair.loses_data()),
            None => consent && !harm.excuses(&fault.problem),
        });
        left.map_or(Ok(()), |fault| Err(format!("a repair leaves {fault:?}; {harm:?}")))
    }

    /// An event of the repair that is about to be made: most often one near its end, where it writes.
    fn draw_cut(&mut self, consent: bool) -> u64 {
        let simulation = Simulation::new(self.rng.next_u64());
        let world = simulation.world();
        let disk = self.disk.after_crash_with(&world, Survival::Everything);
        let device = SeamDevice::new(&world, disk.clone(), self.seam);
        // What comes of it shows when it is made.
        let _ = simulation.run(async move { volume::repair(&device, consent, |_, _| ()).await });
        let back = 1 << self.rng.between(1, 11);
        disk.events().saturating_sub(self.rng.below(back))
    }
}

/// All blocks that hold something.
async fn survey(device: SeamDevice) -> Vec<(u64, Vec<u8>)> {
    let mut blocks = Vec::new();
    for pba in device.disk().written_blocks() {
        let block = device.read(pba, Buffer::new(1)).await.expect("a sound disk");
        blocks.push((pba.0, block.as_bytes().to_vec()));
    }
    blocks
}

async fn open(world: &SimWorld, device: &SeamDevice) -> Result<Shard<SeamDevice>, OpenError> {
    let shard = rig::open(device, &[0], None).await?.remove(0);
    let (committing, checkpointing) = (shard.clone(), shard.clone());
    world.spawn(async move { committing.run_committer().await });
    world.spawn(async move { checkpointing.run_checkpointer().await });
    Ok(shard)
}

/// Makes the volumes and what they hold. At the end the journal says that all of it is on the media.
async fn fill(
    world: SimWorld,
    device: SeamDevice,
    known: Rc<RefCell<Known>>,
    mut rng: Rng,
) -> Result<(), String> {
    let uuid = Uuid::from_u128(u128::from(rng.next_u64()) << 64 | 1);
    let formatted =
        volume::format_with_extents(&device, &FormatOptions { uuid }, EXTENT_BLOCKS).await;
    formatted.map_err(|error| format!("format: {error}"))?;
    let failed = |error: VolumeError| format!("a sound disk fails: {error}");
    let mut shard = open(&world, &device).await.map_err(|error| format!("open: {error}"))?;
    for id in 1..=VOLUMES {
        let spec = VolumeSpec { uuid: uuid_of(id), name: format!("v{id}"), blocks: VOLUME_BLOCKS };
        let volume = shard.create_volume(spec).await.map_err(failed)?;
        for start in (0..VOLUME_BLOCKS).step_by(STEP as usize) {
            write(&volume, &known, id, LbaRange::new(Lba(start), STEP)).await.map_err(failed)?;
        }
    }
    shard.checkpoint().await.map_err(failed)?;
    for _ in 0..rng.between(1, 2) {
        for _ in 0..rng.between(5, 30) {
            change(&shard, &known, &mut rng).await.map_err(failed)?;
        }
        if rng.one_in(2) {
            shard.shutdown().await.map_err(failed)?;
            shard = open(&world, &device).await.map_err(|error| format!("open: {error}"))?;
        }
    }
    for _ in 0..rng.between(5, 30) {
        change(&shard, &known, &mut rng).await.map_err(failed)?;
    }
    world.sleep_until(world.now() + QUIET).await;
    shard.settle();
    world.sleep_until(world.now() + QUIET).await;
    Ok(())
}

async fn write(
    volume: &Volume<SeamDevice>,
    known: &RefCell<Known>,
    id: u64,
    range: LbaRange,
) -> Result<(), VolumeError> {
    let tag = known.borrow().next_tag;
    known.borrow_mut().next_tag += 1;
    let data = content::data(id, range.start.0, range.blocks, tag);
    volume.write(range.start, data, None).await?;
    for lba in range.start.0..range.end().0 {
        known.borrow_mut().held(id, lba).push(Shown::Tag(tag));
    }
    Ok(())
}

/// Writes or deallocates some blocks.
async fn change(
    shard: &Shard<SeamDevice>,
    known: &RefCell<Known>,
    rng: &mut Rng,
) -> Result<(), VolumeError> {
    let id = rng.between(1, VOLUMES);
    let blocks = rng.between(1, 24);
    let range = LbaRange::new(Lba(rng.below(VOLUME_BLOCKS - blocks)), blocks);
    let volume = shard.volume(uuid_of(id)).ok_or(VolumeError::Deleted)?;
    if !rng.one_in(4) {
        return write(&volume, known, id, range).await;
    }
    volume.unmap(range).await?;
    for lba in range.start.0..range.end().0 {
        known.borrow_mut().held(id, lba).push(Shown::Zero);
    }
    Ok(())
}

/// Opens the disk, and looks at all of it, once more when there is more on it (MENDING-3).
async fn look(
    run: Run,
    world: SimWorld,
    device: SeamDevice,
    known: Rc<RefCell<Known>>,
    harm: Rc<RefCell<Harm>>,
) -> Result<(), String> {
    let (mut known, harm) = (known.take(), harm.take());
    let opened = open(&world, &device).await;
    let shard = opened.map_err(|error| format!("a repaired disk cannot be opened: {error}"))?;
    for round in 0..2 {
        for id in 1..=VOLUMES {
            let Some(volume) = shard.volume(uuid_of(id)) else {
                if harm.gone.contains(&id) {
                    continue;
                }
                return Err(format!("volume {id} is gone; {harm:?}"));
            };
            look_at(&volume, id, &mut known, &harm).await?;
            run.count(|counts| counts.blocks_checked += VOLUME_BLOCKS);
        }
        if round == 0 {
            write_more(&shard).await.map_err(|error| format!("nothing can be written: {error}"))?;
        }
    }
    let findings = shard.check(true).await.findings;
    let excused = |finding: &Finding| harm.excuses(&Problem::Check(finding.clone()));
    match findings.iter().find(|finding| !excused(finding)) {
        Some(finding) => Err(format!("behind a repair the check finds {finding:?}; {harm:?}")),
        None => Ok(()),
    }
}

async fn look_at(
    volume: &Volume<SeamDevice>,
    id: u64,
    known: &mut Known,
    harm: &Harm,
) -> Result<(), String> {
    for start in (0..VOLUME_BLOCKS).step_by(STEP as usize) {
        let whole = volume.read(LbaRange::new(Lba(start), STEP)).await;
        let whole = whole.map(|data| data.to_vec());
        for lba in start..start + STEP {
            let block = match &whole {
                Ok(bytes) => {
                    let at = (lba - start) as usize * BLOCK_SIZE;
                    Ok(bytes[at..at + BLOCK_SIZE].to_vec())
                }
                Err(_) => volume.read(LbaRange::new(Lba(lba), 1)).await.map(|data| data.to_vec()),
            };
            let block = block.map(|bytes| content::shown(id, lba, &bytes));
            if !harm.allows(id, lba, known.held(id, lba), &block) {
                let held = known.held(id, lba);
                return Err(format!("volume {id}, block {lba}: {block:?} of {held:?}; {harm:?}"));
            }
        }
    }
    Ok(())
}

/// Fills a volume of its own, and has the maps written.
async fn write_more(shard: &Shard<SeamDevice>) -> Result<(), VolumeError> {
    let (id, blocks) = (VOLUMES + 1, MORE * STEP);
    let spec = VolumeSpec { uuid: uuid_of(id), name: "more".into(), blocks };
    let volume = shard.create_volume(spec).await?;
    for start in (0..blocks).step_by(STEP as usize) {
        volume.write(Lba(start), content::data(id, start, STEP, 1), None).await?;
    }
    shard.checkpoint().await
}
