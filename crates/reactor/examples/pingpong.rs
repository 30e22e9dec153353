//! What the reactor costs over bare sockets: requests of 72 bytes, replies of 24 + 4096, over
//! loopback, server on CPU 0 and client on CPU 1. Both ends exist twice, on the reactor and on
//! nonblocking sockets that are polled without end; rounds are interleaved, so compare the columns
//! of one row.
//!
//! `cargo run --release -p reactor --example pingpong [ROUNDS [SECONDS]]`

use std::cell::Cell;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use io_traits::{Buffer, BufferSlice, Clock, Listener, Network, SendBatch, Spawn, Stream};
use reactor::{CoreConfig, Handle, IdlePolicy, TcpStream, run_on_current_thread};

const REQUEST: usize = 72;
const HEADER: usize = 24;
const REPLY: usize = HEADER + 4096;
const DEPTHS: [usize; 3] = [1, 32, 128];
/// Connections, and depth of each, for the reactor alone.
const SPREADS: [(usize, usize); 4] = [(1, 32), (4, 32), (16, 8), (64, 8)];
/// Blocks that replies are taken from: hot ones, so that memory is not what is measured.
const BLOCKS: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Reactor,
}

/// System calls of the two ends.
#[derive(Default)]
struct Calls {
    server: AtomicU64,
    client: AtomicU64,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map_while(|text| text.parse::<f64>().ok());
    let rounds = arguments.next().unwrap_or(5.0) as usize;
    let duration = Duration::from_secs_f64(arguments.next().unwrap_or(1.0));
    let pairs = [
        ("plain-plain", Kind::Plain, Kind::Plain),
        ("reactor-plain", Kind::Reactor, Kind::Plain),
        ("reactor-reactor", Kind::Reactor, Kind::Reactor),
    ];
    println!("depth, then server-client: requests/s (ratio to plain-plain) [calls/request]");
    many_connections(rounds, duration);
    for depth in DEPTHS {
        let mut ratios = vec![Vec::new(); pairs.len()];
        for _ in 0..rounds {
            let mut row = format!("{depth:4}");
            let mut plain_rate = 0.0;
            for (n, (name, server, client)) in pairs.into_iter().enumerate() {
                let (rate, calls) = measure(server, client, depth, duration);
                plain_rate = if n == 0 { rate } else { plain_rate };
                let ratio = rate / plain_rate;
                ratios[n].push(ratio);
                row += &format!("  {name} {:7.0}k ({ratio:.2})", rate / 1000.0);
                row += &format!(" [{:.3} {:.3}]", calls[0], calls[1]);
            }
            println!("{row}");
        }
        for (ratios, (name, ..)) in ratios.iter_mut().zip(pairs).skip(1) {
            ratios.sort_by(f64::total_cmp);
            println!("{depth:4}  {name}: median ratio {:.2}", ratios[ratios.len() / 2]);
        }
    }
}

/// The reactor on both ends, with one connection and with more.
fn many_connections(rounds: usize, duration: Duration) {
    let mut ratios = vec![Vec::new(); SPREADS.len()];
    for _ in 0..rounds {
        let mut row = String::new();
        let mut one = 0.0;
        for (n, (connections, depth)) in SPREADS.into_iter().enumerate() {
            let rate = measure_many(connections, depth, duration);
            one = if n == 0 { rate } else { one };
            ratios[n].push(rate / one);
            row +=
                &format!("  {connections} x {depth}: {:5.0}k ({:.2})", rate / 1000.0, rate / one);
        }
        println!("{row}");
    }
    for (ratios, (connections, depth)) in ratios.iter_mut().zip(SPREADS).skip(1) {
        ratios.sort_by(f64::total_cmp);
        println!("  {connections} x {depth}: median ratio {:.2}", ratios[ratios.len() / 2]);
    }
}

fn measure_many(connections: usize, depth: usize, duration: Duration) -> f64 {
    let (send_address, address) = std::sync::mpsc::channel();
    let server = thread::spawn(move || {
        on_core(0, move |handle| async move {
            let listener = handle.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
            send_address.send(listener.local()).expect("main waits");
            for _ in 1..connections {
                let stream = listener.accept().await.expect("a client");
                handle.spawn(async move { serve(&stream).await });
            }
            serve(&listener.accept().await.expect("a client")).await;
        });
    });
    let address = address.recv().expect("the server listens");
    let done = on_core(1, move |handle| async move {
        let done = Rc::new(Cell::new(0));
        let running = Rc::new(Cell::new(connections));
        let mut streams = Vec::new();
        for _ in 0..connections {
            streams.push(handle.connect(address).await.expect("connects"));
        }
        for stream in streams.clone() {
            let (handle, done, running) = (handle.clone(), done.clone(), running.clone());
            handle.clone().spawn(async move {
                let count = drive(&handle, &stream, depth, duration).await;
                done.set(done.get() + count);
                running.set(running.get() - 1);
            });
        }
        while running.get() > 0 {
            handle.sleep_until(handle.now() + Duration::from_millis(1)).await;
        }
        done.get()
    });
    server.join().expect("a server");
    done as f64 / duration.as_secs_f64()
}

