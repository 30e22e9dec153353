//! The ring of one thread, and its turns.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use io_uring::IoUring;
use io_uring::types::{SubmitArgs, Timespec};
use rustix::io::Errno;

use crate::chunk::ChunkPool;
use crate::fd::Fd;
use crate::request::Request;
use crate::setup::{self, Options, SetupError, errno_of};
use crate::table::{Key, Table};
use crate::wake::RemoteWake;

/// Longest time that a ring that goes away waits for the kernel to let go of its memory (URING-5), and
/// of files.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Longest sleep meanwhile.
const DRAIN_STEP: Duration = Duration::from_millis(100);

/// Fills of the submission queue in one turn. With queues of the usual sizes they carry as many submissions as the completion
/// queue has places. What is left goes with the next turn, so that the tasks which were woken run before: what they do may be
/// what the rest waits for, as with requests that the kernel completes at once, or for which it has no memory yet.
pub(crate) const FILLS_MAX: usize = 16;

/// `io_uring_enter`: run deferred completions, wait for some. Kernel constants, as the next two.
pub(crate) const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
/// A sleeping server is idle, not waiting for a disk. Since 6.15.
const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// Counters of a ring since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RingCounters {
    /// System calls.
    pub enters: u64,
    /// System calls that slept.
    pub sleeps: u64,
    /// Completions.
    pub completions: u64,
}

struct State {
    ring: IoUring,
    table: Table,
}

pub(crate) struct Shared {
    /// Dropped by hand: if the kernel does not let go, never (URING-5).
    state: ManuallyDrop<RefCell<State>>,
    pub(crate) pool: Rc<ChunkPool>,
    wake: Arc<RemoteWake>,
    wake_fd: Fd,
    /// The read of the wake event that is in flight.
    wake_read: Cell<Option<Key>>,
    /// Until when is waited for what is in flight when the ring goes away, once that has begun.
    drain_until: Cell<Option<Instant>>,
    counters: Cell<RingCounters>,
    wait_flags: u32,
}

/// The io_uring of one thread. Cheap to clone; all clones are the same ring.
#[derive(Clone)]
pub struct Ring {
    pub(crate) shared: Rc<Shared>,
}

impl Ring {
    /// A ring for the current thread.
    pub fn new() -> Result<Self, SetupError> {
        Self::with_options(&Options::default())
    }

    pub(crate) fn with_options(options: &Options) -> Result<Self, SetupError> {
        let ring = setup::build(options)?;
        let wake = RemoteWake::new().map_err(SetupError::no_event)?;
        let no_iowait = if ring.params().is_feature_no_iowait() { ENTER_NO_IOWAIT } else { 0 };
        let shared = Shared {
            pool: Rc::default(),
            state: ManuallyDrop::new(RefCell::new(State { ring, table: Table::default() })),
            wake_fd: Fd::shared(wake.event()),
            wake,
            wake_read: Cell::new(None),
            drain_until: Cell::new(None),
            counters: Cell::default(),
            wait_flags: ENTER_GETEVENTS | ENTER_EXT_ARG | no_iowait,
        };
        Ok(Self { shared: Rc::new(shared) })
    }

    /// Has the kernel make the thread that flushes and holes of this thread's rings are left to. The kernel makes it when it is
    /// first needed, keeps it as long as this thread lives, and fails what needed it if it can make none: asked for in
    /// advance, a lack of threads is noticed before there is anything to lose.
    pub fn start_kernel_worker(&self) -> Result<(), SetupError> {
        setup::start_kernel_worker(&mut self.shared.state.borrow_mut().ring)
    }

    /// Lets other threads wake this one from [`Ring::wait`].
    #[must_use]
    pub fn remote_wake(&self) -> Arc<RemoteWake> {
        self.shared.wake.clone()
    }

