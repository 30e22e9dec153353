//! Runs: threads of this process, started together, whose measurements are merged.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, Schedule};
use crate::connection::{Connection, Encoder, RunError};
use crate::drive::{Driven, drive};
use crate::engine::{Engine, Pace, Record};
use crate::outcome::{Outcome, summarise};
use crate::probe::Probe;
use crate::tls::{Dialler, TargetTls};
use crate::workload::{Drawer, Workload, WorkloadError};

/// Threads start this long after the last connection is there.
const START_DELAY: Duration = Duration::from_millis(50);
/// Requests outstanding on each connection while filling.
const FILL_DEPTH: usize = 64;
/// A fill has no time limit of its own.
const FILL_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Threads of a process at most.
pub const THREADS_MAX: usize = 256;
/// Connections of a process at most, and requests outstanding on each.
pub const CONNECTIONS_MAX: usize = 10_000;
/// The longest run.
const RUN_TIME_MAX: Duration = Duration::from_secs(15 * 24 * 3600);
const RATES: std::ops::RangeInclusive<f64> = 1e-3..=1e9;

/// The loop that requests follow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Loop {
    /// So many requests a second, at their intended times.
    Open {
        /// Requests a second.
        #[serde(with = "crate::exact")]
        rate: f64,
        /// Their distances.
        arrivals: Arrivals,
    },
    /// The next when the one before is answered.
    Closed,
}

/// The settings of a run. With agents, threads and connections are those of each, and the rate is that of all together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The server.
    pub address: SocketAddr,
    /// TLS to the server; absent: none.
    pub tls: Option<TargetTls>,
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
    /// Reads a second of the probe; 0: none. The probe is never an agent's.
    #[serde(skip)]
    pub probe_rate: f64,
    /// The requests.
    pub workload: Workload,
}

/// Settings that make no run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// The load cannot be made.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A number is out of its range.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

impl Setup {
    /// Checks what single fields do not say.
    ///
    /// # Errors
    ///
    /// The settings make no run.
    pub fn check(&self) -> Result<(), SetupError> {
        self.workload.check()?;
        let rate = match self.pace {
            Loop::Open { rate, .. } => rate,
            Loop::Closed => 1.0,
        };
        let times = [self.warm_up, self.duration, self.drain];
        let ranges = [
            ("the number of threads", (1..=THREADS_MAX).contains(&self.threads)),
            ("the number of connections", (1..=CONNECTIONS_MAX).contains(&self.connections)),
            ("the depth of a connection", (1..=CONNECTIONS_MAX).contains(&self.depth)),
            ("the rate", RATES.contains(&rate)),
            ("a time", times.iter().all(|time| *time <= RUN_TIME_MAX)),
            ("the measured time", !self.duration.is_zero()),
        ];
        match ranges.iter().find(|(_, fits)| !fits) {
            Some((name, _)) => Err(SetupError::OutOfRange(name)),
            None => Ok(()),
        }
    }

    pub(crate) fn window(&self) -> Range<Duration> {
        self.warm_up..self.warm_up + self.duration
    }

    /// Threads that have a connection.
    fn threads(&self) -> usize {
        self.threads.clamp(1, self.connections.max(1))
    }

    fn connect_all(&self) -> Result<Vec<Vec<Connection>>, RunError> {
        let dialler = Dialler::of(self)?;
        let threads = self.threads();
        let mut all: Vec<Vec<Connection>> = (0..threads).map(|_| Vec::new()).collect();
        for index in 0..self.connections.max(1) {
            all[index % threads].push(dialler.connect()?);
        }
        Ok(all)
    }
}

/// The work that a setup describes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Job {
    /// The load.
    Run,
    /// Each key is written once.
    Fill,
}

/// The part of the load that one process makes, among `of` that share it: with equal settings, `of` processes with one thread
/// each send the requests of one process with `of` threads.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Part {
    pub(crate) const WHOLE: Self = Self { index: 0, of: 1 };
}

/// Measurements of one process.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) record: Record,
    pub(crate) first_error: Option<String>,
    /// The server was so far behind that the run was ended.
    pub(crate) overloaded: bool,
    /// The largest share of the time in which a thread wanted the CPU.
    pub(crate) busiest: f64,
    /// The longest time for which a thread did not run though it was to.
    pub(crate) stalled: Duration,
    /// The end, since the start.
    pub(crate) end: Duration,
}

/// The connections of a process, ready to start.
pub(crate) struct Ready<'a> {
    setup: &'a Setup,
    job: Job,
    part: Part,
    connections: Vec<Vec<Connection>>,
}

impl<'a> Ready<'a> {
    pub(crate) fn connect(setup: &'a Setup, job: Job, part: Part) -> Result<Self, RunError> {
        Ok(Self { setup, job, part, connections: setup.connect_all()? })
    }

