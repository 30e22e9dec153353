//! Hosts that come, prove who they are, and go.

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

use crate::cpus;
use crate::process::VolumeAddress;
use crate::steady::Steady;

/// Hosts that connect at the same time, at most.
const AT_ONCE: u64 = 16;
/// Connections of each host: the admin queue and one I/O queue. Each is authenticated.
const CONNECTIONS_EACH: u64 = 2;

/// Hosts that connect until they are stopped.
pub(super) struct Connecting {
    stop: Arc<AtomicBool>,
    /// Connections a second that were made.
    made: mpsc::Receiver<Result<f64>>,
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

    /// Ends it. Connections a second that were made.
    pub(super) fn stop(self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        self.made.recv().map_err(|_| anyhow!("the thread that connects panicked"))?
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
            // Nobody listens if the benchmark has failed elsewhere.
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
) -> Result<f64> {
    let nqn: Nqn = volume.nqn.parse()?;
    let address = volume.address;
    let room = Semaphore::new(AT_ONCE);
    let (made, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let begin = Instant::now();
    let pause = per_second.map(|rate| CONNECTIONS_EACH as f64 / rate);
    let mut number: u32 = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(pause) = pause {
            let due = pause * f64::from(number) - begin.elapsed().as_secs_f64();
            if due > 0.0 {
                handle.sleep_until(handle.now() + Duration::from_nanos((due * 1e9) as u64)).await;
            }
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
        let (made, failed, world) = (made.clone(), failed.clone(), handle.clone());
        handle.spawn(async move {
            match Client::connect(world, address, &nqn, options).await {
                Ok(client) => {
                    client.close().await;
                    made.set(made.get() + CONNECTIONS_EACH);
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
    ensure!(made.get() > 0, "nobody connected");
    Ok(made.get() as f64 / begin.elapsed().as_secs_f64())
}
