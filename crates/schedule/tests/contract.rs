//! What every policy promises, for any course of events.

use std::collections::VecDeque;

use proptest::prelude::*;
use schedule::{
    CostModel, Direction, Dispatch, FlowId, POLICIES, Quota, Request, Scheduler, SchedulerConfig,
};
use units::{Duration, Instant};

#[derive(Clone, Debug)]
enum Event {
    Enqueue { flow: usize, blocks: u32, write: bool },
    Complete,
    Pass { microseconds: u32 },
    SetQuota { flow: usize, rate: u32 },
    Cancel { flow: usize, place: usize },
    Remove { flow: usize },
    Policy { number: usize },
    Ceiling { rate: u32 },
}

const FLOWS: usize = 5;

fn event() -> impl Strategy<Value = Event> {
    let flow = 0..FLOWS;
    prop_oneof![
        8 => (flow.clone(), 1_u32..300, any::<bool>())
            .prop_map(|(flow, blocks, write)| Event::Enqueue { flow, blocks, write }),
        6 => Just(Event::Complete),
        4 => (1_u32..5_000).prop_map(|microseconds| Event::Pass { microseconds }),
        1 => (flow.clone(), 0_u32..200_000).prop_map(|(flow, rate)| Event::SetQuota { flow, rate }),
        2 => (flow.clone(), 0_usize..8).prop_map(|(flow, place)| Event::Cancel { flow, place }),
        1 => flow.prop_map(|flow| Event::Remove { flow }),
        1 => (0..POLICIES.len()).prop_map(|number| Event::Policy { number }),
        1 => (1_u32..200_000).prop_map(|rate| Event::Ceiling { rate }),
    ]
}

struct Checked {
    scheduler: Scheduler<u64>,
    now: Instant,
    flows: Vec<FlowId>,
    /// Requests by flow, in their order.
    expected: Vec<VecDeque<u64>>,
    /// With their flows, some of which are removed.
    in_flight: VecDeque<(FlowId, Request)>,
    next: u64,
}

fn config(policy: usize, rate: f64) -> SchedulerConfig {
    SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [rate, rate / 2.0] },
        window_blocks: 64,
    }
}

fn quota(rate: u32) -> Quota {
    // A quota of nothing would be served never under strict time sharing, as promised.
    Quota { per_second: [f64::from(rate.max(5)), f64::from(rate.max(5))] }
}

impl Checked {
    fn new(policy: usize) -> Self {
        let mut scheduler = Scheduler::new(config(policy, 50_000.0), Instant(0));
        let flows = (0..FLOWS).map(|n| scheduler.add_flow(quota(n as u32 * 3_000), Instant(0)));
        let flows = flows.collect();
        let expected = vec![VecDeque::new(); FLOWS];
        Self { scheduler, now: Instant(0), flows, expected, in_flight: VecDeque::new(), next: 0 }
    }

    /// Dispatches all that may leave; returns when to go on.
    fn dispatch(&mut self) -> Option<Instant> {
        loop {
            let before: u64 = self.in_flight.iter().map(|(_, r)| u64::from(r.blocks)).sum();
            match self.scheduler.dispatch(self.now) {
                Dispatch::Issue { flow, request, token } => {
                    let index = self.flows.iter().position(|f| *f == flow).expect("a live flow");
                    let first = self.expected[index].pop_front();
                    assert_eq!(first, Some(token), "Q1: once, and in order");
                    assert!(before < 64, "Q2: the window was full");
                    self.in_flight.push_back((flow, request));
                }
                Dispatch::WaitUntil(at) => {
                    assert!(at > self.now, "P2: in the future");
                    return Some(at);
                }
                Dispatch::Full => {
                    assert!(before >= 64);
                    return None;
                }
                Dispatch::Idle => {
                    assert!(self.expected.iter().all(VecDeque::is_empty), "P2: something waits");
                    return None;
                }
            }
        }
    }

    fn complete(&mut self) -> bool {
        let Some((flow, request)) = self.in_flight.pop_front() else { return false };
        self.scheduler.complete(flow, request, Duration::ZERO);
        true
    }

    /// Takes a request back. The oldest stays: it has been offered.
    fn cancel(&mut self, flow: usize, place: usize) {
        let Some(token) = self.expected[flow].get(place).copied() else { return };
        let cancelled = self.scheduler.cancel(self.flows[flow], |other| *other == token);
        assert_eq!(cancelled, place > 0);
        if cancelled {
            self.expected[flow].remove(place);
        }
        assert!(!self.scheduler.cancel(self.flows[flow], |other| *other == u64::MAX));
    }

