//! An engine in this process, and load on it.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use io_traits::{Buffer, Clock, Device, Spawn};
use load::{Access, Distribution, Limit, OnError, Outcome, Setup, Target, Workload};
use reactor::Handle;
use serde::Serialize;
use units::{BLOCK_SIZE, Lba, LbaRange, Pba};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, Recovered, Shard, ShardOptions, Volume, VolumeSpec, format,
    read_superblock,
};

use super::counted::Counted;
use super::target::EngineTarget;

/// Interval at which a data core runs the engine's timed work.
const TICK: Duration = Duration::from_millis(250);
/// Interval at which the space of a deleted volume is checked.
const RECLAIM_LOOK: Duration = Duration::from_millis(1);

/// An engine over a whole device.
pub(crate) struct Engine<D: Device> {
    pub(crate) device: Counted<D>,
    pub(crate) shard: Shard<Counted<D>>,
}

/// The background tasks of an engine that run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Background {
    All,
    /// The journal fills up.
    NoCheckpoints,
}

impl<D: Device> Engine<D> {
    /// Formats `device` and starts an engine on it.
    pub(crate) async fn format(handle: &Handle, device: D, tasks: Background) -> Result<Self> {
        let device = Counted::new(device);
        let options = FormatOptions { uuid: Uuid::from_u128(1) };
        format(&device, &options).await.map_err(|error| anyhow!("format: {error}"))?;
        let recovered = recover(&device).await?;
        Self::start(handle, device, recovered, tasks).await
    }

    /// Starts what was recovered.
    pub(crate) async fn start(
        handle: &Handle,
        device: Counted<D>,
        recovered: Recovered<Counted<D>>,
        tasks: Background,
    ) -> Result<Self> {
        let shard = recovered.confirm().await.map_err(|error| anyhow!("confirm: {error}"))?;
        let shard = shard.start().await.map_err(|error| anyhow!("start: {error}"))?;
        let committing = shard.clone();
        handle.spawn(async move { committing.run_committer().await });
        if tasks == Background::All {
            let checkpointing = shard.clone();
            handle.spawn(async move { checkpointing.run_checkpointer().await });
        }
        let (ticking, clock) = (shard.clone(), handle.clone());
        handle.spawn(async move {
            loop {
                clock.sleep_until(clock.now() + TICK).await;
                ticking.settle();
            }
        });
        Ok(Self { device, shard })
    }

    /// A new volume of `bytes`.
    pub(crate) async fn volume(&self, bytes: u64) -> Result<EngineTarget<Counted<D>>> {
        let number = self.shard.volumes().len() as u128 + 1;
        let spec = VolumeSpec {
            uuid: Uuid::from_u128(number << 64 | u128::from(self.device.counts().bytes_written)),
            name: format!("volume {number}"),
            blocks: bytes / BLOCK_SIZE as u64,
        };
        let volume: Volume<_> = self.shard.create_volume(spec).await.context("create a volume")?;
        Ok(EngineTarget(volume))
    }

    /// Deletes a volume, and waits until its space is back.
    pub(crate) async fn delete(
        &self,
        handle: &Handle,
        target: EngineTarget<Counted<D>>,
    ) -> Result<()> {
        self.shard.delete_volume(target.0.uuid()).await.context("delete a volume")?;
        // Blocks come back in the background, on the CPU of whatever is measured next.
        let kept: u64 = self.shard.volumes().iter().map(Volume::mapped_blocks).sum();
        while self.shard.capacity().data > kept {
            handle.sleep_until(handle.now() + RECLAIM_LOOK).await;
        }
        self.shard.checkpoint().await.context("take a checkpoint")
    }
}

/// Reads back what lies on `device`.
pub(crate) async fn recover<D: Device>(device: &D) -> Result<Recovered<D>> {
    let superblock = read_superblock(device).await.map_err(|error| anyhow!("open: {error}"))?;
    let extents = ExtentAllocator::new(&superblock);
    let recovering =
        Shard::recover(device.clone(), superblock, 0, extents, ShardOptions::default());
    recovering.await.map_err(|error| anyhow!("recover: {error}"))
}

/// Load, on one connection's worth of tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) write: bool,
    pub(crate) sequential: bool,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    /// Bytes that the addresses are drawn from.
    pub(crate) range_bytes: u64,
    pub(crate) limit: Limit,
    pub(crate) seed: u64,
}

/// Results of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) requests_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
    /// Requests of this run to the device, for each request of the tenant; where they were counted.
    pub(crate) device_reads_per_request: Option<f64>,
}

/// Puts `load` on `target`.
pub(crate) async fn run<T: Target>(handle: &Handle, target: &T, load: Load) -> Result<Sample> {
    let outcome = drive(handle, target, load).await?;
    let tally = if load.write { &outcome.write } else { &outcome.read };
    let latency = tally.latency.as_ref().context("not one request was done")?;
    Ok(Sample {
        requests_per_second: outcome.iops,
        mean_us: latency.mean_ns / 1e3,
        p99_us: latency.p99_ns as f64 / 1e3,
        device_reads_per_request: None,
    })
}

/// The same with all that the generator says.
pub(crate) async fn drive<T: Target>(handle: &Handle, target: &T, load: Load) -> Result<Outcome> {
    let workload = Workload {
        read_percent: if load.write { 0 } else { 100 },
        access: match load.sequential {
            true => Access::Sequential,
            false => Access::Random(Distribution::Uniform),
        },
        blocks_per_request: u32::try_from(load.block_bytes / BLOCK_SIZE as u64)?,
        depth: load.depth,
        limit: load.limit,
        rate: None,
        range: LbaRange::new(Lba(0), load.range_bytes / BLOCK_SIZE as u64),
        seed: load.seed,
        interval: Duration::from_secs(1),
        on_error: OnError::Stop,
    };
    let precise = handle.clone();
    let setup = Setup {
        world: handle.clone(),
        now: move || precise.precise_now(),
        targets: vec![target.clone()],
        journal: None,
        recorder: None,
        observer: None,
        stop: None,
    };
    let outcome = load::run(setup, workload).await?;
    ensure!(outcome.errors == 0, "a request failed: {}", outcome.first_error.unwrap_or_default());
    Ok(outcome)
}

/// Writes every block of `device`.
pub(crate) async fn fill<D: Device>(device: &D) -> Result<()> {
    const STEP: usize = 256;
    let data = Buffer::zeroed(STEP).into_slice();
    for start in (0..device.limits().blocks).step_by(STEP) {
        let blocks = (device.limits().blocks - start).min(STEP as u64);
        device.write(Pba(start), data.blocks(0, blocks as usize)).await?;
    }
    Ok(())
}

/// Runs `work` on a core of its own.
pub(crate) fn on_core<T: 'static, F>(cpu: usize, work: impl FnOnce(Handle) -> F) -> Result<T>
where
    F: Future<Output = Result<T>> + 'static,
{
    let name = "engine".to_owned();
    let config = reactor::CoreConfig { cpu: Some(cpu), name, ..Default::default() };
    reactor::run_on_current_thread(&config, work)?
}
