//! Loads of all kinds before the schedulers of several cores, in simulated time, from a seed. Volumes come and go;
//! promises, ceilings, policies and cost models change.

pub(crate) mod draw;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use schedule::{
    CLASSES, Ceiling, CostModel, Direction, Dispatch, FlowId, POLICIES, Plan, PolicyKind, Promise,
    Quota, Request, Scheduler, SchedulerConfig, Slo, plan,
};
use sim::{Excess, Judge, Rng};
use units::{CoreIndex, Duration, Instant};

use self::draw::{Arrivals, Load};

/// Requests of an open load that may wait: what comes beyond is not asked for.
const WAITING_MAX: usize = 2_000;
/// A policy without a ceiling does as much as there is time for.
const EVENTS_MAX: u64 = 60_000;
/// Blocks that a run is long enough for.
const BLOCKS: u64 = 20_000;

#[derive(Debug)]
struct Tenant {
    core: usize,
    slo: Slo,
    /// Since it was told to its core.
    flow: Option<FlowId>,
    quota: Quota,
    load: Option<Load>,
    arrivals: u64,
    /// By class; with the order of all.
    waiting: [VecDeque<(Request, u64)>; CLASSES],
}

struct Core {
    scheduler: Scheduler<u64>,
    /// Counts schedulers.
    generation: u64,
    windows: [u32; CLASSES],
    /// By direction.
    in_flight: [u64; 2],
    wake_at: Option<Instant>,
    judges: [Judge; CLASSES],
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Arrive { tenant: u64 },
    Complete { core: usize, generation: u64, flow: u32, is_write: bool, blocks: u32, tenant: u64 },
    Wake { core: usize, generation: u64 },
    Change,
}

/// The counts that a run reached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) at_once: u64,
    pub(crate) queued: u64,
    pub(crate) changes: u64,
    /// The part of the allowance of WINDOW-1 to WINDOW-5 that was needed: near 1, and the tests are sharp.
    pub(crate) needed: [f64; 5],
}

/// A device, its volumes and their hosts.
pub(crate) struct World {
    rng: Rng,
    now: Instant,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    policy: PolicyKind,
    model: CostModel,
    ceiling: Ceiling,
    latency: Duration,
    /// The part of the latency target that the device takes for a request. Above 1 it does less than its ceiling.
    slowness: f64,
    cores: Vec<Option<Core>>,
    tenants: BTreeMap<u64, Tenant>,
    /// WINDOW-1 of all cores together, and what may come together: since policy and cost model are as they are.
    taken: [Excess; CLASSES],
    brought: [f64; CLASSES],
    finding: Option<String>,
    seen: Seen,
}

/// Runs a seed, with so many changes on its way.
///
/// # Errors
/// What is not as promised.
pub(crate) fn run(seed: u64, policy: PolicyKind, changes: u64) -> Result<Seen, String> {
    let mut world = World::new(seed, policy);
    world.run(changes);
    for judge in world.cores.iter_mut().flatten().flat_map(|core| &mut core.judges) {
        world.seen.note(judge);
    }
    world.finding.map_or(Ok(world.seen), |finding| {
        Err(format!("{policy}, seed {seed}, {changes} changes: {finding}"))
    })
}

impl Seen {
    fn note(&mut self, judge: &Judge) {
        for (most, needed) in self.needed.iter_mut().zip(judge.needed) {
            *most = most.max(needed);
        }
    }
}

