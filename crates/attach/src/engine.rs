//! Requests of the kernel, for any bytes, as requests to the volume.
//!
//! - ENGINE-1: each request has one outcome; it leaves the window and the order with it.
//! - ENGINE-2: what the caller hears of as done is on the server: nothing is kept here.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farflash_client::{Data, Error};

use crate::backing::{Backing, Clearing};
use crate::order::{Order, Ticket};
use crate::span::{Edge, Part, Span, parts};
use crate::window::{Limits, Permit, Progress, Window};

/// A request that failed.
#[derive(Debug)]
pub struct Trouble {
    /// Kind of the request.
    pub request: &'static str,
    /// Offset in the file.
    pub offset: u64,
    /// The client's error.
    pub error: Error,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} at byte {} failed: {}", self.request, self.offset, self.error)
    }
}

/// Why a request of the kernel was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    /// The file ends before it.
    #[error("the volume ends before it")]
    Beyond,
    /// The volume failed it.
    #[error(transparent)]
    Volume(Error),
}

/// Told of each request that the volume failed; on the thread that carries out requests.
pub(crate) type OnTrouble = Box<dyn Fn(&Trouble) + Send + Sync>;

/// A request of its own to the volume.
enum Piece {
    /// Writes the blocks, after the missing bytes of those at the edges were read.
    Write {
        offset: u64,
        data: Data,
        edges: Vec<Edge>,
    },
    Clear {
        offset: u64,
        len: u64,
        how: Clearing,
    },
}

/// A request that changes the volume.
struct Change {
    pieces: VecDeque<Piece>,
    request: &'static str,
    offset: u64,
    done: Box<dyn FnOnce(Result<(), Failed>) + Send>,
    /// Its place in the window.
    _permit: Permit,
}

/// A write that was let in and has its data, and has not begun.
pub(crate) struct Writing {
    blocks: Range<u64>,
    piece: Piece,
    offset: u64,
    len: usize,
    permit: Permit,
}

pub(crate) struct Engine<B> {
    backing: B,
    block: usize,
    size: AtomicU64,
    order: Mutex<Order<Change>>,
    window: Arc<Window>,
    on_trouble: OnTrouble,
}

impl<B: Backing> Engine<B> {
    pub(crate) fn new(backing: B, size: u64, limits: Limits, on_trouble: OnTrouble) -> Arc<Self> {
        Arc::new(Self {
            block: backing.block_size(),
            backing,
            size: AtomicU64::new(size),
            order: Mutex::default(),
            window: Window::new(limits),
            on_trouble,
        })
    }

