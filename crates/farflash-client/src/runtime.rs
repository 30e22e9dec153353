//! The background thread that carries out the requests of all volumes of a process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use reactor::{CoreConfig, Handle, IdlePolicy, Receiver, Sender, mailbox};

use crate::Error;
use crate::session::Session;

/// Requests that may be outstanding in a process, all volumes together.
pub const OUTSTANDING_MAX: usize = 1 << 14;

/// The thread polls at most this long for more work before it sleeps.
const SPIN_MAX: Duration = Duration::from_micros(50);

/// Something to be done on the thread. It must not wait there.
pub(crate) type Job = Box<dyn FnOnce(&Core) + Send>;

/// What is on the thread.
pub(crate) struct Core {
    pub(crate) world: Handle,
    pub(crate) sessions: Rc<RefCell<BTreeMap<u64, Rc<Session>>>>,
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

/// The runtime of this process, if it has one.
static SHARED: Mutex<Weak<Inner>> = Mutex::new(Weak::new());

thread_local! {
    static IS_RUNTIME: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is the background thread, which must not wait for itself.
pub(crate) fn on_runtime() -> bool {
    IS_RUNTIME.get()
}

impl Runtime {
    /// The runtime of this process; started if there is none.
    pub(crate) fn shared() -> Result<Self, Error> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
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
        };
        reactor::spawn_thread(config, move |world| serve(world, receiver))?;
        let inner = Arc::new(Inner {
            jobs,
            process,
            next_session: AtomicU64::new(0),
            outstanding: AtomicUsize::new(0),
        });
        *shared = Arc::downgrade(&inner);
        Ok(Self(inner))
    }

    /// Whether the thread is in this process.
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
    let core = Core { world, sessions: Rc::default() };
    while let Some(job) = jobs.recv().await {
        job(&core);
    }
}