impl World {
    fn new(seed: u64, policy: PolicyKind) -> Self {
        let mut rng = Rng::new(seed);
        let cores = rng.between(1, 3);
        let mut world = Self {
            now: Instant(rng.below(1 << 40)),
            events: BinaryHeap::new(),
            count: 0,
            policy,
            model: draw::cost_model(&mut rng),
            ceiling: draw::ceiling(&mut rng),
            latency: Duration::from_micros(rng.between(200, 4_000)),
            slowness: [0.02, 0.1, 0.4, 3.0][rng.below(4) as usize],
            cores: (0..cores).map(|_| None).collect(),
            tenants: BTreeMap::new(),
            taken: Default::default(),
            brought: [0.0; CLASSES],
            finding: None,
            seen: Seen::default(),
            rng,
        };
        for _ in 0..world.rng.between(2, 8) {
            world.come();
        }
        world.divide();
        world
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at.0, self.count, event)));
    }

    fn find(&mut self, finding: impl FnOnce() -> String) {
        let (now, policy, model) = (self.now, self.policy, self.model);
        let finding = || format!("at {now:?} under {policy}, {model:?}: {}", finding());
        self.finding.get_or_insert_with(finding);
    }

    /// Class and cost in blocks, from what the cost model says.
    fn cost(&self, request: Request) -> (usize, f64) {
        let blocks = f64::from(request.blocks);
        match (self.model, request.direction) {
            (_, Direction::Read) => (0, blocks),
            (CostModel::Separate, Direction::Write) => (1, blocks),
            (CostModel::WriteCosts { per_mille }, Direction::Write) => {
                (0, blocks * f64::from(per_mille) / 1000.0)
            }
        }
    }

    fn pass_to(&mut self, now: Instant) {
        let passed_s = now.since(self.now).as_secs_f64();
        self.now = now;
        for core in self.cores.iter_mut().flatten() {
            for (judge, taken) in core.judges.iter_mut().zip(&mut self.taken) {
                taken.allow(passed_s * judge.rate());
                judge.pass_to(now);
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let mut found = None;
        let (mut bursts, mut bounded) = (self.brought, true);
        for (number, core) in self.cores.iter_mut().enumerate() {
            let Some(core) = core else { continue };
            for (class, judge) in core.judges.iter_mut().enumerate() {
                bursts[class] += judge.burst();
                bounded &= judge.is_bounded();
                if let Err(finding) = judge.check() {
                    found.get_or_insert_with(|| format!("core {number}, class {class}: {finding}"));
                }
            }
        }
        for (taken, burst) in self.taken.iter().zip(bursts) {
            let taken = taken.now();
            if bounded && taken > burst + 1.0 {
                found.get_or_insert_with(|| {
                    format!("WINDOW-1: {taken} blocks by all cores, of {burst}")
                });
            }
        }
        if let Some(found) = found {
            self.find(|| found);
        }
    }

    fn come(&mut self) {
        let slo = draw::slo(&mut self.rng, self.ceiling);
        let core = self.rng.below(self.cores.len() as u64) as usize;
        self.count += 1;
        let tenant = Tenant {
            core,
            slo,
            flow: None,
            quota: Quota::default(),
            load: None,
            arrivals: 0,
            waiting: Default::default(),
        };
        self.tenants.insert(self.count, tenant);
    }

    fn any_tenant(&mut self) -> u64 {
        let nth = self.rng.below(self.tenants.len() as u64) as usize;
        *self.tenants.keys().nth(nth).expect("below")
    }

    fn go(&mut self) {
        if self.tenants.len() < 2 {
            return;
        }
        let number = self.any_tenant();
        let tenant = self.tenants.remove(&number).expect("there");
        let (Some(core), Some(flow)) = (&mut self.cores[tenant.core], tenant.flow) else { return };
        let left = core.scheduler.remove_flow(flow).count();
        assert_eq!(left, tenant.waiting.iter().flatten().count(), "what waited comes back");
        core.judges.iter_mut().for_each(|judge| judge.remove_flow(flow.0));
    }

    /// Divides the device again.
    fn divide(&mut self) {
        loop {
            let promises: Vec<Promise> = self
                .tenants
                .values()
                .map(|t| Promise { core: CoreIndex(t.core), slo: t.slo })
                .collect();
            match plan(self.ceiling, self.latency, self.model, &promises, self.cores.len()) {
                Ok(plan) => {
                    self.check_plan(&plan, &promises);
                    return self.apply(&plan);
                }
                Err(_) => {
                    let number = self.any_tenant();
                    let weight = self.rng.between(1, 100) as u32;
                    self.tenants.get_mut(&number).expect("there").slo = Slo::Share { weight };
                }
            }
        }
    }

    /// WINDOW-1: cores may do no more than the device, nor promise more than they may do, but for the least of a
    /// volume.
    fn check_plan(&mut self, plan: &Plan, promises: &[Promise]) {
        let whole = self.ceiling.quota(self.model).per_second;
        for (class, whole) in whole.into_iter().enumerate() {
            let part =
                |core: CoreIndex| plan.cores[core].map_or(0.0, |p| p.ceiling.per_second[class]);
            let sum: f64 = plan.cores.keys().map(part).sum();
            if sum > whole * 1.000_001 {
                self.find(|| format!("WINDOW-1: cores may do {sum} of {whole}"));
            }
            for core in plan.cores.keys() {
                let of_core = promises.iter().zip(&plan.quotas).filter(|(p, _)| p.core == core);
                let sum: f64 = of_core.map(|(_, quota)| quota.per_second[class]).sum();
                if sum > part(core) * 1.000_101 {
                    self.find(|| format!("WINDOW-1: core {core} promises {sum} of {}", part(core)));
                }
            }
        }
    }

    fn apply(&mut self, plan: &Plan) {
        for (number, part) in plan.cores.iter().enumerate() {
            let config = part.map(|part| SchedulerConfig {
                policy: self.policy,
                cost_model: self.model,
                ceiling: part.ceiling,
                window_blocks: part.window_blocks,
            });
            self.configure(number, config);
        }
        for (number, quota) in
            self.tenants.keys().copied().collect::<Vec<_>>().iter().zip(&plan.quotas)
        {
            // As a core does, so that none waits for ever.
            self.set_quota(*number, Quota { per_second: quota.per_second.map(|r| r.max(1.0)) });
        }
        for core in 0..self.cores.len() {
            self.pump(core);
        }
    }

    /// Tells a core its part. One without volumes has none.
    fn configure(&mut self, number: usize, config: Option<SchedulerConfig>) {
        let now = self.now;
        let Some(config) = config else {
            if let Some(core) = self.cores[number].take() {
                (0..CLASSES).for_each(|class| self.brought[class] += core.judges[class].burst());
            }
            return;
        };
        let rates = config.ceiling.per_second;
        let judge = if self.slowness < 0.5 { Judge::new } else { Judge::of_shared };
        let judges = || rates.map(|rate| judge(config.policy.name, rate, now));
        match &mut self.cores[number] {
            Some(core) => {
                let before = core.scheduler.config();
                core.scheduler.reconfigure(config, now);
                core.windows = config.window_blocks;
                if (before.policy, before.cost_model) == (config.policy, config.cost_model) {
                    core.judges.iter_mut().zip(rates).for_each(|(j, rate)| j.set_ceiling(rate));
                    return;
                }
                core.judges.iter().for_each(|judge| self.seen.note(judge));
                core.judges = judges();
                (self.taken, self.brought) = Default::default();
                self.judge_again(number);
            }
            None => {
                self.count += 1;
                self.cores[number] = Some(Core {
                    scheduler: Scheduler::new(config, now),
                    generation: self.count,
                    windows: config.window_blocks,
                    in_flight: [0; 2],
                    wake_at: None,
                    judges: judges(),
                });
            }
        }
    }

    /// Judges the requests that wait in a core as if they came now, in the order in which they
    /// came.
    fn judge_again(&mut self, core: usize) {
        let mut waiting = Vec::new();
        for (number, tenant) in self.tenants.iter_mut().filter(|(_, tenant)| tenant.core == core) {
            let judges = self.cores[core].iter_mut().flat_map(|core| &mut core.judges);
            let Some(flow) = tenant.flow else { continue };
            judges.zip(tenant.quota.per_second).for_each(|(j, quota)| j.set_flow(flow.0, quota));
            let all = tenant.waiting.iter_mut().flat_map(std::mem::take);
            waiting.extend(all.map(|(request, order)| (order, *number, request)));
        }
        waiting.sort_by_key(|(order, ..)| *order);
        for (order, number, request) in waiting {
            self.note_arrival(number, request);
            let class = self.cost(request).0;
            let tenant = self.tenants.get_mut(&number).expect("it waits");
            tenant.waiting[class].push_back((request, order));
        }
    }

    fn set_quota(&mut self, number: u64, quota: Quota) {
        let tenant = self.tenants.get_mut(&number).expect("there");
        tenant.quota = quota;
        let core = self.cores[tenant.core].as_mut().expect("it has a volume");
        let flow = match tenant.flow {
            Some(flow) => {
                core.scheduler.set_quota(flow, quota, self.now);
                flow
            }
            None => core.scheduler.add_flow(quota, self.now),
        };
        core.judges.iter_mut().zip(quota.per_second).for_each(|(j, rate)| j.set_flow(flow.0, rate));
        if tenant.flow.replace(flow).is_none() {
            let load = Load::draw(&mut self.rng, quota, self.model);
            tenant.load = Some(load);
            let depth = if let Arrivals::Closed { depth } = load.arrivals { depth } else { 1 };
            (0..depth).for_each(|_| self.at(self.now, Event::Arrive { tenant: number }));
        }
    }

    fn note_arrival(&mut self, number: u64, request: Request) {
        let (class, blocks) = self.cost(request);
        let tenant = &self.tenants[&number];
        let core = self.cores[tenant.core].as_mut().expect("it has a volume");
        core.judges[class].arrive(tenant.flow.expect("its core knows it").0, blocks);
    }

    /// A request comes, and the next one later, unless it waits for this one.
    fn arrive(&mut self, number: u64) {
        let Some(tenant) = self.tenants.get_mut(&number) else { return };
        let load = tenant.load.expect("its core knows it");
        tenant.arrivals += 1;
        let waiting = tenant.waiting.iter().flatten().count();
        let now_s = self.now.0 as f64 / 1e9;
        if let Some(pause_s) = load.pause_s(&mut self.rng, tenant.arrivals, now_s) {
            let at = Instant(self.now.0 + (pause_s * 1e9) as u64 + 1);
            self.at(at, Event::Arrive { tenant: number });
            if waiting >= WAITING_MAX {
                return;
            }
        }
        let request = load.request(&mut self.rng);
        self.submit(number, request);
    }

    fn submit(&mut self, number: u64, request: Request) {
        self.note_arrival(number, request);
        self.count += 1;
        let (class, _) = self.cost(request);
        let tenant = self.tenants.get_mut(&number).expect("there");
        let flow = tenant.flow.expect("its core knows it");
        let scheduler = &mut self.cores[tenant.core].as_mut().expect("it has a volume").scheduler;
        if scheduler.issue_at_once(flow, request, self.now) {
            self.seen.at_once += 1;
            return self.issued(number, request);
        }
        self.seen.queued += 1;
        tenant.waiting[class].push_back((request, self.count));
        scheduler.enqueue(flow, request, number, self.now);
        let core = tenant.core;
        self.pump(core);
    }

    /// A request has left for the device.
    fn issued(&mut self, number: u64, request: Request) {
        let (class, blocks) = self.cost(request);
        let (tenant, Request { direction, .. }) = (&self.tenants[&number], request);
        let (at, flow) = (tenant.core, tenant.flow.expect("its core knows it").0);
        let core = self.cores[at].as_mut().expect("it has a volume");
        core.judges[class].leave(flow, blocks);
        self.taken[class].take(blocks);
        core.in_flight[direction as usize] += u64::from(request.blocks);
        let (generation, is_write) = (core.generation, direction == Direction::Write);
        let time_s = self.latency.as_secs_f64() * self.slowness * (0.5 + draw::part(&mut self.rng));
        let done = Instant(self.now.0 + (time_s * 1e9) as u64 + 1);
        let blocks = request.blocks;
        self.at(
            done,
            Event::Complete { core: at, generation, flow, is_write, blocks, tenant: number },
        );
        self.check();
    }

    fn complete(&mut self, at: usize, generation: u64, flow: u32, request: Request) {
        if let Some(core) = &mut self.cores[at]
            && core.generation == generation
        {
            core.in_flight[request.direction as usize] -= u64::from(request.blocks);
            core.scheduler.complete(FlowId(flow), request);
            let expected = self.in_use(at);
            let found = self.cores[at].as_ref().map(|core| core.scheduler.in_flight_blocks());
            if found != Some(expected) {
                self.find(|| format!("{found:?} blocks are under way, and not {expected:?}"));
            }
            self.pump(at);
        }
    }

    fn in_use(&self, core: usize) -> [u64; CLASSES] {
        let mut blocks = [0; CLASSES];
        let in_flight = self.cores[core].as_ref().map_or([0; 2], |core| core.in_flight);
        for direction in [Direction::Read, Direction::Write] {
            let of_reads = direction == Direction::Read || self.model != CostModel::Separate;
            blocks[usize::from(!of_reads)] += in_flight[direction as usize];
        }
        blocks
    }

    fn has_room(&self, core: usize, class: usize) -> bool {
        let windows = self.cores[core].as_ref().map_or([0; CLASSES], |core| core.windows);
        let in_use = self.in_use(core);
        in_use[class] < u64::from(windows[class].max(1))
            || in_use.iter().sum::<u64>() < windows.iter().map(|blocks| u64::from(*blocks)).sum()
    }

    /// Lets go what may, as a core does when something has changed.
    fn pump(&mut self, at: usize) {
        loop {
            let Some(core) = &mut self.cores[at] else { return };
            match core.scheduler.dispatch(self.now) {
                Dispatch::Issue { flow, request, token } => {
                    let (class, _) = self.cost(request);
                    let tenant = self.tenants.get_mut(&token).expect("a volume that is there");
                    assert_eq!(tenant.flow, Some(flow));
                    let oldest = tenant.waiting[class].pop_front().map(|(oldest, _)| oldest);
                    assert_eq!(oldest, Some(request), "SCHEDULER-1: in order");
                    assert!(self.has_room(at, class), "SCHEDULER-2: there is room");
                    self.issued(token, request);
                }
                Dispatch::WaitUntil(wake) => {
                    assert!(wake > self.now, "POLICY-2: in the future");
                    if core.wake_at.is_none_or(|armed| wake < armed) {
                        core.wake_at = Some(wake);
                        let generation = core.generation;
                        self.at(wake, Event::Wake { core: at, generation });
                    }
                    break;
                }
                Dispatch::Full | Dispatch::Idle => break,
            }
        }
        for class in 0..CLASSES {
            let of_core = self.tenants.values().filter(|tenant| tenant.core == at);
            let waits = of_core.into_iter().any(|tenant| !tenant.waiting[class].is_empty());
            let is_idle = waits && self.has_room(at, class);
            let core = self.cores[at].as_mut().expect("it was dispatched");
            let judge = &mut core.judges[class];
            if is_idle { judge.idle(None) } else { judge.busy() }
        }
    }

    fn change(&mut self) {
        self.seen.changes += 1;
        match self.rng.below(8) {
            0 => self.come(),
            1 => self.go(),
            2 => self.policy = POLICIES[self.rng.below(POLICIES.len() as u64) as usize],
            3 => self.ceiling = draw::ceiling(&mut self.rng),
            4 => self.model = draw::cost_model(&mut self.rng),
            5 => {
                let (number, slo) = (self.any_tenant(), draw::slo(&mut self.rng, self.ceiling));
                self.tenants.get_mut(&number).expect("there").slo = slo;
            }
            // All are told the same again, as when another volume changes, and that gives none of them more.
            _ => (0..self.rng.below(200)).for_each(|_| self.divide()),
        }
        self.divide();
    }

    fn run(&mut self, changes: u64) {
        let Ceiling { reads_per_second, writes_per_second } = self.ceiling;
        let time_ns = BLOCKS * 1_000_000_000 / (reads_per_second + writes_per_second);
        let end = Instant(self.now.0 + time_ns);
        for _ in 0..changes {
            let at = Instant(self.now.0 + self.rng.below(time_ns));
            self.at(at, Event::Change);
        }
        for _ in 0..EVENTS_MAX {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            if Instant(at) > end || self.finding.is_some() {
                break;
            }
            self.pass_to(Instant(at));
            self.act(event);
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Arrive { tenant } => self.arrive(tenant),
            Event::Complete { core, generation, flow, is_write, blocks, tenant } => {
                let direction = if is_write { Direction::Write } else { Direction::Read };
                self.complete(core, generation, flow, Request { direction, blocks });
                let load = self.tenants.get(&tenant).and_then(|tenant| tenant.load);
                if load.is_some_and(|load| matches!(load.arrivals, Arrivals::Closed { .. })) {
                    self.arrive(tenant);
                }
            }
            Event::Wake { core: at, generation } => {
                if let Some(core) = &mut self.cores[at]
                    && core.generation == generation
                    && core.wake_at == Some(self.now)
                {
                    core.wake_at = None;
                    self.pump(at);
                }
            }
            Event::Change => self.change(),
        }
    }
}