    /// Its counters since it was made.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        self.shared.counters.get()
    }

    /// Returns true if the next [`Ring::poll`] has something to do. Makes no system call.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let state = &mut *self.shared.state.borrow_mut();
        state.table.has_pending() || state.has_events()
    }

    /// Returns true if kernel threads may be busy with requests of this ring. They run on this thread's CPU.
    #[must_use]
    pub fn waits_for_kernel_threads(&self) -> bool {
        self.shared.state.borrow().table.with_kernel_threads() > 0
    }

    /// Waits until no request of this ring can change a file any more, at most for [`DRAIN_MAX`]. Returns true if that is
    /// so. For a caller that is about to drop the last handle: the drop then need not wait for the same again.
    pub fn settle(&self) -> bool {
        self.settle_until(self.shared.drain_until())
    }

    pub(crate) fn settle_until(&self, deadline: Instant) -> bool {
        while self.with_table(|table| table.changes_files()) {
            if Instant::now() >= deadline {
                return false;
            }
            self.wait(Some(DRAIN_STEP), || false);
        }
        true
    }

    /// Hands over what was asked for since the last turn, or as much as one turn may, and delivers what is done, without
    /// waiting. Returns the number of completions.
    pub fn poll(&self) -> usize {
        self.turn(None)
    }

    /// Like [`Ring::poll`], but sleeps until something is done, another thread wakes this one, or
    /// `timeout` is over; `None` is for ever. `has_work` is asked at the last moment whether there
    /// is something to do after all: work that other threads leave before they wake this one.
    pub fn wait(&self, timeout: Option<Duration>, has_work: impl FnOnce() -> bool) -> usize {
        let shared = &self.shared;
        shared.arm_wake();
        shared.wake.announce_sleep();
        let delivered = if has_work() { self.poll() } else { self.turn(Some(timeout)) };
        shared.wake.awake();
        delivered
    }

    /// One turn; `wait` says whether to sleep, and how long at most.
    #[expect(clippy::option_option, reason = "whether to sleep, and whether that has an end")]
    fn turn(&self, wait: Option<Option<Duration>>) -> usize {
        let shared = &self.shared;
        let (mut woken, delivered) = {
            let state = &mut *shared.state.borrow_mut();
            let mut counters = shared.counters.get();
            let delivered = state.turn(wait, shared.wait_flags, &mut counters);
            counters.completions += delivered as u64;
            shared.counters.set(counters);
            (std::mem::take(&mut state.table.woken), delivered)
        };
        // A waker may do anything, even use this ring: nothing is borrowed here.
        woken.drain(..).for_each(std::task::Waker::wake);
        let table = &mut shared.state.borrow_mut().table;
        if table.woken.is_empty() {
            table.woken = woken;
        }
        delivered
    }

    pub(crate) fn submit(&self, fd: &Fd, request: Request) -> Key {
        self.shared.state.borrow_mut().table.submit(fd.clone(), request)
    }

    pub(crate) fn with_table<T>(&self, f: impl FnOnce(&mut Table) -> T) -> T {
        f(&mut self.shared.state.borrow_mut().table)
    }

    pub(crate) fn poll_operation(
        &self,
        key: Key,
        context: &mut Context<'_>,
    ) -> Poll<(Result<(), Errno>, Request)> {
        self.shared.state.borrow_mut().table.poll(key, context)
    }
}

impl Shared {
    fn drain_until(&self) -> Instant {
        let until = self.drain_until.get().unwrap_or_else(|| Instant::now() + DRAIN_MAX);
        self.drain_until.set(Some(until));
        until
    }

    /// Makes sure that a read of the wake event is in flight.
    fn arm_wake(&self) {
        let table = &mut self.state.borrow_mut().table;
        let mut unwoken = Context::from_waker(std::task::Waker::noop());
        if let Some(key) = self.wake_read.get()
            && table.poll(key, &mut unwoken).is_pending()
        {
            return;
        }
        let request = Request::Wake(Box::default());
        self.wake_read.set(Some(table.submit(self.wake_fd.clone(), request)));
    }
}

