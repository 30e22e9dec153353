//! Loads of all kinds before a gate, in simulated time: open and closed, of hosts that stay or go, on volumes that come
//! and go, while ceilings, policies and quotas change. What they get is judged by `docs/policies.md`.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use io_traits::{Clock, Spawn};
use local_sync::Either;
use schedule::{CostModel, POLICIES};
use sim::{Judge, SimWorld, Simulation};
use units::Duration;

use super::*;
use crate::turns::Turns;

/// The device takes a fourth of this for a request: it can do its ceiling.
const LATENCY: Duration = Duration::from_millis(2);
/// Phases of a run, between changes, and their length.
const PHASES: u64 = 6;
const PHASE: Duration = Duration::from_millis(400);
const BLOCKS_MAX: u64 = 32;
/// Requests of one volume that may wait.
const WAITING_MAX: usize = 300;

/// A volume and its load.
struct Tenant {
    lane: Lane<SimWorld>,
    /// For the judge.
    number: u32,
    blocks: u64,
    reads_percent: u64,
    /// In a hundred, so many requests are left by their hosts.
    gone_percent: u64,
    waiting: Cell<usize>,
    stops: Cell<bool>,
}

/// The waiting requests as the judge sees them: class, blocks, volume.
type Known = (usize, f64, u32);

struct Book {
    /// By class, while there is a ceiling.
    judges: Option<[Judge; CLASSES]>,
    model: CostModel,
    /// The hosts that stay, in their order.
    waiting: VecDeque<Known>,
    policy: Option<&'static str>,
    /// Blocks that may be under way, and that may be as soon as what there was has ended.
    window: u64,
    window_next: u64,
    /// Blocks of tickets.
    held: u64,
    let_in: u64,
    left: u64,
}

#[derive(Clone)]
struct Rig {
    world: SimWorld,
    gate: Gate<SimWorld>,
    book: Rc<RefCell<Book>>,
    /// Requests of hosts that may go are dropped, just as another one ends.
    dropped: Rc<Notify>,
}

impl Rig {
    fn draw(&self, low: u64, high: u64) -> u64 {
        self.world.draw(|rng| rng.between(low, high))
    }

    async fn pass(&self, time: Duration) {
        self.world.sleep_until(self.world.now() + time).await;
    }

    /// One request, from its coming to its end.
    async fn request(self, tenant: Rc<Tenant>) {
        let is_read = self.draw(1, 100) <= tenant.reads_percent;
        let direction = if is_read { Direction::Read } else { Direction::Write };
        let blocks = self.draw(1, tenant.blocks);
        let stays = self.draw(1, 100) > tenant.gone_percent;
        let cost = self.cost(direction, blocks, tenant.number);
        if stays && tenant.gone_percent == 0 {
            self.arrives(cost);
        }
        let gone = Rc::new(Notify::new());
        if !stays {
            let (rig, gone, after) = (self.clone(), gone.clone(), self.draw(0, 20_000));
            self.world.spawn(async move {
                rig.pass(Duration::from_micros(after)).await;
                gone.notify_all();
            });
        }
        tenant.waiting.set(tenant.waiting.get() + 1);
        let ticket = match stays {
            true => tenant.lane.enter(direction, blocks, &gone).await,
            false => {
                let entered = tenant.lane.enter(direction, blocks, &gone);
                match first_of(self.dropped.notified(), entered).await {
                    Either::First(()) => None,
                    Either::Second(entered) => entered,
                }
            }
        };
        tenant.waiting.set(tenant.waiting.get() - 1);
        let Some(ticket) = ticket else {
            self.book.borrow_mut().left += 1;
            return;
        };
        // Past the scheduler's account none is judged: it is that of a volume that is gone, or there is no ceiling.
        if ticket.turn.account.is_some() || tenant.gone_percent == 0 {
            self.leaves(cost, tenant.gone_percent > 0);
        }
        self.book.borrow_mut().held += blocks;
        self.pass(LATENCY / 4).await;
        self.book.borrow_mut().held -= blocks;
        drop(ticket);
        if self.draw(1, 4) == 1 {
            self.dropped.notify_all();
        }
    }

    fn cost(&self, direction: Direction, blocks: u64, number: u32) -> Known {
        match (self.book.borrow().model, direction) {
            (CostModel::WriteCosts { per_mille }, Direction::Write) => {
                (0, blocks as f64 * f64::from(per_mille) / 1000.0, number)
            }
            (CostModel::WriteCosts { .. }, Direction::Read) => (0, blocks as f64, number),
            (CostModel::Separate, direction) => (direction as usize, blocks as f64, number),
        }
    }

    fn arrives(&self, (class, blocks, number): Known) {
        let book = &mut *self.book.borrow_mut();
        book.waiting.push_back((class, blocks, number));
        if let Some(judges) = &mut book.judges {
            judges[class].pass_to(self.world.now());
            judges[class].arrive(number, blocks);
        }
    }

    fn leaves(&self, known: Known, came_now: bool) {
        self.note_leaving(known, came_now);
        self.check();
    }

