//! Hosts that connect, authenticate, and go.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use client::{Client, Credentials, Options, Reconnect};
use io_traits::{Clock, Spawn};
use local_sync::Semaphore;
use nvme_wire::Nqn;
use reactor::{CoreConfig, Handle};
use units::Duration;

use super::own_time::{OwnTime, Timed};
use crate::cpus;
use crate::process::VolumeAddress;
use crate::steady::Steady;

/// Hosts that connect at the same time, at most.
const AT_ONCE: u64 = 16;
/// Connections of each host: the admin queue and one I/O queue. Each is authenticated.
pub(super) const CONNECTIONS_EACH: u64 = 2;

/// Results of hosts that connected.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) connections_per_second: f64,
    pub(super) hosts: u32,
    /// Time that the hosts took of their thread.
    pub(super) own_time: OwnTime,
}

/// Hosts that connect until they are stopped.
pub(super) struct Connecting {
    stop: Arc<AtomicBool>,
    made: mpsc::Receiver<Result<Made>>,
}

/// No host connects, but the thread of a load loses as much time as if hosts did, until this is stopped.
pub(super) struct Idling {
    stop: Arc<AtomicBool>,
}

impl Connecting {
    /// From now on hosts open `volume`, as many as can be, on a thread of their own.
    pub(super) fn alone(volume: &VolumeAddress) -> Result<Self> {
        let (connecting, hosts) = prepare(volume, None)?;
        let cpu = Some(cpus::client());
        let config = CoreConfig { cpu, name: "connecting".to_owned(), ..CoreConfig::default() };
        reactor::spawn_thread(config, hosts)?;
        Ok(connecting)
    }

    /// From now on hosts open `volume`, `per_second` connections, on the thread of `load`.
    pub(super) fn beside(load: &Steady, volume: &VolumeAddress, per_second: f64) -> Result<Self> {
        let (connecting, hosts) = prepare(volume, Some(per_second))?;
        load.run_beside(hosts)?;
        Ok(connecting)
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<Made> {
        self.stop.store(true, Ordering::Relaxed);
        self.made.recv().map_err(|_| anyhow!("the thread that connects panicked"))?
    }
}

impl Idling {
    /// From now on the thread of `load` is kept busy as it was when hosts took `own_time` of it.
    pub(super) fn beside(load: &Steady, own_time: OwnTime) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        load.run_beside(async move |handle| {
            own_time.take_again(&handle, || stopping.load(Ordering::Relaxed)).await;
        })?;
        Ok(Self { stop })
    }

    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The hosts as a task of a core.
fn prepare(
    volume: &VolumeAddress,
    per_second: Option<f64>,
) -> Result<(Connecting, impl FnOnce(Handle) -> Hosts + Send + use<>)> {
    let (stop, (tell, made)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let (volume, stopping) = (volume.clone(), stop.clone());
    let credentials = volume.credentials()?;
    let hosts = move |handle| -> Hosts {
        Box::pin(async move {
            // The receiver is gone if the benchmark has failed elsewhere.
            let _ = tell.send(drive(handle, volume, credentials, per_second, stopping).await);
        })
    };
    Ok((Connecting { stop, made }, hosts))
}

type Hosts = Pin<Box<dyn Future<Output = ()>>>;

async fn drive(
    handle: Handle,
    volume: VolumeAddress,
    credentials: Credentials,
    per_second: Option<f64>,
    stop: Arc<AtomicBool>,
) -> Result<Made> {
    let nqn: Nqn = volume.nqn.parse()?;
    let address = volume.address;
    let room = Semaphore::new(AT_ONCE);
    let (hosts, failed) = (Rc::new(Cell::new(0_u32)), Rc::new(Cell::new(None)));
    let world = Timed::new(handle.clone());
    let begin = Instant::now();
    let mut number: u32 = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(per_second) = per_second {
            until_due(&handle, begin, per_second, number).await;
        }
        let permit = room.acquire(1).await;
        number += 1;
        let mut id = [0xc0; 16];
        id[..4].copy_from_slice(&number.to_le_bytes());
        let options = Options {
            queues: 1,
            reconnect: Reconnect::Never,
            credentials: Some(credentials.clone()),
            ..Options::for_host(id)
        };
        let (hosts, failed, its_world) = (hosts.clone(), failed.clone(), world.clone());
        world.spawn(async move {
            match Client::connect(its_world, address, &nqn, options).await {
                Ok(client) => {
                    client.close().await;
                    hosts.set(hosts.get() + 1);
                }
                Err(error) => failed.set(Some(error.to_string())),
            }
            drop(permit);
        });
    }
    let _all = room.acquire(AT_ONCE).await;
    if let Some(error) = failed.take() {
        return Err(anyhow!("a host was not let in: {error}"));
    }
    ensure!(hosts.get() > 0, "no host connected");
    let connections = f64::from(hosts.get()) * CONNECTIONS_EACH as f64;
    Ok(Made {
        connections_per_second: connections / begin.elapsed().as_secs_f64(),
        hosts: hosts.get(),
        own_time: world.own_time(),
    })
}

/// Waits until it is time for the next host, if `number` have come since `begin`.
async fn until_due(handle: &Handle, begin: Instant, per_second: f64, number: u32) {
    let pause = CONNECTIONS_EACH as f64 / per_second;
    let due = pause * f64::from(number) - begin.elapsed().as_secs_f64();
    if due > 0.0 {
        handle.sleep_until(handle.now() + Duration::from_nanos((due * 1e9) as u64)).await;
    }
}
