//! Replies that wait to be sent on a connection, and the task that sends them.
//!
//! - OUTBOX-1: one send is under way at a time; what is said meanwhile goes into the next one, so replies
//!   that are ready together leave together and a lone one is not delayed.
//! - OUTBOX-2: bytes leave in the order in which they were put in.
//! - OUTBOX-3: data holds its share of the core's memory until it was sent, so a peer that does not read uses up
//!   only the memory for its own requests: see [`crate::memory`].
//! - OUTBOX-4: once [`BATCH_BYTES_MAX`] wait and nothing is under way, the send begins before [`Outbox::put`]
//!   returns: the buffers are recycled.
//! - OUTBOX-5: a send carries about so much and no more, so that a deep queue of large replies to a slow
//!   peer is seen to move.
//! - OUTBOX-6: pinned data (`io_traits::BufferSlice`) does not wait for the peer: while a send is under way, copies are
//!   put in, and what was put in before is copied when a send has to wait.
//! - OUTBOX-7: when sending has ended, for whatever reason, nothing is held and nothing more is taken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use io_traits::{BufferSlice, SendBatch, Stream, StreamError};
use local_sync::Notify;
use units::BLOCK_SIZE;

use crate::memory::Share;

/// Bytes that are sent together: few enough that a slow peer is seen to move, and so many that little of what large reads
/// take is sent in parts. Each part wakes the peer, and over loopback writes memory that the peer has just read and still
/// has in its caches. With an eighth of it reads of 128 KiB at depth 8 are an eighth slower, at depth 32 a third.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// The content of one send.
#[derive(Default)]
struct Batch {
    content: SendBatch,
    shares: Vec<Share>,
    /// Bytes that no share stands for: headers, completions, R2Ts.
    copied_bytes: usize,
}

/// Replies that wait to be sent.
#[derive(Default)]
struct Queue {
    /// True if some of them may be pinned (OUTBOX-6).
    has_pinned: bool,
    batches: VecDeque<Batch>,
    len_bytes: usize,
    /// An empty batch whose memory serves again.
    spare: Option<Batch>,
}

/// The send that is under way. Its content is with the stream.
struct UnderWay {
    shares: Vec<Share>,
    copied_bytes: usize,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Phase {
    Open,
    /// The queued replies will be sent, then sending ends.
    Closing,
    Failed(StreamError),
    Ended,
}

struct State {
    queue: RefCell<Queue>,
    sender: RefCell<Box<dyn SendOne>>,
    /// Asks the stream how much the peer has taken.
    taken_bytes: Box<dyn Fn() -> Option<u64>>,
    /// Bytes of the sends so far.
    sent_bytes: Cell<u64>,
    under_way: RefCell<Option<UnderWay>>,
    phase: Cell<Phase>,
    /// Bytes without a share that have not been sent.
    copied_bytes: Cell<usize>,
    /// Wakes [`Outbox::run`].
    task: RefCell<Option<Waker>>,
    progress: Notify,
}

/// Replies on their way to the peer. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Outbox {
    state: Rc<State>,
}

/// A place in the outbox that is being filled.
pub struct Filling<'a> {
    queue: &'a mut Queue,
    copied_bytes: usize,
    /// True if it may take long until it is sent (OUTBOX-6).
    waits: bool,
}

impl Filling<'_> {
    /// Appends a copy of `bytes`.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.copied_bytes += bytes.len();
        let batch = self.queue.open_batch();
        batch.copied_bytes += bytes.len();
        batch.content.push_bytes(bytes);
        self.queue.len_bytes += bytes.len();
    }

    /// Appends data without copying it, unless it is pinned and would have to wait (OUTBOX-6).
    pub fn data(&mut self, data: BufferSlice) {
        self.queue.len_bytes += data.len_bytes();
        let mut rest = if self.waits { data.unpinned() } else { data };
        self.queue.has_pinned |= rest.is_pinned();
        while rest.len_bytes() > 0 {
            let content = &mut self.queue.open_batch().content;
            // Whole blocks: what headers leave over is not worth a cut of its own.
            let part = (BATCH_BYTES_MAX - content.len_bytes()).next_multiple_of(BLOCK_SIZE);
            let part = part.min(rest.len_bytes());
            if part == rest.len_bytes() {
                return content.push_data(rest);
            }
            content.push_data(rest.slice(0..part));
            rest = rest.slice(part..rest.len_bytes());
        }
    }

    /// Keeps a share of memory until what has been put in so far was sent.
    pub fn hold(&mut self, share: Share) {
        if let Some(batch) = self.queue.batches.back_mut() {
            batch.shares.push(share);
        }
    }
}

