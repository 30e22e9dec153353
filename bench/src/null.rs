//! The machine's limit: a server and a client that move the bytes of block requests over loopback
//! TCP and do nothing else. What any target reaches is to be read as a share of this.
//!
//! Both directions of a connection are periodic: every request is the same bytes, and so is every
//! reply. So a side is a count of bytes owed and a count of bytes received, and neither parses.
//! - NULL-1: the server owes one reply for each whole request received, and sends all that it owes
//!   with one system call after each receive.
//! - NULL-2: the client keeps exactly `depth` requests outstanding on each connection, and counts a
//!   request as done when the last byte of its reply was copied to it.
//! - NULL-3: both sides poll plain nonblocking sockets and never sleep. The data sent comes from a few
//!   hot pages, the data received goes to others: memory costs next to nothing.
//! - NULL-4: or else the server sends blocks from all over some memory, as storage does: the cost of sending from there
//!   for a server that looks up nothing and checks nothing (`null/outgoing.rs`).
//! - NULL-5: or it checks each block as well, and looks up nothing: only the work of storage itself remains.
//! - NULL-6: or it sends what it reads from a file (`null/file.rs`).
//! - NULL-7: or hosts come and go beside its load (`null/visited.rs`).
//! - NULL-8: or it stores what writes bring, as storage does (`null/stored.rs`): it computes the checksum of each block and
//!   copies it to a place somewhere in 1 GiB that was written before. It keeps no map and no journal.
//! - NULL-9: or it stores each block where none was before, in memory that the kernel has yet to provide.

pub(crate) mod file;
mod outgoing;
mod stored;
pub(crate) mod visited;

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use profile::{Latencies, NINES};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use self::outgoing::Outgoing;
use self::stored::Stored;

/// Command capsule PDU without data: 8 bytes of common header and a 64-byte submission entry.
const COMMAND_BYTES: usize = 72;
/// Data or response PDU header.
const RESPONSE_BYTES: usize = 24;
/// I/O vectors in one send; more wait for the next turn.
const VECTORS_MAX: usize = 128;
/// Bounds of the bytes taken by one receive. Within them it is half of what is in flight, so that
/// one side sends while the other receives; measured best at depths 32 and 128.
const RECEIVE_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=256 << 10;
/// Turns of the client between two looks at how long it has run.
const TURNS_PER_TIME_CHECK: u32 = 64;

/// Direction of the data.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Data comes with the replies.
    Read,
    /// Data comes with the requests.
    Write,
}

/// Blocks that the server sends, or what it does with those that it receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Blocks {
    /// A few that stay in the processor's caches (NULL-3).
    Cached,
    /// Blocks from all over a GiB (NULL-4).
    Scattered,
    /// The same, each checked before it is sent (NULL-5).
    Checked,
    /// Blocks that come are stored all over a GiB (NULL-8).
    Stored,
    /// Blocks that come are stored where none was before (NULL-9).
    StoredFirst,
}

/// Load to move.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct NullSpec {
    pub(crate) direction: Direction,
    pub(crate) block_bytes: usize,
    pub(crate) blocks: Blocks,
    pub(crate) depth: u64,
    pub(crate) connections: usize,
    pub(crate) server_cpu: usize,
    pub(crate) client_cpu: usize,
    /// Seconds of the load before the clock runs.
    pub(crate) warm_up_seconds: f64,
    pub(crate) seconds: f64,
}

/// Results that were reached.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NullResult {
    pub(crate) spec: NullSpec,
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) requests_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// Time of a request as its issuer sees it, by Little's law.
    pub(crate) mean_latency_us: f64,
    /// The 99.9th percentile of that time, if there were enough requests.
    pub(crate) p999_us: Option<f64>,
    /// System calls of the server, where they are counted.
    pub(crate) server_system_calls_per_request: Option<f64>,
    /// The server polls all the time, so this is the time of a request if no other process has the CPU.
    pub(crate) server_cpu_us_per_request: f64,
}

impl NullSpec {
    fn request_bytes(&self) -> usize {
        COMMAND_BYTES + if self.direction == Direction::Write { self.block_bytes } else { 0 }
    }

