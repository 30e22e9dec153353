//! Counters of requests that a volume, or all on a device, have done, and of those that wait.

use std::time::Duration;

use schedule::Request;
use units::Instant;

/// Requests that were done, and those that wait. Counts go on for ever.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlowStats {
    /// Requests that wait for their turn.
    pub queued: u64,
    /// Requests behind that, at the engine and the device.
    pub in_flight: u64,
    /// Their blocks, of reads and of writes.
    pub in_flight_blocks: [u64; 2],
    /// Requests that are done.
    pub requests: u64,
    /// Their blocks, of reads and of writes.
    pub blocks: [u64; 2],
    /// Time that requests waited for their turn, all together.
    pub waited: Duration,
    /// Time that they took behind that, all together.
    pub served: Duration,
}

impl FlowStats {
    pub(crate) fn note_start(&mut self, request: &Request) {
        self.in_flight += 1;
        self.in_flight_blocks[request.direction as usize] += u64::from(request.blocks);
    }

    pub(crate) fn note_end(&mut self, request: &Request, served: Duration) {
        let (direction, blocks) = (request.direction as usize, u64::from(request.blocks));
        self.in_flight -= 1;
        self.in_flight_blocks[direction] -= blocks;
        self.requests += 1;
        self.blocks[direction] += blocks;
        self.served += served;
    }

    /// Takes in what another did.
    pub fn add(&mut self, other: &Self) {
        self.queued += other.queued;
        self.in_flight += other.in_flight;
        self.requests += other.requests;
        self.waited += other.waited;
        self.served += other.served;
        for direction in 0..2 {
            self.in_flight_blocks[direction] += other.in_flight_blocks[direction];
            self.blocks[direction] += other.blocks[direction];
        }
    }
}

/// For how long at least one request was there, waiting or under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyTime {
    under_way: u64,
    /// Since when.
    since: Instant,
    /// The end of the last time.
    until: Instant,
    sum: Duration,
}

impl BusyTime {
    /// A request is under way that arrived earlier, or now.
    pub(crate) fn begin(&mut self, arrived: Instant) {
        if self.under_way == 0 {
            self.since = arrived.max(self.until);
        }
        self.under_way += 1;
    }

    pub(crate) fn end(&mut self, now: Instant) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.sum += now.since(self.since);
            self.until = now;
        }
    }

    /// All of it, until now.
    pub(crate) fn at(&self, now: Instant) -> Duration {
        let current = (self.under_way > 0).then(|| now.since(self.since));
        self.sum + current.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_many_requests_there_are() {
        let second = |n: u64| Instant(n * 1_000_000_000);
        let mut busy = BusyTime::default();
        assert_eq!(busy.at(second(5)), Duration::ZERO);
        busy.begin(second(10));
        busy.begin(second(12));
        assert_eq!(busy.at(second(13)), Duration::from_secs(3));
        busy.end(second(14));
        busy.end(second(20));
        assert_eq!(busy.at(second(30)), Duration::from_secs(10));
        // It came while the others were under way, and its turn was later.
        busy.begin(second(15));
        busy.end(second(31));
        assert_eq!(busy.at(second(40)), Duration::from_secs(21));
    }
}
