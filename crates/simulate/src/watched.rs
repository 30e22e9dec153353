//! Policies that are watched while they serve: what [`schedule::Policy`] promises is asserted at each call.
//!
//! - WATCHED-1: the flow that is named has offered a request, and is named once for each; requests of a flow go in
//!   the order of their coming.
//! - WATCHED-2: a caller that is told to wait is told until when, in the future, and is not told so again and again
//!   then.
//! - WATCHED-3: no flow starves. A policy that isolates lets a request go before its flow's quota has paid for the
//!   largest twice; one that does not lets requests go in the order of their coming.
//! - WATCHED-4: in no window is more taken than ceiling and quotas allow, nor less while the device is idle, as
//!   `docs/policies.md` promises (`sim::Judge`).
//!
//! The caller is watched, too: it offers one request of a flow at a time, and its clock does not go back.

use std::collections::BTreeMap;

use schedule::{FlowId, Next, POLICIES, Policy, PolicyKind, UNITS_PER_BLOCK};
use sim::Judge;
use units::Instant;

/// Seconds for which a flow's request may wait beyond what its quota says, while others are served.
const PATIENCE_S: f64 = 1.0;

/// All policies, watched.
pub(crate) fn watched_policies() -> &'static [PolicyKind] {
    const { assert!(POLICIES.len() <= WATCHED.len(), "more rows here, too") };
    &WATCHED[..POLICIES.len()]
}

/// A row for each policy that there is or may come.
const WATCHED: [PolicyKind; 8] = [
    watched::<0>(),
    watched::<1>(),
    watched::<2>(),
    watched::<3>(),
    watched::<4>(),
    watched::<5>(),
    watched::<6>(),
    watched::<7>(),
];

const fn row(number: usize) -> PolicyKind {
    POLICIES[if number < POLICIES.len() { number } else { 0 }]
}

const fn watched<const NUMBER: usize>() -> PolicyKind {
    let PolicyKind { name, about, isolates, .. } = row(NUMBER);
    let make =
        |ceiling, now| -> Box<dyn Policy> { Box::new(Watched::new(row(NUMBER), ceiling, now)) };
    PolicyKind { name, about, isolates, make }
}

struct Offered {
    arrival: u64,
    units: u64,
    /// Amount taken when it was offered or the rates changed, in units.
    taken_before: u64,
}

struct Flow {
    quota: f64,
    offered: Option<Offered>,
    /// The next arrival that it may offer.
    arrivals_from: u64,
}

struct Watched {
    policy: Box<dyn Policy>,
    /// WATCHED-4.
    judge: Judge,
    isolates: bool,
    ceiling: f64,
    flows: BTreeMap<FlowId, Flow>,
    now: Instant,
    /// By all, in units.
    taken: u64,
    units_max: u64,
    /// Until when the policy said to wait, if nothing has changed since.
    wait_until: Option<Instant>,
    /// Number of times that it told the caller to wait again when that time had come.
    in_vain: usize,
}

impl Watched {
    fn new(kind: PolicyKind, ceiling: f64, now: Instant) -> Self {
        Self {
            policy: (kind.make)(ceiling, now),
            // Devices are slow, stuck, and behind windows that are full.
            judge: Judge::of_shared(kind.name, ceiling, now),
            isolates: kind.isolates,
            ceiling,
            flows: BTreeMap::new(),
            now,
            taken: 0,
            units_max: 0,
            wait_until: None,
            in_vain: 0,
        }
    }

    fn pass_to(&mut self, now: Instant) {
        assert!(now >= self.now, "the scheduler's clock went back");
        self.now = now;
        self.judge.pass_to(now);
        self.check_rates();
    }

    /// WATCHED-4.
    fn check_rates(&mut self) {
        self.judge.check().unwrap_or_else(|finding| panic!("WATCHED-4: {finding}"));
    }

    fn note_taken(&mut self, id: FlowId, units: u64) {
        self.judge.leave(id.0, blocks(units));
        self.check_rates();
    }

    /// Forgets earlier answers to wait.
    fn note_change(&mut self) {
        (self.wait_until, self.in_vain) = (None, 0);
    }

    /// Judges the requests that wait by the rates from now on.
    fn note_rates(&mut self) {
        self.note_change();
        let taken = self.taken;
        for offered in self.flows.values_mut().filter_map(|flow| flow.offered.as_mut()) {
            offered.taken_before = taken;
        }
    }

