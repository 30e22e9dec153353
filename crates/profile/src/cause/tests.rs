//! Synthetic traces with known causes.

use std::sync::Arc;

use random::Rng;

use super::*;

const TID: u32 = 500;
const CPU: u32 = 2;
const OTHER_CPU: u32 = 0;
const DEVICE: u32 = 0x10_3000;
const US: u64 = 1_000;

fn task(tid: u32, name: &str, priority: i32) -> Task {
    Task { tid, name: Arc::from(name), priority }
}

/// The time that a CPU takes to leave an idle state, as sysfs names it.
fn leave_idle_ns(state: u32) -> u64 {
    [0, 2, 40, 150, 1000][state.min(4) as usize] * US
}

/// The trouble of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Plan {
    Usual,
    TaskAfterWaking,
    TaskBeforeIssue,
    InterruptWhileRunning,
    InterruptBeforeCompletion,
    SoftirqAfterWaking,
    SleepAfterWaking,
    SleepBeforeCompletion,
    Drive,
    DriveWithinSoftirq,
    LateWake,
    OnCpu,
    NoRequest,
    Several,
}

const PLANS: [Plan; 13] = [
    Plan::TaskAfterWaking,
    Plan::TaskBeforeIssue,
    Plan::InterruptWhileRunning,
    Plan::InterruptBeforeCompletion,
    Plan::SoftirqAfterWaking,
    Plan::SleepAfterWaking,
    Plan::SleepBeforeCompletion,
    Plan::Drive,
    Plan::DriveWithinSoftirq,
    Plan::LateWake,
    Plan::OnCpu,
    Plan::NoRequest,
    Plan::Several,
];

impl Plan {
    fn cause(self) -> Option<Cause> {
        let hog = || Cause::Task { name: "hog".to_owned(), realtime: false };
        let interrupt = |name: &str| Cause::Interrupt { name: name.to_owned() };
        let unknown = |reason| Cause::Unknown { reason };
        Some(match self {
            Self::Usual => return None,
            Self::TaskAfterWaking | Self::TaskBeforeIssue => hog(),
            Self::InterruptWhileRunning | Self::SoftirqAfterWaking => interrupt("NET_RX"),
            Self::InterruptBeforeCompletion => interrupt("eth0-rx-1"),
            Self::SleepAfterWaking => Cause::Idle { state: 3 },
            Self::SleepBeforeCompletion => Cause::Idle { state: 4 },
            Self::Drive | Self::DriveWithinSoftirq => Cause::Drive,
            Self::LateWake => Cause::LateWake,
            Self::OnCpu => unknown(Unknown::OnCpu),
            Self::NoRequest => unknown(Unknown::NoRequest),
            Self::Several => unknown(Unknown::Several),
        })
    }
}

/// Writes a trace, event by event.
struct Trace<'a> {
    rng: &'a mut Rng,
    at_ns: u64,
    events: Vec<Event>,
}

impl Trace<'_> {
    fn wait(&mut self, least_ns: u64, more_ns: u64) {
        self.at_ns += least_ns + self.rng.below(more_ns.max(1));
    }

    fn put(&mut self, cpu: u32, kind: Kind) {
        self.events.push(Event { at_ns: self.at_ns, cpu, kind });
    }

    fn switch(&mut self, previous: u32, still_ready: bool, next: Task) {
        self.put(CPU, Kind::Switch { previous, still_ready, next });
    }

    fn handler(&mut self, cpu: u32, name: &str, ns: u64) {
        self.put(cpu, Kind::InterruptBegin { name: Arc::from(name) });
        self.at_ns += ns;
        self.put(cpu, Kind::InterruptEnd);
    }

    /// Small events that do not matter.
    fn noise(&mut self) {
        if self.rng.below(4) == 0 {
            self.handler(CPU, "local timer", 2 * US);
        }
        if self.rng.below(4) == 0 {
            self.put(OTHER_CPU, Kind::Waking { tid: TID + 7 });
            self.handler(OTHER_CPU, "local timer", US);
        }
    }
}

