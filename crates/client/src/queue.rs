//! A queue: requests on one side, a connection that comes and goes on the other.
//!
//! ```text
//!  caller ──► run ──► request ──► Connection ──► outgoing batch ──► sender task ──► stream
//!  caller ◄── Wait ◄── outcome ◄── Connection ◄── on_chunk ◄─────── receiver task ◄── stream
//! ```
//! - QUEUE-1: a request that was taken in has exactly one outcome, whatever happens to connections.
//! - QUEUE-2: all that was put into the outgoing batch while a send was under way leaves with the next.
//! - QUEUE-3: a dropped caller frees nothing that the target may still use: its place and its memory
//!   are kept until the reply has come or the connection is gone.
//! - QUEUE-4: a link has a number; a task of an earlier link changes nothing.
//! - QUEUE-5: a request goes out on at most [`SENDS_MAX`] links, those of earlier clients included. One that the target never
//!   answers, or that ends every link, would else stop all others again and again, for ever. It is not known which one it was; so
//!   what was lost [`SUSPECT_AFTER`] times goes out one at a time, and fails alone.
//! - QUEUE-6: requests keep their places while there is no link, and may have all of theirs. The commands that
//!   make the next one usable, and the one that keeps it alive, at most [`FIRST_MAX`] at a time, have places of their own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_traits::{Clock, SendBatch};
use local_sync::{Permit, Semaphore};
use nvme_initiator::{Connection, Transfer};
use nvme_wire::fabrics::ConnectInvalid;
use situations::{Situation, situation};
use units::Instant;

use crate::namespace::Namespace;
use crate::receive::PayloadDigest;
use crate::requests::{Body, Command, Completion, RequestState, Requests};
use crate::{Counters, Disconnect, Error};

/// Connections on which a request is sent before it fails with [`Error::Unanswered`]: as often as
/// Linux sends one (`nvme_core.max_retries` is five).
pub const SENDS_MAX: u8 = 6;
/// Connections lost under a request after which it waits for others like it.
pub const SUSPECT_AFTER: u8 = SENDS_MAX / 2;
/// Commands under way at once that no request may hold up (QUEUE-6): those that ask for the controller's identity, its
/// number of queues and its events, and a Keep Alive, which may be that of the connection before.
const FIRST_MAX: u16 = 4;

/// A connection in use.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// The request in each of the connection's slots.
    pub(crate) by_slot: Vec<u16>,
    pub(crate) digest: PayloadDigest,
    /// True if requests may go out, not only the commands that connect.
    pub(crate) open: bool,
}

pub(crate) struct QueueState {
    pub(crate) link: Option<Link>,
    /// Number of the last link (QUEUE-4).
    epoch: u64,
    pub(crate) requests: Requests,
    /// Requests that wait for a link or a slot, in order.
    pub(crate) queued: VecDeque<u16>,
    /// The last request sent of those that go out one at a time (QUEUE-5).
    suspect: u16,
    pub(crate) outgoing: SendBatch,
    sender: Option<Waker>,
    /// Waits for the handshake.
    bring_up: Option<Waker>,
    /// Why the last link ended.
    lost: Option<Disconnect>,
    /// No link will come any more.
    ended: Option<Error>,
    /// Dword 0 of the last command that failed before the link was open: a Connect explains
    /// itself there.
    pub(crate) refusal: Option<ConnectInvalid>,
    pub(crate) counters: Counters,
}

/// See the module's head.
pub(crate) struct Queue {
    pub(crate) state: RefCell<QueueState>,
    permits: Semaphore,
    /// Told when a link is lost.
    on_lost: Box<dyn Fn()>,
}

