//! What tasks take of the time of their thread.
//!
//! - O1: the time of a task is that in which it is polled. What the reactor does for it (receiving, timers) is not
//!   counted, so a task takes rather more.
//! - O2: a task that is polled while another one is, as one is when it is spawned, is counted once, with that.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use io_traits::{Clock, Entropy, Network, NetworkError, Offload, Spawn};
use units::Duration;

/// How often tasks were polled, and how long that took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnTime {
    pub(super) polls: u32,
    pub(super) spent: Duration,
}

/// A world that looks at the clock before and behind each poll of a task. Clones count together.
#[derive(Clone)]
pub(super) struct Timed<W> {
    world: W,
    counted: Rc<Counted>,
}

#[derive(Default)]
struct Counted {
    own: Cell<OwnTime>,
    /// O2.
    is_running: Cell<bool>,
}

impl<W> Timed<W> {
    pub(super) fn new(world: W) -> Self {
        Self { world, counted: Rc::default() }
    }

    pub(super) fn own_time(&self) -> OwnTime {
        self.counted.own.get()
    }
}

impl Counted {
    /// Polls `task` to its end.
    async fn run(self: Rc<Self>, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        std::future::poll_fn(|context| {
            if self.is_running.replace(true) {
                return task.as_mut().poll(context);
            }
            let begin = Instant::now();
            let polled = task.as_mut().poll(context);
            let OwnTime { polls, spent } = self.own.get();
            self.own.set(OwnTime { polls: polls + 1, spent: spent + begin.elapsed() });
            self.is_running.set(false);
            polled
        })
        .await;
    }
}

impl<W: Spawn> Spawn for Timed<W> {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(self.counted.clone().run(task));
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn_now(self.counted.clone().run(task));
    }
}

impl<W: Clock> Clock for Timed<W> {
    fn now(&self) -> units::Instant {
        self.world.now()
    }

    fn unix_time(&self) -> Duration {
        self.world.unix_time()
    }

    fn sleep_until(&self, deadline: units::Instant) -> impl Future<Output = ()> + 'static {
        self.world.sleep_until(deadline)
    }

    fn spin_until(&self, deadline: units::Instant) {
        self.world.spin_until(deadline);
    }
}

impl<W: Network> Network for Timed<W> {
    type Stream = W::Stream;
    type Listener = W::Listener;

    fn listen(&self, address: SocketAddr) -> Result<W::Listener, NetworkError> {
        self.world.listen(address)
    }

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<W::Stream, NetworkError>> + 'static {
        self.world.connect(address)
    }
}

impl<W: Entropy> Entropy for Timed<W> {
    fn fill_random(&self, bytes: &mut [u8]) {
        self.world.fill_random(bytes);
    }
}

impl<W: Offload> Offload for Timed<W> {
    fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        self.world.offload(work)
    }
}
