//! Description of the load to generate.

use std::time::Duration;

use units::LbaRange;

/// Order of the requests in the range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// One behind the other, from the start again at the end. All tasks share one position.
    Sequential,
    /// Drawn independently.
    Random(Distribution),
}

/// Frequency with which each part of the range is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// The k-th most popular request's address with weight `k^-theta`.
    Zipf {
        /// Skew; above zero. 0.99 is what YCSB uses.
        theta: f64,
    },
}

/// When to stop issuing requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many bytes.
    Bytes(u64),
}

/// Arrivals of requests in an open loop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrivals {
    /// At equal distances.
    Fixed,
    /// At random, independently of each other.
    Poisson,
}

/// An open loop: requests arrive whether or not earlier ones are done. Latency counts from the
/// arrival, so that a stall shows in every request that it delays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests a second, over all connections.
    pub per_second: f64,
    /// Distribution of the arrivals.
    pub arrivals: Arrivals,
}

/// Policy after a request that fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnError {
    /// End the run.
    Stop,
    /// Count it and go on.
    Continue,
}

/// Description of the load to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Share of reads in percent.
    pub read_percent: u8,
    /// Order of addresses.
    pub access: Access,
    /// Blocks of each request.
    pub blocks_per_request: u32,
    /// Requests outstanding on each connection.
    pub depth: u32,
    /// When to stop.
    pub limit: Limit,
    /// `None`: a closed loop, each request begins when one before it ends.
    pub rate: Option<Rate>,
    /// The part of the target to use.
    pub range: LbaRange,
    /// Equal seeds give equal requests.
    pub seed: u64,
    /// Length of a step in the time series.
    pub interval: Duration,
    /// Policy after errors.
    pub on_error: OnError,
}

/// Why a workload cannot run.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// Nothing would ever be issued.
    #[error("depth, block size, rate, interval and number of connections must be above zero")]
    Zero,
    /// Not one request fits.
    #[error("a request of {request_blocks} blocks does not fit into {range}")]
    RangeTooSmall {
        /// Blocks of a request.
        request_blocks: u32,
        /// The range.
        range: LbaRange,
    },
    /// The range is not all on the target.
    #[error("{range} ends beyond the target, which has {blocks} blocks of 4 KiB")]
    BeyondTarget {
        /// The range.
        range: LbaRange,
        /// Blocks of the target.
        blocks: u64,
    },
    /// No such share.
    #[error("{0} % is no share of reads")]
    Percent(u8),
    /// Every block of a checked range could be busy at once.
    #[error("checking needs room for {needed} requests in the range, which holds {slots}")]
    TooBusyToCheck {
        /// Requests that the range must hold.
        needed: u64,
        /// Requests that it holds.
        slots: u64,
    },
    /// Requests and journal do not match.
    #[error("the journal covers {journal}, the workload uses {range}")]
    OtherRange {
        /// Range of the journal.
        journal: LbaRange,
        /// Range of the workload.
        range: LbaRange,
    },
}

impl Workload {
    /// Checks the workload against targets of `blocks` blocks.
    pub(crate) fn check(&self, connections: usize, blocks: u64) -> Result<(), WorkloadError> {
        let rate_is_zero =
            self.rate.is_some_and(|rate| rate.per_second.is_nan() || rate.per_second <= 0.0);
        let zero = self.depth == 0 || self.blocks_per_request == 0 || connections == 0;
        if zero || rate_is_zero || self.interval.is_zero() {
            return Err(WorkloadError::Zero);
        }
        if self.read_percent > 100 {
            return Err(WorkloadError::Percent(self.read_percent));
        }
        let range = self.range;
        if range.checked_end().is_none_or(|end| end.0 > blocks) {
            return Err(WorkloadError::BeyondTarget { range, blocks });
        }
        if range.blocks < u64::from(self.blocks_per_request) {
            let request_blocks = self.blocks_per_request;
            return Err(WorkloadError::RangeTooSmall { request_blocks, range });
        }
        Ok(())
    }

    /// Requests that fit into the range.
    pub(crate) fn slots(&self) -> u64 {
        self.range.blocks / u64::from(self.blocks_per_request)
    }
}