impl Queue {
    /// A queue of `depth` requests. `on_lost` is told when a link is lost.
    pub(crate) fn new(depth: u16, on_lost: impl Fn() + 'static) -> Rc<Self> {
        let state = QueueState {
            link: None,
            epoch: 0,
            requests: Requests::new(depth + FIRST_MAX),
            queued: VecDeque::with_capacity(usize::from(depth + FIRST_MAX)),
            suspect: 0,
            outgoing: SendBatch::new(),
            sender: None,
            bring_up: None,
            lost: None,
            ended: None,
            refusal: None,
            counters: Counters::default(),
        };
        Rc::new(Self {
            state: RefCell::new(state),
            permits: Semaphore::new(u64::from(depth)),
            on_lost: Box::new(on_lost),
        })
    }

    /// Runs a request to its end, across connections. Waits in line while the queue is full.
    pub(crate) async fn run(
        &self,
        clock: &impl Clock,
        command: Command,
    ) -> Result<Completion, Error> {
        let permit = match self.permits.try_acquire(1) {
            Some(permit) => permit,
            None => self.permits.acquire(1).await,
        };
        self.begin(clock.now(), command, permit)?.await
    }

    /// Returns true if a request would go out at once.
    pub(crate) fn has_room(&self) -> bool {
        self.permits.available() > 0
    }

    /// Returns true if requests go out, rather than wait for a link.
    pub(crate) fn is_open(&self) -> bool {
        self.state.borrow().is_open()
    }

