//! Measures the cost of the reactor over bare sockets: requests of 72 bytes, replies of 24 + 4096, over loopback,
//! server on CPU 0 and client on CPU 1. Both ends exist twice, on the reactor and on nonblocking sockets that are
//! polled without end; rounds are interleaved, so compare the columns of one row.
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
use reactor::{CoreConfig, Handle, TcpStream, run_on_current_thread};

const REQUEST: usize = 72;
const HEADER: usize = 24;
const REPLY: usize = HEADER + 4096;
/// Connections, and depth of each.
const SPREADS: [(usize, usize); 6] = [(1, 1), (1, 32), (1, 128), (4, 32), (16, 8), (64, 8)];
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
        ("plain-plain", [Kind::Plain, Kind::Plain]),
        ("reactor-plain", [Kind::Reactor, Kind::Plain]),
        ("reactor-reactor", [Kind::Reactor, Kind::Reactor]),
    ];
    println!(
        "connections x depth, server-client: requests/s (ratio to plain-plain) [calls/request]"
    );
    for spread @ (connections, depth) in SPREADS {
        let mut ratios = vec![Vec::new(); pairs.len()];
        for _ in 0..rounds {
            let mut row = format!("{connections:3} x {depth:3}");
            let mut plain_rate = 0.0;
            for (n, (name, kinds)) in pairs.into_iter().enumerate() {
                let (rate, calls) = measure(kinds, spread, duration);
                plain_rate = if n == 0 { rate } else { plain_rate };
                let ratio = rate / plain_rate;
                ratios[n].push(ratio);
                row += &format!("  {name} {:5.0}k ({ratio:.2})", rate / 1000.0);
                row += &format!(" [{:.3} {:.3}]", calls[0], calls[1]);
            }
            println!("{row}");
        }
        for (ratios, (name, _)) in ratios.iter_mut().zip(pairs).skip(1) {
            ratios.sort_by(f64::total_cmp);
            let median = ratios[ratios.len() / 2];
            println!("{connections:3} x {depth:3}  {name}: median ratio {median:.2}");
        }
    }
}

/// Requests per second, and calls per request of server and client.
fn measure(kinds: [Kind; 2], spread: (usize, usize), duration: Duration) -> (f64, [f64; 2]) {
    let (connections, depth) = spread;
    let calls = Arc::new(Calls::default());
    let (send_address, address) = std::sync::mpsc::channel();
    let counted = calls.clone();
    let server = thread::spawn(move || match kinds[0] {
        Kind::Plain => plain_server(&send_address, connections, &counted.server).expect("runs"),
        Kind::Reactor => on_core(0, move |handle| async move {
            let listener = handle.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
            send_address.send(listener.local()).expect("main waits");
            let blocks = Rc::new(blocks());
            for _ in 1..connections {
                let stream = listener.accept().await.expect("a client");
                let blocks = blocks.clone();
                handle.spawn(async move { serve(&stream, &blocks).await });
            }
            let stream = listener.accept().await.expect("a client");
            let before = handle.ring_counters().enters;
            serve(&stream, &blocks).await;
            counted.server.store(handle.ring_counters().enters - before, Relaxed);
        }),
    });
    let address = address.recv().expect("the server listens");
    let counted = calls.clone();
    let client = thread::spawn(move || match kinds[1] {
        Kind::Plain => {
            plain_client(address, connections, depth, duration, &counted.client).expect("runs")
        }
        Kind::Reactor => on_core(1, move |handle| async move {
            let before = handle.ring_counters().enters;
            let done = drive_all(&handle, address, spread, duration).await;
            counted.client.store(handle.ring_counters().enters - before, Relaxed);
            done
        }),
    });
    let done = client.join().expect("a client") as f64;
    server.join().expect("a server");
    let per_request = |calls: &AtomicU64| calls.load(Relaxed) as f64 / done;
    (done / duration.as_secs_f64(), [per_request(&calls.server), per_request(&calls.client)])
}