    fn named(&mut self, id: FlowId) {
        let flow = self.flows.get_mut(&id).expect("WATCHED-1: a flow is named that is none");
        let offered = flow.offered.take().expect("WATCHED-1: a flow is named that offered nothing");
        let waiting =
            || self.flows.iter().filter_map(|(id, flow)| Some((id, flow.offered.as_ref()?)));
        if !self.isolates {
            let passed = waiting().find(|(_, other)| other.arrival < offered.arrival);
            assert!(
                passed.is_none(),
                "WATCHED-3: {id:?} is named before {:?}",
                passed.map(|(id, _)| id)
            );
        }
        self.taken += offered.units;
        self.note_taken(id, offered.units);
        self.note_change();
        if self.isolates {
            self.check_patience();
        }
    }

    /// WATCHED-3, for those that isolate.
    fn check_patience(&self) {
        let per_block = UNITS_PER_BLOCK as f64;
        let largest = self.units_max as f64 / per_block + 1.0;
        // What one takes beyond its quota at a time.
        let slack = largest * self.flows.len() as f64;
        for (id, flow) in &self.flows {
            let Some(offered) = &flow.offered else { continue };
            let others = (self.taken - offered.taken_before) as f64 / per_block;
            let bound_s = 2.0 * largest / flow.quota + PATIENCE_S;
            let bound = self.ceiling * bound_s + slack;
            assert!(
                others <= bound,
                "WATCHED-3: {id:?} waits while others took {others} of {bound} blocks"
            );
        }
    }

    fn waits(&mut self, at: Instant) {
        assert!(at > self.now, "WATCHED-2: to wait until {at:?}, and it is {:?}", self.now);
        assert!(
            self.flows.values().any(|flow| flow.offered.is_some()),
            "WATCHED-2: for which flow?"
        );
        if self.wait_until.is_some_and(|before| self.now >= before) {
            self.in_vain += 1;
            // A caller that waits for several things may be woken once for each of them.
            assert!(
                self.in_vain <= 2 * self.flows.len() + 2,
                "WATCHED-2: asked in vain again and again"
            );
        }
        self.wait_until = Some(at);
        self.judge.idle(Some(at));
    }
}

fn blocks(units: u64) -> f64 {
    units as f64 / UNITS_PER_BLOCK as f64
}

impl Policy for Watched {
    fn set_flow(&mut self, id: FlowId, quota: f64, now: Instant) {
        self.pass_to(now);
        let new = Flow { quota, offered: None, arrivals_from: 0 };
        self.flows.entry(id).or_insert(new).quota = quota;
        self.judge.set_flow(id.0, quota);
        self.note_rates();
        self.policy.set_flow(id, quota, now);
    }

    fn remove_flow(&mut self, id: FlowId) {
        self.flows.remove(&id).expect("a flow is removed that is none");
        self.judge.remove_flow(id.0);
        self.note_rates();
        self.policy.remove_flow(id);
    }

    fn set_ceiling(&mut self, ceiling: f64, now: Instant) {
        self.pass_to(now);
        self.ceiling = ceiling;
        self.judge.set_ceiling(ceiling);
        self.note_rates();
        self.policy.set_ceiling(ceiling, now);
    }

    fn offer(&mut self, id: FlowId, units: u64, arrival: u64, now: Instant) {
        self.pass_to(now);
        self.note_change();
        self.units_max = self.units_max.max(units);
        let flow = self.flows.get_mut(&id).expect("a flow offers that is none");
        assert!(flow.offered.is_none(), "a flow offers two requests at a time");
        assert!(arrival >= flow.arrivals_from, "WATCHED-1: a flow's younger request came first");
        flow.arrivals_from = arrival + 1;
        flow.offered = Some(Offered { arrival, units, taken_before: self.taken });
        self.judge.arrive(id.0, blocks(units));
        self.policy.offer(id, units, arrival, now);
    }

    fn next(&mut self, now: Instant) -> Next {
        self.pass_to(now);
        let next = self.policy.next(now);
        self.judge.busy();
        match next {
            Next::Flow(id) => self.named(id),
            Next::WaitUntil(at) => self.waits(at),
            Next::Nothing => {
                let waits = self.flows.iter().find(|(_, flow)| flow.offered.is_some());
                assert!(waits.is_none(), "WATCHED-1: {:?} is forgotten", waits.map(|(id, _)| id));
            }
        }
        next
    }