/// A request that goes as `plan` says and takes `excess_ns` longer than usual.
fn schedule(rng: &mut Rng, plan: Plan, excess_ns: u64) -> (Request, Vec<Event>) {
    let share = |of: Plan, rng: &mut Rng| match plan {
        _ if plan == of => excess_ns,
        Plan::Several if [Plan::TaskAfterWaking, Plan::Drive, Plan::OnCpu].contains(&of) => {
            excess_ns / 3
        }
        // Another, smaller trouble beside the cause.
        _ if plan != Plan::Usual && plan != Plan::Several && rng.below(8) == 0 => excess_ns / 10,
        _ => 0,
    };
    let begin_ns = 1_000_000_000 + rng.below(1_000_000_000);
    let hog = task(900, "hog", 120);
    let me = task(TID, "profile", 120);
    let asleep_in = if plan == Plan::SleepBeforeCompletion {
        4
    } else if plan == Plan::SleepAfterWaking {
        3
    } else {
        1
    };
    let completes_on = match plan {
        Plan::SleepAfterWaking => OTHER_CPU,
        Plan::InterruptBeforeCompletion | Plan::SleepBeforeCompletion => CPU,
        Plan::SoftirqAfterWaking | Plan::DriveWithinSoftirq => CPU,
        _ if rng.below(3) == 0 => OTHER_CPU,
        _ => CPU,
    };
    let spans = [
        Plan::TaskBeforeIssue,
        Plan::OnCpu,
        Plan::InterruptWhileRunning,
        Plan::NoRequest,
        Plan::Drive,
        Plan::LateWake,
        Plan::TaskAfterWaking,
    ]
    .map(|of| share(of, rng));
    let [preempted, on_cpu, interrupted, unissued, drive, late, mut queued] = spans;
    if asleep_in > 1 {
        // No task ran there, since the CPU slept.
        queued = 0;
    }
    let mut trace = Trace { rng, at_ns: begin_ns, events: Vec::new() };
    trace.noise();
    trace.wait(US, US);
    if preempted > 0 {
        trace.switch(TID, true, hog.clone());
        trace.at_ns += preempted;
        trace.switch(hog.tid, true, me.clone());
    }
    trace.at_ns += on_cpu;
    if interrupted > 0 {
        trace.handler(CPU, "NET_RX", interrupted);
    }
    let issues = plan != Plan::NoRequest;
    if issues {
        trace.put(CPU, Kind::Issue { tid: TID, device: DEVICE, sector: 4096 });
    }
    trace.wait(US, US);
    // While the thread sleeps, the CPU sleeps, or runs a task that gives way at once unless it is the cause.
    let beside = queued > 0 || (asleep_in == 1 && trace.rng.below(4) == 0);
    if beside {
        trace.switch(TID, false, hog.clone());
    } else {
        trace.switch(TID, false, task(0, "swapper/2", 120));
        trace.put(CPU, Kind::IdleBegin { state: asleep_in });
    }
    trace.wait(40 * US, 10 * US);
    trace.noise();
    trace.wait(40 * US, 10 * US);
    trace.at_ns += drive + unissued;
    if plan == Plan::InterruptBeforeCompletion {
        trace.handler(CPU, "eth0-rx-1", excess_ns);
        trace.wait(200, US);
    }
    if plan == Plan::SleepBeforeCompletion {
        trace.at_ns += excess_ns;
    }
    // Interrupts come while a softirq is handled, so it delays the thread, and not the completion.
    let softirq = match plan {
        Plan::SoftirqAfterWaking => Some([0, excess_ns]),
        Plan::DriveWithinSoftirq => Some([excess_ns, 0]),
        _ => None,
    };
    if let Some([before_ns, _]) = softirq {
        trace.put(CPU, Kind::InterruptBegin { name: Arc::from("NET_RX") });
        trace.at_ns += before_ns;
        trace.wait(US, US);
    }
    trace.put(completes_on, Kind::InterruptBegin { name: Arc::from("nvme0q1") });
    if issues {
        trace.wait(500, US);
        trace.put(completes_on, Kind::Complete { device: DEVICE, sector: 4096 });
    }
    trace.at_ns += late;
    trace.wait(200, 300);
    trace.put(completes_on, Kind::Waking { tid: TID });
    trace.wait(200, 300);
    trace.put(completes_on, Kind::InterruptEnd);
    if let Some([_, behind_ns]) = softirq {
        trace.at_ns += behind_ns;
        trace.put(CPU, Kind::InterruptEnd);
    }
    if beside {
        trace.at_ns += queued;
        trace.wait(US, US);
        trace.switch(hog.tid, true, me);
    } else {
        if plan == Plan::SleepAfterWaking {
            trace.at_ns += excess_ns;
        }
        trace.put(CPU, Kind::IdleEnd);
        trace.wait(US, US);
        trace.switch(0, true, me);
    }
    trace.wait(US, US);
    let end_ns = trace.at_ns;
    let events = trace.events;
    (Request { drive: 0, tid: TID, cpu: CPU, begin_ns, end_ns, is_elsewhere: false }, events)
}

fn usual(rng: &mut Rng) -> Usual {
    let sample: Vec<Parts> = (0..200)
        .map(|_| {
            let (request, events) = schedule(rng, Plan::Usual, 0);
            Parts::of(&request, &events)
        })
        .collect();
    Usual::of(&sample)
}

#[test]
fn parts_add_up_to_the_latency() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let plan = PLANS[rng.below(PLANS.len() as u64) as usize];
        let excess_ns = 100 * US + rng.below(5000 * US);
        let (request, events) = schedule(&mut rng, plan, excess_ns);
        let parts = Parts::of(&request, &events);
        assert_eq!(parts.total_ns(), request.latency_ns(), "seed {seed}, {plan:?}");
    }
}

