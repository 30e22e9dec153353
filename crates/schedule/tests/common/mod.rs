//! Closed-loop clients before a device that takes so long for each block, in its own time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use schedule::{
    CostModel, Direction, Dispatch, FlowId, PolicyKind, Quota, Request, Scheduler, SchedulerConfig,
};
use units::{Duration, Instant};

/// A client: so many requests outstanding, all alike but for their direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) depth: u32,
    pub(crate) blocks: u32,
    /// Percentage of requests that read.
    pub(crate) reads_percent: u32,
    pub(crate) quota: [f64; 2],
}

/// A device with parallel units; a request takes one of them for a time by direction and length.
pub(crate) struct Bench {
    pub(crate) scheduler: Scheduler<Instant>,
    pub(crate) flows: Vec<FlowId>,
    clients: Vec<Client>,
    now: Instant,
    /// When each unit is free.
    units: BinaryHeap<Reverse<u64>>,
    completions: BinaryHeap<Reverse<(u64, u64, u32)>>,
    in_flight: Vec<(Request, Instant)>,
    outstanding: Vec<u32>,
    random: u64,
    times: [Duration; 2],
    /// Blocks completed by each client since [`Bench::reset`].
    pub(crate) blocks: Vec<u64>,
    /// Times from submission to completion, in the order of completion.
    pub(crate) latencies: Vec<Vec<Duration>>,
}

const READ: Duration = Duration::from_micros(80);
const WRITE: Duration = Duration::from_micros(200);

impl Bench {
    pub(crate) fn new(
        policy: &str,
        ceiling: [f64; 2],
        window: u32,
        units: u32,
        clients: &[Client],
    ) -> Self {
        let config = SchedulerConfig {
            policy: policy.parse::<PolicyKind>().expect("known"),
            cost_model: CostModel::Separate,
            ceiling: Quota { per_second: ceiling },
            // As the plan divides it.
            window_blocks: ceiling.map(|rate| {
                (f64::from(window) * rate / ceiling.iter().sum::<f64>()).round() as u32
            }),
        };
        let mut scheduler = Scheduler::new(config, Instant(0));
        let add =
            |client: &Client| scheduler.add_flow(Quota { per_second: client.quota }, Instant(0));
        let flows = clients.iter().map(add).collect();
        Self {
            scheduler,
            flows,
            clients: clients.to_vec(),
            now: Instant(0),
            units: (0..units).map(|_| Reverse(0)).collect(),
            completions: BinaryHeap::new(),
            in_flight: Vec::new(),
            outstanding: vec![0; clients.len()],
            random: 0x9E37_79B9_7F4A_7C15,
            times: [READ, WRITE],
            blocks: vec![0; clients.len()],
            latencies: vec![Vec::new(); clients.len()],
        }
    }

    pub(crate) fn set_depth(&mut self, client: usize, depth: u32) {
        self.clients[client].depth = depth;
    }

    /// Forgets what was counted.
    pub(crate) fn reset(&mut self) {
        self.blocks.fill(0);
        self.latencies.iter_mut().for_each(Vec::clear);
    }

    /// Sets the time that a unit takes for a block read, and for one written.
    pub(crate) fn set_times(&mut self, read: Duration, write: Duration) {
        self.times = [read, write];
    }

    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32 % 100
    }

    fn submit(&mut self) {
        for client in 0..self.clients.len() {
            let Client { depth, blocks, reads_percent, .. } = self.clients[client];
            while self.outstanding[client] < depth {
                let reads = self.draw() < reads_percent;
                let direction = if reads { Direction::Read } else { Direction::Write };
                let request = Request { direction, blocks };
                let flow = self.flows[client];
                if self.scheduler.issue_at_once(flow, request, self.now) {
                    self.issue(flow, request, self.now);
                } else {
                    self.scheduler.enqueue(flow, request, self.now, self.now);
                }
                self.outstanding[client] += 1;
            }
        }
    }

    fn issue(&mut self, flow: FlowId, request: Request, submitted: Instant) {
        let each = self.times[request.direction as usize];
        let mut end = self.now;
        for _ in 0..request.blocks {
            let Reverse(free) = self.units.pop().expect("units");
            let done = Instant(free.max(self.now.0)) + each;
            self.units.push(Reverse(done.0));
            end = end.max(done);
        }
        self.in_flight.push((request, submitted));
        let number = self.in_flight.len() as u64 - 1;
        self.completions.push(Reverse((end.0, number, flow.0)));
    }

    /// Lets so much time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.submit();
            let mut wake = end;
            loop {
                match self.scheduler.dispatch(self.now) {
                    Dispatch::Issue { flow, request, token } => self.issue(flow, request, token),
                    Dispatch::WaitUntil(at) => {
                        assert!(at > self.now, "POLICY-2: waiting for the past is spinning");
                        wake = wake.min(at);
                        break;
                    }
                    Dispatch::Full | Dispatch::Idle => break,
                }
            }
            if let Some(Reverse((at, ..))) = self.completions.peek() {
                wake = wake.min(Instant(*at));
            }
            self.now = wake;
            while let Some(Reverse((at, number, flow))) = self.completions.peek().copied() {
                if at > self.now.0 {
                    break;
                }
                self.completions.pop();
                let (request, submitted) = self.in_flight[number as usize];
                self.scheduler.complete(FlowId(flow), request);
                let client = self.flows.iter().position(|f| f.0 == flow).expect("known");
                self.outstanding[client] -= 1;
                self.blocks[client] += u64::from(request.blocks);
                self.latencies[client].push(self.now.since(submitted));
            }
        }
    }
}

/// Jain's fairness index: 1 if all are equal.
pub(crate) fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|v| *v as f64).sum();
    let squares: f64 = values.iter().map(|v| (*v as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}
