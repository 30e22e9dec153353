//! A core that serves a volume over TCP, and can be told to do without something.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use client::{Client, Options};
use device::MemDevice;
use io_traits::{Clock, Listener, Network, Spawn};
use load::VolumeTarget;
use nvme_frontend::{NvmeCore, NvmeOptions, nqn_of};
use reactor::Handle;
use units::{BLOCK_SIZE, ShardIndex, Slo};
use uuid::Uuid;
use volume::{FormatOptions, VolumeSpec, format};

use super::bed;
use super::cpus;

const VOLUME: Uuid = Uuid::from_u128(1);
/// Interval at which the core checks its orders.
const LOOK: Duration = Duration::from_millis(1);
/// Until it has surely looked.
const HEARD: Duration = Duration::from_millis(5);

/// Orders to the core.
#[derive(Default)]
struct Told {
    without: AtomicBool,
    end: AtomicBool,
}

/// A server in a thread of its own, on the server's CPU.
pub(crate) struct Served {
    portal: SocketAddr,
    told: Arc<Told>,
    thread: JoinHandle<Result<()>>,
}

impl Served {
    /// Serves one volume of `volume_bytes` on a device in memory of `device_bytes`. Its thread calls `set` with what
    /// [`Served::set`] says.
    pub(crate) fn start(device_bytes: u64, volume_bytes: u64, set: fn(bool)) -> Result<Self> {
        let told = Arc::<Told>::default();
        let (at, listening) = channel();
        let heard = told.clone();
        let thread = thread::spawn(move || {
            bed::on_core(cpus::server(), move |handle| async move {
                let device = MemDevice::new(device_bytes / BLOCK_SIZE as u64)?;
                serve(handle, device, volume_bytes, &at, (&heard, set)).await
            })
        });
        match listening.recv() {
            Ok(portal) => Ok(Self { portal, told, thread }),
            Err(_) => Err(ended(thread).expect_err("it listens until it is told to end")),
        }
    }

    /// The volume, as a host sees it.
    pub(crate) async fn connect(&self, handle: &Handle) -> Result<VolumeTarget<Handle>> {
        let options = Options::for_host([1; 16]);
        let client = Client::connect(handle.clone(), self.portal, &nqn_of(VOLUME), options).await?;
        Ok(VolumeTarget::new(client.volume().await?)?)
    }

    /// Returns when the core works with what is measured, or without.
    pub(crate) async fn set(&self, handle: &Handle, is_with: bool) {
        self.told.without.store(!is_with, Ordering::Relaxed);
        handle.sleep_until(handle.now() + HEARD).await;
    }

    /// Ends the server.
    pub(crate) fn end(self) -> Result<()> {
        self.told.end.store(true, Ordering::Relaxed);
        ended(self.thread)
    }
}

fn ended(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.join().map_err(|_| anyhow!("the server panicked"))?
}

async fn serve(
    handle: Handle,
    device: MemDevice,
    volume_bytes: u64,
    at: &Sender<SocketAddr>,
    (told, set): (&Told, fn(bool)),
) -> Result<()> {
    let listener = handle.listen((Ipv4Addr::LOCALHOST, 0).into())?;
    let portal = listener.local();
    format(&device, &FormatOptions { uuid: Uuid::from_u128(2) }).await.context("format")?;
    let core = NvmeCore::new(&handle, NvmeOptions::new(portal));
    core.attach(bed::recover(&device).await?.confirm().await?.start().await.context("start")?);
    let blocks = volume_bytes / BLOCK_SIZE as u64;
    let spec = VolumeSpec { uuid: VOLUME, name: "volume".into(), blocks };
    core.create_volume(ShardIndex(0), spec, Slo::default()).await.context("create a volume")?;
    let serving = core.clone();
    handle.spawn(async move { serving.serve(listener).await });
    let _ = at.send(portal);
    while !told.end.load(Ordering::Relaxed) {
        set(!told.without.load(Ordering::Relaxed));
        handle.sleep_until(handle.now() + LOOK).await;
    }
    Ok(())
}
