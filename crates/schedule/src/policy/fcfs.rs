//! First come, first served: one queue for all, no quota, no ceiling.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use units::Instant;

use super::{FlowId, Next, Policy};
use crate::{Cost, Quota};

/// The offered requests by arrival: each flow's oldest, so the first is the oldest of all.
#[derive(Debug, Default)]
pub(super) struct FirstComeFirstServed {
    offered: BinaryHeap<Reverse<(u64, FlowId)>>,
}

impl Policy for FirstComeFirstServed {
    fn set_flow(&mut self, _: FlowId, _: Quota, _: Instant) {}

    fn remove_flow(&mut self, flow: FlowId) {
        self.offered.retain(|Reverse((_, other))| *other != flow);
    }

    fn set_ceiling(&mut self, _: Quota, _: Instant) {}

    fn offer(&mut self, flow: FlowId, _: Cost, arrival: u64, _: Instant) {
        self.offered.push(Reverse((arrival, flow)));
    }

    fn next(&mut self, _: Instant) -> Next {
        self.offered.pop().map_or(Next::Nothing, |Reverse((_, flow))| Next::Flow(flow))
    }
}