/// Requests per second, and calls per request of server and client.
fn measure(server: Kind, client: Kind, depth: usize, duration: Duration) -> (f64, [f64; 2]) {
    let calls = Arc::new(Calls::default());
    let (send_address, address) = std::sync::mpsc::channel();
    let counted = calls.clone();
    let server = thread::spawn(move || match server {
        Kind::Plain => plain_server(&send_address, &counted.server).expect("a server"),
        Kind::Reactor => on_core(0, move |handle| async move {
            let listener = handle.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
            send_address.send(listener.local()).expect("main waits");
            let stream = listener.accept().await.expect("a client");
            let before = handle.ring_counters().enters;
            serve(&stream).await;
            counted.server.store(handle.ring_counters().enters - before, Relaxed);
        }),
    });
    let address = address.recv().expect("the server listens");
    let counted = calls.clone();
    let client = thread::spawn(move || match client {
        Kind::Plain => plain_client(address, depth, duration, &counted.client).expect("runs"),
        Kind::Reactor => on_core(1, move |handle| async move {
            let stream = handle.connect(address).await.expect("connects");
            let before = handle.ring_counters().enters;
            let done = drive(&handle, &stream, depth, duration).await;
            counted.client.store(handle.ring_counters().enters - before, Relaxed);
            done
        }),
    });
    let done = client.join().expect("a client") as f64;
    server.join().expect("a server");
    let per_request = |calls: &AtomicU64| calls.load(Relaxed) as f64 / done;
    (done / duration.as_secs_f64(), [per_request(&calls.server), per_request(&calls.client)])
}

fn on_core<Fut, T>(cpu: usize, main: impl FnOnce(Handle) -> Fut) -> T
where
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    let config =
        CoreConfig { cpu: Some(cpu), name: format!("core {cpu}"), idle: IdlePolicy::default() };
    run_on_current_thread(&config, main).expect("a core")
}

fn blocks() -> Vec<BufferSlice> {
    (0..BLOCKS).map(|n| Buffer::from_bytes(&[n as u8; 4096]).into_slice()).collect()
}

async fn serve(stream: &TcpStream) {
    let blocks = blocks();
    let (mut partial, mut served) = (0, 0);
    let mut batch = SendBatch::new();
    let mut next = stream.recv();
    while let Ok(chunk) = next.await {
        partial += chunk.len();
        drop(chunk);
        next = stream.recv();
        for _ in 0..partial / REQUEST {
            batch.push_bytes(&[7; HEADER]);
            batch.push_data(blocks[served % BLOCKS].clone());
            served += 1;
        }
        partial %= REQUEST;
        batch = match stream.send(batch).await {
            Ok(batch) => batch,
            Err(_) => return,
        };
    }
}

async fn drive(handle: &Handle, stream: &TcpStream, depth: usize, duration: Duration) -> u64 {
    let end = handle.precise_now() + duration;
    let mut batch = SendBatch::new();
    (0..depth).for_each(|_| batch.push_bytes(&[1; REQUEST]));
    let (mut partial, mut done) = (0, 0);
    while handle.precise_now() < end {
        let received = stream.recv();
        batch = stream.send(batch).await.expect("sends");
        let chunk = received.await.expect("receives");
        partial += chunk.len();
        drop(chunk);
        (0..partial / REPLY).for_each(|_| batch.push_bytes(&[1; REQUEST]));
        done += (partial / REPLY) as u64;
        partial %= REPLY;
    }
    done
}

/// Polls without end until `call` has something to say.
fn poll<T>(calls: &AtomicU64, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        calls.store(calls.load(Relaxed) + 1, Relaxed);
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            result => return result,
        }
    }
}

fn pin_to(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("the CPU is there");
}

fn plain_server(
    address: &std::sync::mpsc::Sender<SocketAddr>,
    calls: &AtomicU64,
) -> io::Result<()> {
    pin_to(0);
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    address.send(listener.local_addr()?).expect("main waits");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let blocks = blocks();
    let (mut partial, mut served) = (0, 0);
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = poll(calls, || stream.read(&mut bytes)).unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        partial += count;
        let header = [7; HEADER];
        let mut parts = Vec::new();
        for _ in 0..partial / REQUEST {
            parts.push(IoSlice::new(&header));
            parts.push(IoSlice::new(blocks[served % BLOCKS].as_bytes()));
            served += 1;
        }
        partial %= REQUEST;
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            let Ok(sent) = poll(calls, || stream.write_vectored(rest)) else { return Ok(()) };
            IoSlice::advance_slices(&mut rest, sent);
        }
    }
}

fn plain_client(
    address: SocketAddr,
    depth: usize,
    duration: Duration,
    calls: &AtomicU64,
) -> io::Result<u64> {
    pin_to(1);
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut bytes = vec![0; 64 << 10];
    let requests = vec![1; REQUEST * depth];
    let (mut to_send, mut partial, mut done) = (depth, 0, 0);
    let end = Instant::now() + duration;
    while Instant::now() < end {
        let mut rest = &requests[..to_send * REQUEST];
        while !rest.is_empty() {
            rest = &rest[poll(calls, || stream.write(rest))?..];
        }
        partial += poll(calls, || stream.read(&mut bytes))?;
        to_send = partial / REPLY;
        done += to_send as u64;
        partial %= REPLY;
    }
    Ok(done)
}
