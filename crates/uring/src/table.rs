//! The operations that are with the kernel, or done and not yet fetched.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use io_uring::{cqueue, opcode, squeue};
use rustix::io::Errno;

use crate::fd::Fd;
use crate::request::{Request, Step};
use crate::send::SendState;
use crate::window::ReadWindow;

/// Belongs to no operation; the completion says nothing of interest.
pub(crate) const UNOWNED: u64 = u64::MAX;
/// Send states kept for reuse.
const SPARE_SENDS_MAX: usize = 64;

/// Names an operation (URING-2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

enum Phase {
    InFlight,
    /// The kernel has ended a watch that has events to tell. It is armed again when its owner asks for more (WATCH-3).
    Lapsed,
    Done(Result<(), Errno>),
}

struct Operation {
    fd: Fd,
    request: Request,
    phase: Phase,
    abandoned: bool,
    waker: Option<Waker>,
}

struct Slot {
    generation: u32,
    operation: Option<Operation>,
}

#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Submissions that are not in the kernel's queue yet. They point into `slots`.
    pub(crate) pending: VecDeque<squeue::Entry>,
    /// Tasks to wake once nothing is borrowed.
    pub(crate) woken: Vec<Waker>,
    #[expect(clippy::vec_box, reason = "they move between here and the requests")]
    spare_sends: Vec<Box<SendState>>,
    in_flight: usize,
    /// Time at which completions were last fetched, if it is recorded.
    pub(crate) reaped_at: Option<Instant>,
    /// Reads that were held are pending, and their drive has nothing else to do.
    pub(crate) has_more: bool,
    /// The operations in flight that a kernel thread may be busy with.
    with_kernel_threads: usize,
}

impl Operation {
    fn wait(&mut self, context: &mut Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }
}

impl Key {
    fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn unpack(user_data: u64) -> Self {
        Self { index: user_data as u32, generation: (user_data >> 32) as u32 }
    }
}

impl Table {
    /// Operations that the kernel may still touch memory of.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns true if an operation may still change a file, or make changes durable.
    pub(crate) fn changes_files(&self) -> bool {
        let operations = self.slots.iter().filter_map(|slot| slot.operation.as_ref());
        let mut in_flight = operations.filter(|it| matches!(it.phase, Phase::InFlight));
        in_flight.any(|operation| operation.request.changes_file())
    }

    /// Operations that a thread of the kernel may be busy with.
    pub(crate) fn with_kernel_threads(&self) -> usize {
        self.with_kernel_threads
    }

