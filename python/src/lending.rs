//! Memory that Python lends to the library's thread: buffers to be written from and to be read into.
//!
//! - LENDING-1: a [`Loan`] keeps its Python buffer until the library has dropped all that was lent of it. If its owner
//!   cannot wait for that, the buffer is kept until a later loan finds that it is over. An owner that only needs to
//!   be told hands over a value that is dropped after the last of it.
//! - LENDING-2: after a [`Room`] is closed, nothing is written there any more. The owner of the memory closes the room
//!   before the memory is freed.

#![allow(unsafe_code, reason = "bytes that Python lends are only to be had by pointer")]

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farflash_client::{Data, Landing};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::Bytes;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many bytes from there on.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address. Each dereference states why it is allowed.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

/// Uses of one buffer at the moment.
#[derive(Default)]
struct Uses {
    count: Mutex<usize>,
    over: Condvar,
}

/// Bytes of a [`Loan`] on their way to the socket.
struct Lent {
    memory: Memory,
    uses: Arc<Uses>,
    /// Dropped when this no longer counts as a use.
    _behind: Option<Arc<dyn Send + Sync>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the loan keeps the buffer, and a buffer its memory where it is, until this is dropped (LENDING-1).
        // Python can write there meanwhile, as while it sends from a buffer itself. What is read here is only
        // checksummed and handed to the kernel: nothing depends on its being the same twice.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *lock(&self.uses.count) -= 1;
        self.uses.over.notify_all();
    }
}

/// A buffer of Python's whose bytes are written from where they are.
pub(crate) struct Loan {
    buffer: Option<Bytes>,
    uses: Arc<Uses>,
}

/// Buffers of loans that were not over when their owner could not wait any longer (LENDING-1).
static KEPT: Mutex<Vec<Loan>> = Mutex::new(Vec::new());

impl Loan {
    /// `buffer` is contiguous.
    pub(crate) fn new(_py: Python<'_>, buffer: Bytes) -> Self {
        let over = {
            let mut kept = lock(&KEPT);
            let all = std::mem::take(&mut *kept);
            let (over, rest): (Vec<_>, _) = all.into_iter().partition(Self::is_over);
            *kept = rest;
            over
        };
        drop(over);
        Self { buffer: Some(buffer), uses: Arc::default() }
    }

    /// `len` bytes from `at`.
    pub(crate) fn lend(&self, at: usize, len: usize) -> Data {
        self.lend_until(at, len, None)
    }

    /// All of it.
    pub(crate) fn lend_whole(&self) -> Data {
        self.lend_until(0, self.len(), None)
    }

    /// All of it. `behind` is dropped when the library is done with that.
    pub(crate) fn lend_all(&self, behind: Arc<dyn Send + Sync>) -> Data {
        self.lend_until(0, self.len(), Some(behind))
    }

    fn len(&self) -> usize {
        self.buffer.as_ref().map_or(0, Bytes::len_bytes)
    }

    fn lend_until(&self, at: usize, len: usize, behind: Option<Arc<dyn Send + Sync>>) -> Data {
        let memory = self.buffer.as_ref().expect("kept until this is dropped").memory();
        assert!(at.checked_add(len).is_some_and(|end| end <= memory.len()), "within the buffer");
        *lock(&self.uses.count) += 1;
        // SAFETY: within the buffer, as was just seen.
        let start = unsafe { memory.cast::<u8>().add(at) };
        let memory = Memory { start, len };
        Data::lent(Lent { memory, uses: self.uses.clone(), _behind: behind })
    }

    /// Waits until the library is done with all of it, which it is soon behind the outcome; whether it is.
    pub(crate) fn wait(&self, py: Python<'_>, limit: Duration) -> bool {
        let waits = |count: &mut usize| *count > 0;
        self.is_over()
            || py.detach(|| {
                let waited =
                    self.uses.over.wait_timeout_while(lock(&self.uses.count), limit, waits);
                *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
            })
    }

    fn is_over(&self) -> bool {
        *lock(&self.uses.count) == 0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if !self.is_over() {
            let (buffer, uses) = (self.buffer.take(), self.uses.clone());
            lock(&KEPT).push(Self { buffer, uses });
        }
    }
}

/// Memory into which the library reads.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Mutex<Option<Memory>>,
    len: usize,
}

