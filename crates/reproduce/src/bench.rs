//! Clients with requests outstanding, the scheduler, and a modelled drive, in simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;
use schedule::{
    Ceiling, CostModel, Direction, Dispatch, FlowId, PolicyKind, Promise, Request, Scheduler,
    SchedulerConfig, Slo, plan,
};
use ssd_model::{Model, Params};
use units::{CoreIndex, Duration, Instant, Pba, PbaRange};

use crate::ReproduceError;

/// With this latency a device has a window that never fills: under `fcfs` it is as if there were no
/// scheduler.
pub(crate) const UNBOUNDED: Duration = Duration::from_secs(3600);
/// Longest latency that is told apart.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The load of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) slo: Slo,
    /// The requests that it keeps outstanding.
    pub(crate) depth: Depth,
    /// Blocks of a read, and of a write.
    pub(crate) blocks: [u32; 2],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Depth {
    /// So many requests, of which so many in a hundred are reads.
    Mixed { requests: u32, reads_percent: u32 },
    /// So many reads and so many writes.
    Apart { reads: u32, writes: u32 },
    /// So many writes, while reads come by themselves, as a Poisson process: a host whose users do not
    /// wait for each other. Those that find the drive busy are counted like all others.
    Open { reads_per_second: u32, writes: u32 },
}

/// Requests of a client since the last look.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) requests: [u64; 2],
    pub(crate) blocks: u64,
    pub(crate) latencies: [Histogram<u64>; 2],
}

struct Lane {
    client: Client,
    flow: FlowId,
    outstanding: [u32; 2],
    /// When the next read comes by itself.
    next_read: Option<Instant>,
    got: Got,
}

#[derive(Clone, Copy)]
struct Token {
    lane: usize,
    submitted: Instant,
}

/// Time of an event.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Completion {
    at: Instant,
    /// Tells apart what happens at once, and finds the request.
    slot: usize,
}

/// The drive and the volumes on it.
pub(crate) struct Device {
    pub(crate) params: Params,
    pub(crate) blocks: u64,
    pub(crate) ceiling: Ceiling,
    pub(crate) latency: Duration,
}

pub(crate) struct Bench {
    scheduler: Scheduler<Token>,
    model: Model,
    blocks: u64,
    lanes: Vec<Lane>,
    now: Instant,
    completions: BinaryHeap<Reverse<Completion>>,
    under_way: Vec<Option<(Token, Request)>>,
    free_slots: Vec<usize>,
    random: u64,
}

impl Got {
    fn new() -> Self {
        let histogram = || Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("valid bounds");
        Self { requests: [0; 2], blocks: 0, latencies: [histogram(), histogram()] }
    }

    /// Takes in what another client got, or the same one later.
    pub(crate) fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        for kind in 0..2 {
            self.requests[kind] += other.requests[kind];
            self.latencies[kind].add(&other.latencies[kind]).expect("equal bounds");
        }
    }

    /// Reads and writes together.
    pub(crate) fn total(&self) -> u64 {
        self.requests.iter().sum()
    }
}

impl Bench {
    pub(crate) fn new(
        device: &Device,
        policy: PolicyKind,
        clients: &[Client],
        seed: u64,
    ) -> Result<Self, ReproduceError> {
        let model = CostModel::Separate;
        let promises: Vec<Promise> =
            clients.iter().map(|client| Promise { core: CoreIndex(0), slo: client.slo }).collect();
        let plan = plan(device.ceiling, device.latency, model, &promises, 1)?;
        let window_blocks = plan.cores[CoreIndex(0)].expect("there are clients").window_blocks;
        let ceiling = device.ceiling.quota(model);
        let config = SchedulerConfig { policy, cost_model: model, ceiling, window_blocks };
        let mut scheduler = Scheduler::new(config, Instant(0));
        let lane = |(client, quota): (&Client, _)| Lane {
            client: *client,
            flow: scheduler.add_flow(quota, Instant(0)),
            outstanding: [0; 2],
            next_read: None,
            got: Got::new(),
        };
        let lanes = clients.iter().zip(plan.quotas).map(lane).collect();
        Ok(Self {
            scheduler,
            model: Model::new(&device.params, device.blocks, seed)?,
            blocks: device.blocks,
            lanes,
            now: Instant(0),
            completions: BinaryHeap::new(),
            under_way: Vec::new(),
            free_slots: Vec::new(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        })
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn set_depth(&mut self, client: usize, depth: Depth) {
        self.lanes[client].client.depth = depth;
    }

    /// Returns the requests of a client since the last call.
    pub(crate) fn take_got(&mut self, client: usize) -> Got {
        std::mem::replace(&mut self.lanes[client].got, Got::new())
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(below)) >> 64) as u64
    }

