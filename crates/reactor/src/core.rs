//! A core: a thread, its executor, its ring, and the loop that drives them.

use std::cell::RefCell;
use std::future::Future;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use executor::Executor;
use units::Instant;
use uring::{Ring, SetupError};

use crate::cpu::{allowed_cpus, pin_to};
use crate::handle::{Handle, monotonic_now};
use crate::idle::{IdlePolicy, Patience};
use crate::run_delay::RunDelay;
use crate::sharing::Sharing;

/// Tasks polled in a row before the kernel is asked again, so that tasks which wake each other
/// without end cannot keep the network waiting.
pub(crate) const POLLS_PER_TURN: usize = 1024;
/// Time by which the kernel may delay a timer of a core to save wake-ups; its default is 50 µs.
const TIMER_SLACK_NS: u64 = 1_000;
/// Looks for work between two looks at the clock while polling.
const LOOKS_PER_CLOCK: u32 = 8;

/// Options to start a core.
#[derive(Clone, Debug, Default)]
pub struct CoreConfig {
    /// The CPU to stay on; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// The thread's name, as `top -H` shows it (15 bytes of it).
    pub name: String,
    /// Policy of waiting for work.
    pub idle: IdlePolicy,
    /// Files and drives will be used: the core starts with the kernel's thread for what takes one, such as flushes, or not at
    /// all.
    pub has_files: bool,
}

/// CPUs as options have them: `0,1,4`.
fn listed(cpus: &[usize]) -> String {
    let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    cpus.join(",")
}

/// Why a core did not start.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StartError {
    /// The kernel gives no ring.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// No such CPU, or not for this process.
    #[error("CPU {cpu} is not to be had; this process may use {}", listed(.allowed))]
    NoSuchCpu {
        /// The CPU asked for.
        cpu: usize,
        /// Those that there are.
        allowed: Vec<usize>,
    },
    /// No more threads.
    #[error("no thread to be had for a core (errno {errno})")]
    Thread {
        /// The operating system's error number.
        errno: i32,
    },
}

/// A core that runs on a thread of its own.
pub struct CoreThread<T> {
    thread: JoinHandle<Option<Ended<T>>>,
}

/// The result of a core that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ended<T> {
    /// Output of its main task.
    pub output: T,
    /// True if no request of the core can change a device any more. Otherwise the kernel still has a write, a flush
    /// or a hole to make, and its completion is not reported.
    pub is_settled: bool,
}

impl StartError {
    /// The advice that goes with the error.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Ring(error) => error.remedy(),
            Self::NoSuchCpu { .. } => "name other CPUs",
            Self::Thread { .. } => SetupError::Workers.remedy(),
        }
    }
}

impl<T> CoreThread<T> {
    /// Waits until the core's main task has ended. The error is the panic that ended the core.
    pub fn join(self) -> std::thread::Result<T> {
        self.end().map(|ended| ended.output)
    }

    /// As [`CoreThread::join`], and says whether devices are settled.
    pub fn end(self) -> std::thread::Result<Ended<T>> {
        self.thread.join().map(|ended| ended.expect("a core that started has an output"))
    }

    /// Returns true if the core has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts a core on a thread of its own. It runs until the future that `main` makes ends; tasks
/// that are left then are dropped, and operations in flight are waited for.
pub fn spawn_thread<F, Fut, T>(config: CoreConfig, main: F) -> Result<CoreThread<T>, StartError>
where
    F: FnOnce(Handle) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let (started, start) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(config.name.clone())
        .spawn(move || {
            let mut core = match Core::new(&config) {
                Ok(core) => core,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return None;
                }
            };
            let _ = started.send(Ok(()));
            let output = core.run(main);
            Some(Ended { output, is_settled: core.end() })
        })
        .map_err(|error| StartError::Thread { errno: error.raw_os_error().unwrap_or(0) })?;
    match start.recv() {
        Ok(Ok(())) | Err(mpsc::RecvError) => Ok(CoreThread { thread }),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
    }
}

/// Makes a core of the calling thread until the future that `main` makes ends. For tools, tests and
/// examples; pinning outlives the call.
pub fn run_on_current_thread<F, Fut, T>(config: &CoreConfig, main: F) -> Result<T, StartError>
where
    F: FnOnce(Handle) -> Fut,
    Fut: Future<Output = T> + 'static,
    T: 'static,
{
    Ok(Core::new(config)?.run(main))
}

struct Core {
    executor: Executor,
    handle: Handle,
    patience: Patience,
    sharing: Sharing,
    run_delay: RunDelay,
}

