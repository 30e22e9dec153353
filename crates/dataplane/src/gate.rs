//! The gate of a device: decides which request goes when, if the device has a ceiling.
//!
//! ```text
//! request ──► Lane::enter ──► Scheduler ──► Ticket ──► engine, device ──► ticket dropped
//!               a lane for                    │                               │
//!               each volume     about a window of blocks is inside   ◄────────┘
//! ```
//! - GATE-1: without a ceiling no request waits, and each costs a few counters.
//! - GATE-2: a ticket that was given is given back once, also when ceiling, policy or quotas change
//!   meanwhile: changes take effect for requests that have not entered yet.
//! - GATE-3: a request whose host has gone leaves its queue, and its volume's quota to others; only
//!   one that was next in its queue is accounted.
//! - GATE-4: while requests wait that only time can let in, one timer is set, for the earliest of
//!   them. None is set while none wait; one that is may still fire when they have gone.

mod sabotage;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use io_traits::World;
use local_sync::{Notify, first_of};
use schedule::{CLASSES, Direction, Dispatch, FlowId, Quota, Request, Scheduler, SchedulerConfig};
use situations::{Situation, situation};
use slab::Slab;
use units::Instant;

use crate::done::Done;
use crate::flow_stats::BusyTime;
use crate::held::Passage;
use crate::turns::LaneId;
use crate::uncounted::counts;
use sabotage::{Sabotage, broken};

/// The least that a volume gets, in blocks a second, so that none waits for ever.
const QUOTA_MIN: f64 = 1.0;

/// A request that waits, or whose turn has just come.
struct Waiter {
    waker: Option<Waker>,
    state: WaiterState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum WaiterState {
    Queued,
    /// It may go: under the scheduler's account, or past it.
    Admitted(Account),
    /// Its host has gone.
    Abandoned,
}

/// The scheduler, by its generation, and the flow to which a request is accounted. `None`: it is not
/// accounted.
type Account = Option<(u64, FlowId)>;

struct State {
    scheduler: Option<Scheduler<usize>>,
    /// Counts schedulers.
    generation: u64,
    waiters: Slab<Waiter>,
    lanes: Vec<Weak<LaneState>>,
    /// Counters of the volumes that are gone.
    gone: Rc<RefCell<Done>>,
    /// When the timer fires.
    wake_at: Option<Instant>,
}

struct Inner<W> {
    world: W,
    has_ceiling: Cell<bool>,
    state: RefCell<State>,
    /// `wake_at` is earlier than it was.
    rearmed: Notify,
    /// The last place that each request to the device passes, with or without a ceiling.
    passage: Passage,
}

/// A core's way to its device. A cheap handle; clones are the same.
pub(crate) struct Gate<W> {
    inner: Rc<Inner<W>>,
}

impl<W> Clone for Gate<W> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct LaneState {
    flow: Cell<Option<FlowId>>,
    /// Its volume is gone: what is under way ends, and nothing is scheduled any more.
    is_closed: Cell<bool>,
    quota: Cell<Quota>,
    done: RefCell<Done>,
    busy: RefCell<BusyTime>,
    /// The sum of the counters of lanes that are gone.
    gone: Rc<RefCell<Done>>,
}

/// A volume's queue before the gate.
pub(crate) struct Lane<W: World> {
    gate: Gate<W>,
    state: Rc<LaneState>,
    turns: LaneId,
}

/// The turn of a request at the device. Ended by [`Lane::end`].
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    request: Request,
    account: Account,
    /// When it stood in line, and when its turn came.
    times: [Instant; 2],
}

/// Lets one request use the device until it is dropped.
pub(crate) struct Ticket<'a, W: World> {
    lane: &'a Lane<W>,
    turn: Turn,
}

/// The state of a gate, by class of requests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WindowStats {
    /// Blocks that may be under way; `None` without a ceiling.
    pub window_blocks: Option<[u32; CLASSES]>,
    /// Blocks that are.
    pub in_use_blocks: [u64; CLASSES],
    /// Requests that wait.
    pub queued: [u64; CLASSES],
}

impl<W: World> Gate<W> {
    pub(crate) fn new(world: &W) -> Self {
        let state = State {
            scheduler: None,
            generation: 0,
            waiters: Slab::new(),
            lanes: Vec::new(),
            gone: Rc::default(),
            wake_at: None,
        };
        let inner = Inner {
            world: world.clone(),
            has_ceiling: Cell::new(false),
            state: RefCell::new(state),
            rearmed: Notify::new(),
            passage: Passage::default(),
        };
        let gate = Self { inner: Rc::new(inner) };
        let timed = gate.clone();
        world.spawn(async move { timed.run_timer().await });
        gate
    }

