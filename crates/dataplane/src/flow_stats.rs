//! What a volume, or all on a device, have done and wait for.

use std::time::Duration;

use schedule::Request;

/// What was done and what is waited for. Counts go on for ever.
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