impl Core {
    fn new(config: &CoreConfig) -> Result<Self, StartError> {
        if let Some(cpu) = config.cpu
            && !pin_to(cpu)
        {
            return Err(StartError::NoSuchCpu { cpu, allowed: allowed_cpus() });
        }
        // A hint; timers are merely less precise without it.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
        let ring = Ring::new()?;
        if config.has_files {
            ring.start_kernel_worker()?;
        }
        let wake = ring.remote_wake();
        let executor = Executor::new(Arc::new(move || wake.wake()));
        let handle = Handle::new(ring, executor.spawner());
        let patience = Patience::new(config.idle);
        handle.core.hot.enable(patience.spin() > Duration::ZERO);
        let (sharing, run_delay) = (Sharing::new(monotonic_now()), RunDelay::of_this_thread());
        Ok(Self { executor, handle, patience, sharing, run_delay })
    }

    fn run<F, Fut, T>(&mut self, main: F) -> T
    where
        F: FnOnce(Handle) -> Fut,
        Fut: Future<Output = T> + 'static,
        T: 'static,
    {
        let output = Rc::new(RefCell::new(None));
        let main = main(self.handle.clone());
        let place = output.clone();
        self.handle.core.spawner.spawn(async move {
            let value = main.await;
            *place.borrow_mut() = Some(value);
        });
        loop {
            let worked = self.turn();
            if let Some(output) = output.borrow_mut().take() {
                return output;
            }
            if !worked {
                self.wait_for_work();
            }
        }
    }

    /// Drops all tasks, and then waits until devices are settled; whether they are.
    fn end(self) -> bool {
        let Self { executor, handle, .. } = self;
        drop(executor);
        handle.core.ring.settle()
    }

    /// Runs what is ready, hands over what it asked for, delivers what is done. Whether there was
    /// anything.
    fn turn(&mut self) -> bool {
        self.fire_timers();
        let polled = self.executor.run_ready(POLLS_PER_TURN);
        let delivered = self.handle.core.ring.poll();
        self.let_kernel_threads_run();
        let busy = polled + delivered > 0 || self.executor.has_ready();
        let received = self.handle.core.hot.ask(busy);
        busy || received > 0
    }

    /// Yields the CPU if it waits for threads of the kernel.
    fn let_kernel_threads_run(&mut self) {
        if self.waits_for_kernel_threads() {
            let start = monotonic_now();
            if self.sharing.may_yield(start) {
                self.yield_cpu(start);
                self.on_yielded(start, monotonic_now());
            }
        }
    }

    fn yield_cpu(&mut self, now: Instant) {
        self.run_delay.refresh(now);
        rustix::thread::sched_yield();
    }

    fn on_yielded(&mut self, start: Instant, end: Instant) {
        self.sharing.on_yielded(start, end, || self.run_delay.since_reading());
    }

    fn fire_timers(&self) {
        let core = &self.handle.core;
        let now = monotonic_now();
        core.now.set(now);
        loop {
            // Not borrowed while it is woken.
            let due = core.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { return };
            waker.wake();
        }
    }

    /// Polls, then sleeps, until there is something to do.
    fn wait_for_work(&mut self) {
        let idle_since = self.handle.core.now.get();
        let deadline = self.handle.core.timers.borrow().next_deadline();
        let spin_until = idle_since + self.patience_for(idle_since);
        if spin_until > idle_since && self.spin(spin_until, deadline) {
            return;
        }
        let timeout = deadline.map(|deadline| deadline.since(monotonic_now()));
        if timeout == Some(Duration::ZERO) {
            return;
        }
        let core = &self.handle.core;
        core.hot.cool_down();
        core.ring.wait(timeout, || self.executor.has_ready());
        let now = monotonic_now();
        self.patience.on_slept(now.since(idle_since));
        core.hot.enable(self.patience_for(now) > Duration::ZERO);
    }

    /// Returns the time to poll now.
    fn patience_for(&self, now: Instant) -> Duration {
        match self.should_sleep(now) {
            true => Duration::ZERO,
            false => self.patience.spin(),
        }
    }

    fn should_sleep(&self, now: Instant) -> bool {
        self.patience.may_sleep() && self.sharing.should_sleep(now)
    }

    fn waits_for_kernel_threads(&self) -> bool {
        self.handle.core.ring.waits_for_kernel_threads()
    }

    /// Looks for work until `until`, unless sleep is better; whether there is some, a timer included. Lets others have the CPU
    /// between looks.
    fn spin(&mut self, until: Instant, deadline: Option<Instant>) -> bool {
        let mut yielded = None;
        loop {
            let has_work = (0..LOOKS_PER_CLOCK).any(|_| self.has_work());
            let now = monotonic_now();
            if let Some(yielded) = yielded.take() {
                self.on_yielded(yielded, now);
            }
            if has_work || deadline.is_some_and(|deadline| deadline <= now) {
                return true;
            }
            if now >= until || self.should_sleep(now) {
                return false;
            }
            if self.sharing.may_yield(now) {
                self.yield_cpu(now);
                yielded = Some(now);
            }
        }
    }

    fn has_work(&self) -> bool {
        let core = &self.handle.core;
        if core.ring.has_work() || self.executor.has_ready() || core.hot.ask(false) > 0 {
            return true;
        }
        std::hint::spin_loop();
        false
    }
}