    /// Puts load on the server from `start` on, until it is done or `stop`.
    pub(crate) fn go(mut self, start: Instant, stop: &AtomicBool) -> Result<Measured, RunError> {
        let connections = std::mem::take(&mut self.connections);
        let give_up = match self.job {
            Job::Run => self.setup.window().end + self.setup.drain,
            Job::Fill => FILL_TIME,
        };
        thread::scope(|scope| {
            let mut handles = Vec::new();
            for (index, mut own) in connections.into_iter().enumerate() {
                let engine = self.engine(index, own.len());
                let mut encoder = Encoder::new(&self.setup.workload);
                handles.push(spawn(scope, stop, move || {
                    thread::sleep(start.saturating_duration_since(Instant::now()));
                    drive(engine, &mut own, &mut encoder, (start, give_up), stop)
                })?);
            }
            let driven = handles.into_iter().map(joined).collect::<Result<Vec<_>, _>>()?;
            Ok(Measured::of(driven))
        })
    }

    fn engine(&self, index: usize, lanes: usize) -> Engine {
        let Self { setup, part, .. } = self;
        let threads = setup.threads();
        let (index, threads) = (part.index * threads + index, part.of * threads);
        let workload = &setup.workload;
        if self.job == Job::Fill {
            let bound =
                |index: usize| (u128::from(workload.keys) * index as u128 / threads as u128) as u64;
            let drawer = Drawer::filling(workload, index as u64, bound(index)..bound(index + 1));
            let window = Duration::ZERO..FILL_TIME;
            return Engine::new(Pace::Closed, drawer, lanes, FILL_DEPTH, window);
        }
        let mut drawer = Drawer::new(workload, index as u64);
        let pace = match setup.pace {
            Loop::Closed => Pace::Closed,
            Loop::Open { rate, arrivals } => {
                Pace::Open(Schedule::new(arrivals, rate, index, threads, drawer.rng()))
            }
        };
        Engine::new(pace, drawer, lanes, setup.depth, setup.window())
    }
}

impl Measured {
    fn of(driven: Vec<Driven>) -> Self {
        let mut record = Record::new();
        driven.iter().for_each(|driven| record.merge(&driven.record));
        Self {
            record,
            overloaded: driven.iter().any(|driven| driven.overloaded),
            busiest: driven.iter().map(|driven| driven.busy).fold(0.0, f64::max),
            stalled: driven.iter().map(|driven| driven.stalled).max().unwrap_or_default(),
            end: driven.iter().map(|driven| driven.end).max().unwrap_or_default(),
            first_error: driven.into_iter().find_map(|driven| driven.first_error),
        }
    }
}

/// Puts load on the server and measures it.
///
/// # Errors
///
/// A connection cannot be made, or breaks.
pub fn run(setup: &Setup) -> Result<Outcome, RunError> {
    let ready = Ready::connect(setup, Job::Run, Part::WHOLE)?;
    let probe = Probe::connect(setup)?;
    let (start, stop) = (Instant::now() + START_DELAY, AtomicBool::new(false));
    thread::scope(|scope| {
        let probing = probe.map(|probe| spawn(scope, &stop, || probe.go(start, &stop)));
        let probing = probing.transpose()?;
        let measured = ready.go(start, &stop)?;
        let probed = probing.map(joined).transpose()?;
        Ok(summarise(setup, &[measured], probed.as_ref()))
    })
}

/// Writes each key of the workload once.
///
/// # Errors
///
/// A connection cannot be made, or breaks.
pub fn fill(setup: &Setup) -> Result<Outcome, RunError> {
    let ready = Ready::connect(setup, Job::Fill, Part::WHOLE)?;
    let measured = ready.go(Instant::now(), &AtomicBool::new(false))?;
    Ok(summarise(&filled(setup, measured.end), &[measured], None))
}

/// The settings that a fill had, by which its result is described.
pub(crate) fn filled(setup: &Setup, took: Duration) -> Setup {
    Setup { pace: Loop::Closed, warm_up: Duration::ZERO, duration: took, ..setup.clone() }
}

/// Starts a thread that, if it fails, ends the others.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    work: impl FnOnce() -> Result<T, RunError> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, RunError>>, RunError> {
    let work = move || {
        let done = work();
        if done.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        done
    };
    let spawned = thread::Builder::new().name("kv-load".to_owned()).spawn_scoped(scope, work);
    spawned.map_err(|error| {
        stop.store(true, Ordering::Relaxed);
        RunError::System(error)
    })
}

pub(crate) fn joined<T>(handle: ScopedJoinHandle<'_, Result<T, RunError>>) -> Result<T, RunError> {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
