//! The result of a run.

use std::time::Duration;

use serde::Serialize;

use crate::latency::{Latencies, Summary};

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
    /// The generator was the limit, so that the figures are its own and not the server's.
    pub limited_by_generator: bool,
    /// The run over time.
    pub series: Vec<Point>,
    /// All latencies of reads.
    #[serde(skip)]
    pub read_latencies: Latencies,
    /// All latencies of writes.
    #[serde(skip)]
    pub write_latencies: Latencies,
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

    /// True if the run kept its rate without errors, and `latency` of it keeps `target`.
    #[must_use]
    pub fn keeps(&self, target: Duration, latency: impl Fn(&Latencies) -> Duration) -> bool {
        let is_whole = self.errors == 0 && self.unanswered == 0 && !self.overloaded;
        is_whole && self.judged().count() > 0 && latency(self.judged()) <= target
    }
}