impl Queue {
    /// The last batch, if it has room, or else a new one.
    fn open_batch(&mut self) -> &mut Batch {
        let is_full = |batch: &Batch| batch.content.len_bytes() >= BATCH_BYTES_MAX;
        if self.batches.back().is_none_or(is_full) {
            self.batches.push_back(self.spare.take().unwrap_or_default());
        }
        self.batches.back_mut().expect("just made")
    }
}

impl Outbox {
    /// An outbox that sends over `stream` and notifies `progress` whenever it has sent something,
    /// and at its end.
    pub fn new(stream: impl Stream, progress: Notify) -> Self {
        let asked = stream.clone();
        let send = move |batch| {
            let stream = stream.clone();
            async move { stream.send(batch).await }
        };
        let sender = Sender { send, under_way: Box::pin(None) };
        let state = State {
            queue: RefCell::default(),
            sender: RefCell::new(Box::new(sender)),
            taken_bytes: Box::new(move || asked.taken_bytes()),
            sent_bytes: Cell::new(0),
            under_way: RefCell::new(None),
            phase: Cell::new(Phase::Open),
            copied_bytes: Cell::new(0),
            task: RefCell::new(None),
            progress,
        };
        Self { state: Rc::new(state) }
    }

    /// Adds to what will be sent next, and sees that it is.
    pub fn put<T>(&self, fill: impl FnOnce(&mut Filling<'_>) -> T) -> T {
        let state = &self.state;
        let (output, before, after) = {
            let queue = &mut *state.queue.borrow_mut();
            let before = queue.len_bytes;
            let waits = state.under_way.borrow().is_some();
            let mut filling = Filling { queue, copied_bytes: 0, waits };
            let output = fill(&mut filling);
            state.copied_bytes.set(state.copied_bytes.get() + filling.copied_bytes);
            (output, before, queue.len_bytes)
        };
        if after == before {
            return output;
        }
        if matches!(state.phase.get(), Phase::Failed(_) | Phase::Ended) {
            self.empty();
        } else if state.under_way.borrow().is_none() {
            if after >= BATCH_BYTES_MAX {
                self.start_now();
            } else if before == 0 {
                self.wake();
            }
        }
        output
    }

    /// Lets [`Outbox::run`] end once all is sent.
    pub fn close(&self) {
        if self.state.phase.get() == Phase::Open {
            self.state.phase.set(Phase::Closing);
            self.wake();
        }
    }

    /// Bytes that the peer has taken so far, while some wait for it.
    #[must_use]
    pub fn taken_bytes(&self) -> Option<u64> {
        self.state.under_way.borrow().as_ref()?;
        Some((self.state.taken_bytes)().unwrap_or(self.state.sent_bytes.get()))
    }

    /// Bytes that no share of memory stands for and that have not been sent.
    #[must_use]
    pub fn copied_bytes(&self) -> usize {
        self.state.copied_bytes.get()
    }

    /// Returns whether [`Outbox::run`] is over.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.phase.get() == Phase::Ended
    }

    /// Sends until the outbox is closed and empty, or the stream fails.
    pub async fn run(&self) -> Result<(), StreamError> {
        let outcome = poll_fn(|context| self.poll_run(context)).await;
        self.state.phase.set(Phase::Ended);
        self.empty();
        self.state.sender.borrow_mut().abandon();
        *self.state.under_way.borrow_mut() = None;
        self.state.progress.notify_all();
        outcome
    }