    /// A lane for a new volume, whose commands wait for the processor in `turns`.
    pub(crate) fn add_lane(&self, turns: LaneId) -> Lane<W> {
        let mut state = self.inner.state.borrow_mut();
        let lane = Rc::new(LaneState::new(state.gone.clone()));
        state.lanes.retain(|lane| lane.strong_count() > 0);
        state.lanes.push(Rc::downgrade(&lane));
        if let Some(scheduler) = &mut state.scheduler {
            lane.flow.set(Some(scheduler.add_flow(lane.quota(), self.inner.world.now())));
        }
        Lane { gate: self.clone(), state: lane, turns }
    }

    /// Sets ceiling, window and policy, or takes them away. Nothing that waits or is under way is
    /// lost (GATE-2).
    pub(crate) fn configure(&self, config: Option<SchedulerConfig>) {
        let now = self.inner.world.now();
        {
            let state = &mut *self.inner.state.borrow_mut();
            match (&mut state.scheduler, config) {
                (Some(scheduler), Some(config)) => scheduler.reconfigure(config, now),
                (None, Some(config)) => {
                    let mut scheduler = Scheduler::new(config, now);
                    let lanes = state.lanes.iter().filter_map(Weak::upgrade);
                    for lane in lanes.filter(|lane| !lane.is_closed.get()) {
                        lane.flow.set(Some(scheduler.add_flow(lane.quota(), now)));
                    }
                    state.scheduler = Some(scheduler);
                    state.generation += 1;
                }
                (_, None) => {
                    state.scheduler = None;
                    state.lanes.iter().filter_map(Weak::upgrade).for_each(|l| l.flow.set(None));
                    state.waiters.retain(|_, waiter| waiter.admit(None));
                }
            }
            self.inner.has_ceiling.set(state.scheduler.is_some());
        }
        self.pump();
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.inner.passage
    }

    /// Counters of all volumes together, also those that are gone.
    pub(crate) fn done(&self) -> Done {
        let state = self.inner.state.borrow();
        let mut sum = state.gone.borrow().clone();
        let lanes = state.lanes.iter().filter_map(Weak::upgrade);
        lanes.for_each(|lane| sum.add(&lane.done.borrow()));
        sum
    }

    pub(crate) fn stats(&self) -> WindowStats {
        let state = self.inner.state.borrow();
        state.scheduler.as_ref().map_or_else(WindowStats::default, |scheduler| WindowStats {
            window_blocks: Some(scheduler.config().window_blocks),
            in_use_blocks: scheduler.in_flight_blocks(),
            queued: scheduler.queued(),
        })
    }

    /// Lets in each request that may go.
    fn pump(&self) {
        let now = self.inner.world.now();
        let state = &mut *self.inner.state.borrow_mut();
        let Some(scheduler) = &mut state.scheduler else { return };
        loop {
            match scheduler.dispatch(now) {
                Dispatch::Issue { flow, request, token } => {
                    if !state.waiters[token].admit(Some((state.generation, flow))) {
                        state.waiters.remove(token);
                        scheduler.complete(flow, request);
                    }
                }
                Dispatch::WaitUntil(at) => {
                    if state.wake_at.is_none_or(|armed| at < armed) && !broken(Sabotage::NoTimer) {
                        state.wake_at = Some(at);
                        self.inner.rearmed.notify_all();
                    }
                    return;
                }
                Dispatch::Full | Dispatch::Idle => return,
            }
        }
    }

    /// GATE-4.
    async fn run_timer(&self) {
        let world = &self.inner.world;
        loop {
            let rearmed = self.inner.rearmed.notified();
            let wake_at = self.inner.state.borrow().wake_at;
            match wake_at {
                None => rearmed.await,
                Some(at) => {
                    first_of(world.sleep_until(at), rearmed).await;
                    if world.now() >= at {
                        self.inner.state.borrow_mut().wake_at = None;
                        self.pump();
                    }
                }
            }
        }
    }

    /// A request that was accounted there is done.
    fn complete(&self, account: Account, request: Request) {
        let Some((generation, flow)) = account else { return };
        {
            let state = &mut *self.inner.state.borrow_mut();
            match &mut state.scheduler {
                Some(scheduler) if generation == state.generation => {
                    scheduler.complete(flow, request);
                    if scheduler.queued() == [0; CLASSES] || broken(Sabotage::NoPumpWhenDone) {
                        return;
                    }
                }
                _ => return,
            }
        }
        self.pump();
    }
}

