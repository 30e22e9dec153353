//! The queues of one core before one device.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use slab::Slab;
use units::{Duration, Instant};

use crate::{CostModel, FlowId, Next, Policy, PolicyKind, Quota, Request};

/// How a scheduler works.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// Whose request leaves next.
    pub policy: PolicyKind,
    /// How requests are accounted.
    pub cost_model: CostModel,
    /// What the device may be asked for by this core.
    pub ceiling: Quota,
    /// Blocks that may be under way at the device. A request larger than this goes alone.
    pub window_blocks: u32,
}

/// What to do next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dispatch<T> {
    /// This request leaves; [`Scheduler::complete`] follows when it is done.
    Issue {
        /// Whose.
        flow: FlowId,
        /// What it is.
        request: Request,
        /// The caller's mark.
        token: T,
    },
    /// Requests wait, and none may leave before this instant.
    WaitUntil(Instant),
    /// The window is full: go on when a request is complete.
    Full,
    /// No request waits.
    Idle,
}

/// What a flow has done and what it waits for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlowStats {
    /// Requests that wait here.
    pub queued: u64,
    /// Requests at the device.
    pub in_flight: u64,
    /// Requests that left, since the flow was made.
    pub issued: u64,
    /// Blocks read and written by them.
    pub issued_blocks: [u64; 2],
    /// Time that they waited here, all together.
    pub waited: Duration,
    /// Time that the completed ones took at the device, all together.
    pub served: Duration,
    /// Requests that are complete.
    pub completed: u64,
}

struct Waiting<T> {
    request: Request,
    token: T,
    arrival: u64,
    since: Instant,
}

struct Flow<T> {
    quota: Quota,
    queue: VecDeque<Waiting<T>>,
    stats: FlowStats,
    /// Removed, but for what is in flight.
    removed: bool,
}

/// Queues requests by flow, and says which leaves next. `T` is the caller's mark on a request.
///
/// - Q1: each request that is enqueued is issued once, or returned when its flow is removed or it is
///   taken back; those of one flow in the order of their coming.
/// - Q2: at most the window is in flight, or one request that is larger.
/// - Q3: after [`Scheduler::dispatch`] said [`Dispatch::WaitUntil`], [`Dispatch::Full`] or
///   [`Dispatch::Idle`], nothing changes until that instant, a completion, or a new request.
pub struct Scheduler<T> {
    config: SchedulerConfig,
    policy: Box<dyn Policy>,
    flows: Slab<Flow<T>>,
    arrivals: u64,
    in_flight_blocks: u64,
    queued: u64,
}