    /// Brings every client to its depth.
    fn submit_all(&mut self) {
        (0..self.lanes.len()).for_each(|lane| self.submit(lane));
    }

    fn submit(&mut self, lane: usize) {
        loop {
            let [reads, writes] = self.lanes[lane].outstanding;
            let direction = match self.lanes[lane].client.depth {
                Depth::Mixed { requests, .. } if reads + writes >= requests => return,
                Depth::Mixed { reads_percent, .. } => {
                    let is_read = self.draw(100) < u64::from(reads_percent);
                    if is_read { Direction::Read } else { Direction::Write }
                }
                Depth::Apart { reads: most, .. } if reads < most => Direction::Read,
                Depth::Apart { writes: most, .. } | Depth::Open { writes: most, .. }
                    if writes < most =>
                {
                    Direction::Write
                }
                Depth::Apart { .. } | Depth::Open { .. } => return,
            };
            self.submit_one(lane, direction);
        }
    }

    fn submit_one(&mut self, lane: usize, direction: Direction) {
        let this = &mut self.lanes[lane];
        let blocks = this.client.blocks[direction as usize];
        this.outstanding[direction as usize] += 1;
        let token = Token { lane, submitted: self.now };
        let (flow, request) = (this.flow, Request { direction, blocks });
        if self.scheduler.issue_at_once(flow, request, self.now) {
            self.issue(request, token);
        } else {
            self.scheduler.enqueue(flow, request, token, self.now);
        }
    }

    /// Submits the reads that have come by themselves; returns when the next does.
    fn let_reads_come(&mut self) -> Option<Instant> {
        for lane in 0..self.lanes.len() {
            let Depth::Open { reads_per_second, .. } = self.lanes[lane].client.depth else {
                continue;
            };
            while let at = self.lanes[lane].next_read.unwrap_or(self.now)
                && at <= self.now
            {
                if self.lanes[lane].next_read.is_some() {
                    self.submit_one(lane, Direction::Read);
                }
                // Times between events that know nothing of each other.
                let unit = (self.draw(1 << 32) + 1) as f64 / (1_u64 << 32) as f64;
                let pause = Duration::from_secs_f64(-unit.ln() / f64::from(reads_per_second));
                self.lanes[lane].next_read = Some(at + pause);
            }
        }
        self.lanes.iter().filter_map(|lane| lane.next_read).min()
    }

    fn issue(&mut self, request: Request, token: Token) {
        let blocks = u64::from(request.blocks);
        let place = self.draw(self.blocks / blocks) * blocks;
        let range = PbaRange::new(Pba(place), blocks);
        let at = match request.direction {
            Direction::Read => self.model.read(self.now, range),
            Direction::Write => self.model.write(self.now, range),
        };
        let slot = self.free_slots.pop().unwrap_or(self.under_way.len());
        if slot == self.under_way.len() {
            self.under_way.push(None);
        }
        self.under_way[slot] = Some((token, request));
        self.completions.push(Reverse(Completion { at, slot }));
    }

    /// Issues what may leave; returns when to look again, if time alone lets more go.
    fn dispatch(&mut self) -> Option<Instant> {
        loop {
            match self.scheduler.dispatch(self.now) {
                Dispatch::Issue { request, token, .. } => self.issue(request, token),
                Dispatch::WaitUntil(at) => return Some(at),
                Dispatch::Full | Dispatch::Idle => return None,
            }
        }
    }

    fn complete(&mut self, slot: usize) {
        let (token, request) = self.under_way[slot].take().expect("it was under way");
        self.free_slots.push(slot);
        let lane = &mut self.lanes[token.lane];
        self.scheduler.complete(lane.flow, request);
        let kind = request.direction as usize;
        lane.outstanding[kind] -= 1;
        lane.got.requests[kind] += 1;
        lane.got.blocks += u64::from(request.blocks);
        let latency_ns = self.now.0 - token.submitted.0;
        lane.got.latencies[kind].saturating_record(latency_ns.max(1));
        self.submit(token.lane);
    }

    /// Lets time pass until `end`.
    pub(crate) fn run_until(&mut self, end: Instant) {
        self.submit_all();
        loop {
            let arrival = self.let_reads_come();
            let wake = self.dispatch().into_iter().chain(arrival).min();
            let next = self.completions.peek().map(|Reverse(completion)| completion.at);
            let next = next.into_iter().chain(wake).min().unwrap_or(end);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while let Some(Reverse(Completion { at, slot })) = self.completions.peek().copied()
                && at <= self.now
            {
                self.completions.pop();
                self.complete(slot);
            }
        }
    }
}