impl State {
    /// Returns true if the kernel has completions, or is to be entered.
    fn has_events(&mut self) -> bool {
        !self.ring.completion().is_empty() || self.needs_enter()
    }

    /// Returns true if the kernel must be entered to make completions, or left submissions in its
    /// queue.
    fn needs_enter(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow() || !submission.is_empty()
    }

    #[expect(clippy::option_option, reason = "as for Ring::turn")]
    fn turn(
        &mut self,
        wait: Option<Option<Duration>>,
        wait_flags: u32,
        counters: &mut RingCounters,
    ) -> usize {
        let mut delivered = 0;
        self.table.has_more = false;
        for _ in 0..FILLS_MAX {
            let to_submit = self.fill_submission_queue();
            let all = self.table.pending.is_empty();
            match wait {
                Some(timeout) if all && delivered == 0 => {
                    counters.sleeps += 1;
                    counters.enters += 1;
                    self.enter_and_wait(to_submit, timeout, wait_flags);
                }
                _ if self.needs_enter() => {
                    counters.enters += 1;
                    self.enter(to_submit, 0, ENTER_GETEVENTS, None);
                }
                _ => {}
            }
            delivered += self.reap();
            if all && !std::mem::take(&mut self.table.has_more) {
                break;
            }
        }
        delivered
    }

    /// Moves pending submissions into the kernel's queue; returns how many are in it.
    fn fill_submission_queue(&mut self) -> u32 {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.table.pending.front() {
            // SAFETY: what the entry points to belongs to an operation in the table, which keeps it
            // until the completion (URING-1).
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.table.pending.pop_front();
        }
        queue.len() as u32
    }

    fn enter_and_wait(&mut self, to_submit: u32, timeout: Option<Duration>, flags: u32) {
        let timespec;
        let mut args = SubmitArgs::new();
        if let Some(timeout) = timeout {
            timespec = Timespec::from(timeout);
            args = args.timespec(&timespec);
            self.enter(to_submit, 1, flags, Some(&args));
        } else {
            self.enter(to_submit, 1, flags, Some(&args));
        }
    }

    fn enter(&mut self, submit: u32, wait_for: u32, flags: u32, args: Option<&SubmitArgs>) {
        // SAFETY: what is submitted was pushed under URING-1; the flags fit the argument, which the
        // kernel reads before the call returns.
        let entered = unsafe { self.ring.submitter().enter(submit, wait_for, flags, args) };
        let Err(error) = entered else { return };
        match errno_of(&error) {
            // Interrupted, timed out, or short of memory or room for completions: what was not
            // taken stays in the queue for the next turn.
            Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN | Errno::NOMEM => {}
            errno => panic!("io_uring_enter of our own ring: {errno}"),
        }
    }

    fn reap(&mut self) -> usize {
        let mut count = 0;
        self.table.reaped_at = None;
        for entry in self.ring.completion() {
            self.table.complete(&entry);
            count += 1;
        }
        count
    }

    /// Waits until the kernel holds none of our memory, no longer than until `deadline`; whether it did let go.
    fn drain(&mut self, deadline: Instant) -> bool {
        let mut counters = RingCounters::default();
        self.table.cancel_sends();
        while self.table.in_flight() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            let step = Some(Some(DRAIN_STEP));
            self.turn(step, ENTER_GETEVENTS | ENTER_EXT_ARG, &mut counters);
        }
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let deadline = self.drain_until();
        let state = self.state.get_mut();
        if let Some(key) = self.wake_read.take() {
            state.table.abandon(key);
        }
        if state.drain(deadline) {
            // SAFETY: dropped here and nowhere else, and not used afterwards. Nothing is in flight.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

const _: () = assert!(size_of::<SubmitArgs>() == 24, "the kernel's struct io_uring_getevents_arg");