    fn receive_bytes(&self) -> usize {
        let in_flight =
            usize::try_from(self.depth).unwrap_or(usize::MAX).saturating_mul(self.block_bytes);
        (in_flight / 2).clamp(*RECEIVE_BYTES.start(), *RECEIVE_BYTES.end())
    }

    /// Memory for what each connection brings, if it is stored; touched where it is to be warm.
    fn stored(&self) -> Result<Vec<Stored>> {
        let is_fresh = match (self.direction, self.blocks) {
            (Direction::Write, Blocks::Stored) => false,
            (Direction::Write, Blocks::StoredFirst) => true,
            _ => return Ok(Vec::new()),
        };
        (0..self.connections).map(|_| Stored::new(self.block_bytes, is_fresh)).collect()
    }

    fn reply_bytes(&self) -> usize {
        RESPONSE_BYTES + if self.direction == Direction::Read { self.block_bytes } else { 0 }
    }
}

/// One side of a connection: an endless periodic stream out, a byte count in.
struct Side {
    stream: TcpStream,
    outgoing: Outgoing,
    stored: Option<Stored>,
    period_out: usize,
    period_in: usize,
    sent_bytes: u64,
    owed_bytes: usize,
    /// Bytes received of a period that is not whole yet.
    partial_bytes: usize,
    calls: u64,
}

/// Result of one receive.
enum Received {
    /// This many periods became whole.
    Periods(u64),
    Closed,
}

impl Side {
    fn new(stream: TcpStream, outgoing: Outgoing, periods: [usize; 2]) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let [period_out, period_in] = periods;
        let (sent_bytes, owed_bytes, partial_bytes, calls) = (0, 0, 0, 0);
        Ok(Self {
            stream,
            outgoing,
            stored: None,
            period_out,
            period_in,
            sent_bytes,
            owed_bytes,
            partial_bytes,
            calls,
        })
    }

    fn owe(&mut self, periods: u64) {
        self.owed_bytes += usize::try_from(periods).expect("bounded by depth") * self.period_out;
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Received> {
        self.calls += 1;
        match self.stream.read(buffer) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => {
                if let Some(stored) = &mut self.stored {
                    stored.take(&buffer[..count])?;
                }
                let bytes = self.partial_bytes + count;
                self.partial_bytes = bytes % self.period_in;
                Ok(Received::Periods((bytes / self.period_in) as u64))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Received::Periods(0)),
            Err(error) if is_end(&error) => Ok(Received::Closed),
            Err(error) => Err(error).context("receive"),
        }
    }

    fn send(&mut self) -> Result<()> {
        if self.owed_bytes == 0 {
            return Ok(());
        }
        let mut vectors = [IoSlice::new(&[]); VECTORS_MAX];
        let (mut count, mut left, mut at) = (0, self.owed_bytes, self.sent_bytes);
        while left > 0 && count < VECTORS_MAX {
            let period = self.period_out as u64;
            let phase = usize::try_from(at % period).expect("within a period");
            self.outgoing.check(at / period, self.period_out);
            let bytes = self.outgoing.from(at / period, phase, self.period_out);
            let len = left.min(bytes.len());
            vectors[count] = IoSlice::new(&bytes[..len]);
            (count, left, at) = (count + 1, left - len, at + len as u64);
        }
        self.calls += 1;
        match self.stream.write_vectored(&vectors[..count]) {
            Ok(sent) => {
                self.owed_bytes -= sent;
                self.sent_bytes += sent as u64;
                Ok(())
            }
            // The next receive sees the end as well.
            Err(error) if error.kind() == ErrorKind::WouldBlock || is_end(&error) => Ok(()),
            Err(error) => Err(error).context("send"),
        }
    }
}

fn is_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Pins the calling thread.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pin to CPU {cpu}"))
}

