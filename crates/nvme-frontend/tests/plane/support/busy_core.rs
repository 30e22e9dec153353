//! A simulated core that takes time for what it does.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use executor::{Executor, Spawner};
use io_traits::{Clock, Entropy, Network, NetworkError, Offload, Spawn};
use sim::{SimListener, SimStream, SimWorld};
use units::{Duration, Instant};

/// For each time that a task is polled, and for each one that is run at once by another.
const POLL: Duration = Duration::from_micros(1);

/// A world whose tasks share one processor. The rest of the simulation has processors of its own.
#[derive(Clone)]
pub(crate) struct BusyCore {
    world: SimWorld,
    spawner: Spawner,
    /// Tasks that were run by the one being polled.
    nested: Rc<Cell<u32>>,
    /// Time that the processor has worked.
    worked: Rc<Cell<Duration>>,
}

impl BusyCore {
    /// A processor that polls for work without end.
    pub(crate) fn new(world: &SimWorld) -> Self {
        let executor = Executor::new(Arc::new(|| {}));
        let core = Self {
            world: world.clone(),
            spawner: executor.spawner(),
            nested: Rc::default(),
            worked: Rc::default(),
        };
        let running = core.clone();
        world.spawn(async move {
            loop {
                let polled = executor.run_ready(1) > 0;
                let took = POLL * (1 + running.nested.take());
                if polled {
                    running.worked.set(running.worked.get() + took);
                }
                running.world.sleep_until(running.world.now() + took).await;
            }
        });
        core
    }

    /// Returns the time that the processor has worked so far.
    pub(crate) fn worked(&self) -> Duration {
        self.worked.get()
    }
}

impl Clock for BusyCore {
    fn now(&self) -> Instant {
        self.world.now()
    }

    fn unix_time(&self) -> units::Duration {
        self.world.unix_time()
    }

    fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + 'static {
        self.world.sleep_until(deadline)
    }
}

impl Spawn for BusyCore {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawner.spawn(task);
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        self.nested.set(self.nested.get() + 1);
        self.spawner.spawn_now(task);
    }
}

impl Entropy for BusyCore {
    fn fill_random(&self, bytes: &mut [u8]) {
        self.world.fill_random(bytes);
    }
}

impl Offload for BusyCore {
    fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        self.world.offload(work)
    }
}

impl Network for BusyCore {
    type Stream = SimStream;
    type Listener = SimListener;

    fn listen(&self, address: SocketAddr) -> Result<SimListener, NetworkError> {
        self.world.listen(address)
    }

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<SimStream, NetworkError>> + 'static {
        self.world.connect(address)
    }
}
