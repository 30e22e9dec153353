//! The queues of one core before one device.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use slab::Slab;
use units::Instant;

use crate::sabotage::{Sabotage, broken};
use crate::{
    CLASSES, Cost, CostModel, Direction, FlowId, Next, Policy, PolicyKind, Quota, Request,
};

/// The configuration of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerConfig {
    /// The policy that selects the next request.
    pub policy: PolicyKind,
    /// The accounting of requests.
    pub cost_model: CostModel,
    /// The rate that this core may ask of the device.
    pub ceiling: Quota,
    /// Blocks of each class that may be under way at the device, and more of one as long as there are
    /// fewer of the other. The last request to come in may reach beyond.
    pub window_blocks: [u32; CLASSES],
}

/// The next action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Dispatch<T> {
    /// This request leaves; [`Scheduler::complete`] follows when it is done.
    Issue {
        /// The flow of the request.
        flow: FlowId,
        /// The request.
        request: Request,
        /// The caller's mark.
        token: T,
    },
    /// Requests wait, and none may leave before this instant.
    WaitUntil(Instant),
    /// Requests wait, and the windows of all of them are full: go on when a request is complete.
    Full,
    /// No request waits.
    Idle,
}

struct Waiting<T> {
    request: Request,
    token: T,
    /// Counts the requests of all classes.
    order: u64,
    /// Counts those of its class.
    arrival: u64,
}

struct Flow<T> {
    quota: Quota,
    queues: [VecDeque<Waiting<T>>; CLASSES],
    /// Requests.
    in_flight: u64,
    /// Removed, but for what is in flight.
    removed: bool,
}

/// Requests of one class, of all flows.
struct Class {
    policy: Box<dyn Policy>,
    arrivals: u64,
    queued: u64,
}

/// Queues requests by flow, and says which leaves next. `T` is the caller's mark on a request.
///
/// - SCHEDULER-1: each request that comes is issued once, or returned when its flow is removed or it is
///   taken back; those of one flow and class in the order of their coming.
/// - SCHEDULER-2: a request leaves if less than its class's window is in flight, or less than all
///   windows together: what one class leaves of its window another may use.
/// - SCHEDULER-3: after [`Scheduler::dispatch`] said [`Dispatch::WaitUntil`], [`Dispatch::Full`] or
///   [`Dispatch::Idle`], nothing changes until that instant, a completion, or a new request.
/// - SCHEDULER-4: classes do not wait for each other. Were a few large writes to fill all windows, reads
///   still have theirs, also those of the same flow.
pub struct Scheduler<T> {
    config: SchedulerConfig,
    classes: [Class; CLASSES],
    /// The class that is looked at first; it counts on beyond the last.
    first_class: usize,
    flows: Slab<Flow<T>>,
    requests: u64,
    /// By direction.
    in_flight_blocks: [u64; 2],
}

impl Class {
    fn all(config: &SchedulerConfig, now: Instant) -> [Self; CLASSES] {
        let make = config.policy.make;
        let class = |rate| Self { policy: make(rate, now), arrivals: 0, queued: 0 };
        config.ceiling.per_second.map(class)
    }
}

