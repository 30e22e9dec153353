//! Cost of a server that has connections and no load, and its latency then: beside the time in which the machine
//! wakes a thread, which is measured with a plain socket that a thread blocks on.
//!
//! The client polls: what is measured of sleeping is the server's.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use client::{Client, Options};
use io_traits::Clock;
use reactor::{CoreConfig, Handle, IdlePolicy};
use report::Spread;
use serde::Serialize;
use units::Lba;

use crate::cpus;
use crate::null::pin;
use crate::process::{Program, VolumeAddress, cpu_seconds};

/// Connections that are open meanwhile, one for each I/O queue.
const QUEUES: u16 = 100;
/// Time that the server is left alone while its processor time is measured, which comes in hundredths of a second:
/// a thousandth of this.
const IDLE: Duration = Duration::from_secs(10);
/// Requests one behind the other, of which each finds the server busy.
const BUSY_REQUESTS: u64 = 4000;
/// Requests that find it idle, and how long it was left alone before each.
const FIRST_REQUESTS: u64 = 21;
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// A read of a block on the wire: what goes to the server, and what comes back.
const WIRE_BYTES: [usize; 2] = [72, 24 + 4096];

/// Latencies of requests that find the server busy, and of those that find it asleep.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Waking {
    /// Median, in µs.
    pub(crate) busy_us: f64,
    /// By how much each of the others took longer than that, in µs.
    pub(crate) added_us: Vec<f64>,
}

impl Waking {
    fn of(busy_us: &[f64], first_us: &[f64]) -> Self {
        let busy_us = Spread::of(busy_us).map_or(f64::NAN, |spread| spread.median);
        Self { busy_us, added_us: first_us.iter().map(|first| first - busy_us).collect() }
    }
}

/// A server without load.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Idle {
    pub(crate) queues: u16,
    /// Share of a core that it used.
    pub(crate) cpu_share: f64,
    /// Latencies of the server.
    pub(crate) waking: Waking,
    /// Latencies of a plain socket.
    pub(crate) limit: Waking,
}

/// Connects to `volume`, and measures `server` with that.
pub(crate) fn measure(server: &Program, volume: &VolumeAddress) -> Result<Idle> {
    let cpu = Some(cpus::client());
    let config =
        CoreConfig { cpu, name: "idle".to_owned(), idle: IdlePolicy::Spin, has_files: false };
    let (volume, pid) = (volume.clone(), server.pid());
    let thread = reactor::spawn_thread(config, move |handle| drive(handle, volume, pid))?;
    let ended = thread.join();
    let idle =
        ended.map_err(|_| anyhow::anyhow!("the thread of the idle measurement panicked"))??;
    Ok(Idle { limit: wake_plainly().context("measure how a plain socket wakes")?, ..idle })
}

/// The same requests to a thread that blocks on a socket.
fn wake_plainly() -> Result<Waking> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> Result<()> {
        pin(cpus::server())?;
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (mut request, reply) = (vec![0; WIRE_BYTES[0]], vec![0xA5; WIRE_BYTES[1]]);
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&reply)?;
        }
        Ok(())
    });
    let client = std::thread::spawn(move || -> Result<Waking> {
        pin(cpus::client())?;
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let busy: Result<Vec<f64>> =
            (0..BUSY_REQUESTS).map(|_| poll_for_reply(&mut stream)).collect();
        let mut first = Vec::new();
        for _ in 0..FIRST_REQUESTS {
            let until = Instant::now() + PAUSE;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            first.push(poll_for_reply(&mut stream)?);
        }
        Ok(Waking::of(&busy?, &first))
    });
    let panicked = |_| anyhow::anyhow!("a thread of the plain socket panicked");
    let waking = client.join().map_err(panicked)??;
    server.join().map_err(panicked)??;
    Ok(waking)
}

/// Returns the latency of a request, in µs.
fn poll_for_reply(stream: &mut TcpStream) -> Result<f64> {
    let (request, mut reply) = ([0; WIRE_BYTES[0]], vec![0; WIRE_BYTES[1]]);
    let begin = Instant::now();
    stream.write_all(&request)?;
    let mut received = 0;
    while received < reply.len() {
        match stream.read(&mut reply[received..]) {
            Ok(0) => anyhow::bail!("the server closed the connection"),
            Ok(bytes) => received += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6)
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
    let cpu_share = used / IDLE.as_secs_f64();
    Ok(Idle { queues: QUEUES, cpu_share, waking: Waking::of(&busy, &first), ..Idle::default() })
}