/// Processor time of this thread.
fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Serves until every client has gone; returns the number of system calls and the processor time.
fn serve(
    spec: &NullSpec,
    listener: &TcpListener,
    mut stored: Vec<Stored>,
    stop: &AtomicBool,
) -> Result<(u64, f64)> {
    pin(spec.server_cpu)?;
    let mut sides = Vec::with_capacity(spec.connections);
    for seed in 0..spec.connections as u64 {
        let (stream, _) = listener.accept().context("accept")?;
        let outgoing = match (spec.direction, spec.blocks) {
            (Direction::Read, Blocks::Scattered) => Outgoing::scattered(seed, false),
            (Direction::Read, Blocks::Checked) => Outgoing::scattered(seed, true),
            _ => Outgoing::pattern(spec.reply_bytes()),
        };
        let side = Side::new(stream, outgoing, [spec.reply_bytes(), spec.request_bytes()])?;
        sides.push(Side { stored: stored.pop(), ..side });
    }
    let mut buffer = vec![0; spec.receive_bytes()];
    let begin = thread_cpu_seconds();
    'serving: while !stop.load(Ordering::Relaxed) {
        for side in &mut sides {
            match side.receive(&mut buffer)? {
                Received::Periods(requests) => side.owe(requests),
                Received::Closed => break 'serving,
            }
            side.send()?;
        }
    }
    Ok((sides.iter().map(|side| side.calls).sum(), thread_cpu_seconds() - begin))
}

/// Requests that a client has had answered.
struct Driven {
    requests: u64,
    /// Requests answered before the clock ran.
    warm_up_requests: u64,
    elapsed: Duration,
    latencies: Latencies,
}

/// Requests of one connection that wait for their replies, which come in the order of the requests: since when, and how many.
type Outstanding = VecDeque<(Instant, u64)>;

/// Takes down how long the first `replies` of them took.
fn answered(outstanding: &mut Outstanding, mut replies: u64, now: Instant, into: &mut Latencies) {
    while let Some((since, waiting)) = outstanding.front_mut().filter(|_| replies > 0) {
        let ended = replies.min(*waiting);
        let ns = u64::try_from((now - *since).as_nanos()).unwrap_or(u64::MAX);
        (0..ended).for_each(|_| into.record(ns));
        (*waiting, replies) = (*waiting - ended, replies - ended);
        if *waiting == 0 {
            outstanding.pop_front();
        }
    }
}

/// Keeps `depth` requests outstanding on each connection for the given time.
fn drive(spec: &NullSpec, address: SocketAddr) -> Result<Driven> {
    pin(spec.client_cpu)?;
    let mut sides = Vec::with_capacity(spec.connections);
    for _ in 0..spec.connections {
        let stream = TcpStream::connect(address).context("connect")?;
        let outgoing = Outgoing::pattern(spec.request_bytes());
        sides.push(Side::new(stream, outgoing, [spec.request_bytes(), spec.reply_bytes()])?);
    }
    let mut buffer = vec![0; spec.receive_bytes()];
    let begin = Instant::now();
    let mut all: Vec<(Side, Outstanding)> = sides
        .into_iter()
        .map(|mut side| {
            side.owe(spec.depth);
            (side, Outstanding::from([(begin, spec.depth)]))
        })
        .collect();
    let warm_up_requests = turn_for(spec.warm_up_seconds, &mut all, &mut buffer)?.requests;
    Ok(Driven { warm_up_requests, ..turn_for(spec.seconds, &mut all, &mut buffer)? })
}

/// Goes on with the requests of all connections for so many seconds.
fn turn_for(seconds: f64, all: &mut [(Side, Outstanding)], buffer: &mut [u8]) -> Result<Driven> {
    let (begin, length) = (Instant::now(), Duration::from_secs_f64(seconds));
    let (mut requests, mut latencies) = (0, Latencies::default());
    loop {
        for _ in 0..TURNS_PER_TIME_CHECK {
            for (side, outstanding) in &mut *all {
                side.send()?;
                match side.receive(buffer)? {
                    Received::Periods(0) => {}
                    Received::Periods(replies) => {
                        let now = Instant::now();
                        answered(outstanding, replies, now, &mut latencies);
                        outstanding.push_back((now, replies));
                        requests += replies;
                        side.owe(replies);
                    }
                    Received::Closed => bail!("the null server went away"),
                }
            }
        }
        let elapsed = begin.elapsed();
        if elapsed >= length {
            return Ok(Driven { requests, warm_up_requests: 0, elapsed, latencies });
        }
    }
}