    /// Asks again before the time has come, and when it has.
    fn sleep(&mut self, at: Instant) {
        let asked = self.scheduler.dispatch(self.now);
        assert_eq!(asked, Dispatch::WaitUntil(at), "Q3: nothing has changed");
        // P2. Who waits for several things may be woken once for each of them.
        let mut at = at;
        for _ in 0..2 * FLOWS + 2 {
            self.now = at;
            let before = self.in_flight.len();
            match self.dispatch() {
                Some(later) if self.in_flight.len() == before => at = later,
                _ => return,
            }
        }
        panic!("P2: asked in vain again and again");
    }

    fn remove(&mut self, flow: usize) {
        let left: Vec<u64> = self.scheduler.remove_flow(self.flows[flow]).collect();
        assert_eq!(left, self.expected[flow].drain(..).collect::<Vec<_>>());
        self.flows[flow] = self.scheduler.add_flow(quota(1_000), self.now);
    }

    fn act(&mut self, event: &Event) {
        match *event {
            Event::Enqueue { flow, blocks, write } => {
                let direction = if write { Direction::Write } else { Direction::Read };
                let request = Request { direction, blocks };
                self.scheduler.enqueue(self.flows[flow], request, self.next, self.now);
                self.expected[flow].push_back(self.next);
                self.next += 1;
            }
            Event::Complete => drop(self.complete()),
            Event::Pass { microseconds } => {
                self.now = self.now + Duration::from_micros(microseconds.into());
            }
            Event::SetQuota { flow, rate } => {
                self.scheduler.set_quota(self.flows[flow], quota(rate), self.now);
            }
            Event::Cancel { flow, place } => self.cancel(flow, place),
            Event::Remove { flow } => self.remove(flow),
            Event::Policy { number } => {
                let ceiling = self.scheduler.config().ceiling;
                let changed = SchedulerConfig { ceiling, ..config(number, 0.0) };
                self.scheduler.reconfigure(changed, self.now);
            }
            Event::Ceiling { rate } => {
                let ceiling = config(0, rate.into()).ceiling;
                let changed = SchedulerConfig { ceiling, ..self.scheduler.config() };
                self.scheduler.reconfigure(changed, self.now);
            }
        }
    }

    /// Lets all finish; everything must have left (no starvation).
    fn drain(&mut self) {
        for _ in 0..200_000 {
            match self.dispatch() {
                Some(_) if self.complete() => {}
                Some(at) => self.sleep(at),
                None if self.complete() => {}
                None => break,
            }
        }
        assert!(self.expected.iter().all(VecDeque::is_empty), "starved: {:?}", self.expected);
        assert_eq!((self.scheduler.queued(), self.scheduler.in_flight_blocks()), (0, 0));
    }
}

proptest! {
    #[test]
    fn requests_leave_once_in_order_and_within_the_window(
        policy in 0..POLICIES.len(),
        events in prop::collection::vec(event(), 1..200),
    ) {
        let mut checked = Checked::new(policy);
        for event in &events {
            checked.act(event);
            checked.dispatch();
        }
        checked.drain();
    }

    /// Two flows that always wait and have equal quotas are never far apart, whatever the sizes of
    /// their requests: by what one keeps of unused quota, and by the largest request a few times.
    #[test]
    fn deficits_are_bounded(
        policy in prop_oneof![Just("drr"), Just("sts")],
        rate in 100_u32..20_000,
        ceiling in 1_u32..60_000,
        sizes in prop::collection::vec((1_u32..257, 1_u32..257), 1..40),
    ) {
        let policy = POLICIES.iter().position(|known| known.name == policy).expect("known");
        let mut scheduler = Scheduler::new(config(policy, ceiling.into()), Instant(0));
        let flows = [(); 2].map(|()| scheduler.add_flow(quota(rate), Instant(0)));
        let (mut now, mut served) = (Instant(0), [0_u64; 2]);
        let mut sizes = sizes.into_iter().cycle();
        let mut enqueue = |scheduler: &mut Scheduler<usize>, flow: usize, now| {
            let (a, b) = sizes.next().expect("endless");
            let request = Request { direction: Direction::Read, blocks: [a, b][flow] };
            scheduler.enqueue(flows[flow], request, flow, now);
        };
        (0..4).for_each(|n| enqueue(&mut scheduler, n % 2, now));
        let kept = (f64::from(rate) / 100.0).max(32.0) as u64;
        for _ in 0..4_000 {
            match scheduler.dispatch(now) {
                Dispatch::Issue { flow, request, token } => {
                    scheduler.complete(flow, request, Duration::ZERO);
                    served[token] += u64::from(request.blocks);
                    enqueue(&mut scheduler, token, now);
                }
                Dispatch::WaitUntil(at) => now = at,
                other => panic!("both always wait: {other:?}"),
            }
            prop_assert!(served[0].abs_diff(served[1]) <= kept + 3 * 256, "{served:?}");
        }
    }
}