    fn take_at_once(&mut self, id: FlowId, units: u64, now: Instant) -> bool {
        self.pass_to(now);
        let waits = self.flows.values().any(|flow| flow.offered.is_some());
        assert!(!waits, "a request goes past others that wait");
        let is_taken = self.policy.take_at_once(id, units, now);
        if is_taken {
            self.judge.arrive(id.0, blocks(units));
            self.note_taken(id, units);
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what it is told, whatever it was offered.
    struct Told(Next);

    impl Policy for Told {
        fn set_flow(&mut self, _: FlowId, _: f64, _: Instant) {}
        fn remove_flow(&mut self, _: FlowId) {}
        fn set_ceiling(&mut self, _: f64, _: Instant) {}
        fn offer(&mut self, _: FlowId, _: u64, _: u64, _: Instant) {}
        fn next(&mut self, _: Instant) -> Next {
            self.0
        }
        fn take_at_once(&mut self, _: FlowId, _: u64, _: Instant) -> bool {
            false
        }
    }

    const FLOWS: [FlowId; 2] = [FlowId(0), FlowId(1)];
    const BLOCK: u64 = UNITS_PER_BLOCK;

    /// Two flows with a block a second each, of which the first offers.
    fn told(next: Next, isolates: bool) -> Watched {
        let mut watched = Watched::new(POLICIES[0], 10.0, Instant(0));
        (watched.policy, watched.isolates) = (Box::new(Told(next)), isolates);
        for id in FLOWS {
            watched.set_flow(id, 1.0, Instant(0));
        }
        watched.offer(FLOWS[0], BLOCK, 0, Instant(0));
        watched
    }

    #[test]
    #[should_panic(expected = "WATCHED-1: a flow is named that offered nothing")]
    fn one_who_offered_nothing() {
        told(Next::Flow(FLOWS[1]), true).next(Instant(0));
    }

    #[test]
    #[should_panic(expected = "WATCHED-1: a flow is named that offered nothing")]
    fn one_request_twice() {
        let mut watched = told(Next::Flow(FLOWS[0]), true);
        for _ in 0..2 {
            watched.next(Instant(0));
        }
    }

    #[test]
    #[should_panic(expected = "is forgotten")]
    fn one_who_is_forgotten() {
        told(Next::Nothing, true).next(Instant(0));
    }

    #[test]
    #[should_panic(expected = "WATCHED-2: to wait until")]
    fn a_wait_for_the_past() {
        told(Next::WaitUntil(Instant(5)), true).next(Instant(5));
    }

    #[test]
    #[should_panic(expected = "WATCHED-2: asked in vain")]
    fn waits_without_end() {
        let mut watched = told(Next::Nothing, true);
        for now in 0..100 {
            watched.policy = Box::new(Told(Next::WaitUntil(Instant(now + 1))));
            watched.next(Instant(now));
        }
    }

    /// The first flow takes a thousand blocks at one moment.
    fn take_all(watched: &mut Watched) {
        watched.offer(FLOWS[1], BLOCK, 1, Instant(0));
        for arrival in 2..1_000 {
            watched.next(Instant(0));
            watched.offer(FLOWS[0], BLOCK, arrival, Instant(0));
        }
    }

    #[test]
    #[should_panic(expected = "WATCHED-3: FlowId(1) waits while others took")]
    fn one_who_starves() {
        let mut watched = told(Next::Flow(FLOWS[0]), true);
        // Of a policy without quotas, whose rates are not judged.
        watched.judge = Judge::of_shared("fcfs", 10.0, Instant(0));
        FLOWS.iter().for_each(|id| watched.judge.set_flow(id.0, 1.0));
        watched.judge.arrive(FLOWS[0].0, 1.0);
        take_all(&mut watched);
    }

    #[test]
    #[should_panic(expected = "WATCHED-4: WINDOW-1")]
    fn one_who_takes_more_than_there_is() {
        take_all(&mut told(Next::Flow(FLOWS[0]), true));
    }

    #[test]
    #[should_panic(expected = "WATCHED-3: FlowId(1) is named before")]
    fn one_who_came_later() {
        let mut watched = told(Next::Flow(FLOWS[1]), false);
        watched.offer(FLOWS[1], BLOCK, 1, Instant(0));
        watched.next(Instant(0));
    }
}
