//! The interface of a core for the code that runs on it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use executor::Spawner;
use io_traits::{Clock, Network, NetworkError, Spawn};
use rustix::time::{ClockId, clock_gettime};
use units::{Duration, Instant};
use uring::{Errno, Ring, RingCounters};

use crate::hot::HotSockets;
use crate::listener::TcpListener;
use crate::net::TcpStream;
use crate::random::RandomBytes;
use crate::timers::{TimerId, Timers};

pub(crate) struct CoreState {
    pub(crate) ring: Ring,
    pub(crate) spawner: Spawner,
    pub(crate) timers: RefCell<Timers>,
    /// The time at the beginning of the turn.
    pub(crate) now: Cell<Instant>,
    pub(crate) hot: HotSockets,
    pub(crate) random: RandomBytes,
}

/// A core, as its own code sees it. Cheap to clone; does not leave its thread.
#[derive(Clone)]
pub struct Handle {
    pub(crate) core: Rc<CoreState>,
}

impl Handle {
    pub(crate) fn new(ring: Ring, spawner: Spawner) -> Self {
        let now = Cell::new(monotonic_now());
        let (timers, hot) = (RefCell::default(), HotSockets::default());
        let random = RandomBytes::default();
        Self { core: Rc::new(CoreState { ring, spawner, timers, now, hot, random }) }
    }

    /// Now, not as of the beginning of the turn. Costs some 25 ns.
    #[must_use]
    pub fn precise_now(&self) -> Instant {
        monotonic_now()
    }

    /// Returns the counters of this core's ring.
    #[must_use]
    pub fn ring_counters(&self) -> RingCounters {
        self.core.ring.counters()
    }
}

impl CoreState {
    /// Wakes the calling task in the next turn, after the kernel was asked for new completions: by a timer that is
    /// due by then.
    pub(crate) fn wake_next_turn(&self, context: &Context<'_>) {
        let soon = self.now.get() + Duration::from_nanos(1);
        self.timers.borrow_mut().insert(soon, context.waker().clone());
    }
}

/// The same on all cores of the host.
pub(crate) fn monotonic_now() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

impl Clock for Handle {
    fn now(&self) -> Instant {
        self.core.now.get()
    }

    fn unix_time(&self) -> std::time::Duration {
        crate::time_of_day::unix_time()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        Sleep { core: self.core.clone(), deadline, timer: None }
    }

    fn spin_until(&self, deadline: Instant) {
        while monotonic_now() < deadline {
            std::hint::spin_loop();
        }
    }
}

impl Spawn for Handle {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.core.spawner.spawn(task);
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        self.core.spawner.spawn_now(task);
    }
}

impl Handle {
    /// Listens on a unix socket at `path`. Both ends of its streams have the unspecified address.
    ///
    /// # Errors
    /// Something is at `path`, or the system refuses.
    pub fn listen_unix(&self, path: &Path) -> Result<TcpListener, Errno> {
        TcpListener::bind_unix(self, path)
    }
}

impl Network for Handle {
    type Stream = TcpStream;
    type Listener = TcpListener;

    fn listen(&self, address: SocketAddr) -> Result<TcpListener, NetworkError> {
        TcpListener::bind(self, address)
    }

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<TcpStream, NetworkError>> + 'static {
        TcpStream::connect(self, address)
    }
}

/// Waits for a point in time.
pub struct Sleep {
    core: Rc<CoreState>,
    deadline: Instant,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waits = match self.timer {
            Some(id) => self.core.timers.borrow_mut().update(id, context.waker()),
            None if self.deadline <= self.core.now.get() => false,
            None => {
                let waker = context.waker().clone();
                let id = self.core.timers.borrow_mut().insert(self.deadline, waker);
                self.timer = Some(id);
                true
            }
        };
        if waits { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.timer {
            self.core.timers.borrow_mut().remove(id);
        }
    }
}
