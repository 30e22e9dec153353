//! The promises of every policy, for any course of events.

use std::collections::VecDeque;

use proptest::prelude::*;
use schedule::{
    CostModel, Direction, Dispatch, FlowId, POLICIES, Quota, Request, Scheduler, SchedulerConfig,
};
use units::{Duration, Instant};

#[derive(Clone, Debug)]
enum Event {
    /// By the short way, if there is one now, or always by the long one.
    Enqueue {
        flow: usize,
        blocks: u32,
        write: bool,
        at_once: bool,
    },
    Complete,
    Pass {
        microseconds: u32,
    },
    SetQuota {
        flow: usize,
        rate: u32,
    },
    Cancel {
        flow: usize,
        place: usize,
    },
    Remove {
        flow: usize,
    },
    Policy {
        number: usize,
    },
    Ceiling {
        rate: u32,
    },
    Costs {
        per_mille: Option<u32>,
    },
}

const FLOWS: usize = 5;

fn event() -> impl Strategy<Value = Event> {
    let flow = 0..FLOWS;
    prop_oneof![
        8 => (flow.clone(), 1_u32..300, any::<bool>(), any::<bool>()).prop_map(
            |(flow, blocks, write, at_once)| Event::Enqueue { flow, blocks, write, at_once }
        ),
        6 => Just(Event::Complete),
        4 => (1_u32..5_000).prop_map(|microseconds| Event::Pass { microseconds }),
        1 => (flow.clone(), 0_u32..200_000).prop_map(|(flow, rate)| Event::SetQuota { flow, rate }),
        2 => (flow.clone(), 0_usize..8).prop_map(|(flow, place)| Event::Cancel { flow, place }),
        1 => flow.prop_map(|flow| Event::Remove { flow }),
        1 => (0..POLICIES.len()).prop_map(|number| Event::Policy { number }),
        1 => (1_u32..200_000).prop_map(|rate| Event::Ceiling { rate }),
        1 => prop::option::of(1_u32..20_000).prop_map(|per_mille| Event::Costs { per_mille }),
    ]
}

struct Checked {
    scheduler: Scheduler<u64>,
    now: Instant,
    flows: Vec<FlowId>,
    /// Requests by flow, in their order.
    expected: Vec<VecDeque<(u64, Direction)>>,
    /// With their flows, some of which are removed.
    in_flight: VecDeque<(FlowId, Request)>,
    next: u64,
}

fn config(policy: usize, rate: f64) -> SchedulerConfig {
    SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [rate, rate / 2.0] },
        window_blocks: WINDOWS,
    }
}

