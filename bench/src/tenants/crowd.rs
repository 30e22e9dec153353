//! A host of very many volumes and connections.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use client::{Client, Options, QUEUES_MAX, discover};
use control::{ApiClient, CreateVolume, VolumeSize};
use io_traits::Clock;
use reactor::{CoreConfig, Handle};
use serde::Serialize;

use super::scraping;
use crate::cpus;
use crate::process::{Doors, Server, VolumeAddress, run};

/// Number of times that each list is requested.
const ASKED: usize = 11;
/// Until memory is read.
const REST: Duration = Duration::from_secs(5);

/// The measurements.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Crowd {
    pub(super) volumes: u32,
    pub(super) connections: u32,
    pub(super) creates_per_second: f64,
    /// Milliseconds of the whole list by the API, and of the discovery log.
    pub(super) list_ms: Vec<f64>,
    pub(super) discovery_ms: Vec<f64>,
    /// Milliseconds of a reading of the metrics, and what it brings.
    pub(super) metrics_ms: Vec<f64>,
    pub(super) metrics_bytes: u64,
    /// Resident memory without anything, with the volumes, and with the connections too.
    pub(super) empty_bytes: u64,
    pub(super) with_volumes_bytes: u64,
    pub(super) with_connections_bytes: u64,
    /// Start after a kill, until it answered with all volumes.
    pub(super) restart_ms: f64,
}

pub(super) fn measure(
    farflash: &Path,
    out: &Path,
    volumes: u32,
    connections: u32,
) -> Result<Crowd> {
    let path = out.join("crowd.device");
    let _ = fs::remove_file(&path);
    let device = format!("file:{}", path.display());
    let sized = format!("{device},size=4GiB");
    run(Command::new(farflash).args(["format", "--device", &sized]))?;
    let log = out.join("crowd.log");
    let mut server = Server::start_with(farflash, &device, Doors::Guarded, cpus::server(), &log)?;
    let empty_bytes = server.program.resident_bytes()?;
    let api = ApiClient::new(&format!("http://{}", server.api))?;
    let begin = Instant::now();
    let token = create(&api, volumes)?;
    let creates_per_second = f64::from(volumes) / begin.elapsed().as_secs_f64();
    server.program.kill()?;
    let begin = Instant::now();
    server.restart(cpus::server())?;
    // It listens before it knows its volumes, and answers when it does.
    api.list()?;
    let restart_ms = begin.elapsed().as_secs_f64() * 1e3;
    let mut list_ms = Vec::new();
    let mut listed = Vec::new();
    for _ in 0..ASKED {
        let begin = Instant::now();
        listed = api.list()?.volumes;
        list_ms.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    ensure!(listed.len() == volumes as usize, "{} volumes are listed", listed.len());
    let (mut metrics_ms, mut metrics_bytes) = (Vec::new(), 0);
    for _ in 0..ASKED {
        let reading = scraping::read(server.api)?;
        metrics_ms.push(reading.took_ms);
        metrics_bytes = reading.bytes as u64;
    }
    // What the start and the lists took is given back by and by.
    thread::sleep(REST);
    let with_volumes_bytes = server.program.resident_bytes()?;
    let last = format!("v{}", volumes - 1);
    let volume = listed.iter().find(|volume| volume.name == last).context("no volume")?;
    let address = VolumeAddress { nqn: volume.nqn.clone(), address: volume.address, token };
    let config =
        CoreConfig { cpu: Some(cpus::client()), name: "crowd".to_owned(), ..CoreConfig::default() };
    let pid = server.program.pid();
    let thread = reactor::spawn_thread(config, move |handle| {
        connected(handle, address, volumes, connections, pid)
    })?;
    let asked = thread.join().map_err(|_| anyhow!("the thread of the crowd panicked"))??;
    server.program.terminate()?;
    fs::remove_file(&path)?;
    Ok(Crowd {
        volumes,
        connections,
        creates_per_second,
        list_ms,
        discovery_ms: asked.0,
        metrics_ms,
        metrics_bytes,
        empty_bytes,
        with_volumes_bytes,
        with_connections_bytes: asked.1,
        restart_ms,
    })
}

/// Makes that many volumes; what opens the last one.
fn create(api: &ApiClient, volumes: u32) -> Result<String> {
    let mut token = String::new();
    for number in 0..volumes {
        let name = format!("v{number}").parse()?;
        let created = api.create(&CreateVolume::new(name, VolumeSize::try_from(1 << 30)?))?;
        token = created.tokens.token;
        if number % 1000 == 999 {
            eprintln!("{} of {volumes} volumes", number + 1);
        }
    }
    Ok(token)
}

/// Returns the time of discovery, and the server's memory while all are connected.
async fn connected(
    handle: Handle,
    address: VolumeAddress,
    volumes: u32,
    connections: u32,
    pid: u32,
) -> Result<(Vec<f64>, u64)> {
    let nqn = address.nqn.parse()?;
    let credentials = Some(address.credentials()?);
    let mut clients = Vec::new();
    let mut open = 0;
    while open < connections {
        let mut id = [0xc1; 16];
        id[..4].copy_from_slice(&open.to_le_bytes());
        // One of a host's connections is its admin queue.
        let queues = u16::try_from(connections - open - 1)?.clamp(1, QUEUES_MAX);
        let credentials = credentials.clone();
        let options = Options { queues, depth: 1, credentials, ..Options::for_host(id) };
        let client = Client::connect(handle.clone(), address.address, &nqn, options).await?;
        open += 1 + u32::from(client.queues());
        clients.push(client);
    }
    let mut discovery_ms = Vec::new();
    for _ in 0..ASKED {
        let begin = Instant::now();
        let options = Options::for_host([0xc2; 16]);
        let found = discover(handle.clone(), address.address, options).await?;
        discovery_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        let found = found.iter().filter(|entry| entry.is_nvm).count();
        ensure!(found == volumes as usize, "{found} volumes are discovered");
    }
    handle.sleep_until(handle.now() + REST).await;
    let bytes = crate::process::resident_bytes(pid)?;
    for client in clients {
        client.close().await;
    }
    Ok((discovery_ms, bytes))
}