impl Waiter {
    /// Lets it in; `false`: its host has gone.
    fn admit(&mut self, account: Account) -> bool {
        if self.state == WaiterState::Queued {
            self.state = WaiterState::Admitted(account);
            self.waker.take().into_iter().for_each(Waker::wake);
        }
        self.state != WaiterState::Abandoned
    }
}

impl Drop for LaneState {
    fn drop(&mut self) {
        self.gone.borrow_mut().add(self.done.get_mut());
    }
}

impl LaneState {
    fn new(gone: Rc<RefCell<Done>>) -> Self {
        Self {
            flow: Cell::new(None),
            is_closed: Cell::new(false),
            quota: Cell::new(Quota::default()),
            done: RefCell::default(),
            busy: RefCell::default(),
            gone,
        }
    }

    fn quota(&self) -> Quota {
        let per_second = self.quota.get().per_second.map(|rate| rate.max(QUOTA_MIN));
        Quota { per_second }
    }
}

impl<W: World> Lane<W> {
    /// The volume is gone: waiting requests go on, and find that out.
    pub(crate) fn close(&self) {
        let state = &mut *self.gate.inner.state.borrow_mut();
        if let (Some(scheduler), Some(flow)) = (&mut state.scheduler, self.state.flow.take()) {
            for waiting in scheduler.remove_flow(flow) {
                if !state.waiters[waiting].admit(None) {
                    state.waiters.remove(waiting);
                }
            }
        }
        self.state.is_closed.set(true);
    }

    /// Returns the passage of its requests behind their turn (HELD-1).
    pub(crate) fn passage(&self) -> &Passage {
        &self.gate.inner.passage
    }

    /// Sets the rate that the volume may count on, when there is a ceiling.
    pub(crate) fn set_quota(&self, quota: Quota) {
        if self.state.quota.replace(quota) == quota {
            return;
        }
        let mut state = self.gate.inner.state.borrow_mut();
        if let (Some(scheduler), Some(flow)) = (&mut state.scheduler, self.state.flow.get()) {
            scheduler.set_quota(flow, self.state.quota(), self.gate.inner.world.now());
        }
        drop(state);
        self.gate.pump();
    }

    pub(crate) fn quota(&self) -> Quota {
        self.state.quota.get()
    }

    /// The lane in which the volume's commands wait for the processor.
    pub(crate) fn turns(&self) -> LaneId {
        self.turns
    }

    /// A command of the volume was answered with the error of this name.
    pub(crate) fn note_error(&self, name: &'static str) {
        self.state.done.borrow_mut().errors.note(name);
    }

    pub(crate) fn done(&self) -> Done {
        self.state.done.borrow().clone()
    }

    /// For how long there was something to do.
    pub(crate) fn busy(&self) -> std::time::Duration {
        self.state.busy.borrow().at(self.gate.inner.world.now())
    }

