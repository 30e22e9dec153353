//! Work that would hold up a core, done on a thread of its own.
//!
//! One thread serves all cores and lives as long as the process. A server starts it in advance
//! ([`start_offload`]), other programs when they first need it. It keeps to CPUs that no core is bound to;
//! where cores have them all, it gives way to them. Where no thread can be made, the core does the work
//! itself: a client that authenticates then holds up its own requests for some milliseconds.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use io_traits::Offload;

use crate::cpu::leave_cores;
use crate::{Handle, StartError};

/// Niceness of the thread on a CPU that a core is busy on: it gets a tenth of it. With less, unauthenticated peers
/// that ask for the longest computations could keep other hosts from connecting.
const NICE: i32 = 10;

type Work = Box<dyn FnOnce() + Send>;

struct Slot<T> {
    /// The output, or the panic that came instead.
    output: Option<thread::Result<T>>,
    waiting: Option<Waker>,
}

struct Offloaded<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Offloaded<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(output) = slot.output.take() {
            drop(slot);
            // A panic ends the core that asked, as if the core had done the work; the thread goes on.
            return Poll::Ready(output.unwrap_or_else(|panic| resume_unwind(panic)));
        }
        slot.waiting = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Offload for Handle {
    fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        let slot = Arc::new(Mutex::new(Slot { output: None, waiting: None }));
        let filled = slot.clone();
        let run = move || {
            let output = catch_unwind(AssertUnwindSafe(work));
            let mut slot = filled.lock().unwrap_or_else(PoisonError::into_inner);
            slot.output = Some(output);
            if let Some(waker) = slot.waiting.take() {
                drop(slot);
                waker.wake();
            }
        };
        match worker() {
            Ok(worker) => {
                let sent = worker.send(Box::new(run));
                sent.expect("the worker lives as long as the process");
            }
            Err(_) => run(),
        }
        Offloaded(slot)
    }
}

/// Starts the thread, unless it runs: for a server, whose cores must not do such work themselves.
pub fn start_offload() -> Result<(), StartError> {
    worker().map(drop)
}

/// Starts the thread if there is none, and returns the queue of its work.
fn worker() -> Result<Sender<Work>, StartError> {
    static WORKER: Mutex<Option<Sender<Work>>> = Mutex::new(None);
    let mut worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(worker) = &*worker {
        return Ok(worker.clone());
    }
    let (sender, receiver) = mpsc::channel::<Work>();
    let run = move || {
        leave_cores();
        // A hint: the thread works without it.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        receiver.into_iter().for_each(|work| work());
    };
    let thread = thread::Builder::new().name("offload".into()).spawn(run);
    thread.map_err(|error| StartError::Thread { errno: error.raw_os_error().unwrap_or(0) })?;
    Ok(worker.insert(sender).clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CoreConfig, allowed_cpus, run_on_current_thread, spawn_thread};

    #[test]
    fn work_is_done_elsewhere_and_its_outcome_comes_back() {
        let here = thread::current().id();
        let main = |handle: Handle| async move {
            let outcomes = [1, 2, 3].map(|n| handle.offload(move || (n, thread::current().id())));
            for (outcome, n) in outcomes.into_iter().zip(1..) {
                let (number, thread) = outcome.await;
                assert!(number == n && thread != here);
            }
        };
        run_on_current_thread(&CoreConfig::default(), main).expect("this host has io_uring");
    }

    #[test]
    fn work_gives_way_to_the_core_that_asked_for_it() {
        let cpu = allowed_cpus()[0];
        let has_others = allowed_cpus().len() > 1;
        let main = move |handle: Handle| async move {
            let (cpus, nice) = handle
                .offload(|| {
                    let own = rustix::process::getpriority_process(Some(rustix::thread::gettid()));
                    (allowed_cpus(), own.expect("of this thread"))
                })
                .await;
            assert!(nice >= NICE, "{nice}");
            assert!(!has_others || cpus.iter().any(|other| *other != cpu), "{cpus:?}");
        };
        let config = CoreConfig { cpu: Some(cpu), ..CoreConfig::default() };
        let core = spawn_thread(config, main).expect("this host has io_uring");
        core.join().expect("the assertions hold");
    }

    #[test]
    fn work_that_panics_ends_its_core_and_not_the_thread() {
        let config = CoreConfig::default();
        let main = |handle: Handle| async move { handle.offload(|| panic!("on purpose")).await };
        let core = spawn_thread::<_, _, ()>(config.clone(), main).expect("this host has io_uring");
        core.join().expect_err("it panics, too");
        let main = |handle: Handle| async move { handle.offload(|| 7).await };
        assert_eq!(run_on_current_thread(&config, main).expect("this host has io_uring"), 7);
    }
}