/// Runs a server thread and a client thread against each other.
pub(crate) fn run(spec: &NullSpec) -> Result<NullResult> {
    if matches!(spec.blocks, Blocks::Scattered | Blocks::Checked) {
        // Before any clock runs.
        outgoing::memory();
    }
    let stored = spec.stored()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
    let address = listener.local_addr()?;
    let stop = Arc::new(AtomicBool::new(false));
    let (driven, served) = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(spec, &listener, stored, &stop));
        let client = scope.spawn(|| drive(spec, address));
        let driven = client.join().expect("the client thread panicked");
        stop.store(true, Ordering::Relaxed);
        (driven, server.join().expect("the server thread panicked"))
    });
    let (driven, (calls, cpu_seconds)) = (driven?, served?);
    Ok(Run { driven, calls: Some(calls), cpu_seconds }.result(spec))
}

/// Counts of server and client.
struct Run {
    driven: Driven,
    /// System calls and processor time of the server.
    calls: Option<u64>,
    cpu_seconds: f64,
}

impl Run {
    fn result(&self, spec: &NullSpec) -> NullResult {
        let served = (self.driven.warm_up_requests + self.driven.requests).max(1) as f64;
        let seconds = self.driven.elapsed.as_secs_f64();
        let requests_per_second = self.driven.requests as f64 / seconds;
        let p999 = self.driven.latencies.nines(NINES[1]);
        let outstanding = (spec.depth * spec.connections as u64) as f64;
        NullResult {
            spec: *spec,
            requests: self.driven.requests,
            seconds,
            requests_per_second,
            bytes_per_second: requests_per_second * spec.block_bytes as f64,
            mean_latency_us: outstanding / requests_per_second * 1e6,
            p999_us: p999.map(|ns| ns as f64 / 1e3),
            server_system_calls_per_request: self.calls.map(|calls| calls as f64 / served),
            server_cpu_us_per_request: self.cpu_seconds * 1e6 / served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus;

    /// NULL-1 and NULL-2: every request is answered once, whichever way the data flows.
    #[test]
    fn requests_and_replies_balance_in_both_directions() {
        let cases = [
            (Direction::Read, Blocks::Cached),
            (Direction::Write, Blocks::Cached),
            (Direction::Read, Blocks::Scattered),
            (Direction::Read, Blocks::Checked),
            (Direction::Write, Blocks::Stored),
            (Direction::Write, Blocks::StoredFirst),
        ];
        for (direction, blocks) in cases {
            let spec = NullSpec {
                direction,
                block_bytes: 4096,
                blocks,
                depth: 4,
                connections: 2,
                server_cpu: cpus::server(),
                client_cpu: cpus::server(),
                warm_up_seconds: 0.1,
                seconds: 0.5,
            };
            let result = run(&spec).expect("loopback");
            assert!(result.requests > 0, "{direction:?}, {blocks:?}");
        }
    }

    /// Replies come in the order of the requests, as many at a time as there happen to be.
    #[test]
    fn each_request_has_the_time_until_its_own_reply() {
        let begin = Instant::now();
        let at = |us: u64| begin + Duration::from_micros(us);
        let mut outstanding = Outstanding::from([(at(0), 3), (at(10), 1)]);
        let mut latencies = Latencies::default();
        answered(&mut outstanding, 2, at(100), &mut latencies);
        assert_eq!((latencies.count(), latencies.max_ns()), (2, Some(100_000)));
        answered(&mut outstanding, 2, at(200), &mut latencies);
        assert!(outstanding.is_empty());
        let mean_us = latencies.mean_ns().expect("four") / 1e3;
        assert_eq!(latencies.count(), 4);
        assert!((mean_us - f64::from(100 + 100 + 200 + 190) / 4.0).abs() < 1.0, "{mean_us}");
    }
}
