//! Receive memory, shared by all streams of a core.
//!
//! - CHUNK-1: a chunk is taken when there are bytes to be received, and is free again when it is dropped. The one that came back
//!   last is taken first, so that a core receives into the same hot memory.
//! - CHUNK-2: there are at most [`CHUNKS`] of them, made when they are needed first. A receiver that finds none waits until one
//!   is free.
//! - CHUNK-3: what is known to belong elsewhere is received there, and a small part of a chunk takes what comes behind: the next
//!   header, mostly, whose data is then received where it belongs, too.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};

use crate::fd::Fd;

/// Bytes in a chunk: as much as one receive takes.
pub const CHUNK_LEN: usize = 64 << 10;
/// Bytes of a chunk that one receive takes behind what belongs elsewhere (CHUNK-3).
const BEHIND_LEN: usize = 4 << 10;
/// Chunks of a ring.
pub const CHUNKS: usize = 64;

/// The free chunks, and the receivers that wait for one.
#[derive(Default)]
pub(crate) struct ChunkPool {
    free: RefCell<Vec<Box<[u8]>>>,
    made: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
}

/// The outcome of asking a socket for bytes.
#[derive(Debug)]
pub enum Received {
    /// Bytes: how many belong elsewhere and are there (CHUNK-3), and those behind them.
    Bytes {
        /// Bytes that went where they belong.
        landed: usize,
        /// The others. There are none unless the place for the first ones is full.
        chunk: Chunk,
        /// There was no room for more, so more may be there.
        is_full: bool,
    },
    /// Nothing has come.
    Nothing,
    /// There may be bytes, but no chunk is free (CHUNK-2).
    NoChunk,
    /// The peer will send nothing more, and all that it sent was received.
    End,
}

impl ChunkPool {
    /// Receives what has come to `fd`, without waiting: first into `target`, which may be empty.
    pub(crate) fn try_recv(self: &Rc<Self>, fd: &Fd, target: &mut [u8]) -> Result<Received, Errno> {
        let Some(mut chunk) = self.take() else { return Ok(Received::NoChunk) };
        loop {
            let room = target.len() + if target.is_empty() { CHUNK_LEN } else { BEHIND_LEN };
            let received = if target.is_empty() {
                recv(fd, &mut *chunk.memory, RecvFlags::DONTWAIT).map(|(len, _)| len)
            } else {
                let behind = &mut chunk.memory[..BEHIND_LEN];
                let parts = &mut [IoSliceMut::new(target), IoSliceMut::new(behind)];
                let mut ancillary = RecvAncillaryBuffer::default();
                recvmsg(fd, parts, &mut ancillary, RecvFlags::DONTWAIT).map(|done| done.bytes)
            };
            match received {
                Ok(0) => return Ok(Received::End),
                Ok(len) => {
                    let landed = len.min(target.len());
                    chunk.len = len - landed;
                    return Ok(Received::Bytes { landed, chunk, is_full: len == room });
                }
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Waits until a chunk is free.
    pub(crate) fn poll_free(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.free.borrow().is_empty() || self.made.get() < CHUNKS {
            return Poll::Ready(());
        }
        self.waiting.borrow_mut().push(context.waker().clone());
        Poll::Pending
    }

    fn take(self: &Rc<Self>) -> Option<Chunk> {
        let memory = self.free.borrow_mut().pop().or_else(|| self.make())?;
        Some(Chunk { pool: self.clone(), memory, len: 0 })
    }

    fn make(&self) -> Option<Box<[u8]>> {
        if self.made.get() == CHUNKS {
            return None;
        }
        self.made.set(self.made.get() + 1);
        Some(vec![0; CHUNK_LEN].into_boxed_slice())
    }
}

/// Received bytes. The memory goes back to the core's pool when dropped.
pub struct Chunk {
    pool: Rc<ChunkPool>,
    memory: Box<[u8]>,
    len: usize,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(std::mem::take(&mut self.memory));
        // All of them: one that was woken may have gone meanwhile, and would take the word with it.
        let waiting = self.pool.waiting.take();
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chunk({} bytes)", self.len)
    }
}