    pub(crate) fn submit(&mut self, fd: Fd, request: Request) -> Key {
        self.with_kernel_threads += usize::from(request.may_need_kernel_thread());
        let window = request.window().cloned();
        let operation =
            Operation { fd, request, phase: Phase::InFlight, abandoned: false, waker: None };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, operation: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
        });
        let slot = &mut self.slots[index as usize];
        slot.operation = Some(operation);
        let key = Key { index, generation: slot.generation };
        self.in_flight += 1;
        if window.is_none_or(|window| window.admit(key)) {
            self.push(key);
        }
        key
    }

    pub(crate) fn send_state(&mut self) -> Box<SendState> {
        self.spare_sends.pop().unwrap_or_else(SendState::new)
    }

    pub(crate) fn keep_send_state(&mut self, state: Box<SendState>) {
        if self.spare_sends.len() < SPARE_SENDS_MAX {
            self.spare_sends.push(state);
        }
    }

    /// Queues the submission for what is left of an operation.
    fn push(&mut self, key: Key) {
        if let Some(Operation { fd, request, .. }) = find(&mut self.slots, key) {
            self.pending.push_back(request.entry(fd).user_data(key.pack()));
        }
    }

    /// Returns true if a turn has something to tell the kernel.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes in a completion of this ring.
    pub(crate) fn complete(&mut self, entry: &cqueue::Entry) {
        let key = Key::unpack(entry.user_data());
        let Some(operation) = find(&mut self.slots, key) else { return };
        let step = operation.request.on_completion(entry.result(), entry.flags());
        let mut window = None;
        if let Step::Finished(_) = step {
            self.with_kernel_threads -= usize::from(operation.request.may_need_kernel_thread());
            window = operation.request.window().cloned();
        }
        match step {
            Step::Again | Step::Event { is_over: true }
                if operation.abandoned && operation.request.is_cancelled_by_drop() =>
            {
                self.in_flight -= 1;
                drop(self.take(key));
            }
            Step::Again => self.push(key),
            Step::Event { is_over } => {
                self.woken.extend(operation.waker.take());
                if is_over {
                    operation.phase = Phase::Lapsed;
                    self.in_flight -= 1;
                }
            }
            Step::Finished(_) if operation.abandoned => {
                self.in_flight -= 1;
                let request = self.take(key).request;
                if let Request::Send(mut state) = request {
                    drop(state.take_batch());
                    self.keep_send_state(state);
                }
            }
            Step::Finished(outcome) => {
                operation.phase = Phase::Done(outcome);
                self.woken.extend(operation.waker.take());
                self.in_flight -= 1;
            }
        }
        if let Some(window) = window {
            self.go_on(&window);
        }
    }

    /// One of the window's reads is done: queues the ones that were held for it.
    fn go_on(&mut self, window: &ReadWindow) {
        window.complete(*self.reaped_at.get_or_insert_with(Instant::now));
        while let Some(key) = window.next() {
            self.push(key);
            self.has_more = true;
        }
    }

    /// The outcome with the request it belongs to, once; the key is void afterwards.
    pub(crate) fn poll(
        &mut self,
        key: Key,
        context: &mut Context<'_>,
    ) -> Poll<(Result<(), Errno>, Request)> {
        let operation = find(&mut self.slots, key).expect("polled after its end");
        if !matches!(operation.phase, Phase::Done(_)) {
            operation.wait(context);
            return Poll::Pending;
        }
        let operation = self.take(key);
        match operation.phase {
            Phase::Done(outcome) => Poll::Ready((outcome, operation.request)),
            Phase::InFlight | Phase::Lapsed => unreachable!("looked at above"),
        }
    }

    /// Returns what a watch was told since it was asked last, and arms it again if there is nothing and it has lapsed. Once it
    /// has failed, the key is void.
    pub(crate) fn poll_events(
        &mut self,
        key: Key,
        context: &mut Context<'_>,
    ) -> Poll<Result<u32, Errno>> {
        let operation = find(&mut self.slots, key).expect("asked after its end");
        let Request::Watch { events } = &mut operation.request else {
            unreachable!("only a watch is told of events")
        };
        match (std::mem::take(events), &operation.phase) {
            (0, Phase::InFlight) => {
                operation.wait(context);
                Poll::Pending
            }
            (0, Phase::Lapsed) => {
                operation.wait(context);
                operation.phase = Phase::InFlight;
                self.in_flight += 1;
                self.push(key);
                Poll::Pending
            }
            (0, Phase::Done(_)) => match self.take(key).phase {
                Phase::Done(Err(errno)) => Poll::Ready(Err(errno)),
                _ => unreachable!("a watch ends only by failing"),
            },
            (events, _) => Poll::Ready(Ok(events)),
        }
    }

    /// Handles that no task waits for the operation any more.
    pub(crate) fn abandon(&mut self, key: Key) {
        let Some(operation) = find(&mut self.slots, key) else { return };
        match operation.phase {
            Phase::Done(_) | Phase::Lapsed => drop(self.take(key)),
            Phase::InFlight => {
                operation.abandoned = true;
                operation.waker = None;
                if operation.request.is_cancelled_by_drop() {
                    self.pending
                        .push_back(opcode::AsyncCancel::new(key.pack()).build().user_data(UNOWNED));
                }
            }
        }
    }

    /// Asks the kernel to end sends, which may be stuck for as long as a peer pleases. What else may
    /// take for ever was cancelled when it was abandoned; the rest is on its way to a device.
    pub(crate) fn cancel_sends(&mut self) {
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(Operation { request: Request::Send(_), .. }) = slot.operation {
                let key = Key { index: index as u32, generation: slot.generation };
                self.pending
                    .push_back(opcode::AsyncCancel::new(key.pack()).build().user_data(UNOWNED));
            }
        }
    }

    fn take(&mut self, key: Key) -> Operation {
        let slot = &mut self.slots[key.index as usize];
        // Generation u32::MAX is that of `UNOWNED`.
        slot.generation = (slot.generation + 1) % u32::MAX;
        self.free.push(key.index);
        slot.operation.take().expect("the key was looked up")
    }
}

fn find(slots: &mut [Slot], key: Key) -> Option<&mut Operation> {
    let slot = slots.get_mut(key.index as usize)?;
    if slot.generation == key.generation { slot.operation.as_mut() } else { None }
}