    fn begin(&self, now: Instant, command: Command, permit: Permit) -> Result<Wait<'_>, Error> {
        let mut state = self.state.borrow_mut();
        if let Some(error) = state.ended {
            return Err(error);
        }
        let index = state.requests.occupy(command, Some(permit));
        state.queued.push_back(index);
        state.pump(now);
        Ok(Wait { queue: self, index: Some(index) })
    }

    /// Runs a command that makes the link usable or keeps it alive, ahead of all requests (QUEUE-6). It ends with the link.
    pub(crate) fn run_first(&self, now: Instant, command: Command) -> Wait<'_> {
        let mut state = self.state.borrow_mut();
        let index = state.requests.occupy(command, None);
        if !state.submit(now, index) {
            let reason = state.lost.unwrap_or(Disconnect::Closed);
            state.requests.finish(index, Err(Error::Disconnected(reason)));
        }
        Wait { queue: self, index: Some(index) }
    }

    /// Begins a link; its number is for the tasks that serve it.
    pub(crate) fn attach(&self, connection: Connection, hello: &[u8]) -> u64 {
        let mut state = self.state.borrow_mut();
        let slots = connection.free_slots();
        state.epoch += 1;
        state.lost = None;
        state.outgoing.clear();
        state.outgoing.push_bytes(hello);
        state.link = Some(Link {
            connection,
            by_slot: vec![0; slots],
            digest: PayloadDigest::default(),
            open: false,
        });
        state.epoch
    }

    /// Waits until the handshake of link `epoch` is over.
    pub(crate) async fn ready(&self, epoch: u64) -> Result<(), Disconnect> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            match state.current(epoch) {
                Some(link) if link.connection.is_ready() => Poll::Ready(Ok(())),
                Some(_) => {
                    state.bring_up = Some(context.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(Err(state.lost.unwrap_or(Disconnect::Closed))),
            }
        })
        .await
    }

    /// Commands that [`Queue::run_first`] would send now.
    pub(crate) fn free_slots(&self) -> usize {
        let state = self.state.borrow();
        state.link.as_ref().map_or(0, |link| link.connection.free_slots())
    }

    /// Lets requests go out on link `epoch`.
    pub(crate) fn open(&self, epoch: u64, now: Instant, in_capsule_max: u32) {
        let mut state = self.state.borrow_mut();
        if let Some(link) = state.current(epoch) {
            link.connection.set_in_capsule_max(in_capsule_max);
            link.open = true;
            state.pump(now);
        }
    }

    /// Why link `epoch` is over, if it is.
    pub(crate) fn lost(&self, epoch: u64) -> Option<Disconnect> {
        let mut state = self.state.borrow_mut();
        match state.current(epoch) {
            Some(_) => None,
            None => Some(state.lost.unwrap_or(Disconnect::Closed)),
        }
    }

    /// Ends link `epoch`: requests wait for the next link, other commands fail.
    pub(crate) fn fail(&self, epoch: u64, reason: Disconnect) {
        let mut state = self.state.borrow_mut();
        let Some(link) = state.current(epoch) else { return };
        let last_words = match &reason {
            Disconnect::Protocol(error) => link.connection.term_req(error),
            _ => None,
        };
        state.link = None;
        state.lost = Some(reason);
        state.outgoing.clear();
        if let Some(term_req) = last_words {
            state.outgoing.push_bytes(&term_req);
        }
        state.requeue_outstanding(reason);
        let wakers = [state.sender.take(), state.bring_up.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        (self.on_lost)();
    }

    /// Ends the queue: everything fails with `error`, now and later.
    pub(crate) fn end(&self, error: Error) {
        let epoch = self.state.borrow().epoch;
        let reason = match error {
            Error::Disconnected(reason) => reason,
            _ => Disconnect::Closed,
        };
        self.fail(epoch, reason);
        let mut state = self.state.borrow_mut();
        state.ended = Some(error);
        state.queued.clear();
        for index in state.requests.in_state(RequestState::Queued) {
            let request = state.requests.get(index);
            // It is not known whether a request that was sent was carried out.
            let outcome = match (error, request.lost) {
                (Error::Disconnected(Disconnect::GaveUp), Some(last)) => {
                    Error::Unanswered { sends: request.losses, last }
                }
                _ => error,
            };
            state.requests.finish(index, Err(outcome));
        }
    }

    /// Returns the batch to send next on link `epoch`; waits for something to send. `None` once the link is over
    /// and its last PDUs are sent.
    pub(crate) async fn next_batch(&self, epoch: u64, mut spare: SendBatch) -> Option<SendBatch> {
        poll_fn(|context| {
            let mut state = self.state.borrow_mut();
            if state.epoch != epoch {
                return Poll::Ready(None);
            }
            if !state.outgoing.is_empty() {
                std::mem::swap(&mut state.outgoing, &mut spare);
                if let Some(link) = &mut state.link {
                    link.connection.handed_over();
                }
                state.counters.sends += 1;
                return Poll::Ready(Some(std::mem::take(&mut spare)));
            }
            if state.link.is_none() {
                return Poll::Ready(None);
            }
            match &mut state.sender {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    /// Fails link `epoch` if a command is late, else says when to look again; `None` if the link
    /// is over.
    pub(crate) fn check_timeout(&self, epoch: u64, now: Instant) -> Option<Instant> {
        let (late, next) = {
            let mut state = self.state.borrow_mut();
            let link = state.current(epoch)?;
            (link.connection.on_timeout(now), link.connection.next_timeout())
        };
        if late.is_some() {
            self.fail(epoch, Disconnect::CommandTimeout);
            return None;
        }
        Some(next.unwrap_or(Instant(u64::MAX)))
    }

    /// Returns the details of the last refused Connect.
    pub(crate) fn last_refusal(&self) -> Option<ConnectInvalid> {
        self.state.borrow().refusal
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.borrow().counters
    }
}

impl QueueState {
    /// The link, if it is still number `epoch` (QUEUE-4).
    pub(crate) fn current(&mut self, epoch: u64) -> Option<&mut Link> {
        self.link.as_mut().filter(|_| self.epoch == epoch)
    }

    pub(crate) fn wake_bring_up(&mut self) {
        if let Some(waker) = self.bring_up.take() {
            waker.wake();
        }
    }

    fn is_open(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.open)
    }

    /// Sends waiting requests as far as there are slots.
    pub(crate) fn pump(&mut self, now: Instant) {
        if !self.is_open() {
            return;
        }
        let mut at = 0;
        while let Some(&index) = self.queued.get(at) {
            let request = self.requests.get(index);
            let namespace = request.command.namespace.as_deref();
            if let Some(refusal) = namespace.and_then(Namespace::refusal) {
                self.queued.remove(at);
                self.requests.finish(index, Err(refusal));
                continue;
            }
            let is_suspect = request.is_suspect();
            if is_suspect && self.has_suspect() {
                at += 1;
                continue;
            }
            if !self.submit(now, index) {
                break;
            }
            if is_suspect {
                self.suspect = index;
            }
            self.queued.remove(at);
        }
    }

    /// Returns true if one of those that go out one at a time is out (QUEUE-5).
    fn has_suspect(&mut self) -> bool {
        let last = self.requests.get(self.suspect);
        last.state == RequestState::Outstanding && last.is_suspect()
    }

    /// Puts a request on the link. `false` if there is none, or no slot.
    pub(crate) fn submit(&mut self, now: Instant, index: u16) -> bool {
        let Some(link) = self.link.as_mut().filter(|link| link.connection.is_ready()) else {
            return false;
        };
        let request = self.requests.get(index);
        let command = &request.command;
        let outgoing = &mut self.outgoing;
        let was_empty = outgoing.is_empty();
        let connection = &mut link.connection;
        let transfer = command.body.transfer();
        let Some(slot) =
            connection.submit(now, &command.sqe, transfer, command.timeout, |header| {
                outgoing.push_bytes(header);
            })
        else {
            return false;
        };
        link.by_slot[usize::from(slot)] = index;
        if let (Body::ToController(data), Transfer::ToController(len)) = (&command.body, transfer)
            && connection.sends_in_capsule(&command.sqe, len)
        {
            self.counters.bytes_sent += u64::from(len);
            outgoing.push_data(data.clone());
            if connection.digests().data {
                outgoing.push_bytes(&checksum::crc32c(data.as_bytes()).to_le_bytes());
            }
        }
        request.state = RequestState::Outstanding;
        request.damaged = false;
        request.attempts = request.attempts.saturating_add(1);
        if was_empty {
            self.wake_sender();
        }
        true
    }

    pub(crate) fn wake_sender(&mut self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    /// The link is gone: what can be repeated waits for the next one, in the old order.
    fn requeue_outstanding(&mut self, reason: Disconnect) {
        for index in self.requests.in_state(RequestState::Outstanding).into_iter().rev() {
            let request = self.requests.get(index);
            if request.abandoned {
                self.requests.free(index);
                continue;
            }
            request.losses = request.losses.saturating_add(1);
            request.lost = Some(reason);
            if !request.command.replay {
                self.requests.finish(index, Err(Error::Disconnected(reason)));
            } else if request.losses >= SENDS_MAX {
                let error = Error::Unanswered { sends: request.losses, last: reason };
                self.requests.finish(index, Err(error));
            } else {
                request.state = RequestState::Queued;
                request.attempts = 0;
                self.queued.push_front(index);
                situation(Situation::RequestRepeated);
                self.counters.repeated += 1;
            }
        }
    }
}

/// Waits for a request's outcome. Dropped, it gives the request up (QUEUE-3).
pub(crate) struct Wait<'a> {
    queue: &'a Queue,
    index: Option<u16>,
}

impl Future for Wait<'_> {
    type Output = Result<Completion, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let index = self.index.expect("not polled after its end");
        let mut state = self.queue.state.borrow_mut();
        let request = state.requests.get(index);
        if let Some(outcome) = request.outcome.take() {
            state.requests.free(index);
            drop(state);
            self.index = None;
            return Poll::Ready(outcome);
        }
        match &mut request.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        let mut state = self.queue.state.borrow_mut();
        match state.requests.get(index).state {
            RequestState::Outstanding => {
                let request = state.requests.get(index);
                request.abandoned = true;
                request.waker = None;
            }
            RequestState::Queued => {
                state.queued.retain(|queued| *queued != index);
                state.requests.free(index);
            }
            RequestState::Done => state.requests.free(index),
            RequestState::Free => unreachable!("the place is this caller's"),
        }
    }
}
