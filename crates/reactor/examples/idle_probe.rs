//! Measures the cost of an idle core, and its latency after having been idle: 100 connections that are silent, then
//! one request after pauses of growing length.
//!
//! `cargo run --release -p reactor --example idle_probe`

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use io_traits::{Clock, Listener, Network, SendBatch, Spawn, Stream};
use reactor::{CoreConfig, Handle, TcpStream, spawn_thread};

const CONNECTIONS: usize = 100;
const PAUSES_US: [u64; 6] = [0, 100, 300, 1_000, 10_000, 200_000];
const SAMPLES: usize = 31;

fn main() {
    let (send_address, address) = std::sync::mpsc::channel();
    let config = CoreConfig { cpu: Some(0), name: "server".into(), ..CoreConfig::default() };
    let server = spawn_thread(config, move |handle| async move {
        let listener = handle.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
        send_address.send(listener.local()).expect("main waits");
        let before = thread_cpu_time();
        for _ in 0..CONNECTIONS {
            handle.spawn(echo(listener.accept().await.expect("accepts")));
        }
        // A timer now and then, as keep-alive checks would set.
        let start = Instant::now();
        let after_accept = thread_cpu_time();
        for _ in 0..50 {
            pause(&handle, Duration::from_millis(100)).await;
        }
        let idle = thread_cpu_time() - after_accept;
        println!(
            "{CONNECTIONS} silent connections: {:.3} % of a core (accepting took {:?})",
            100.0 * idle.as_secs_f64() / start.elapsed().as_secs_f64(),
            after_accept - before,
        );
        pause(&handle, Duration::from_secs(20)).await;
    });
    let server = server.expect("a server core");
    let address = address.recv().expect("the server listens");
    let config = CoreConfig { cpu: Some(1), name: "client".into(), ..CoreConfig::default() };
    let client = spawn_thread(config, move |handle| async move {
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            streams.push(handle.connect(address).await.expect("connects"));
        }
        pause(&handle, Duration::from_millis(5_500)).await;
        let plain = handle.connect(plain_echo_server()).await.expect("connects");
        for pause_us in PAUSES_US {
            let (mut latencies, mut plain_latencies) = (Vec::new(), Vec::new());
            for n in 0..SAMPLES {
                pause_exactly(Duration::from_micros(pause_us));
                latencies.push(round_trip(&streams[n % 3]).await);
                pause_exactly(Duration::from_micros(pause_us));
                plain_latencies.push(round_trip(&plain).await);
            }
            latencies.sort();
            plain_latencies.sort();
            println!(
                "after {pause_us:6} us of silence: median {:?}, lowest {:?}; blocking thread {:?}, {:?}",
                latencies[SAMPLES / 2],
                latencies[0],
                plain_latencies[SAMPLES / 2],
                plain_latencies[0],
            );
        }
    });
    client.expect("a client core").join().expect("no panic");
    drop(server);
}

/// The floor: a thread that blocks in a read.
fn plain_echo_server() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(0);
        rustix::thread::sched_setaffinity(None, &set).expect("the CPU is there");
        let (mut stream, _) = listener.accept().expect("accepts");
        stream.set_nodelay(true).expect("TCP");
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            stream.write_all(&bytes[..count]).expect("sends");
        }
    });
    address
}

async fn echo(stream: TcpStream) {
    let mut batch = SendBatch::new();
    while let Ok(chunk) = stream.recv().await {
        batch.push_bytes(&chunk);
        match stream.send(batch).await {
            Ok(empty) => batch = empty,
            Err(_) => return,
        }
    }
}

async fn round_trip(stream: &TcpStream) -> Duration {
    let start = Instant::now();
    let mut batch = SendBatch::new();
    batch.push_bytes(&[1; 72]);
    stream.send(batch).await.expect("sends");
    stream.recv().await.expect("an echo");
    start.elapsed()
}

async fn pause(handle: &Handle, duration: Duration) {
    handle.sleep_until(handle.precise_now() + duration).await;
}

/// Without giving up the CPU, so that only the server's wake-up is measured.
fn pause_exactly(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        std::hint::spin_loop();
    }
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