impl Landing for Room {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn with(&self, each: &mut dyn FnMut(&mut [u8])) -> bool {
        let memory = lock(&self.memory);
        let Some(memory) = &*memory else { return false };
        // SAFETY: the owner of the memory keeps it, and it is set, until the room is closed, for which the lock has
        // to be held (LENDING-2). No other part of the library writes there: the memory of a room is divided among
        // requests.
        each(unsafe { std::slice::from_raw_parts_mut(memory.start.as_ptr(), memory.len) });
        true
    }
}

/// An open room. Closed when dropped.
pub(crate) struct OpenRoom(Arc<Room>);

impl OpenRoom {
    /// # Safety
    /// `start` is `len` bytes that are set, and stay writable until this is dropped.
    unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        let memory = Mutex::new(Some(Memory { start, len }));
        Self(Arc::new(Room { memory, len }))
    }

    /// Returns the destination that a request keeps.
    pub(crate) fn landing(&self) -> Arc<Room> {
        self.0.clone()
    }
}

impl Drop for OpenRoom {
    fn drop(&mut self) {
        *lock(&self.0.memory) = None;
    }
}

/// Memory that is cut into rooms, all of which are closed when this is dropped.
pub(crate) struct Rooms<'a> {
    start: NonNull<u8>,
    len: usize,
    open: Vec<OpenRoom>,
    /// No other code uses the memory meanwhile, or it is a buffer that is kept.
    _memory: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Rooms<'a> {
    /// In memory of our own.
    pub(crate) fn of_bytes(memory: &'a mut [u8]) -> Self {
        let (start, len) = (NonNull::from(&mut *memory).cast(), memory.len());
        Self { start, len, open: Vec::new(), _memory: std::marker::PhantomData }
    }

    /// In a writable buffer, which is kept as long.
    pub(crate) fn of_buffer(buffer: &'a Bytes) -> Self {
        assert!(!buffer.readonly(), "a writable buffer");
        let memory = buffer.memory();
        Self {
            start: memory.cast(),
            len: memory.len(),
            open: Vec::new(),
            _memory: std::marker::PhantomData,
        }
    }

    /// The room of `len` bytes from `at`.
    pub(crate) fn open(&mut self, at: usize, len: usize) -> Arc<Room> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "within the memory");
        // SAFETY: within the memory, as was just seen, which is borrowed and so stays until `self` is dropped, and
        // the room with it. Python's memory is always set.
        let room = unsafe { OpenRoom::new(self.start.add(at), len) };
        let landing = room.landing();
        self.open.push(room);
        landing
    }
}

/// A buffer of Python's into which a request reads while no call waits.
pub(crate) struct Filling {
    // Closed before the buffer goes.
    room: OpenRoom,
    buffer: Bytes,
}

impl Filling {
    /// `buffer` is contiguous and writable.
    pub(crate) fn new(buffer: Bytes) -> Self {
        let room = {
            let Rooms { start, len, .. } = Rooms::of_buffer(&buffer);
            // SAFETY: a buffer keeps its memory where it is, and is dropped behind the room.
            unsafe { OpenRoom::new(start, len) }
        };
        Self { room, buffer }
    }

    /// Returns the destination that the request keeps.
    pub(crate) fn landing(&self) -> Arc<Room> {
        self.room.landing()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len_bytes()
    }
}

/// Bytes of Python's that a request reads while no call waits: they are not visible before they are read.
pub(crate) struct Reading {
    // Closed before the bytes go, or are given away.
    room: OpenRoom,
    bytes: Py<PyBytes>,
}

impl Reading {
    /// Bytes to be read.
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let mut start = NonNull::dangling();
        let bytes = PyBytes::new_with(py, len, |to| {
            start = NonNull::from(to).cast();
            Ok(())
        })?;
        // SAFETY: these are new bytes, zeroes, which are kept where they are, and go behind the room. Python takes bytes for
        // constant from when it has them, which is when the room is closed.
        let room = unsafe { OpenRoom::new(start, len) };
        Ok(Self { room, bytes: bytes.unbind() })
    }

    /// Returns the destination that the request keeps.
    pub(crate) fn landing(&self) -> Arc<Room> {
        self.room.landing()
    }

    /// Returns the bytes, which do not change any more.
    pub(crate) fn finish(self, py: Python<'_>) -> Bound<'_, PyBytes> {
        let Self { room, bytes } = self;
        drop(room);
        bytes.into_bound(py)
    }
}
