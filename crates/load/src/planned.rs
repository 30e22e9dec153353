//! Requests that have a time of their own: those of a profile, or of a recording.

use units::{Duration, Lba};

use crate::measure::Kind;
use crate::workload::OnError;

/// A request of an open loop. As small as it can be: a recording has millions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Planned {
    /// Nanoseconds since the start of the run.
    pub at_ns: u64,
    /// The first block.
    pub start: Lba,
    /// Blocks of 4 KiB.
    pub blocks: u32,
    /// Direction of the data.
    pub kind: Kind,
}

/// Terms of a run of planned requests.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Requests outstanding on each connection, at most. Those that come when as many are outstanding wait, and their latency
    /// counts that.
    pub depth: u32,
    /// Blocks of the largest request.
    pub blocks_max: u32,
    /// Requests from this time on are left out.
    pub until: Option<Duration>,
    /// Length of a step in the time series.
    pub interval: Duration,
    /// Policy after errors.
    pub on_error: OnError,
    /// Decides over the data of writes.
    pub seed: u64,
}
