//! Scrubs of a core's shards of a device: paced, and told about. The log names what they find by itself
//! (`dataplane::shards`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use control::ScrubState;
use dataplane::Core;
use io_traits::{Clock, Device, Spawn};
use reactor::Handle;
use units::BLOCK_SIZE;
use volume::{Damaged, ScrubStep, VolumeError};

/// Damaged places that are remembered one by one.
const PLACES_MAX: usize = 1000;

/// How far the scrub of a core's shards of a device is.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScrubReport {
    pub(crate) state: ScrubState,
    pub(crate) checked_blocks: u64,
    pub(crate) total_blocks: u64,
    pub(crate) damaged: u64,
    pub(crate) places: Vec<Damaged>,
}

/// Scrubs shards when told to.
pub(super) struct Scrubber<D: Device> {
    handle: Handle,
    /// A shard that fails and comes back is another one.
    core: Core<Handle, D>,
    /// Number of the device.
    device: usize,
    report: RefCell<ScrubReport>,
    /// Number of the scrub that runs; a task of another number ends.
    run: Cell<u64>,
}

impl<D: Device> Scrubber<D> {
    pub(super) fn new(handle: &Handle, core: &Core<Handle, D>, device: usize) -> Rc<Self> {
        Rc::new(Self {
            handle: handle.clone(),
            core: core.clone(),
            device,
            report: RefCell::default(),
            run: Cell::new(0),
        })
    }

    pub(super) fn report(&self) -> ScrubReport {
        self.report.borrow().clone()
    }

    /// Begins anew, reading at most `bytes_per_second`.
    pub(super) fn start(self: &Rc<Self>, bytes_per_second: u64) {
        let run = self.run.get() + 1;
        self.run.set(run);
        let total_blocks =
            self.core.shards_on(self.device).iter().map(|shard| shard.scrub().total).sum();
        let state = ScrubState::Running;
        self.report.replace(ScrubReport { state, total_blocks, ..ScrubReport::default() });
        let scrubber = self.clone();
        self.handle.spawn(async move {
            let outcome = scrubber.read_all(run, bytes_per_second.max(BLOCK_SIZE as u64)).await;
            if scrubber.run.get() != run {
                return;
            }
            let mut report = scrubber.report.borrow_mut();
            report.state = match outcome {
                Ok(()) => ScrubState::Done,
                Err(VolumeError::ShutDown) => ScrubState::Stopped,
                Err(_) => ScrubState::Failed,
            };
            if outcome.is_ok() {
                report.checked_blocks = report.total_blocks;
            }
            tracing::info!(state = ?report.state, damaged = report.damaged, "scrub ended");
        });
    }

    pub(super) fn stop(&self) {
        self.run.set(self.run.get() + 1);
        let mut report = self.report.borrow_mut();
        if report.state == ScrubState::Running {
            report.state = ScrubState::Stopped;
        }
    }

    async fn read_all(&self, run: u64, bytes_per_second: u64) -> Result<(), VolumeError> {
        let mut due = self.handle.now();
        for shard in self.core.shards_on(self.device) {
            let mut cursor = shard.scrub();
            while !cursor.is_over() {
                let step = shard.scrub_step(&mut cursor).await?;
                if self.run.get() != run {
                    return Ok(());
                }
                let bytes = step.cost * BLOCK_SIZE as u64;
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
                let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                due = due.max(self.handle.now()) + pause;
                self.note(step);
                self.handle.sleep_until(due).await;
            }
        }
        Ok(())
    }

    fn note(&self, step: ScrubStep) {
        let mut report = self.report.borrow_mut();
        report.checked_blocks = (report.checked_blocks + step.blocks).min(report.total_blocks);
        for place in step.damaged {
            report.damaged += 1;
            if report.places.len() < PLACES_MAX {
                report.places.push(place);
            }
        }
    }
}