impl<T> Scheduler<T> {
    /// A scheduler without flows.
    #[must_use]
    pub fn new(config: SchedulerConfig, now: Instant) -> Self {
        Self {
            config,
            classes: Class::all(&config, now),
            first_class: 0,
            flows: Slab::new(),
            requests: 0,
            in_flight_blocks: [0; 2],
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> SchedulerConfig {
        self.config
    }

    /// Changes how it works. Requests that wait go on under the new policy, in their order.
    pub fn reconfigure(&mut self, config: SchedulerConfig, now: Instant) {
        let before = core::mem::replace(&mut self.config, config);
        if before.policy == config.policy && before.cost_model == config.cost_model {
            for (class, rate) in self.classes.iter_mut().zip(config.ceiling.per_second) {
                class.policy.set_ceiling(rate, now);
            }
            return;
        }
        self.classes = Class::all(&config, now);
        let mut waiting = Vec::new();
        for (key, flow) in self.flows.iter_mut().filter(|(_, flow)| !flow.removed) {
            let id = FlowId(u32::try_from(key).expect("no more flows than fit"));
            for (class, rate) in self.classes.iter_mut().zip(flow.quota.per_second) {
                class.policy.set_flow(id, rate, now);
            }
            let queues = flow.queues.iter_mut().flat_map(core::mem::take);
            waiting.extend(queues.map(|waiting| (id, waiting)));
        }
        waiting.sort_unstable_by_key(|(_, waiting)| waiting.order);
        for (flow, waiting) in waiting {
            self.queue(flow, waiting, now);
        }
    }

    /// Adds a flow.
    pub fn add_flow(&mut self, quota: Quota, now: Instant) -> FlowId {
        let flow = Flow { quota, queues: Default::default(), in_flight: 0, removed: false };
        let id = FlowId(u32::try_from(self.flows.insert(flow)).expect("no more flows than fit"));
        self.set_quota(id, quota, now);
        id
    }

    /// Changes a flow's quota.
    pub fn set_quota(&mut self, flow: FlowId, quota: Quota, now: Instant) {
        self.flow(flow).quota = quota;
        for (class, rate) in self.classes.iter_mut().zip(quota.per_second) {
            class.policy.set_flow(flow, rate, now);
        }
    }

    /// Removes a flow and returns what waited there. [`Scheduler::complete`] still follows for what is
    /// in flight; nothing else may be asked of the flow.
    pub fn remove_flow(&mut self, flow: FlowId) -> impl Iterator<Item = T> + use<T> {
        let this = &mut self.flows[flow.0 as usize];
        this.removed = true;
        let queues = core::mem::take(&mut this.queues);
        if this.in_flight == 0 {
            self.flows.remove(flow.0 as usize);
        }
        for (class, queue) in self.classes.iter_mut().zip(&queues) {
            class.policy.remove_flow(flow);
            class.queued -= queue.len() as u64;
        }
        queues.into_iter().flatten().map(|waiting| waiting.token)
    }

    /// Takes a waiting request back, which then costs nothing. `false`: it is the oldest of its flow and
    /// class, and will be issued all the same.
    pub fn cancel(&mut self, flow: FlowId, is_it: impl Fn(&T) -> bool) -> bool {
        let this = &mut self.flows[flow.0 as usize];
        for (class, queue) in self.classes.iter_mut().zip(&mut this.queues) {
            let place = queue.iter().position(|waiting| is_it(&waiting.token));
            let Some(place) = place.filter(|place| *place > 0) else { continue };
            queue.remove(place);
            class.queued -= 1;
            return true;
        }
        false
    }

    /// Blocks of each class at the device.
    #[must_use]
    pub fn in_flight_blocks(&self) -> [u64; CLASSES] {
        let mut blocks = [0; CLASSES];
        for direction in [Direction::Read, Direction::Write] {
            let class = self.config.cost_model.class(direction);
            blocks[class] += self.in_flight_blocks[direction as usize];
        }
        blocks
    }

    /// Requests of each class that wait.
    #[must_use]
    pub fn queued(&self) -> [u64; CLASSES] {
        core::array::from_fn(|class| self.classes[class].queued)
    }

    fn flow(&mut self, flow: FlowId) -> &mut Flow<T> {
        &mut self.flows[flow.0 as usize]
    }

    /// SCHEDULER-2.
    fn has_room(&self, class: usize) -> bool {
        let (windows, blocks) = (self.config.window_blocks, self.in_flight_blocks());
        let whole: u64 = windows.into_iter().map(u64::from).sum();
        blocks[class] < u64::from(windows[class].max(1)) || blocks.into_iter().sum::<u64>() < whole
    }

    /// Takes in a request. [`Scheduler::dispatch`] says when it leaves.
    pub fn enqueue(&mut self, flow: FlowId, request: Request, token: T, now: Instant) {
        let order = self.requests;
        self.requests += 1;
        self.queue(flow, Waiting { request, token, order, arrival: 0 }, now);
    }

    fn queue(&mut self, flow: FlowId, mut waiting: Waiting<T>, now: Instant) {
        let Cost { class, units } = self.config.cost_model.cost(waiting.request);
        let this = &mut self.classes[class];
        waiting.arrival = this.arrivals;
        this.arrivals += 1;
        this.queued += 1;
        let queue = &mut self.flows[flow.0 as usize].queues[class];
        if queue.is_empty() {
            this.policy.offer(flow, units, waiting.arrival, now);
        }
        queue.push_back(waiting);
    }

    /// Issues a request that has just come, if none of its class waits and it may leave now. `false`:
    /// it is for [`Scheduler::enqueue`], and nothing was done.
    pub fn issue_at_once(&mut self, flow: FlowId, request: Request, now: Instant) -> bool {
        let Cost { class, units } = self.config.cost_model.cost(request);
        let has_room = self.has_room(class);
        let this = &mut self.classes[class];
        if this.queued > 0 || !has_room || !this.policy.take_at_once(flow, units, now) {
            return false;
        }
        self.note_issue(flow, &request);
        true
    }

    /// Takes the request that leaves next.
    pub fn dispatch(&mut self, now: Instant) -> Dispatch<T> {
        let (mut wait_until, mut is_full) = (None::<Instant>, false);
        for turn in 0..CLASSES {
            let class = (self.first_class + turn) % CLASSES;
            if self.classes[class].queued == 0 {
                continue;
            }
            if !self.has_room(class) {
                is_full = true;
                continue;
            }
            match self.classes[class].policy.next(now) {
                Next::Flow(flow) => {
                    self.first_class = class + 1;
                    return self.issue(flow, class, now);
                }
                Next::WaitUntil(at) => {
                    wait_until = Some(wait_until.map_or(at, |other| other.min(at)));
                }
                Next::Nothing => {}
            }
        }
        match wait_until {
            Some(at) => Dispatch::WaitUntil(at),
            None if is_full => Dispatch::Full,
            None => Dispatch::Idle,
        }
    }

    /// Lets a flow's oldest request go, and has it offer the next.
    fn issue(&mut self, flow: FlowId, class: usize, now: Instant) -> Dispatch<T> {
        let this = &mut self.flows[flow.0 as usize];
        let queue = &mut this.queues[class];
        let waiting = queue.pop_front().expect("a policy names flows that offered");
        self.classes[class].queued -= 1;
        if let Some(next) = queue.front() {
            let Cost { units, .. } = self.config.cost_model.cost(next.request);
            self.classes[class].policy.offer(flow, units, next.arrival, now);
        }
        self.note_issue(flow, &waiting.request);
        Dispatch::Issue { flow, request: waiting.request, token: waiting.token }
    }

    fn note_issue(&mut self, flow: FlowId, request: &Request) {
        self.in_flight_blocks[request.direction as usize] += u64::from(request.blocks.max(1));
        self.flow(flow).in_flight += 1;
    }

    /// A request that left is done.
    pub fn complete(&mut self, flow: FlowId, request: Request) {
        if broken(Sabotage::WindowOfGone) && self.flow(flow).removed {
            return;
        }
        self.in_flight_blocks[request.direction as usize] -= u64::from(request.blocks.max(1));
        let this = self.flow(flow);
        this.in_flight -= 1;
        if this.removed && this.in_flight == 0 {
            self.flows.remove(flow.0 as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::POLICIES;

    const READ: Request = Request { direction: Direction::Read, blocks: 2 };
    const WRITE: Request = Request { direction: Direction::Write, blocks: 3 };
    const RATE: Quota = Quota { per_second: [1e6, 1e6] };

    fn scheduler() -> Scheduler<u32> {
        let config = SchedulerConfig {
            policy: POLICIES[2],
            cost_model: CostModel::Separate,
            ceiling: RATE,
            window_blocks: [64, 64],
        };
        Scheduler::new(config, Instant(0))
    }

    fn issued(scheduler: &mut Scheduler<u32>) -> Option<u32> {
        match scheduler.dispatch(Instant(0)) {
            Dispatch::Issue { token, .. } => Some(token),
            _ => None,
        }
    }

    #[test]
    fn requests_that_wait_are_counted_by_class() {
        let mut scheduler = scheduler();
        let flows = [(); 2].map(|()| scheduler.add_flow(RATE, Instant(0)));
        for (token, request) in [READ, WRITE, WRITE, READ, WRITE].into_iter().enumerate() {
            scheduler.enqueue(flows[token % 2], request, token as u32, Instant(0));
        }
        assert_eq!(scheduler.queued(), [2, 3]);
        assert!(scheduler.cancel(flows[0], |token| *token == 4), "another write is before it");
        assert_eq!(scheduler.queued(), [2, 2]);
        assert!(issued(&mut scheduler).is_some());
        assert_eq!(scheduler.queued().iter().sum::<u64>(), 3);
        drop(scheduler.remove_flow(flows[1]));
        let left = scheduler.queued().iter().sum::<u64>();
        let mut leaves = 0;
        while issued(&mut scheduler).is_some() {
            leaves += 1;
        }
        assert_eq!((left, scheduler.queued()), (leaves, [0, 0]));
    }

    #[test]
    fn classes_take_turns() {
        let mut scheduler = scheduler();
        let flow = scheduler.add_flow(RATE, Instant(0));
        for token in 0..3 {
            scheduler.enqueue(flow, READ, token, Instant(0));
            scheduler.enqueue(flow, WRITE, 10 + token, Instant(0));
        }
        let order = [(); 6].map(|()| issued(&mut scheduler).expect("it waits"));
        assert_eq!(order, [0, 10, 1, 11, 2, 12]);
    }

    /// A removed flow keeps its number as long as its requests are at the device, and no longer.
    #[test]
    fn the_number_of_a_flow_is_free_after_its_last_request() {
        let mut scheduler = scheduler();
        let flow = scheduler.add_flow(RATE, Instant(0));
        assert!(scheduler.issue_at_once(flow, READ, Instant(0)));
        assert!(scheduler.issue_at_once(flow, WRITE, Instant(0)));
        assert_eq!(scheduler.remove_flow(flow).count(), 0);
        scheduler.complete(flow, READ);
        assert_eq!(scheduler.in_flight_blocks(), [0, 3]);
        let other = scheduler.add_flow(RATE, Instant(0));
        assert_ne!(other, flow, "a write of the first is under way");
        scheduler.complete(flow, WRITE);
        assert_eq!(scheduler.in_flight_blocks(), [0, 0]);
        assert_eq!(scheduler.add_flow(RATE, Instant(0)), flow);
        // Without requests at once, also after some that are complete.
        assert!(scheduler.issue_at_once(other, READ, Instant(0)));
        scheduler.complete(other, READ);
        drop(scheduler.remove_flow(other));
        assert_eq!(scheduler.add_flow(RATE, Instant(0)), other);
    }
}