    pub(crate) fn backing(&self) -> &B {
        &self.backing
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Takes over another size; true if it is another.
    pub(crate) fn resize(&self, size: u64) -> bool {
        self.size.swap(size, Ordering::Relaxed) != size
    }

    pub(crate) fn progress(&self) -> Progress {
        self.window.progress()
    }

    /// Reads at most `len` bytes; fewer at the end. Waits for the window.
    pub(crate) fn read(
        self: &Arc<Self>,
        offset: u64,
        len: usize,
        done: impl FnOnce(Result<&[u8], Failed>) + Send + 'static,
    ) {
        let len = self.within(offset, len as u64) as usize;
        if len == 0 {
            return done(Ok(&[]));
        }
        let span = Span::of(offset, len, self.block);
        let permit = self.window.enter(span.len);
        let (own, skip) = (self.clone(), span.skip);
        let answer = move |result: Result<&[u8], Error>| {
            let result = result.map_err(|error| own.failed("read", offset, error));
            done(result.map(|bytes| &bytes[skip..skip + len]));
            drop(permit);
        };
        self.backing.read(span.start, span.len, Box::new(answer));
    }

    /// Writes as much of `data` as there is room for; `done` is told how much. Waits for the window.
    pub(crate) fn write(
        self: &Arc<Self>,
        offset: u64,
        data: &[u8],
        done: impl FnOnce(Result<usize, Failed>) + Send + 'static,
    ) {
        match self.prepare_write(offset, data) {
            Ok(writing) => self.start_write(writing, done),
            Err(failed) => done(Err(failed)),
        }
    }

    /// The first half of [`Engine::write`]: copies `data`. Waits for the window.
    pub(crate) fn prepare_write(&self, offset: u64, data: &[u8]) -> Result<Writing, Failed> {
        let len = self.within(offset, data.len() as u64) as usize;
        if len == 0 && !data.is_empty() {
            return Err(Failed::Beyond);
        }
        let span = Span::of(offset, len, self.block);
        let permit = self.window.enter(span.len);
        let blocks = span.start..span.start + span.len as u64;
        Ok(Writing { blocks, piece: write_of(span, &data[..len]), offset, len, permit })
    }

    /// The second half of [`Engine::write`].
    pub(crate) fn start_write(
        self: &Arc<Self>,
        writing: Writing,
        done: impl FnOnce(Result<usize, Failed>) + Send + 'static,
    ) {
        let Writing { blocks, piece, offset, len, permit } = writing;
        let done = Box::new(move |result: Result<(), Failed>| done(result.map(|()| len)));
        let pieces = [piece].into();
        self.begin(blocks, Change { pieces, request: "write", offset, done, _permit: permit });
    }

    /// Makes what there is of a range read as zeroes. Waits for the window.
    pub(crate) fn clear(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        how: Clearing,
        done: impl FnOnce(Result<(), Failed>) + Send + 'static,
    ) {
        let len = self.within(offset, len);
        let piece = |part| match part {
            Part::Blocks { offset, len } => Piece::Clear { offset, len, how },
            Part::Bytes { offset, len } => {
                write_of(Span::of(offset, len, self.block), &vec![0; len])
            }
        };
        let pieces: VecDeque<Piece> =
            parts(offset, len, self.block).into_iter().map(piece).collect();
        let ends = pieces.iter().map(|piece| match piece {
            Piece::Write { data, .. } => data.len(),
            Piece::Clear { .. } => 0,
        });
        let permit = self.window.enter(ends.sum());
        let unit = self.block as u64;
        let blocks = offset - offset % unit..(offset + len).next_multiple_of(unit);
        let (request, done) = ("deallocation", Box::new(done));
        self.begin(blocks, Change { pieces, request, offset, done, _permit: permit });
    }

    /// Makes durable what was written. Waits for the window.
    pub(crate) fn flush(self: &Arc<Self>, done: impl FnOnce(Result<(), Failed>) + Send + 'static) {
        let (own, permit) = (self.clone(), self.window.enter(0));
        self.backing.flush(Box::new(move |result| {
            done(result.map_err(|error| own.failed("flush", 0, error)));
            drop(permit);
        }));
    }

    /// Returns how much of `len` bytes at `offset` is within the file.
    fn within(&self, offset: u64, len: u64) -> u64 {
        self.size().saturating_sub(offset).min(len)
    }

    fn begin(self: &Arc<Self>, blocks: Range<u64>, change: Change) {
        let (ticket, starts) = self.order().begin(blocks, change);
        if let Some(change) = starts {
            self.go_on(ticket, change);
        }
    }

    /// Carries out the next piece of a change, or a read that the piece needs.
    fn go_on(self: &Arc<Self>, ticket: Ticket, mut change: Change) {
        if let Some(Piece::Write { edges, .. }) = change.pieces.front_mut()
            && let Some(edge) = edges.pop()
        {
            return self.fill(ticket, change, edge);
        }
        let Some(piece) = change.pieces.pop_front() else {
            return self.end(ticket, change, Ok(()));
        };
        let own = self.clone();
        let done = Box::new(move |result| match result {
            Ok(()) => own.go_on(ticket, change),
            Err(error) => own.end(ticket, change, Err(error)),
        });
        match piece {
            Piece::Write { offset, data, .. } => self.backing.write(offset, data, done),
            Piece::Clear { offset, len, how } => self.backing.clear(offset, len, how, done),
        }
    }

    /// Reads what stays of a block that is written in part.
    fn fill(self: &Arc<Self>, ticket: Ticket, mut change: Change, edge: Edge) {
        let own = self.clone();
        let (offset, len) = (edge.offset, self.block);
        let done = move |result: Result<&[u8], Error>| match result {
            Ok(block) => {
                if let Some(Piece::Write { data, .. }) = change.pieces.front_mut() {
                    edge.fill(block, data.as_mut_bytes());
                }
                own.go_on(ticket, change);
            }
            Err(error) => own.end(ticket, change, Err(error)),
        };
        self.backing.read(offset, len, Box::new(done));
    }

    /// ENGINE-1
    fn end(self: &Arc<Self>, ticket: Ticket, change: Change, result: Result<(), Error>) {
        let Change { request, offset, done, _permit: permit, .. } = change;
        done(result.map_err(|error| self.failed(request, offset, error)));
        let next = self.order().end(ticket);
        drop(permit);
        for (ticket, change) in next {
            self.go_on(ticket, change);
        }
    }

    fn failed(&self, request: &'static str, offset: u64, error: Error) -> Failed {
        (self.on_trouble)(&Trouble { request, offset, error: error.clone() });
        Failed::Volume(error)
    }

    fn order(&self) -> MutexGuard<'_, Order<Change>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write of `bytes` into the blocks of `span`.
fn write_of(span: Span, bytes: &[u8]) -> Piece {
    let Span { start: offset, len, skip, edges } = span;
    if edges.is_empty() {
        return Piece::Write { offset, data: bytes.into(), edges };
    }
    let mut data = Data::zeroed(len);
    data.as_mut_bytes()[skip..skip + bytes.len()].copy_from_slice(bytes);
    Piece::Write { offset, data, edges }
}

#[cfg(test)]
mod tests;