impl<T> Scheduler<T> {
    /// A scheduler without flows.
    #[must_use]
    pub fn new(config: SchedulerConfig, now: Instant) -> Self {
        Self {
            config,
            policy: config.policy.make(config.ceiling, now),
            flows: Slab::new(),
            arrivals: 0,
            in_flight_blocks: 0,
            queued: 0,
        }
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> SchedulerConfig {
        self.config
    }

    /// Changes how it works. Requests that wait go on under the new policy, in their order.
    pub fn reconfigure(&mut self, config: SchedulerConfig, now: Instant) {
        let before = core::mem::replace(&mut self.config, config);
        if before.policy == config.policy && before.cost_model == config.cost_model {
            self.policy.set_ceiling(config.ceiling, now);
            return;
        }
        self.policy = config.policy.make(config.ceiling, now);
        let mut waiting = Vec::new();
        for (key, flow) in self.flows.iter().filter(|(_, flow)| !flow.removed) {
            let id = FlowId(u32::try_from(key).expect("no more flows than fit"));
            self.policy.set_flow(id, flow.quota, now);
            waiting.extend(flow.queue.front().map(|first| (first.arrival, id, first.request)));
        }
        waiting.sort_unstable_by_key(|(arrival, ..)| *arrival);
        for (arrival, id, request) in waiting {
            self.policy.offer(id, config.cost_model.cost(request), arrival, now);
        }
    }

    /// Adds a flow.
    pub fn add_flow(&mut self, quota: Quota, now: Instant) -> FlowId {
        let flow =
            Flow { quota, queue: VecDeque::new(), stats: FlowStats::default(), removed: false };
        let id = FlowId(u32::try_from(self.flows.insert(flow)).expect("no more flows than fit"));
        self.policy.set_flow(id, quota, now);
        id
    }

    /// Changes a flow's quota.
    pub fn set_quota(&mut self, flow: FlowId, quota: Quota, now: Instant) {
        self.flow(flow).quota = quota;
        self.policy.set_flow(flow, quota, now);
    }

    /// Removes a flow and returns what waited there. [`Scheduler::complete`] still follows for what is
    /// in flight; nothing else may be asked of the flow.
    pub fn remove_flow(&mut self, flow: FlowId) -> impl Iterator<Item = T> + use<T> {
        self.policy.remove_flow(flow);
        let this = self.flow(flow);
        this.removed = true;
        let queue = core::mem::take(&mut this.queue);
        if this.stats.in_flight == 0 {
            self.flows.remove(flow.0 as usize);
        }
        self.queued -= queue.len() as u64;
        queue.into_iter().map(|waiting| waiting.token)
    }

    /// Takes a waiting request back, which then costs nothing. `false`: it is the flow's oldest, and
    /// will be issued all the same.
    pub fn cancel(&mut self, flow: FlowId, is_it: impl Fn(&T) -> bool) -> bool {
        let this = self.flow(flow);
        let place = this.queue.iter().position(|waiting| is_it(&waiting.token));
        let Some(place) = place.filter(|place| *place > 0) else { return false };
        this.queue.remove(place);
        this.stats.queued -= 1;
        self.queued -= 1;
        true
    }

    /// What a flow has done.
    #[must_use]
    pub fn stats(&self, flow: FlowId) -> FlowStats {
        self.flows[flow.0 as usize].stats
    }

    /// Blocks at the device.
    #[must_use]
    pub fn in_flight_blocks(&self) -> u64 {
        self.in_flight_blocks
    }

    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    fn flow(&mut self, flow: FlowId) -> &mut Flow<T> {
        &mut self.flows[flow.0 as usize]
    }

    /// Takes in a request. [`Scheduler::dispatch`] says when it leaves.
    pub fn enqueue(&mut self, flow: FlowId, request: Request, token: T, now: Instant) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.queued += 1;
        let this = &mut self.flows[flow.0 as usize];
        this.queue.push_back(Waiting { request, token, arrival, since: now });
        this.stats.queued += 1;
        if this.queue.len() == 1 {
            self.policy.offer(flow, self.config.cost_model.cost(request), arrival, now);
        }
    }

    /// Takes the request that leaves next.
    pub fn dispatch(&mut self, now: Instant) -> Dispatch<T> {
        if self.queued == 0 {
            return Dispatch::Idle;
        }
        if self.in_flight_blocks >= u64::from(self.config.window_blocks.max(1)) {
            return Dispatch::Full;
        }
        let flow = match self.policy.next(now) {
            Next::Flow(flow) => flow,
            Next::WaitUntil(at) => return Dispatch::WaitUntil(at),
            Next::Nothing => return Dispatch::Idle,
        };
        let this = &mut self.flows[flow.0 as usize];
        let waiting = this.queue.pop_front().expect("a policy names flows that offered");
        this.stats.note_issue(&waiting.request, now.since(waiting.since));
        if let Some(next) = this.queue.front() {
            self.policy.offer(flow, self.config.cost_model.cost(next.request), next.arrival, now);
        }
        self.queued -= 1;
        self.in_flight_blocks += u64::from(waiting.request.blocks.max(1));
        Dispatch::Issue { flow, request: waiting.request, token: waiting.token }
    }

    /// A request that left is done. `took`: how long it was at the device.
    pub fn complete(&mut self, flow: FlowId, request: Request, took: Duration) {
        self.in_flight_blocks -= u64::from(request.blocks.max(1));
        let this = self.flow(flow);
        this.stats.in_flight -= 1;
        this.stats.completed += 1;
        this.stats.served += took;
        if this.removed && this.stats.in_flight == 0 {
            self.flows.remove(flow.0 as usize);
        }
    }
}

impl FlowStats {
    fn note_issue(&mut self, request: &Request, waited: Duration) {
        self.queued -= 1;
        self.in_flight += 1;
        self.issued += 1;
        self.issued_blocks[request.direction as usize] += u64::from(request.blocks);
        self.waited += waited;
    }
}