async fn drive_all(
    handle: &Handle,
    address: SocketAddr,
    (connections, depth): (usize, usize),
    duration: Duration,
) -> u64 {
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(handle.connect(address).await.expect("connects"));
    }
    let (done, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(connections)));
    for stream in streams.clone() {
        let (task, done, running) = (handle.clone(), done.clone(), running.clone());
        handle.spawn(async move {
            let count = drive(&task, &stream, depth, duration).await;
            done.set(done.get() + count);
            running.set(running.get() - 1);
        });
    }
    while running.get() > 0 {
        handle.sleep_until(handle.now() + Duration::from_millis(1)).await;
    }
    done.get()
}

fn on_core<Fut, T>(cpu: usize, main: impl FnOnce(Handle) -> Fut) -> T
where
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    let config =
        CoreConfig { cpu: Some(cpu), name: format!("core {cpu}"), ..CoreConfig::default() };
    run_on_current_thread(&config, main).expect("a core")
}

fn blocks() -> Vec<BufferSlice> {
    (0..BLOCKS).map(|n| Buffer::from_bytes(&[n as u8; 4096]).into_slice()).collect()
}

async fn serve(stream: &TcpStream, blocks: &[BufferSlice]) {
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

/// A connection of a plain end.
struct Connection {
    stream: std::net::TcpStream,
    partial: usize,
}

impl Connection {
    fn new(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, partial: 0 })
    }
}

fn plain_server(
    address: &std::sync::mpsc::Sender<SocketAddr>,
    connections: usize,
    calls: &AtomicU64,
) -> io::Result<()> {
    pin_to(0);
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    address.send(listener.local_addr()?).expect("main waits");
    let accepted = (0..connections).map(|_| Connection::new(listener.accept()?.0));
    let mut connections = accepted.collect::<io::Result<Vec<_>>>()?;
    let blocks = blocks();
    let mut served = 0;
    let mut bytes = vec![0; 64 << 10];
    loop {
        for Connection { stream, partial } in &mut connections {
            calls.store(calls.load(Relaxed) + 1, Relaxed);
            match stream.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => *partial += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return Ok(()),
            }
            let header = [7; HEADER];
            let mut parts = Vec::new();
            for _ in 0..*partial / REQUEST {
                parts.push(IoSlice::new(&header));
                parts.push(IoSlice::new(blocks[served % BLOCKS].as_bytes()));
                served += 1;
            }
            *partial %= REQUEST;
            let mut rest = &mut parts[..];
            while !rest.is_empty() {
                let Ok(sent) = poll(calls, || stream.write_vectored(rest)) else { return Ok(()) };
                IoSlice::advance_slices(&mut rest, sent);
            }
        }
    }
}

fn plain_client(
    address: SocketAddr,
    connections: usize,
    depth: usize,
    duration: Duration,
    calls: &AtomicU64,
) -> io::Result<u64> {
    pin_to(1);
    let connect = |_| Connection::new(std::net::TcpStream::connect(address)?);
    let mut connections = (0..connections).map(connect).collect::<io::Result<Vec<_>>>()?;
    let mut bytes = vec![0; 64 << 10];
    let requests = vec![1; REQUEST * depth];
    let send = |stream: &mut std::net::TcpStream, count: usize| {
        let mut rest = &requests[..count * REQUEST];
        while !rest.is_empty() {
            rest = &rest[poll(calls, || stream.write(rest))?..];
        }
        io::Result::Ok(())
    };
    for Connection { stream, .. } in &mut connections {
        send(stream, depth)?;
    }
    let mut done = 0;
    let end = Instant::now() + duration;
    while Instant::now() < end {
        for Connection { stream, partial } in &mut connections {
            calls.store(calls.load(Relaxed) + 1, Relaxed);
            match stream.read(&mut bytes) {
                Ok(count) => *partial += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let replies = *partial / REPLY;
            done += replies as u64;
            *partial %= REPLY;
            send(stream, replies)?;
        }
    }
    Ok(done)
}
