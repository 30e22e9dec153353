//! A load that never ends, whose rate is read while what is around it changes.
//!
//! Two runs of a load differ by more than what is to be found out: another connection, other places in
//! memory, another moment of a busy host. Here one load goes on over one connection, and slices of some
//! hundredths of a second follow each other in which the one or the other holds.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use client::{Client, Credentials, Options, Volume};
use io_traits::{Buffer, Spawn};
use local_sync::Semaphore;
use reactor::{CoreConfig, CoreThread, Handle, Receiver, Sender, mailbox};
use report::Spread;
use units::Lba;

use crate::case::Shape;
use crate::cpus;
use crate::process::VolumeAddress;

/// After a change, this passes before requests are counted.
const SETTLING: Duration = Duration::from_millis(5);

/// A job that runs beside the load on its thread.
type Job = Box<dyn FnOnce(Handle) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A load of one block a request that goes on until it is stopped.
pub(crate) struct Steady {
    done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    jobs: Sender<Job>,
    thread: CoreThread<Result<()>>,
}

impl Steady {
    /// Begins a load of `shape`, which has one connection.
    pub(crate) fn start(
        volume: &VolumeAddress,
        credentials: Option<Credentials>,
        shape: Shape,
    ) -> Result<Self> {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let cpu = Some(cpus::client());
        let config = CoreConfig { cpu, name: "steady".to_owned(), ..CoreConfig::default() };
        let (volume, counter, stopping) = (volume.clone(), done.clone(), stop.clone());
        let (jobs, more) = mailbox();
        let thread = reactor::spawn_thread(config, move |handle| {
            handle.spawn(run_jobs(handle.clone(), more));
            drive(handle, volume, credentials, shape, (counter, stopping))
        })?;
        Ok(Self { done, stop, jobs, thread })
    }

    /// Runs `job` on the load's thread, which polls: no wake-up is needed.
    pub(crate) fn run_beside<F>(&self, job: impl FnOnce(Handle) -> F + Send + 'static) -> Result<()>
    where
        F: Future<Output = ()> + 'static,
    {
        let sent = self.jobs.send(Box::new(move |handle| Box::pin(job(handle))));
        sent.map_err(|_| anyhow!("the load has ended"))
    }

    /// Requests a second in the next `length`.
    pub(crate) fn rate(&self, length: Duration) -> f64 {
        std::thread::sleep(SETTLING);
        let (begin, before) = (Instant::now(), self.done.load(Ordering::Relaxed));
        std::thread::sleep(length);
        let done = self.done.load(Ordering::Relaxed) - before;
        done as f64 / begin.elapsed().as_secs_f64()
    }

    /// Ends it. Fails if a request failed.
    pub(crate) fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread of the load panicked"))?
    }
}

/// The median of each run of `each` values: single slices say nothing, and a run's median says something
/// about the next one's.
pub(crate) fn by_run(values: &[f64], each: usize) -> Vec<f64> {
    let medians = values.chunks(each.max(1)).filter_map(Spread::of);
    medians.map(|spread| spread.median).collect()
}

async fn run_jobs(handle: Handle, mut jobs: Receiver<Job>) {
    while let Some(job) = jobs.recv().await {
        handle.spawn(job(handle.clone()));
    }
}

async fn drive(
    handle: Handle,
    address: VolumeAddress,
    credentials: Option<Credentials>,
    shape: Shape,
    (done, stop): (Arc<AtomicU64>, Arc<AtomicBool>),
) -> Result<()> {
    let depth = u16::try_from(shape.depth)?;
    let options = Options { queues: 1, depth, credentials, ..Options::for_host([0x57; 16]) };
    let options = Options { header_digest: false, data_digest: false, ..options };
    let nqn = address.nqn.parse()?;
    let client = Client::connect(handle.clone(), address.address, &nqn, options).await?;
    let volume = Rc::new(client.volume().await?);
    let room = Semaphore::new(u64::from(shape.depth));
    let failed = Rc::new(std::cell::Cell::new(None));
    for task in 0..shape.depth {
        let (volume, failed) = (volume.clone(), failed.clone());
        let (done, stop) = (done.clone(), stop.clone());
        let permit = room.acquire(1).await;
        handle.spawn(async move {
            if let Err(error) = run(&volume, shape, task, &done, &stop).await {
                failed.set(Some(error));
            }
            drop(permit);
        });
    }
    let _all = room.acquire(u64::from(shape.depth)).await;
    client.close().await;
    failed.take().map_or(Ok(()), Err)
}

/// One of the requests that are outstanding, again and again at random places.
async fn run(
    volume: &Volume<Handle>,
    shape: Shape,
    task: u32,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let blocks = shape.range_bytes / shape.block_bytes;
    let mut random = 0x9e37_79b9_7f4a_7c15 ^ (u64::from(task) << 32 | 1);
    let data = Buffer::from_bytes(&vec![0xa5; usize::try_from(shape.block_bytes)?]).into_slice();
    while !stop.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let lba = Lba(random % blocks);
        if shape.write {
            volume.write(lba, data.clone()).await?;
        } else {
            volume.read(lba, 1).await?;
        }
        // Only this thread counts.
        done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    Ok(())
}