    /// Waits until the request may use the device. `None`: `gone` came first.
    pub(crate) async fn enter(
        &self,
        direction: Direction,
        blocks: u64,
        gone: &Notify,
    ) -> Option<Ticket<'_, W>> {
        if let Some(ticket) = self.enter_at_once(direction, blocks) {
            return Some(ticket);
        }
        situation(Situation::RequestAwaitsTurn);
        let request = request(direction, blocks);
        let arrived = self.gate.inner.world.now();
        let account = self.wait(request, gone).await?;
        let turn = self.begin(request, account, [arrived, self.counted_now()]);
        Some(Ticket { lane: self, turn })
    }

    /// Lets the request use the device, if no other is before it and it need not wait.
    pub(crate) fn enter_at_once(&self, direction: Direction, blocks: u64) -> Option<Ticket<'_, W>> {
        let turn = self.begin_at_once(direction, blocks)?;
        Some(Ticket { lane: self, turn })
    }

    /// As [`Lane::enter_at_once`], for a caller that ends the turn itself.
    pub(crate) fn begin_at_once(&self, direction: Direction, blocks: u64) -> Option<Turn> {
        let (inner, request) = (&self.gate.inner, request(direction, blocks));
        if !inner.has_ceiling.get() {
            let now = self.counted_now();
            return Some(self.begin(request, None, [now; 2]));
        }
        let now = inner.world.now();
        let state = &mut *inner.state.borrow_mut();
        let account = match (&mut state.scheduler, self.state.flow.get()) {
            (Some(scheduler), Some(flow)) => scheduler
                .issue_at_once(flow, request, now)
                .then_some(Some((state.generation, flow)))?,
            _ => None,
        };
        Some(self.begin(request, account, [now; 2]))
    }

    /// For a request that stood in line at the first of `times`, and whose turn came at the second.
    fn begin(&self, request: Request, account: Account, times: [Instant; 2]) -> Turn {
        if counts() {
            self.state.done.borrow_mut().flow.note_start(&request);
            self.state.busy.borrow_mut().begin(times[0]);
        }
        Turn { request, account, times }
    }

    /// The request is done.
    pub(crate) fn end(&self, Turn { request, account, times }: Turn) {
        if counts() {
            let now = self.gate.inner.world.now();
            self.state.done.borrow_mut().note_end(&request, times, now);
            self.state.busy.borrow_mut().end(now);
        }
        if self.state.is_closed.get() && broken(Sabotage::KeepOfClosed) {
            return;
        }
        self.gate.complete(account, request);
    }

    /// The time, for what counts requests alone.
    fn counted_now(&self) -> Instant {
        if counts() { self.gate.inner.world.now() } else { Instant::default() }
    }

    /// Queues a request that was not let in at once, which happens only where there is a ceiling.
    async fn wait(&self, request: Request, gone: &Notify) -> Option<Account> {
        let now = self.gate.inner.world.now();
        let place = {
            let state = &mut *self.gate.inner.state.borrow_mut();
            let scheduler =
                state.scheduler.as_mut().expect("without one no request waits (GATE-1)");
            let flow = self.state.flow.get().expect("whose volume is gone does not wait");
            let waiter = Waiter { waker: None, state: WaiterState::Queued };
            let place = state.waiters.insert(waiter);
            scheduler.enqueue(flow, request, place, now);
            place
        };
        let mut place = Place { lane: self, request, place: Some(place) };
        self.gate.pump();
        if let Some(account) = place.take_account() {
            return Some(account);
        }
        self.state.done.borrow_mut().flow.queued += 1;
        // By itself: requests that need not wait stay small.
        let admitted =
            Box::pin(async { first_of(place.admitted(), gone.notified()).await.first() });
        let admitted = admitted.await;
        self.state.done.borrow_mut().note_waited(self.gate.inner.world.now().since(now));
        admitted
    }
}

fn request(direction: Direction, blocks: u64) -> Request {
    Request { direction, blocks: u32::try_from(blocks).unwrap_or(u32::MAX) }
}

/// A place in line; given up when dropped.
struct Place<'a, W: World> {
    lane: &'a Lane<W>,
    request: Request,
    place: Option<usize>,
}

impl<W: World> Place<'_, W> {
    fn take_account(&mut self) -> Option<Account> {
        let state = &mut *self.lane.gate.inner.state.borrow_mut();
        let place = self.place?;
        let WaiterState::Admitted(account) = state.waiters[place].state else { return None };
        state.waiters.remove(place);
        self.place = None;
        Some(account)
    }

    fn admitted(&mut self) -> impl Future<Output = Account> {
        poll_fn(|context| {
            if let Some(account) = self.take_account() {
                return Poll::Ready(account);
            }
            let mut state = self.lane.gate.inner.state.borrow_mut();
            let place = self.place.expect("it still waits");
            state.waiters[place].waker = Some(context.waker().clone());
            Poll::Pending
        })
    }
}

impl<W: World> Drop for Place<'_, W> {
    /// GATE-3.
    fn drop(&mut self) {
        if let Some(account) = self.take_account() {
            // Its turn came just as its host went.
            if broken(Sabotage::KeepAdmitted) {
                return;
            }
            return self.lane.gate.complete(account, self.request);
        }
        let state = &mut *self.lane.gate.inner.state.borrow_mut();
        let Some(place) = self.place else { return };
        let (Some(scheduler), Some(flow)) = (&mut state.scheduler, self.lane.state.flow.get())
        else {
            return;
        };
        if !broken(Sabotage::KeepAbandoned) && scheduler.cancel(flow, |token| *token == place) {
            state.waiters.remove(place);
        } else {
            state.waiters[place].state = WaiterState::Abandoned;
        }
    }
}

impl<W: World> Drop for Ticket<'_, W> {
    fn drop(&mut self) {
        self.lane.end(self.turn);
    }
}

#[cfg(test)]
mod tests;
