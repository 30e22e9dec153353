//! What a connection has to say, and the task that says it.
//!
//! - O1: one send is under way at a time; what is said meanwhile goes into the next one, so replies
//!   that are ready together leave together and a lone one is not delayed.
//! - O2: bytes leave in the order in which they were put in.
//! - O3: data holds its share of the core's memory until it was sent, so a peer that does not read
//!   is out of memory to be served with, and nobody else is: see [`crate::memory`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::{BufferSlice, Clock, SendBatch, Stream, StreamError};
use local_sync::Notify;
use units::Instant;

use crate::memory::Share;

#[derive(Default)]
struct Waiting {
    batch: SendBatch,
    shares: Vec<Share>,
}

struct State {
    waiting: RefCell<Waiting>,
    /// An empty batch whose memory serves the next turn.
    spare: RefCell<Waiting>,
    closing: Cell<bool>,
    /// When the send under way began.
    sending_since: Cell<Option<Instant>>,
    filled: Notify,
}

/// The sending side of one connection. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Outbox {
    state: Rc<State>,
}

/// A place in the outbox that is being filled.
pub(crate) struct Filling<'a> {
    waiting: &'a mut Waiting,
}

impl nvme_target::Outbox for Filling<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.waiting.batch.push_bytes(bytes);
    }
}

impl Filling<'_> {
    /// Appends data without copying it.
    pub(crate) fn data(&mut self, data: BufferSlice) {
        self.waiting.batch.push_data(data);
    }

    /// Keeps a share of memory until what has been put in so far was sent.
    pub(crate) fn hold(&mut self, share: Share) {
        self.waiting.shares.push(share);
    }
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            state: Rc::new(State {
                waiting: RefCell::default(),
                spare: RefCell::default(),
                closing: Cell::new(false),
                sending_since: Cell::new(None),
                filled: Notify::new(),
            }),
        }
    }

    /// Adds to what will be sent next, and sees that it is.
    pub(crate) fn put<T>(&self, fill: impl FnOnce(&mut Filling<'_>) -> T) -> T {
        let (was_empty, output) = {
            let waiting = &mut *self.state.waiting.borrow_mut();
            let was_empty = waiting.batch.is_empty();
            let output = fill(&mut Filling { waiting });
            (was_empty && !waiting.batch.is_empty(), output)
        };
        if was_empty {
            self.state.filled.notify_all();
        }
        output
    }

    /// Lets [`Outbox::run`] end once all is sent.
    pub(crate) fn close(&self) {
        self.state.closing.set(true);
        self.state.filled.notify_all();
    }

    /// Since when a send has been under way.
    pub(crate) fn sending_since(&self) -> Option<Instant> {
        self.state.sending_since.get()
    }

    /// Sends until the outbox is closed and empty, or the stream fails.
    pub(crate) async fn run<S: Stream>(
        &self,
        clock: impl Clock,
        stream: S,
    ) -> Result<(), StreamError> {
        loop {
            let filled = self.state.filled.notified();
            if self.state.waiting.borrow().batch.is_empty() {
                if self.state.closing.get() {
                    return Ok(());
                }
                filled.await;
                continue;
            }
            drop(filled);
            let next = self.state.spare.take();
            let Waiting { batch, mut shares } = self.state.waiting.replace(next);
            self.state.sending_since.set(Some(clock.now()));
            let batch = stream.send(batch).await?;
            self.state.sending_since.set(None);
            shares.clear();
            self.state.spare.replace(Waiting { batch, shares });
        }
    }
}
