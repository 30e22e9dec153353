//! Runs: threads, started together, whose measurements are merged.

use std::net::SocketAddr;
use std::ops::Range;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::arrivals::{Arrivals, Schedule};
use crate::connection::{Connection, Encoder, RunError};
use crate::cpu::limiting_share;
use crate::drive::{Driven, drive};
use crate::engine::{Engine, Pace, Record, interval_len};
use crate::latency::Latencies;
use crate::outcome::{Outcome, Point};
use crate::probe::probe;
use crate::workload::{Drawer, Workload};

/// Threads start this long after the last connection is there.
const START_DELAY: Duration = Duration::from_millis(50);
/// Stream of chance for the probe: no thread has it.
const PROBE_STREAM: u64 = u64::MAX;
/// Requests outstanding on each connection while filling.
const FILL_DEPTH: usize = 64;
/// A fill has no time limit of its own.
const FILL_TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// The loop that requests follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loop {
    /// So many requests a second, at their intended times.
    Open {
        /// Requests a second.
        rate: f64,
        /// Their distances.
        arrivals: Arrivals,
    },
    /// The next when the one before is answered.
    Closed,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The server.
    pub address: SocketAddr,
    /// Its password.
    pub password: Option<String>,
    /// Threads.
    pub threads: usize,
    /// Connections, dealt to the threads.
    pub connections: usize,
    /// Requests that a connection may have outstanding.
    pub depth: usize,
    /// The loop.
    pub pace: Loop,
    /// Time before the measured time.
    pub warm_up: Duration,
    /// The measured time.
    pub duration: Duration,
    /// Time for the last answers.
    pub drain: Duration,
    /// Reads a second of the probe; 0: none.
    pub probe_rate: f64,
    /// The requests.
    pub workload: Workload,
}

impl Setup {
    fn window(&self) -> Range<Duration> {
        self.warm_up..self.warm_up + self.duration
    }

    fn connect(&self) -> Result<Connection, RunError> {
        Connection::open(self.address, self.password.as_deref())
    }

    /// The connections of each thread. No thread is without one.
    fn connect_all(&self) -> Result<Vec<Vec<Connection>>, RunError> {
        let threads = self.threads.clamp(1, self.connections.max(1));
        let mut all: Vec<Vec<Connection>> = (0..threads).map(|_| Vec::new()).collect();
        for index in 0..self.connections.max(1) {
            all[index % threads].push(self.connect()?);
        }
        Ok(all)
    }
}

/// Puts load on the server and measures it.
///
/// # Errors
///
/// A connection cannot be made, or breaks.
pub fn run(setup: &Setup) -> Result<Outcome, RunError> {
    let mut connections = setup.connect_all()?;
    let mut probing = if setup.probe_rate > 0.0 { Some(setup.connect()?) } else { None };
    let threads = connections.len();
    let start = Instant::now() + START_DELAY;
    let (window, give_up) = (setup.window(), setup.window().end + setup.drain);
    thread::scope(|scope| {
        let mut handles = Vec::new();
        for (index, own) in connections.iter_mut().enumerate() {
            let mut drawer = Drawer::new(&setup.workload, index as u64);
            let pace = match setup.pace {
                Loop::Closed => Pace::Closed,
                Loop::Open { rate, arrivals } => {
                    Pace::Open(Schedule::new(arrivals, rate, index, threads, drawer.rng()))
                }
            };
            let engine = Engine::new(pace, drawer, own.len(), setup.depth, window.clone());
            handles.push(spawn(scope, move || {
                drive_from(engine, own, &setup.workload, start, give_up)
            })?);
        }
        let probe_handle = probing
            .as_mut()
            .map(|connection| spawn(scope, || probe_from(setup, connection, start)));
        let driven = handles.into_iter().map(joined).collect::<Result<Vec<_>, _>>()?;
        let probed = probe_handle.transpose()?.map(joined).transpose()?;
        Ok(summarise(setup, &driven, probed.as_ref()))
    })
}

