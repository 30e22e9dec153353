//! The result of a run.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use crate::cpu::limiting_share;
use crate::engine::{Interval, Record, interval_len};
use crate::latency::{Latencies, Summary};
use crate::run::{Loop, Measured, Setup};

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Requests a second that were meant to start; absent in a closed loop.
    pub target_qps: Option<f64>,
    /// Requests a second that were answered, of those meant to start in the measured time.
    pub qps: f64,
    /// Seconds measured.
    pub seconds: f64,
    /// Latencies of reads, from their intended start.
    pub reads: Summary,
    /// Latencies of writes, from their intended start.
    pub writes: Summary,
    /// Latencies that the probe saw; absent without one.
    pub probe: Option<Summary>,
    /// Lateness of requests through the generator's own fault.
    pub lateness: Summary,
    /// Reads of keys that do not exist.
    pub missing: u64,
    /// Requests answered by an error.
    pub errors: u64,
    /// The first of these errors.
    pub first_error: Option<String>,
    /// Requests without an answer at the end; their latency is that up to then.
    pub unanswered: u64,
    /// The server was so far behind that the run was ended.
    pub overloaded: bool,
    /// The largest share of the time in which a thread of the generator wanted the CPU.
    pub busiest_thread: f64,
    /// Seconds for which a thread of the generator, its process or its machine did not run.
    pub stalled_seconds: f64,
    /// The generator was the limit, so that the figures are its own and not the server's.
    pub limited_by_generator: bool,
    /// The agents that made the load; none: this process did.
    pub agents: Vec<AgentPart>,
    /// The run over time.
    pub series: Vec<Point>,
    /// All latencies of reads.
    #[serde(skip)]
    pub read_latencies: Latencies,
    /// All latencies of writes.
    #[serde(skip)]
    pub write_latencies: Latencies,
}

/// An agent's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentPart {
    /// Its address, as it was given.
    pub agent: String,
    /// Requests that it measured.
    pub requests: u64,
    /// The largest share of the time in which one of its threads wanted the CPU.
    pub busiest_thread: f64,
    /// Bound of the difference between its start and the one that was agreed on.
    pub start_error_ns: u64,
}

/// An interval of the time series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Its begin, since the begin of the measured time.
    pub second: f64,
    /// Requests a second.
    pub qps: f64,
    /// Errors in it.
    pub errors: u64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
}

impl Outcome {
    /// The latency of reads by which a target is judged; of writes if there were no reads.
    #[must_use]
    pub fn judged(&self) -> &Latencies {
        if self.read_latencies.count() > 0 { &self.read_latencies } else { &self.write_latencies }
    }

    /// The agent whose thread wanted the CPU most; absent without agents.
    #[must_use]
    pub fn busiest_agent(&self) -> Option<&AgentPart> {
        self.agents.iter().max_by(|one, other| one.busiest_thread.total_cmp(&other.busiest_thread))
    }

    /// True if the run kept its rate without errors, and `latency` of it keeps `target`.
    #[must_use]
    pub fn keeps(&self, target: Duration, latency: impl Fn(&Latencies) -> Duration) -> bool {
        let is_whole = self.errors == 0 && self.unanswered == 0 && !self.overloaded;
        is_whole && self.judged().count() > 0 && latency(self.judged()) <= target
    }
}

/// Describes the measurements of all processes together.
pub(crate) fn summarise(
    setup: &Setup,
    measured: &[Measured],
    probed: Option<&Latencies>,
) -> Outcome {
    let mut record = Record::new();
    measured.iter().for_each(|measured| record.merge(&measured.record));
    let shares: Vec<f64> = measured.iter().map(|measured| measured.busiest).collect();
    let stalled = measured.iter().map(|measured| measured.stalled).max().unwrap_or_default();
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
        first_error: measured.iter().find_map(|measured| measured.first_error.clone()),
        unanswered: record.unanswered,
        overloaded: measured.iter().any(|measured| measured.overloaded),
        busiest_thread: shares.iter().copied().fold(0.0, f64::max),
        stalled_seconds: stalled.as_secs_f64(),
        limited_by_generator: limiting_share(&shares).is_some() || !stalled.is_zero(),
        agents: Vec::new(),
        series: series(&record, &setup.window()),
        read_latencies: record.reads,
        write_latencies: record.writes,
    }
}

fn series(record: &Record, window: &Range<Duration>) -> Vec<Point> {
    let len = interval_len(window).as_secs_f64();
    let whole = (window.end - window.start).as_secs_f64();
    let point = |(index, interval): (usize, &Interval)| {
        let second = index as f64 * len;
        let nanos = |percent| interval.latencies.percentile(percent).as_nanos() as u64;
        // The last interval may be shorter.
        let qps = interval.done as f64 / len.min((whole - second).max(1e-9));
        Point { second, qps, errors: interval.errors, p50_ns: nanos(50.0), p99_ns: nanos(99.0) }
    };
    record.intervals.iter().enumerate().map(point).collect()
}
