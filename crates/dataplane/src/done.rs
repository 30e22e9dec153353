//! All that is counted of the requests of a volume, or of all on a device.

use schedule::Request;
use units::{Duration, Instant};

use crate::errors::ErrorCounts;
use crate::flow_stats::FlowStats;
use crate::latency::LatencyCounts;

/// Requests that were done, their latency, and their errors. Counts go on for ever.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Requests that were done, and those that are waiting.
    pub flow: FlowStats,
    /// Latency of reads and writes.
    pub latency: [LatencyCounts; 2],
    /// Errors that were answered, also to commands that never came to the engine.
    pub errors: ErrorCounts,
}

impl Done {
    /// A request that arrived then, and whose turn came `since` then, is over.
    pub(crate) fn note_end(
        &mut self,
        request: &Request,
        [arrived, since]: [Instant; 2],
        now: Instant,
    ) {
        self.flow.note_end(request, now.since(since));
        self.latency[request.direction as usize].note(now.since(arrived));
    }

    /// Requests waited for their turn so long, and wait no more.
    pub(crate) fn note_waited(&mut self, waited: Duration) {
        self.flow.queued -= 1;
        self.flow.waited += waited;
    }

    /// Takes in what another did.
    pub fn add(&mut self, other: &Self) {
        self.flow.add(&other.flow);
        self.latency.iter_mut().zip(&other.latency).for_each(|(all, one)| all.add(one));
        self.errors.add(&other.errors);
    }
}
