//! Results of a run, ready to be written as JSON.

use serde::Serialize;

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// From the first request issued to the last one done.
    pub seconds: f64,
    /// True if it was ended before its time or its bytes were over.
    pub cut_short: bool,
    /// Requests done, both ways.
    pub requests: u64,
    /// Requests a second, both ways.
    pub iops: f64,
    /// Bytes a second, both ways.
    pub bytes_per_second: f64,
    /// Reads.
    pub read: Tally,
    /// Writes.
    pub write: Tally,
    /// Requests that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// Blocks that were read and compared with what was written.
    pub blocks_checked: u64,
    /// Blocks that did not hold what they should.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<String>,
    /// Time series.
    pub intervals: Vec<Interval>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Requests done.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Latency, if there were any.
    pub latency: Option<Latency>,
}

/// A distribution of latencies.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_ns: f64,
    /// Smallest.
    pub min_ns: u64,
    /// Largest.
    pub max_ns: u64,
    /// Half of the requests took no longer.
    pub p50_ns: u64,
    /// 90 % took no longer.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p99_9_ns: u64,
    /// 99.99 %.
    pub p99_99_ns: u64,
    /// 99.999 %.
    pub p99_999_ns: u64,
    /// 99.9999 %.
    pub p99_9999_ns: u64,
    /// Pairs of quantile and nanoseconds, in even steps of nines; for plots.
    pub curve: Vec<(f64, f64)>,
}

/// A step of the time series.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    /// When it ended, since the start of the run.
    pub end_seconds: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// Reads done in it.
    pub reads: u64,
    /// Writes done in it.
    pub writes: u64,
    /// Bytes moved in it.
    pub bytes: u64,
    /// Requests that failed in it.
    pub errors: u64,
    /// Median latency of what was done in it, zero if nothing was.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Largest latency.
    pub max_ns: u64,
}

impl Interval {
    /// Requests a second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        if self.seconds > 0.0 { (self.reads + self.writes) as f64 / self.seconds } else { 0.0 }
    }
}
