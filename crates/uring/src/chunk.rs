//! Receive memory, shared by all streams of a core.
//!
//! - C1: a chunk is taken when there are bytes to be received, and is free again when it is dropped. The one that came back last is
//!   taken first, so that a core receives into the same hot memory.
//! - C2: there are at most [`CHUNKS`] of them, made when they are needed first. A receiver that finds none waits until one is
//!   free.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::fd::Fd;

/// Bytes in a chunk: as much as one receive takes.
pub const CHUNK_LEN: usize = 64 << 10;
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
    /// Bytes.
    Bytes(Chunk),
    /// Nothing has come.
    Nothing,
    /// There may be bytes, but no chunk is free (C2).
    NoChunk,
    /// The peer will send nothing more, and all that it sent was received.
    End,
}

impl ChunkPool {
    /// Receives what has come to `fd`, without waiting.
    pub(crate) fn try_recv(self: &Rc<Self>, fd: &Fd) -> Result<Received, Errno> {
        let Some(mut chunk) = self.take() else { return Ok(Received::NoChunk) };
        loop {
            match recv(fd, &mut *chunk.memory, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(Received::End),
                Ok((len, _)) => {
                    chunk.len = len;
                    return Ok(Received::Bytes(chunk));
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
