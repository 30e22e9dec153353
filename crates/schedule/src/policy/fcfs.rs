//! First come, first served among requests of a class: one line for all flows, no quota, no ceiling.
//!
//! - FCFS-1: of all requests that wait, the oldest is its flow's oldest, and so it is offered: a
//!   place without a flow at the head of the line is that of a request that is gone.

use alloc::collections::VecDeque;

use units::Instant;

use super::{FlowId, Next, Policy};

#[derive(Debug, Default)]
pub(super) struct FirstComeFirstServed {
    /// A place for each request since the oldest; those that are offered have their flow.
    line: VecDeque<Option<FlowId>>,
    /// The arrival of the first place.
    first: u64,
}

impl Policy for FirstComeFirstServed {
    fn set_flow(&mut self, _: FlowId, _: f64, _: Instant) {}

    fn remove_flow(&mut self, flow: FlowId) {
        let of_flow = self.line.iter_mut().filter(|place| **place == Some(flow));
        of_flow.for_each(|place| *place = None);
    }

    fn set_ceiling(&mut self, _: f64, _: Instant) {}

    fn offer(&mut self, flow: FlowId, _: u64, arrival: u64, _: Instant) {
        if self.line.is_empty() {
            self.first = arrival;
        }
        let place = arrival.checked_sub(self.first).expect("FCFS-1: the oldest is offered first");
        let place = usize::try_from(place).expect("as many as wait");
        if self.line.len() <= place {
            self.line.resize(place + 1, None);
        }
        self.line[place] = Some(flow);
    }

    fn next(&mut self, _: Instant) -> Next {
        while let Some(place) = self.line.pop_front() {
            self.first += 1;
            if let Some(flow) = place {
                return Next::Flow(flow);
            }
        }
        Next::Nothing
    }

    fn take_at_once(&mut self, _: FlowId, _: u64, _: Instant) -> bool {
        true
    }
}