const WINDOWS: [u32; 2] = [64, 96];

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

    fn class(&self, direction: Direction) -> usize {
        self.scheduler.config().cost_model.class(direction)
    }

    /// Blocks of a class in flight.
    fn in_flight_blocks(&self, class: usize) -> u64 {
        let of_class = self.in_flight.iter().filter(|(_, r)| self.class(r.direction) == class);
        of_class.map(|(_, request)| u64::from(request.blocks)).sum()
    }

    fn has_room(&self, class: usize) -> bool {
        let all: u64 = (0..2).map(|class| self.in_flight_blocks(class)).sum();
        self.in_flight_blocks(class) < WINDOWS[class].into()
            || all < WINDOWS.into_iter().map(u64::from).sum()
    }

    /// Classes of which requests wait.
    fn waiting(&self) -> Vec<usize> {
        let all = self.expected.iter().flatten();
        all.map(|(_, direction)| self.class(*direction)).collect()
    }

    /// The oldest request of a flow and class.
    fn oldest(&self, flow: usize, class: usize) -> Option<usize> {
        self.expected[flow].iter().position(|(_, direction)| self.class(*direction) == class)
    }

    /// Dispatches all that may leave; returns when to go on.
    fn dispatch(&mut self) -> Option<Instant> {
        loop {
            match self.scheduler.dispatch(self.now) {
                Dispatch::Issue { flow, request, token } => {
                    let index = self.flows.iter().position(|f| *f == flow).expect("a live flow");
                    let class = self.class(request.direction);
                    let first = self.oldest(index, class).expect("SCHEDULER-1: it waits");
                    let first = self.expected[index].remove(first);
                    assert_eq!(
                        first,
                        Some((token, request.direction)),
                        "SCHEDULER-1: once, and in order"
                    );
                    assert!(self.has_room(class), "SCHEDULER-2: the window was full");
                    self.in_flight.push_back((flow, request));
                }
                Dispatch::WaitUntil(at) => {
                    assert!(at > self.now, "POLICY-2: in the future");
                    let could = self.waiting().into_iter().any(|class| self.has_room(class));
                    assert!(could, "only a completion lets more in");
                    return Some(at);
                }
                Dispatch::Full => {
                    let waiting = self.waiting();
                    assert!(!waiting.is_empty() && !waiting.iter().any(|c| self.has_room(*c)));
                    return None;
                }
                Dispatch::Idle => {
                    assert!(
                        self.expected.iter().all(VecDeque::is_empty),
                        "POLICY-2: something waits"
                    );
                    return None;
                }
            }
        }
    }

    fn issue_at_once(&mut self, flow: usize, request: Request) -> bool {
        let is_issued = self.scheduler.issue_at_once(self.flows[flow], request, self.now);
        if is_issued {
            let class = self.class(request.direction);
            assert!(!self.waiting().contains(&class), "SCHEDULER-1: past others that wait");
            assert!(self.has_room(class), "SCHEDULER-2: the window was full");
            self.in_flight.push_back((self.flows[flow], request));
        }
        is_issued
    }

    fn complete(&mut self) -> bool {
        let Some((flow, request)) = self.in_flight.pop_front() else { return false };
        self.scheduler.complete(flow, request);
        true
    }

    /// Takes a request back. The oldest of its class stays: it has been offered.
    fn cancel(&mut self, flow: usize, place: usize) {
        let Some((token, direction)) = self.expected[flow].get(place).copied() else { return };
        let cancelled = self.scheduler.cancel(self.flows[flow], |other| *other == token);
        assert_eq!(cancelled, self.oldest(flow, self.class(direction)) != Some(place));
        if cancelled {
            self.expected[flow].remove(place);
        }
        assert!(!self.scheduler.cancel(self.flows[flow], |other| *other == u64::MAX));
    }

    /// Asks again before the time has come, and when it has.
    fn sleep(&mut self, at: Instant) {
        let asked = self.scheduler.dispatch(self.now);
        assert_eq!(asked, Dispatch::WaitUntil(at), "SCHEDULER-3: nothing has changed");
        // POLICY-2. A task that waits for several things may be woken once for each of them.
        let mut at = at;
        for _ in 0..2 * FLOWS + 2 {
            self.now = at;
            let before = self.in_flight.len();
            match self.dispatch() {
                Some(later) if self.in_flight.len() == before => at = later,
                _ => return,
            }
        }
        panic!("POLICY-2: asked in vain again and again");
    }

    fn remove(&mut self, flow: usize) {
        let mut left: Vec<u64> = self.scheduler.remove_flow(self.flows[flow]).collect();
        left.sort_unstable();
        let expected = self.expected[flow].drain(..).map(|(token, _)| token);
        assert_eq!(left, expected.collect::<Vec<_>>());
        self.flows[flow] = self.scheduler.add_flow(quota(1_000), self.now);
    }

    fn act(&mut self, event: &Event) {
        match *event {
            Event::Enqueue { flow, blocks, write, at_once } => {
                let direction = if write { Direction::Write } else { Direction::Read };
                let request = Request { direction, blocks };
                if at_once && self.issue_at_once(flow, request) {
                    return;
                }
                self.scheduler.enqueue(self.flows[flow], request, self.next, self.now);
                self.expected[flow].push_back((self.next, direction));
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
                let policy = POLICIES[number];
                let changed = SchedulerConfig { policy, ..self.scheduler.config() };
                self.scheduler.reconfigure(changed, self.now);
            }
            Event::Ceiling { rate } => {
                let ceiling = config(0, rate.into()).ceiling;
                let changed = SchedulerConfig { ceiling, ..self.scheduler.config() };
                self.scheduler.reconfigure(changed, self.now);
            }
            Event::Costs { per_mille } => {
                let shared = |per_mille| CostModel::WriteCosts { per_mille };
                let cost_model = per_mille.map_or(CostModel::Separate, shared);
                let changed = SchedulerConfig { cost_model, ..self.scheduler.config() };
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
        assert_eq!((self.scheduler.queued(), self.scheduler.in_flight_blocks()), ([0; 2], [0; 2]));
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
    /// their requests: by what one keeps of unused quota, and by the largest request a few times. Reads,
    /// writes, or both counted together.
    #[test]
    fn deficits_are_bounded(
        policy in prop::sample::select(isolating()),
        kind in 0..3,
        rate in 100_u32..20_000,
        ceiling in 1_u32..60_000,
        sizes in prop::collection::vec((1_u32..257, 1_u32..257), 1..40),
    ) {
        let (cost_model, directions) = match kind {
            0 => (CostModel::Separate, [Direction::Read; 2]),
            1 => (CostModel::Separate, [Direction::Write; 2]),
            _ => (CostModel::WriteCosts { per_mille: 1000 }, [Direction::Read, Direction::Write]),
        };
        let config = SchedulerConfig { cost_model, ..config(policy, ceiling.into()) };
        let mut scheduler = Scheduler::new(config, Instant(0));
        let flows = [(); 2].map(|()| scheduler.add_flow(quota(rate), Instant(0)));
        let (mut now, mut served) = (Instant(0), [0_u64; 2]);
        let mut sizes = sizes.into_iter().cycle();
        let mut enqueue = |scheduler: &mut Scheduler<usize>, flow: usize, now| {
            let (a, b) = sizes.next().expect("endless");
            let request = Request { direction: directions[flow], blocks: [a, b][flow] };
            scheduler.enqueue(flows[flow], request, flow, now);
        };
        (0..4).for_each(|n| enqueue(&mut scheduler, n % 2, now));
        let kept = (f64::from(rate) / 100.0).max(32.0) as u64;
        for _ in 0..4_000 {
            match scheduler.dispatch(now) {
                Dispatch::Issue { flow, request, token } => {
                    scheduler.complete(flow, request);
                    served[token] += u64::from(request.blocks);
                    enqueue(&mut scheduler, token, now);
                }
                Dispatch::WaitUntil(at) => now = at,
                other => panic!("both always wait: {other:?}"),
            }
            prop_assert!(served[0].abs_diff(served[1]) <= kept + 3 * 256, "{served:?}");
        }
    }

    /// No starvation: a request leaves while others come without end, however small its quota and however
    /// large it is, before its quota has paid for it twice.
    #[test]
    fn no_flow_starves_while_others_never_stop(
        policy in 0..POLICIES.len(),
        direction in prop::sample::select(vec![Direction::Read, Direction::Write]),
        rate in 1_u32..2_000,
        blocks in 1_u32..257,
        others in prop::collection::vec(1_u32..257, 1..FLOWS),
    ) {
        let mut scheduler = Scheduler::new(config(policy, 50_000.0), Instant(0));
        let rates = |rate: u32| Quota { per_second: [f64::from(rate); 2] };
        let rest = (20_000 - rate) / others.len() as u32;
        let flows: Vec<FlowId> =
            others.iter().map(|_| scheduler.add_flow(rates(rest), Instant(0))).collect();
        let small = scheduler.add_flow(rates(rate), Instant(0));
        let mut now = Instant(0);
        for (number, flow) in flows.iter().enumerate() {
            for _ in 0..4 {
                let request = Request { direction, blocks: others[number] };
                scheduler.enqueue(*flow, request, number, now);
            }
        }
        // A first one uses what may have been saved up; the second is the one that must not starve.
        let mut left = 2;
        (0..left).for_each(|_| {
            scheduler.enqueue(small, Request { direction, blocks }, usize::MAX, now);
        });
        let end = Duration::from_secs_f64(2.0 * f64::from(blocks + 1) / f64::from(rate) + 1.0);
        while left > 0 {
            match scheduler.dispatch(now) {
                Dispatch::Issue { flow, request, token } => {
                    // The device does what its ceiling says.
                    let took_ns = u64::from(request.blocks) * 20_000;
                    now = now + Duration::from_nanos(took_ns);
                    scheduler.complete(flow, request);
                    match token {
                        usize::MAX => left -= 1,
                        _ => scheduler.enqueue(flow, request, token, now),
                    }
                }
                Dispatch::WaitUntil(at) => now = at,
                other => panic!("something always waits: {other:?}"),
            }
            prop_assert!(now <= Instant(0) + end, "starved for {:?}", now.since(Instant(0)));
        }
    }
}

fn isolating() -> Vec<usize> {
    (0..POLICIES.len()).filter(|number| POLICIES[*number].isolates).collect()
}
