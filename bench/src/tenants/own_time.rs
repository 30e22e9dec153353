//! Time that tasks take of their thread.
//!
//! - OWN-TIME-1: the time of a task is that in which it is polled. What the reactor does for it (receiving, timers) is not
//!   counted, so a task takes rather more.
//! - OWN-TIME-2: a task that is polled while another one is, as one is when it is spawned, is counted once, with that.
//! - OWN-TIME-3: what was taken can be taken once more, at the same times and in pieces as long: a piece of 100 µs keeps
//!   the thread from all else for that long, ten of 10 µs do not.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use io_traits::{Clock, Entropy, Network, NetworkError, Offload, Spawn};
use units::Duration;

/// A time in which a task was polled.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Since the world was made.
    begin: Duration,
    length: Duration,
}

/// The times in which tasks were polled, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTime(Vec<Piece>);

impl OwnTime {
    /// All of it together.
    pub(super) fn spent(&self) -> Duration {
        self.0.iter().map(|piece| piece.length).sum()
    }

    /// Takes as much of this thread, piece by piece (OWN-TIME-3), between which it does what else there is to do, until
    /// `is_over`.
    pub(super) async fn take_again(self, clock: &impl Clock, is_over: impl Fn() -> bool) {
        let start = Instant::now();
        for Piece { begin, length } in self.0 {
            if is_over() {
                return;
            }
            // At once if it is late: behind what else there is. A timer fires when the sockets have been looked at.
            let until = begin.saturating_sub(start.elapsed()).max(Duration::from_nanos(1));
            clock.sleep_until(clock.now() + until).await;
            let begun = Instant::now();
            while begun.elapsed() < length {
                std::hint::spin_loop();
            }
        }
    }
}

/// A world that looks at the clock before and behind each poll of a task. Clones count together.
#[derive(Clone)]
pub(super) struct Timed<W> {
    world: W,
    counted: Rc<Counted>,
}

struct Counted {
    start: Instant,
    own: RefCell<OwnTime>,
    /// OWN-TIME-2.
    is_running: Cell<bool>,
}

impl<W> Timed<W> {
    pub(super) fn new(world: W) -> Self {
        let (start, own, is_running) = (Instant::now(), RefCell::default(), Cell::new(false));
        Self { world, counted: Rc::new(Counted { start, own, is_running }) }
    }

    /// Returns the time taken since the last call.
    pub(super) fn own_time(&self) -> OwnTime {
        self.counted.own.take()
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
            let begin = self.start.elapsed();
            let polled = task.as_mut().poll(context);
            let length = self.start.elapsed() - begin;
            self.own.borrow_mut().0.push(Piece { begin, length });
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