#[test]
fn each_cause_is_named() {
    for plan in PLANS {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let usual = usual(&mut rng);
            let (request, events) = schedule(&mut rng, plan, 900 * US);
            let found = attribute(request, &events, &usual, &leave_idle_ns);
            assert_eq!(Some(found.cause), plan.cause(), "seed {seed}, {plan:?}");
        }
    }
}

/// Method: schedules with known causes, in which clocks of CPUs differ by up to 0.5 µs and one event of a hundred is
/// lost. A cause that is named and is not the true one is wrong; an unknown one is not right, and not wrong.
#[test]
fn of_random_schedules_nine_tenths_are_right_and_next_to_none_wrong() {
    let (mut right, mut wrong, count) = (0, 0, 20_000);
    for seed in 0..count {
        let mut rng = Rng::new(seed);
        let usual = fixed_usual();
        let plan = PLANS[rng.below(PLANS.len() as u64) as usize];
        // A CPU that leaves its deepest state takes a millisecond at most.
        let excess_max = if plan == Plan::SleepBeforeCompletion { 1500 } else { 5000 };
        let excess_ns = 300 * US + rng.below((excess_max - 300) * US);
        let (request, mut events) = schedule(&mut rng, plan, excess_ns);
        let skew = rng.below(500);
        events.retain(|_| rng.below(100) > 0);
        for event in events.iter_mut().filter(|event| event.cpu == OTHER_CPU) {
            event.at_ns += skew;
        }
        events.sort_by_key(|event| event.at_ns);
        let cause = attribute(request, &events, &usual, &leave_idle_ns).cause;
        if Some(&cause) == plan.cause().as_ref() {
            right += 1;
        } else if !matches!(cause, Cause::Unknown { .. }) {
            wrong += 1;
        }
    }
    assert!(right * 10 >= count * 9, "{right} of {count} are right");
    assert!(wrong * 50 < count, "{wrong} of {count} are wrong");
}

fn fixed_usual() -> Usual {
    thread_local! {
        static USUAL: Usual = usual(&mut Rng::new(1));
    }
    USUAL.with(Clone::clone)
}

#[test]
fn no_events_are_no_cause() {
    let (begin_ns, end_ns) = (0, 1_000_000);
    let request = Request { drive: 0, tid: TID, cpu: CPU, begin_ns, end_ns, is_elsewhere: false };
    let found = attribute(request, &[], &fixed_usual(), &leave_idle_ns);
    assert!(matches!(found.cause, Cause::Unknown { .. }), "{found:?}");
}

/// A handler that was over long before the completion did not delay it, whether it came from a handler or a task.
#[test]
fn an_interrupt_of_the_same_time_is_not_the_cause() {
    for from_task in [false, true] {
        let mut rng = Rng::new(3);
        let usual = usual(&mut rng);
        let (request, mut events) = schedule(&mut rng, Plan::Drive, 2000 * US);
        let place = |events: &[Event], wanted: fn(&Kind) -> bool| {
            events.iter().rposition(|event| wanted(&event.kind)).unwrap()
        };
        if from_task {
            events.remove(place(&events, |kind| matches!(kind, Kind::InterruptBegin { .. })));
            events.remove(place(&events, |kind| matches!(kind, Kind::InterruptEnd)));
        }
        let complete = &events[place(&events, |kind| matches!(kind, Kind::Complete { .. }))];
        let (cpu, at_ns) = (complete.cpu, complete.at_ns - 1900 * US);
        let begin = Kind::InterruptBegin { name: Arc::from("eth0-rx-1") };
        events.push(Event { at_ns, cpu, kind: begin });
        events.push(Event { at_ns: at_ns + 1800 * US, cpu, kind: Kind::InterruptEnd });
        events.sort_by_key(|event| event.at_ns);
        assert_eq!(attribute(request, &events, &usual, &leave_idle_ns).cause, Cause::Drive);
    }
}

/// A volume's requests are no block device's of this host: a thread that sleeps waits for the volume, unless it was ready to
/// run and another task had its CPU.
#[test]
fn a_drive_elsewhere_is_the_cause_where_its_thread_sleeps() {
    let of = |plan, is_elsewhere| {
        let (request, events) = schedule(&mut Rng::new(1), plan, 900 * US);
        let request = Request { is_elsewhere, ..request };
        attribute(request, &events, &fixed_usual(), &leave_idle_ns).cause
    };
    assert_eq!(of(Plan::NoRequest, true), Cause::Drive);
    assert_eq!(of(Plan::NoRequest, false), Cause::Unknown { reason: Unknown::NoRequest });
    assert_eq!(of(Plan::TaskAfterWaking, true), of(Plan::TaskAfterWaking, false));
}
