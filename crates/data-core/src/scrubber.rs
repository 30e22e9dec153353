//! Scrubs of a core's shards of a device: paced, and told about. The log names what they find by itself
//! (`dataplane::shards`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dataplane::Core;
use io_traits::{Clock, Device, Spawn};
use reactor::Handle;
use units::DeviceIndex;
use volume::{Damaged, ScrubStep, Structure, VolumeError};

use crate::scrub_pace::{Pace, scrub_at};

/// Damaged places that are remembered one by one.
const PLACES_MAX: usize = 1000;

/// The state of a core's scrub of a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scrubbing {
    /// There was none since the core started.
    #[default]
    Idle,
    /// It has read all.
    Done,
    /// It was stopped.
    Stopped,
    /// The device stopped answering.
    Failed,
    /// It reads.
    Running,
}

/// The progress of the scrub of a core's shards of a device.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Its state.
    pub state: Scrubbing,
    /// Blocks that it has read.
    pub checked_blocks: u64,
    /// Blocks that there are to read.
    pub total_blocks: u64,
    /// Damaged places that it found.
    pub damaged: u64,
    /// The first of them.
    pub places: Vec<Damaged>,
}

/// Counts of all scrubs of a core's shards of a device.
#[derive(Clone, Debug)]
pub struct ScrubCounts {
    /// One is under way.
    pub is_running: bool,
    /// Those that have read all.
    pub done: u64,
    /// Those that were stopped.
    pub stopped: u64,
    /// Those that ended because the device did not answer.
    pub failed: u64,
    /// Damaged places, by what they are.
    pub damaged: BTreeMap<Structure, u64>,
}

impl Default for ScrubCounts {
    /// Zero of each kind, so that each kind is shown.
    fn default() -> Self {
        let damaged = STRUCTURES.into_iter().map(|structure| (structure, 0)).collect();
        Self { is_running: false, done: 0, stopped: 0, failed: 0, damaged }
    }
}

/// The structures that a scrub can find damaged.
const STRUCTURES: [Structure; 11] = [
    Structure::Superblock,
    Structure::Root,
    Structure::Table,
    Structure::Bitmap,
    Structure::Node,
    Structure::Data,
    Structure::Shared,
    Structure::Free,
    Structure::Outside,
    Structure::Leaked,
    Structure::Count,
];

/// Scrubs shards when told to.
pub(super) struct Scrubber<D: Device> {
    handle: Handle,
    /// A shard that fails and comes back is another one.
    core: Core<Handle, D>,
    /// Number of the device.
    device: DeviceIndex,
    report: RefCell<ScrubReport>,
    counts: RefCell<ScrubCounts>,
    /// Number of the scrub that runs; a task of another number ends.
    run: Cell<u64>,
}

impl<D: Device> Scrubber<D> {
    pub(super) fn new(handle: &Handle, core: &Core<Handle, D>, device: DeviceIndex) -> Rc<Self> {
        Rc::new(Self {
            handle: handle.clone(),
            core: core.clone(),
            device,
            report: RefCell::default(),
            counts: RefCell::default(),
            run: Cell::new(0),
        })
    }

    pub(super) fn report(&self) -> ScrubReport {
        self.report.borrow().clone()
    }

    pub(super) fn counts(&self) -> ScrubCounts {
        let is_running = self.report.borrow().state == Scrubbing::Running;
        ScrubCounts { is_running, ..self.counts.borrow().clone() }
    }

    /// Restarts, reading at most `bytes_per_second`.
    pub(super) fn start(self: &Rc<Self>, bytes_per_second: u64) {
        self.stop();
        let run = self.run.get();
        let total_blocks =
            self.core.shards_on(self.device).iter().map(|shard| shard.scrub().total).sum();
        let state = Scrubbing::Running;
        self.report.replace(ScrubReport { state, total_blocks, ..ScrubReport::default() });
        let scrubber = self.clone();
        self.handle.spawn(async move {
            let outcome = scrubber.read_all(run, bytes_per_second).await;
            if scrubber.run.get() != run {
                return;
            }
            let mut report = scrubber.report.borrow_mut();
            let counts = &mut *scrubber.counts.borrow_mut();
            let (state, name, count) = match outcome {
                Ok(()) => (Scrubbing::Done, "done", &mut counts.done),
                Err(VolumeError::ShutDown) => (Scrubbing::Stopped, "stopped", &mut counts.stopped),
                Err(_) => (Scrubbing::Failed, "failed", &mut counts.failed),
            };
            *count += 1;
            report.state = state;
            if outcome.is_ok() {
                report.checked_blocks = report.total_blocks;
            }
            tracing::info!(state = name, damaged = report.damaged, "scrub ended");
        });
    }

    pub(super) fn stop(&self) {
        self.run.set(self.run.get() + 1);
        let mut report = self.report.borrow_mut();
        if report.state == Scrubbing::Running {
            report.state = Scrubbing::Stopped;
            self.counts.borrow_mut().stopped += 1;
        }
    }

    async fn read_all(&self, run: u64, bytes_per_second: u64) -> Result<(), VolumeError> {
        let mut pace = Pace::new(self.handle.now(), bytes_per_second);
        for shard in self.core.shards_on(self.device) {
            let goes_on = |step| {
                let is_wanted = self.run.get() == run;
                if is_wanted {
                    self.note(step);
                }
                is_wanted
            };
            scrub_at(&self.handle, &shard, &mut pace, goes_on).await?;
            if self.run.get() != run {
                break;
            }
        }
        Ok(())
    }

    fn note(&self, step: ScrubStep) {
        let mut report = self.report.borrow_mut();
        report.checked_blocks = (report.checked_blocks + step.blocks).min(report.total_blocks);
        for place in step.damaged {
            report.damaged += 1;
            *self.counts.borrow_mut().damaged.entry(place.structure).or_default() += 1;
            if report.places.len() < PLACES_MAX {
                report.places.push(place);
            }
        }
    }
}
