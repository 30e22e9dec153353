//! Requests that come by io_uring, on the thread that carries them out.
//!
//! ```text
//!  kernel ── slot ── call ── engine ── volume ── server
//!              └──── answered ┘
//! ```
//! - RING-1: each request is answered: one whose callback is dropped fails with `EIO`.
//! - RING-2: all slots together are within the window. So no request waits for it, and the thread never does.

mod plan;
mod wire;

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use farflash_client::Error;
use fuser::Errno;
use uring::{FuseCall, FuseRing, SetupError, fuse_queues};

use crate::backing::{Attend, Backing};
use crate::file::{File, errno};
use crate::window::Limits;
use plan::Plan;
use wire::Operation;

/// Why requests do not come by io_uring.
#[derive(Debug, thiserror::Error)]
pub enum NoRing {
    /// The kernel does not offer it.
    #[error("the kernel does not offer io_uring for FUSE (fuse.enable_uring)")]
    NotOffered,
    /// Enough requests for each CPU are more than may be under way.
    #[error(
        "for each of {cpus} CPUs, {} requests under way take {} bytes",
        .least.requests,
        .least.bytes
    )]
    Bounds {
        /// CPUs that the kernel may ever use.
        cpus: usize,
        /// Bounds that would do.
        least: Limits,
    },
    /// There is no ring to be had.
    #[error(transparent)]
    Ring(#[from] SetupError),
}

/// A ring before there is a file system for it.
pub(crate) struct Prepared {
    ring: FuseRing,
    plan: Plan,
}

impl Prepared {
    pub(crate) fn new(limits: Limits, block: usize) -> Result<Self, NoRing> {
        let cpus = fuse_queues().ok_or(NoRing::NotOffered)?;
        let plan = Plan::within(limits, cpus, block)
            .ok_or_else(|| NoRing::Bounds { cpus, least: Plan::least(cpus, block) })?;
        let ring = FuseRing::new(plan.queues, plan.depth, plan.request_bytes as usize)?;
        Ok(Self { ring, plan })
    }

    /// Bytes of the longest request.
    pub(crate) fn request_bytes(&self) -> u32 {
        self.plan.request_bytes
    }

    /// Serves the file system of `device` on the thread of `file`'s volume, until it is unmounted.
    pub(crate) fn serve<B: Backing + Attend>(
        self,
        device: OwnedFd,
        file: Arc<File<B>>,
    ) -> Result<Served, Error> {
        let ring = self.ring;
        let event = ring.event();
        let answered = Arc::<Answered>::default();
        let served = Served { answered: answered.clone() };
        let thread = file.clone();
        let mut front = Front { file, ring, device: Some(device), answered, came: Vec::new() };
        thread.engine.backing().attend(event, Box::new(move |waker| front.turn(waker)))?;
        Ok(served)
    }
}

/// A file system whose requests come by io_uring.
#[derive(Clone)]
pub(crate) struct Served {
    answered: Arc<Answered>,
}

impl Served {
    /// Returns the kernel's error number if it did not take the slots. Requests then come by `/dev/fuse`.
    pub(crate) fn failure(&self) -> Option<i32> {
        let failure = self.answered.failure.load(Ordering::Relaxed);
        (failure != 0).then_some(failure)
    }
}

/// Requests with their answers, which the thread gives back to the kernel.
#[derive(Default)]
struct Answered {
    calls: Mutex<Vec<FuseCall>>,
    waker: OnceLock<Waker>,
    /// The kernel's error number, or 0.
    failure: AtomicI32,
}

impl Answered {
    fn add(&self, call: FuseCall) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    fn take(&self) -> Vec<FuseCall> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Front<B> {
    file: Arc<File<B>>,
    ring: FuseRing,
    /// The file system, until its ring has started.
    device: Option<OwnedFd>,
    answered: Arc<Answered>,
    /// Requests that have come in this turn.
    came: Vec<FuseCall>,
}

impl<B: Backing> Front<B> {
    /// Gives back what is answered, and starts what has come.
    fn turn(&mut self, waker: &Waker) -> ControlFlow<()> {
        if let Some(device) = self.device.take() {
            let _ = self.answered.waker.set(waker.clone());
            self.ring.start(device);
        }
        for call in self.answered.take() {
            self.ring.give_back(call);
        }
        if self.ring.turn(&mut self.came) {
            waker.wake_by_ref();
        }
        if let Some(errno) = self.ring.failure() {
            self.answered.failure.store(errno.raw_os_error(), Ordering::Relaxed);
        }
        for call in self.came.drain(..) {
            start(&self.file, call, self.answered.clone());
        }
        if self.ring.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A request that is to be answered (RING-1).
struct Reply {
    unique: u64,
    call: Option<FuseCall>,
    answered: Arc<Answered>,
}

impl Reply {
    /// The beginning of what came with the request.
    fn payload(&self, len: usize) -> &[u8] {
        self.call.as_ref().map_or(&[], |call| &call.payload()[..len])
    }

    fn data(mut self, data: &[u8]) {
        self.answer(0, data);
    }

    fn error(mut self, errno: Errno) {
        self.answer(errno.code(), &[]);
    }

    fn done(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.data(&[]),
            Err(errno) => self.error(errno),
        }
    }

    fn answer(&mut self, error: i32, data: &[u8]) {
        let Some(mut call) = self.call.take() else { return };
        call.set_answer(&wire::answer(self.unique, error), |payload| {
            payload[..data.len()].copy_from_slice(data);
            data.len()
        });
        self.answered.add(call);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.answer(Errno::EIO.code(), &[]);
    }
}

/// Starts what a request asks for. Does not wait (RING-2).
fn start<B: Backing>(file: &File<B>, call: FuseCall, answered: Arc<Answered>) {
    let payload_len = call.payload().len();
    let (unique, operation) = wire::parse(call.header(), call.arguments(), payload_len);
    let engine = &file.engine;
    let reply = Reply { unique, call: Some(call), answered };
    match operation {
        Operation::GetAttributes => reply.data(&wire::attributes(&file.attributes())),
        Operation::SetAttributes(changes) => match file.change(changes) {
            Ok(()) => reply.data(&wire::attributes(&file.attributes())),
            Err(errno) => reply.error(errno),
        },
        Operation::Open => reply.data(&wire::opened()),
        Operation::Read { offset, len } => engine.read(offset, len, |result| match result {
            Ok(bytes) => reply.data(bytes),
            Err(failed) => reply.error(errno(failed)),
        }),
        Operation::Write { offset, len } => {
            match engine.prepare_write(offset, reply.payload(len)) {
                Ok(writing) => engine.start_write(writing, |result| match result {
                    Ok(len) => reply.data(&wire::written(len)),
                    Err(failed) => reply.error(errno(failed)),
                }),
                Err(failed) => reply.error(errno(failed)),
            }
        }
        Operation::Statistics => reply.data(&wire::statistics()),
        Operation::Nothing => reply.data(&[]),
        Operation::Sync => engine.flush(|result| reply.done(result.map_err(errno))),
        Operation::Allocate { offset, len, mode } => {
            file.allocate(offset, len, mode, |result| reply.done(result));
        }
        Operation::Unknown => reply.error(Errno::ENOSYS),
    }
}
