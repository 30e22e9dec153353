//! The background thread that carries out the requests of all volumes of a process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use local_sync::Semaphore;
use reactor::{CoreConfig, Handle, IdlePolicy, Receiver, Sender, mailbox};

use crate::Error;
use crate::asking::ASKING_MAX;
use crate::session::Session;

/// Requests that may be outstanding in a process, all volumes together.
pub const OUTSTANDING_MAX: usize = 1 << 14;

/// The thread polls at most this long for more work before it sleeps.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// Something to be done on the thread. It must not wait there.
pub(crate) type Job = Box<dyn FnOnce(&Core) + Send>;

/// The state on the thread. Clones share it.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) world: Handle,
    pub(crate) sessions: Rc<RefCell<BTreeMap<u64, Rc<Session>>>>,
    /// Permits to ask an API.
    pub(crate) asking: Semaphore,
}

struct Inner {
    jobs: Sender<Job>,
    /// The process that the thread is in: a forked child has none.
    process: u32,
    next_session: AtomicU64,
    outstanding: AtomicUsize,
}

/// The way to the thread; it ends when the last of these is gone.
#[derive(Clone)]
pub(crate) struct Runtime(Arc<Inner>);

/// Generations of processes that each use the library before they fork the next.
const GENERATIONS: usize = 16;

/// The runtime of a process, if it has one.
///
/// Each of the processes that forked one from the other has a place of its own: a thread of the parent that
/// held the lock when it forked does not exist in the child, and would never let go of it.
struct Place {
    /// The process that it belongs to; 0 if it is free.
    process: AtomicU32,
    runtime: Mutex<Weak<Inner>>,
}

static PLACES: [Place; GENERATIONS] =
    [const { Place { process: AtomicU32::new(0), runtime: Mutex::new(Weak::new()) } }; GENERATIONS];

/// Returns the place of `process`: its own, or else the first that is free.
fn place_of(places: &[Place; GENERATIONS], process: u32) -> &Place {
    let take = |place: &&Place| {
        let taken = place.process.compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(process)
    };
    // Later generations share the last one, as threads do.
    places.iter().find(take).unwrap_or(&places[GENERATIONS - 1])
}

thread_local! {
    static IS_RUNTIME: Cell<bool> = const { Cell::new(false) };
}

/// Returns true on the background thread, which must not wait for itself.
pub(crate) fn on_runtime() -> bool {
    IS_RUNTIME.get()
}

/// Checks that this thread may wait. The background thread may not: all requests would wait with it.
pub(crate) fn check_may_wait() -> Result<(), Error> {
    if on_runtime() { Err(Error::WithinCallback) } else { Ok(()) }
}

impl Runtime {
    /// The runtime of this process; started if there is none.
    pub(crate) fn shared() -> Result<Self, Error> {
        let process = std::process::id();
        let place = place_of(&PLACES, process);
        let mut shared = place.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inner) = shared.upgrade().filter(|inner| inner.process == process) {
            return Ok(Self(inner));
        }
        let (jobs, receiver) = mailbox();
        let config = CoreConfig {
            cpu: None,
            name: "farflash".to_owned(),
            idle: match IdlePolicy::default() {
                IdlePolicy::Adaptive { .. } => IdlePolicy::Adaptive { spin_max: SPIN_MAX },
                other => other,
            },
            has_files: false,
        };
        reactor::spawn_thread(config, move |world| serve(world, receiver)).map_err(Error::Start)?;
        let inner = Arc::new(Inner {
            jobs,
            process,
            next_session: AtomicU64::new(0),
            outstanding: AtomicUsize::new(0),
        });
        *shared = Arc::downgrade(&inner);
        Ok(Self(inner))
    }

    /// Checks that the thread is in this process.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.0.process == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Has the thread do `job`. One that is not done is dropped.
    pub(crate) fn run(&self, job: impl FnOnce(&Core) + Send + 'static) -> Result<(), Error> {
        self.check_process()?;
        self.0.jobs.send(Box::new(job)).map_err(|_| Error::Stopped)
    }

    /// A number for a new session.
    pub(crate) fn next_session(&self) -> u64 {
        self.0.next_session.fetch_add(1, Ordering::Relaxed)
    }

    /// A place among the outstanding requests.
    pub(crate) fn claim(&self) -> Result<Claim, Error> {
        let claim = Claim(self.clone());
        if self.0.outstanding.fetch_add(1, Ordering::Relaxed) >= OUTSTANDING_MAX {
            return Err(Error::TooManyOutstanding { limit: OUTSTANDING_MAX });
        }
        Ok(claim)
    }
}

/// A place among the outstanding requests; keeps the thread running.
pub(crate) struct Claim(Runtime);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.0.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve(world: Handle, mut jobs: Receiver<Job>) {
    IS_RUNTIME.set(true);
    let core = Core { world, sessions: Rc::default(), asking: Semaphore::new(ASKING_MAX) };
    while let Some(job) = jobs.recv().await {
        job(&core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: hold the lock of the parent's place, as one of its threads may while another one forks.
    #[test]
    fn a_forked_child_waits_for_no_thread_of_its_parent() {
        let place = || Place { process: AtomicU32::new(0), runtime: Mutex::default() };
        let places = std::array::from_fn(|_| place());
        let mut held = Vec::new();
        for process in 1..GENERATIONS as u32 {
            let own = place_of(&places, process);
            assert!(std::ptr::eq(own, place_of(&places, process)), "the same from then on");
            held.push(own.runtime.try_lock().expect("not held"));
        }
        let last = place_of(&places, 100);
        assert!(last.runtime.try_lock().is_ok() && std::ptr::eq(last, place_of(&places, 101)));
    }
}