/// Writes each key of the workload once.
///
/// # Errors
///
/// A connection cannot be made, or breaks.
pub fn fill(setup: &Setup) -> Result<Outcome, RunError> {
    let setup =
        Setup { pace: Loop::Closed, warm_up: Duration::ZERO, probe_rate: 0.0, ..setup.clone() };
    let mut connections = setup.connect_all()?;
    let (threads, keys) = (connections.len() as u64, setup.workload.keys);
    let start = Instant::now();
    let driven = thread::scope(|scope| {
        let mut handles = Vec::new();
        for (index, own) in connections.iter_mut().enumerate() {
            let bound =
                |index: u64| (u128::from(keys) * u128::from(index) / u128::from(threads)) as u64;
            let range = bound(index as u64)..bound(index as u64 + 1);
            let drawer = Drawer::filling(&setup.workload, index as u64, range);
            let engine =
                Engine::new(Pace::Closed, drawer, own.len(), FILL_DEPTH, Duration::ZERO..FILL_TIME);
            let workload = &setup.workload;
            handles
                .push(spawn(scope, move || drive_from(engine, own, workload, start, FILL_TIME))?);
        }
        handles.into_iter().map(joined).collect::<Result<Vec<_>, _>>()
    })?;
    let took = driven.iter().map(|driven| driven.end).max().unwrap_or_default();
    Ok(summarise(&Setup { duration: took, ..setup }, &driven, None))
}

fn drive_from(
    engine: Engine,
    connections: &mut [Connection],
    workload: &Workload,
    start: Instant,
    give_up: Duration,
) -> Result<Driven, RunError> {
    let mut encoder = Encoder::new(workload);
    thread::sleep(start.saturating_duration_since(Instant::now()));
    drive(engine, connections, &mut encoder, start, give_up)
}

fn probe_from(
    setup: &Setup,
    connection: &mut Connection,
    start: Instant,
) -> Result<Latencies, RunError> {
    let mut encoder = Encoder::new(&setup.workload);
    let drawer = Drawer::new(&setup.workload, PROBE_STREAM);
    thread::sleep(start.saturating_duration_since(Instant::now()));
    let period = Duration::from_secs_f64(1.0 / setup.probe_rate);
    probe(connection, &mut encoder, drawer, start, period, &setup.window())
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T, RunError> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, RunError>>, RunError> {
    thread::Builder::new()
        .name("kv-load".to_owned())
        .spawn_scoped(scope, work)
        .map_err(RunError::System)
}

fn joined<T>(handle: ScopedJoinHandle<'_, Result<T, RunError>>) -> Result<T, RunError> {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn summarise(setup: &Setup, driven: &[Driven], probed: Option<&Latencies>) -> Outcome {
    let mut record = Record::new();
    driven.iter().for_each(|driven| record.merge(&driven.record));
    let shares: Vec<f64> = driven.iter().map(|driven| driven.busy).collect();
    let seconds = setup.duration.as_secs_f64();
    let answered = record.reads.count() + record.writes.count() - record.unanswered;
    Outcome {
        target_qps: match setup.pace {
            Loop::Open { rate, .. } => Some(rate),
            Loop::Closed => None,
        },
        qps: answered as f64 / seconds,
        seconds,
        reads: record.reads.summary(),
        writes: record.writes.summary(),
        probe: probed.map(Latencies::summary),
        lateness: record.lateness.summary(),
        missing: record.missing,
        errors: record.errors,
        first_error: driven.iter().find_map(|driven| driven.first_error.clone()),
        unanswered: record.unanswered,
        overloaded: driven.iter().any(|driven| driven.overloaded),
        busiest_thread: shares.iter().copied().fold(0.0, f64::max),
        limited_by_generator: limiting_share(&shares).is_some(),
        series: series(&record, &setup.window()),
        read_latencies: record.reads,
        write_latencies: record.writes,
    }
}

fn series(record: &Record, window: &Range<Duration>) -> Vec<Point> {
    let len = interval_len(window).as_secs_f64();
    let whole = (window.end - window.start).as_secs_f64();
    let point = |(index, interval): (usize, &crate::engine::Interval)| {
        let second = index as f64 * len;
        let nanos = |percent| interval.latencies.percentile(percent).as_nanos() as u64;
        // The last interval may be shorter.
        let qps = interval.done as f64 / len.min((whole - second).max(1e-9));
        Point { second, qps, errors: interval.errors, p50_ns: nanos(50.0), p99_ns: nanos(99.0) }
    };
    record.intervals.iter().enumerate().map(point).collect()
}