    fn note_leaving(&self, (class, blocks, number): Known, came_now: bool) {
        let book = &mut *self.book.borrow_mut();
        book.let_in += 1;
        if !came_now {
            let is_one = |known: &Known| (known.0, known.2) == (class, number);
            let Some(oldest) = book.waiting.iter().position(is_one) else { return };
            book.waiting.remove(oldest);
        }
        let Some(judges) = &mut book.judges else { return };
        judges[class].pass_to(self.world.now());
        if came_now {
            judges[class].arrive(number, blocks);
        }
        judges[class].leave(number, blocks);
    }

    fn check(&self) {
        let book = &mut *self.book.borrow_mut();
        let now = self.world.now();
        for judge in book.judges.iter_mut().flatten() {
            judge.pass_to(now);
            judge.check().unwrap_or_else(|finding| panic!("at {now:?}: {finding}"));
        }
        let stats = self.gate.stats();
        let in_use: u64 = stats.in_use_blocks.iter().sum();
        let (waits, sleeps) =
            (stats.queued != [0; CLASSES], self.gate.inner.state.borrow().wake_at);
        assert!(!waits || in_use > 0 || sleeps.is_some(), "nothing will let in what waits");
        assert!(in_use <= book.window, "{in_use} of {} in the window", book.window);
    }

    /// Sends requests until the volume is to go.
    async fn load(self, tenant: Rc<Tenant>, rate: f64, closed: bool) {
        let apart_s = (tenant.blocks + 1) as f64 / 2.0 / rate;
        while !tenant.stops.get() {
            if closed {
                self.clone().request(tenant.clone()).await;
                if self.gate.inner.has_ceiling.get() {
                    continue;
                }
                self.pass(LATENCY).await;
                continue;
            }
            if tenant.waiting.get() < WAITING_MAX {
                self.world.spawn(self.clone().request(tenant.clone()));
            }
            // Half of them come in pairs.
            let pause_s = apart_s * self.draw(0, 2) as f64;
            self.pass(Duration::from_nanos((pause_s * 1e9) as u64 + 1)).await;
        }
    }

    fn come(&self, number: u32, quota: Quota) -> Rc<Tenant> {
        let lane = self.gate.add_lane(Turns::<()>::default().add_lane());
        let pick = |all: &[u64]| all[self.draw(1, all.len() as u64) as usize - 1];
        let tenant = Rc::new(Tenant {
            lane,
            number,
            blocks: pick(&[1, 4, BLOCKS_MAX]),
            reads_percent: pick(&[0, 60, 100]),
            gone_percent: pick(&[0, 0, 30]),
            waiting: Cell::new(0),
            stops: Cell::new(false),
        });
        self.set_quota(&tenant, quota);
        let rate = quota.per_second[0] * pick(&[20, 80, 95, 150, 400]) as f64 / 100.0;
        let closed = self.draw(0, 2) == 0;
        for _ in 0..if closed { pick(&[1, 8, 32]) } else { 1 } {
            self.world.spawn(self.clone().load(tenant.clone(), rate, closed));
        }
        tenant
    }

    fn set_quota(&self, tenant: &Tenant, quota: Quota) {
        if let Some(judges) = &mut self.book.borrow_mut().judges {
            for (judge, rate) in judges.iter_mut().zip(quota.per_second) {
                judge.pass_to(self.world.now());
                judge.set_flow(tenant.number, rate.max(QUOTA_MIN));
            }
        }
        tenant.lane.set_quota(quota);
    }

    fn go(&self, tenant: &Tenant) {
        tenant.stops.set(true);
        let book = &mut *self.book.borrow_mut();
        book.waiting.retain(|known| known.2 != tenant.number);
        book.judges.iter_mut().flatten().for_each(|judge| judge.remove_flow(tenant.number));
        tenant.lane.close();
    }

    /// Another ceiling and policy, or none, and other quotas, in the order in which a core takes them.
    fn configure(&self, config: Option<SchedulerConfig>, tenants: &[Rc<Tenant>], quota: Quota) {
        self.judge_by(config, tenants, quota);
        tenants.iter().for_each(|tenant| self.set_quota(tenant, quota));
        self.gate.configure(config);
    }

    /// Under the same policy what volumes have saved and owe stays.
    fn judge_by(&self, config: Option<SchedulerConfig>, tenants: &[Rc<Tenant>], quota: Quota) {
        let now = self.world.now();
        let book = &mut *self.book.borrow_mut();
        // One kind borrows all that the other leaves, and then that one takes its own; each by a request beyond.
        let window = |config: SchedulerConfig| {
            let [reads, writes] = config.window_blocks.map(u64::from);
            reads + writes + reads.max(writes) + 2 * BLOCKS_MAX
        };
        // What was let in before a window became narrower is there for a while.
        let window = config.map_or(u64::MAX, window);
        book.window = window.max(book.window_next);
        book.window_next = window;
        let policy = config.map(|config| config.policy.name);
        if book.policy == policy {
            for (judge, rate) in book
                .judges
                .iter_mut()
                .flatten()
                .zip(config.map_or([0.0; 2], |c| c.ceiling.per_second))
            {
                judge.pass_to(now);
                judge.set_ceiling(rate);
            }
            return;
        }
        book.policy = policy;
        book.judges = config.map(|config| {
            config.ceiling.per_second.map(|rate| Judge::new(config.policy.name, rate, now))
        });
        let Some(judges) = &mut book.judges else { return };
        for (judge, rate) in judges.iter_mut().zip(quota.per_second) {
            tenants.iter().for_each(|tenant| judge.set_flow(tenant.number, rate.max(QUOTA_MIN)));
        }
        for (class, blocks, number) in &book.waiting {
            judges[*class].arrive(*number, *blocks);
        }
    }
}

