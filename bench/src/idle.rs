//! What a server costs that has connections and no load, and how quickly it answers then.

use std::time::Duration;

use anyhow::{Result, ensure};
use client::{Client, Options};
use io_traits::Clock;
use reactor::{CoreConfig, Handle};
use report::Spread;
use serde::Serialize;
use units::Lba;

use crate::cpus;
use crate::process::{Program, VolumeAddress, cpu_seconds};

/// Connections that are open meanwhile, one for each I/O queue.
const QUEUES: u16 = 100;
/// How long the server is left alone while its processor time is taken, which comes in hundredths of a
/// second: a thousandth of this.
const IDLE: Duration = Duration::from_secs(10);
/// Requests one behind the other, of which each finds the server busy.
const BUSY_REQUESTS: u64 = 4000;
/// Requests that find it idle, and how long it was left alone before each.
const FIRST_REQUESTS: u64 = 21;
pub(crate) const PAUSE: Duration = Duration::from_millis(200);

/// A server without load.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Idle {
    pub(crate) queues: u16,
    /// Share of a core that it used.
    pub(crate) cpu_share: f64,
    /// Median latency of a read while others come all the time, and of the first after a pause.
    pub(crate) busy_us: f64,
    pub(crate) first_us: f64,
}

/// Connects to `volume`, and measures `server` with that.
pub(crate) fn measure(server: &Program, volume: &VolumeAddress) -> Result<Idle> {
    let cpu = Some(cpus::client());
    let config = CoreConfig { cpu, name: "idle".to_owned(), ..CoreConfig::default() };
    let (volume, pid) = (volume.clone(), server.pid());
    let thread = reactor::spawn_thread(config, move |handle| drive(handle, volume, pid))?;
    thread.join().map_err(|_| anyhow::anyhow!("the thread of the idle measurement panicked"))?
}

async fn drive(handle: Handle, address: VolumeAddress, pid: u32) -> Result<Idle> {
    let options = Options { queues: QUEUES, depth: 1, ..Options::for_host([9; 16]) };
    let options = Options { header_digest: false, data_digest: false, ..options };
    let nqn = address.nqn.parse()?;
    let client = Client::connect(handle.clone(), address.address, &nqn, options).await?;
    ensure!(client.queues() == QUEUES, "only {} queues are granted", client.queues());
    let volume = client.volume().await?;
    let read = async |request: u64| -> Result<f64> {
        let begin = handle.precise_now();
        volume.read(Lba(request * 7919 % volume.capacity()), 1).await?;
        Ok(handle.precise_now().since(begin).as_secs_f64() * 1e6)
    };
    let mut busy = Vec::new();
    for request in 0..BUSY_REQUESTS {
        busy.push(read(request).await?);
    }
    let before = cpu_seconds(pid)?;
    handle.sleep_until(handle.now() + IDLE).await;
    let used = cpu_seconds(pid)? - before;
    let mut first = Vec::new();
    for request in 0..FIRST_REQUESTS {
        handle.sleep_until(handle.now() + PAUSE).await;
        first.push(read(request).await?);
    }
    client.close().await;
    let median = |values: &[f64]| Spread::of(values).map_or(f64::NAN, |spread| spread.median);
    Ok(Idle {
        queues: QUEUES,
        cpu_share: used / IDLE.as_secs_f64(),
        busy_us: median(&busy),
        first_us: median(&first),
    })
}
