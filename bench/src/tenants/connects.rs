//! Hosts that come, prove who they are, and go.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use client::{Client, Credentials, Options, Reconnect};
use io_traits::{Clock, Spawn};
use local_sync::Semaphore;
use nvme_wire::Nqn;
use reactor::{CoreThread, Handle};
use units::Duration;

use super::thread_use::{ThreadUse, beside_load};
use crate::process::VolumeAddress;

/// Hosts that connect at the same time, at most.
const AT_ONCE: u64 = 16;
/// Connections of each host: the admin queue and one I/O queue. Each is authenticated.
const CONNECTIONS_EACH: u64 = 2;

/// Connections that were made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) per_second: f64,
    /// What the hosts themselves took of the client's CPU.
    pub(super) hosts: ThreadUse,
}

/// Hosts that connect until they are stopped.
pub(super) struct Connecting {
    stop: Arc<AtomicBool>,
    thread: CoreThread<Result<Made>>,
}

impl Connecting {
    /// From now on hosts open `volume`: as many as can be, or `per_second` connections.
    pub(super) fn start(volume: &VolumeAddress, per_second: Option<f64>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (volume, stopping) = (volume.clone(), stop.clone());
        let secret =
            volume.token.parse().map_err(|error| anyhow!("the volume's token: {error}"))?;
        let credentials = Credentials { secret, controller_secret: None };
        let thread = reactor::spawn_thread(beside_load("connecting"), move |handle| {
            drive(handle, volume, credentials, per_second, stopping)
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<Made> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that connects panicked"))?
    }
}

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
    let (made, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let (begin, meter) = (Instant::now(), ThreadUse::meter()?);
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
    let per_second = made.get() as f64 / begin.elapsed().as_secs_f64();
    Ok(Made { per_second, hosts: meter.read()? })
}