fn config(rig: &Rig, rate: f64, policy: u64) -> SchedulerConfig {
    let rates = [rate, rate / 2.0];
    SchedulerConfig {
        policy: POLICIES[policy as usize % POLICIES.len()],
        cost_model: rig.book.borrow().model,
        ceiling: Quota { per_second: rates },
        window_blocks: rates.map(|rate| (rate * LATENCY.as_secs_f64()).max(32.0) as u32),
    }
}

async fn run(world: SimWorld) {
    let model = match world.draw(|rng| rng.one_in(3)) {
        true => CostModel::WriteCosts { per_mille: 2_500 },
        false => CostModel::Separate,
    };
    let book = Book {
        judges: None,
        model,
        waiting: VecDeque::new(),
        policy: None,
        window: u64::MAX,
        window_next: u64::MAX,
        held: 0,
        let_in: 0,
        left: 0,
    };
    let rig = Rig {
        gate: Gate::new(&world),
        world,
        book: Rc::new(RefCell::new(book)),
        dropped: Rc::default(),
    };
    let mut tenants: Vec<Rc<Tenant>> = Vec::new();
    for phase in 0..PHASES {
        let rate = [500.0, 2_000.0, 8_000.0][rig.draw(0, 2) as usize];
        let count = rig.draw(1, 5) as usize;
        let quota = |of: u64| {
            let part = rate * of as f64 / 100.0 / count as f64;
            Quota { per_second: [part, part / 2.0] }
        };
        // First those that go, so that quotas add up to no more than the ceiling.
        for gone in tenants.split_off(count.min(tenants.len())) {
            rig.go(&gone);
        }
        let config = config(&rig, rate, rig.draw(0, 5));
        let part = quota(rig.draw(10, 100));
        if rig.draw(0, 2) == 0 {
            // Another scheduler, while requests that the one before let in are under way.
            rig.configure(None, &tenants, part);
            rig.pass(Duration::from_micros(1)).await;
        }
        rig.configure((rig.draw(0, 5) > 0).then_some(config), &tenants, part);
        while tenants.len() < count {
            let number = (phase * 10) as u32 + tenants.len() as u32;
            tenants.push(rig.come(number, part));
        }
        for _ in 0..20 {
            rig.pass(PHASE / 20).await;
            rig.check();
            let in_use: u64 = rig.gate.stats().in_use_blocks.iter().sum();
            // GATE-3: of hosts that have gone only what was next in its queue is still there.
            let waiting: usize = tenants.iter().map(|tenant| tenant.waiting.get() + CLASSES).sum();
            let queued: u64 = rig.gate.stats().queued.iter().sum();
            assert!(queued <= waiting as u64, "{queued} in queues, and {waiting} wait");
            let held = rig.book.borrow().held;
            assert!(in_use <= held, "{in_use} blocks under way, and requests for {held}");
        }
    }
    tenants.iter().for_each(|tenant| tenant.stops.set(true));
    // What waits has its turn, however small its quota.
    let quota = tenants[0].lane.quota();
    rig.configure(None, &tenants, quota);
    rig.pass(PHASE).await;
    rig.configure(Some(config(&rig, 1_000.0, 0)), &tenants, quota);
    rig.pass(PHASE).await;
    assert_eq!((rig.gate.stats().in_use_blocks, rig.gate.stats().queued), ([0; 2], [0; 2]));
    assert_eq!(rig.gate.inner.state.borrow().waiters.len(), 0, "places of requests that are gone");
    let book = rig.book.borrow();
    assert!(book.let_in > 100, "{} let in, {} left", book.let_in, book.left);
}

const SEEDS: u64 = 30;

fn finding(seed: u64) -> Option<String> {
    let run = || {
        let simulation = Simulation::new(seed);
        let world = simulation.world();
        simulation.run(run(world)).map_err(|stalled| format!("{stalled:?}"))
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Some(text.unwrap_or_else(|| "a panic".to_owned()))
        }
    }
}

#[test]
fn promises_hold_in_every_window_whatever_loads_come() {
    for seed in 0..SEEDS {
        assert_eq!(finding(seed), None, "seed {seed}");
    }
}

#[test]
fn broken_gates_are_noticed() {
    for mutant in Sabotage::ALL {
        sabotage::sabotage(Some(mutant));
        let caught = (0..SEEDS).find_map(|seed| Some((seed, finding(seed)?)));
        sabotage::sabotage(None);
        println!("{mutant:?}: {caught:?}");
        assert!(caught.is_some(), "nothing notices {mutant:?}");
    }
}
