//! The futures that a ring hands out. Each was submitted when it was made.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use io_traits::{Buffer, BufferSlice, SendBatch};
use rustix::io::Errno;

use crate::chunk::Received;
use crate::fd::Fd;
use crate::request::{Request, SockAddr};
use crate::ring::Ring;
use crate::send::send_at_once;
use crate::table::Key;
use crate::window::ReadWindow;

/// An operation that someone waits for.
struct Operation {
    ring: Ring,
    /// `None` once the outcome was fetched.
    key: Option<Key>,
}

impl Operation {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Result<(), Errno>, Request)> {
        let key = self.key.expect("an operation is not polled after its end");
        let finished = ready!(self.ring.poll_operation(key, context));
        self.key = None;
        Poll::Ready(finished)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ring.with_table(|table| table.abandon(key));
        }
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident -> $output:ty = $finish:expr;)*) => {$(
        $(#[$doc])*
        #[must_use = "futures do nothing unless polled"]
        pub struct $name(Operation);

        impl Future for $name {
            type Output = $output;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<$output> {
                let (outcome, request) = ready!(self.0.poll(context));
                #[allow(clippy::redundant_closure_call, reason = "the macro's parameter")]
                Poll::Ready($finish(&self.0.ring, outcome, request))
            }
        }
    )*};
}

operations! {
    /// A send of what the socket did not take at once.
    #[expect(unreachable_pub, reason = "the others are public")]
    SendRest -> Result<SendBatch, Errno> = |ring: &Ring, outcome: Result<(), Errno>, request| {
        let Request::Send(mut state) = request else { unreachable!("a send carries its state") };
        let batch = state.take_batch();
        ring.with_table(|table| table.keep_send_state(state));
        outcome.map(|_| batch)
    };
    /// A connection that is being made.
    Connect -> Result<(), Errno> = |_: &Ring, outcome: Result<(), Errno>, _| {
        outcome
    };
    /// A read that fills its buffer.
    Read -> Result<Buffer, Errno> = |_: &Ring, outcome: Result<(), Errno>, request| {
        match request {
            Request::Read { buffer, .. } => outcome.map(|_| buffer),
            _ => unreachable!("a read carries its buffer"),
        }
    };
    /// A write of all its data.
    Write -> Result<(), Errno> = |_: &Ring, outcome: Result<(), Errno>, _| outcome;
    /// The next signal of an event.
    Signal -> Result<(), Errno> = |_: &Ring, outcome: Result<(), Errno>, _| outcome;
    /// A request without data: a sync, a hole to be punched.
    Done -> Result<(), Errno> = |_: &Ring, outcome: Result<(), Errno>, _| outcome;
}

/// A send of a whole batch, which comes back empty.
#[must_use = "futures do nothing unless polled"]
pub struct Send(Sending);

enum Sending {
    Done(Result<SendBatch, Errno>),
    Rest(SendRest),
    Over,
}

impl Future for Send {
    type Output = Result<SendBatch, Errno>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.0, Sending::Over) {
            Sending::Done(outcome) => Poll::Ready(outcome),
            Sending::Rest(mut rest) => {
                let sent = Pin::new(&mut rest).poll(context);
                if sent.is_pending() {
                    self.0 = Sending::Rest(rest);
                }
                sent
            }
            Sending::Over => panic!("a send is not polled after its end"),
        }
    }
}

impl Ring {
    fn operation(&self, fd: &Fd, request: Request) -> Operation {
        Operation { ring: self.clone(), key: Some(self.submit(fd, request)) }
    }

    /// Receives what is there, past the ring, in a system call of its own: into `target` first, and then into a chunk.
    pub fn try_recv(&self, fd: &Fd, target: &mut [u8]) -> Result<Received, Errno> {
        self.shared.pool.try_recv(fd, target)
    }

    /// Waits until there is a chunk to receive into.
    pub fn poll_chunk(&self, context: &mut Context<'_>) -> Poll<()> {
        self.shared.pool.poll_free(context)
    }

    /// Sends all of `batch`: what the socket takes at once in a system call of its own, the rest in as many as it
    /// takes. Nothing that waits for the peer is pinned.
    pub fn send(&self, fd: &Fd, mut batch: SendBatch) -> Send {
        let sent = match send_at_once(fd, &batch) {
            Ok(sent) if sent < batch.len_bytes() => sent,
            outcome => {
                batch.clear();
                return Send(Sending::Done(outcome.map(|_| batch)));
            }
        };
        batch.unpin();
        let mut state = self.with_table(|table| table.send_state());
        state.begin(batch, sent);
        Send(Sending::Rest(SendRest(self.operation(fd, Request::Send(state)))))
    }

    /// Connects a socket.
    pub fn connect(&self, fd: &Fd, address: SocketAddr) -> Connect {
        Connect(self.operation(fd, Request::Connect(SockAddr::new(address))))
    }

    /// Fills `buffer` from byte `offset` on, once `window` lets it go to the drive. Ends with `EIO` if the file ends
    /// before.
    pub fn read(&self, fd: &Fd, window: &ReadWindow, offset: u64, buffer: Buffer) -> Read {
        let window = window.clone();
        Read(self.operation(fd, Request::Read { buffer, offset, done: 0, window }))
    }

    /// Writes all of `data` to byte `offset` and on.
    pub fn write(&self, fd: &Fd, offset: u64, data: BufferSlice) -> Write {
        Write(self.operation(fd, Request::Write { data, offset, done: 0 }))
    }

    /// Waits for the next signal of `event`, an `eventfd` that waits when it is read; those of before are told as one.
    pub fn signal(&self, event: &Fd) -> Signal {
        Signal(self.operation(event, Request::Wake(Box::default())))
    }

    /// Makes completed writes durable: `fdatasync`.
    pub fn sync_data(&self, fd: &Fd) -> Done {
        Done(self.operation(fd, Request::Sync))
    }

    /// Gives back the space of `len` bytes from `offset`, which then read as zeroes.
    pub fn punch_hole(&self, fd: &Fd, offset: u64, len: u64) -> Done {
        Done(self.operation(fd, Request::Punch { offset, len }))
    }

    /// Takes the space of `len` bytes from `offset` of the file system; what the file holds stays.
    pub fn allocate(&self, fd: &Fd, offset: u64, len: u64) -> Done {
        Done(self.operation(fd, Request::Allocate { offset, len }))
    }
}