    fn poll_run(&self, context: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        match &mut *self.state.task.borrow_mut() {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        ready!(self.drive(context));
        match self.state.phase.get() {
            Phase::Open => Poll::Pending,
            Phase::Closing | Phase::Ended => Poll::Ready(Ok(())),
            Phase::Failed(error) => Poll::Ready(Err(error)),
        }
    }

    /// OUTBOX-4: begins to send, in the name of the task.
    fn start_now(&self) {
        let task = self.state.task.borrow();
        // A task that has not begun will look by itself.
        if let Some(waker) = &*task
            && self.drive(&mut Context::from_waker(waker)).is_ready()
            && self.state.phase.get() != Phase::Open
        {
            waker.wake_by_ref();
        }
    }

    /// Sends batch after batch. Ready when nothing is left to send, or sending has failed.
    fn drive(&self, context: &mut Context<'_>) -> Poll<()> {
        let state = &self.state;
        if matches!(state.phase.get(), Phase::Failed(_)) {
            return Poll::Ready(());
        }
        let mut sender = state.sender.borrow_mut();
        loop {
            if state.under_way.borrow().is_some() {
                match sender.poll(context) {
                    Poll::Ready(Ok(content)) => self.sent(content),
                    Poll::Ready(Err(error)) => {
                        state.phase.set(Phase::Failed(error));
                        return Poll::Ready(());
                    }
                    Poll::Pending => {
                        // OUTBOX-6.
                        let queue = &mut *state.queue.borrow_mut();
                        if std::mem::take(&mut queue.has_pinned) {
                            queue.batches.iter_mut().for_each(|batch| batch.content.unpin());
                        }
                        return Poll::Pending;
                    }
                }
            }
            let Some(batch) = state.queue.borrow_mut().batches.pop_front() else {
                return Poll::Ready(());
            };
            let Batch { content, shares, copied_bytes } = batch;
            state.queue.borrow_mut().len_bytes -= content.len_bytes();
            state.sent_bytes.set(state.sent_bytes.get() + content.len_bytes() as u64);
            *state.under_way.borrow_mut() = Some(UnderWay { shares, copied_bytes });
            sender.start(content);
        }
    }

    fn sent(&self, content: SendBatch) {
        let state = &self.state;
        let under_way = state.under_way.take().expect("its content was sent");
        let UnderWay { mut shares, copied_bytes } = under_way;
        state.copied_bytes.set(state.copied_bytes.get() - copied_bytes);
        shares.clear();
        state.queue.borrow_mut().spare = Some(Batch { content, shares, copied_bytes: 0 });
        state.progress.notify_all();
    }

    /// OUTBOX-7.
    fn empty(&self) {
        drop(std::mem::take(&mut *self.state.queue.borrow_mut()));
        self.state.copied_bytes.set(0);
    }

    fn wake(&self) {
        if let Some(waker) = &*self.state.task.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Sends one batch at a time. Hides the type of the stream's future, which has no name.
trait SendOne {
    fn start(&mut self, batch: SendBatch);
    /// To be polled only between [`SendOne::start`] and the first time that it is ready.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<SendBatch, StreamError>>;
    /// Drops the send under way, if there is one.
    fn abandon(&mut self);
}

struct Sender<S, F> {
    send: S,
    /// One place for the future of every send, so that none allocates.
    under_way: Pin<Box<Option<F>>>,
}

impl<S, F> SendOne for Sender<S, F>
where
    S: FnMut(SendBatch) -> F,
    F: Future<Output = Result<SendBatch, StreamError>>,
{
    fn start(&mut self, batch: SendBatch) {
        let future = (self.send)(batch);
        self.under_way.set(Some(future));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<SendBatch, StreamError>> {
        let under_way = self.under_way.as_mut().as_pin_mut().expect("a send was started");
        let sent = ready!(under_way.poll(context));
        self.abandon();
        Poll::Ready(sent)
    }

    fn abandon(&mut self) {
        self.under_way.set(None);
    }
}

#[cfg(test)]
mod tests;
