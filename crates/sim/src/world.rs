//! Virtual time and the tasks in it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use executor::{Executor, Spawner};
use io_traits::{Clock, Entropy, Network, NetworkError, Offload, Spawn};
use units::{Duration, Instant};

use crate::network::{SimListener, SimNetwork, SimStream};
use crate::{Rng, Trace};

/// Polls in one instant after which tasks are taken to spin on each other. No sound run needs a thousand.
const POLLS_PER_INSTANT_MAX: u64 = 100_000;

/// The time of day at which a simulated world begins, unless it is set: January 2027.
const BEGINNING: Duration = Duration::from_secs(1_800_000_000);

/// Limits of the time that offloaded work takes.
const OFFLOAD_TIME_MIN: Duration = Duration::from_micros(100);
const OFFLOAD_TIME_MAX: Duration = Duration::from_micros(10_000);

/// No task is ready and no event is due, but the awaited future is not done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stalled {
    /// The time at which everything stood still.
    pub at: Instant,
    /// Tasks that wait for something that will not happen.
    pub tasks: usize,
}

struct Core {
    now: Cell<Instant>,
    /// The time of day at [`Instant`] zero.
    beginning: Cell<Duration>,
    /// Timers and their wakers. The second part of the key keeps the order of insertion.
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next_timer: Cell<u64>,
    rng: RefCell<Rng>,
    network: SimNetwork,
    trace: Trace,
}

/// A world of its own: time, tasks, network.
pub struct Simulation {
    core: Rc<Core>,
    executor: Executor,
}

/// The handle that code under test sees as its world. Cheap to clone.
#[derive(Clone)]
pub struct SimWorld {
    core: Rc<Core>,
    spawner: Spawner,
}

impl Simulation {
    /// A world whose every turn follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_trace(seed, Trace::default())
    }

    /// The same, with what happens in it noted in `trace`.
    #[must_use]
    pub fn with_trace(seed: u64, trace: Trace) -> Self {
        situations::begin_world();
        let core = Core {
            now: Cell::new(Instant(0)),
            beginning: Cell::new(BEGINNING),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            rng: RefCell::new(Rng::new(seed)),
            network: SimNetwork::default(),
            trace,
        };
        Self { core: Rc::new(core), executor: Executor::new(Arc::new(|| {})) }
    }

    /// The handle to give to code under test.
    #[must_use]
    pub fn world(&self) -> SimWorld {
        SimWorld { core: self.core.clone(), spawner: self.executor.spawner() }
    }

    /// Runs the world until `future` is done. Other tasks stay where they are.
    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Result<T, Stalled> {
        let output = Rc::new(RefCell::new(None));
        let slot = output.clone();
        self.executor.spawner().spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        let mut polls = 0;
        loop {
            if let Some(value) = output.borrow_mut().take() {
                return Ok(value);
            }
            if self.executor.run_ready(1) == 1 {
                polls += 1;
                assert!(polls < POLLS_PER_INSTANT_MAX, "tasks spin at {:?}", self.core.now.get());
            } else {
                polls = 0;
                self.advance()?;
            }
        }
    }

    /// Lets `duration` pass, and whatever happens in it.
    pub fn run_for(&self, duration: Duration) {
        let world = self.world();
        let deadline = world.now() + duration;
        self.run(async move { world.sleep_until(deadline).await })
            .expect("the deadline itself is an event");
    }

    /// Jumps to the next event and wakes its task.
    fn advance(&self) -> Result<(), Stalled> {
        let next = self.core.timers.borrow_mut().pop_first();
        let Some(((at, _), waker)) = next else {
            return Err(Stalled { at: self.core.now.get(), tasks: self.executor.task_count() });
        };
        self.core.now.set(at.max(self.core.now.get()));
        waker.wake();
        Ok(())
    }
}

impl SimWorld {
    /// Draws from the simulation's generator.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.core.rng.borrow_mut())
    }

    /// Lets `duration` pass in which no task runs, as if the process were stopped: timers due meanwhile fire late.
    pub fn stand_still(&self, duration: Duration) {
        self.note(format_args!("world: stands still for {duration:?}"));
        self.core.now.set(self.core.now.get() + duration);
    }

    /// Waits for a time drawn from `low` to `high`.
    pub fn delay(&self, low: Duration, high: Duration) -> impl Future<Output = ()> + 'static {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).expect("a short delay");
        let after_ns = self.draw(|rng| rng.between(nanos(low), nanos(high)));
        self.sleep_until(self.now() + Duration::from_nanos(after_ns))
    }

    /// Cuts every connection: both ends find it reset, and what was under way is lost.
    pub fn cut_connections(&self) {
        self.note(format_args!("network: cut"));
        self.core.network.cut();
    }

    /// Severs every connection: data that the connecting ends send is held up for a while, then they find them reset.
    /// The other ends are told `told_after` later, and data that was held up arrives until then.
    pub async fn sever_connections(&self, held_up_for: Duration, told_after: Duration) {
        self.note(format_args!("network: held up"));
        self.core.network.hold_up();
        self.sleep_until(self.now() + held_up_for).await;
        self.note(format_args!("network: severed"));
        self.core.network.sever(self, told_after);
    }

    /// Sets the time of day.
    ///
    /// # Panics
    /// The world is older than that.
    pub fn set_unix_time(&self, time: Duration) {
        self.core.beginning.set(time - self.now().since(Instant(0)));
    }

    /// Notes an event in the simulation's trace.
    pub fn note(&self, event: std::fmt::Arguments<'_>) {
        self.core.trace.note(self.core.now.get(), event);
    }

    /// Connections that are made from now on come from `host`.
    pub fn come_from(&self, host: IpAddr) {
        self.network().comes_from.set(Some(host));
    }

    pub(crate) fn network(&self) -> &SimNetwork {
        &self.core.network
    }
}

impl Clock for SimWorld {
    fn now(&self) -> Instant {
        self.core.now.get()
    }

    /// The simulated world begins in January 2027, unless [`SimWorld::set_unix_time`] says otherwise.
    fn unix_time(&self) -> Duration {
        self.core.beginning.get() + self.now().since(Instant(0))
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        Sleep { core: self.core.clone(), deadline, key: None }
    }
}

impl Spawn for SimWorld {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawner.spawn(task);
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        self.spawner.spawn_now(task);
    }
}

impl Entropy for SimWorld {
    fn fill_random(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let drawn = self.draw(Rng::next_u64).to_le_bytes();
            part.copy_from_slice(&drawn[..part.len()]);
        }
    }
}

impl Offload for SimWorld {
    /// Done at once, on the core's own thread: what takes long takes no time here, and the answer
    /// comes a drawn time later.
    fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        let output = work();
        let done = self.delay(OFFLOAD_TIME_MIN, OFFLOAD_TIME_MAX);
        async move {
            done.await;
            output
        }
    }
}

impl Network for SimWorld {
    type Stream = SimStream;
    type Listener = SimListener;

    fn listen(&self, address: SocketAddr) -> Result<SimListener, NetworkError> {
        SimListener::bind(self, address)
    }

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<SimStream, NetworkError>> + 'static {
        SimStream::connect(self.clone(), address)
    }
}

struct Sleep {
    core: Rc<Core>,
    deadline: Instant,
    key: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.core.now.get() >= self.deadline {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| {
            let order = self.core.next_timer.get();
            self.core.next_timer.set(order + 1);
            (self.deadline, order)
        });
        self.key = Some(key);
        self.core.timers.borrow_mut().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.timers.borrow_mut().remove(&key);
        }
    }
}
