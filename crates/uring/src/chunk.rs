//! Receive memory, shared by all streams of a core.
//!
//! The kernel takes chunks from a ring of provided buffers. Only a few are in it at a time, and
//! those that came back last go in first, so that a busy core receives into the same hot memory.
//!
//! - C1: a chunk is in exactly one place: free, provided to the kernel, or in a [`Chunk`].
//! - C2: never are all provided at a time: what is provided cannot be had back, and receives that are made without the
//!   kernel's choice ([`ChunkPool::try_recv`]) need some.
//! - C3: more are provided when receives find none, and fewer again when that has not happened for long: the kernel goes
//!   through all of them in turn.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::fd::Fd;
use crate::memory::Mapping;

/// Bytes in a chunk: as much as one receive takes.
pub const CHUNK_LEN: usize = 64 << 10;
/// Chunks of a ring. A power of two, as the kernel asks.
pub const CHUNKS: u16 = 64;
/// Chunks provided to the kernel while that is enough.
const PROVIDED_MIN: u16 = 8;
/// Chunks provided to the kernel at a time, at most (C2).
const PROVIDED_MAX: u16 = CHUNKS - 8;
/// Receives in a row that found a chunk, after which fewer are provided (C3).
const CALM: u16 = 1024;
/// The number under which the kernel knows the ring of provided buffers.
pub(crate) const BUFFER_GROUP: u16 = 0;

/// The memory, and where each chunk is.
pub(crate) struct ChunkPool {
    memory: Mapping,
    /// The kernel's ring of `CHUNKS` entries. The kernel reads what the tail covers.
    entries: Mapping,
    tail: Cell<u16>,
    provided: Cell<u16>,
    /// How many to provide (C3).
    target: Cell<u16>,
    /// Receives that found a chunk since the target was changed, or one found none.
    calm: Cell<u16>,
    free: RefCell<Vec<u16>>,
}

impl ChunkPool {
    /// Makes the pool known to `ring`. The caller keeps it alive until `ring` is closed and nothing
    /// is in flight (U5).
    pub(crate) fn register(ring: &IoUring) -> Result<Rc<Self>, Errno> {
        let pool = Self {
            memory: Mapping::new(CHUNK_LEN * usize::from(CHUNKS))?,
            entries: Mapping::new(size_of::<BufRingEntry>() * usize::from(CHUNKS))?,
            tail: Cell::new(0),
            provided: Cell::new(0),
            target: Cell::new(PROVIDED_MIN),
            calm: Cell::new(0),
            free: RefCell::new((0..CHUNKS).rev().collect()),
        };
        let address = pool.entries.base() as u64;
        // SAFETY: the entries are a page-aligned mapping of CHUNKS entries that outlives the ring.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, CHUNKS, BUFFER_GROUP, 0) }
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
        pool.top_up();
        Ok(Rc::new(pool))
    }

    /// Chunks that the kernel has to give to receives.
    pub(crate) fn provided(&self) -> u16 {
        self.provided.get()
    }

    /// Whether there is a chunk for a receive, provided or to be provided.
    pub(crate) fn has_chunks(&self) -> bool {
        self.provided.get() > 0 || !self.free.borrow().is_empty()
    }

    /// A receive found no chunk.
    pub(crate) fn on_starved(&self) {
        self.target.set((self.target.get() * 2).min(PROVIDED_MAX));
        self.calm.set(0);
    }

    /// Provides free chunks up to the target.
    pub(crate) fn top_up(&self) {
        if self.provided.get() >= self.target.get() {
            return;
        }
        let mut free = self.free.borrow_mut();
        let before = self.tail.get();
        while self.provided.get() < self.target.get() {
            let Some(id) = free.pop() else { break };
            self.write_entry(self.tail.get(), id);
            self.tail.set(self.tail.get().wrapping_add(1));
            self.provided.set(self.provided.get() + 1);
        }
        if self.tail.get() == before {
            return;
        }
        // SAFETY: the tail lies within the first entry, in the mapping, aligned to two bytes. The
        // kernel only reads it, and atomically.
        let tail = unsafe {
            let tail = BufRingEntry::tail(self.entries.base().cast());
            AtomicU16::from_ptr(tail.cast_mut())
        };
        tail.store(self.tail.get(), Ordering::Release);
    }

    fn write_entry(&self, at: u16, id: u16) {
        let place = usize::from(at % CHUNKS);
        // SAFETY: the entry is inside of the mapping and aligned. At most CHUNKS chunks exist (C1),
        // so the kernel is done with this entry: it reads none beyond the tail. The setters leave
        // the tail alone, which lies in the reserved part of entry 0.
        let entry = unsafe { &mut *self.entries.base().cast::<BufRingEntry>().add(place) };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(CHUNK_LEN as u32);
        entry.set_bid(id);
    }

    fn address(&self, id: u16) -> *mut u8 {
        assert!(id < CHUNKS);
        // SAFETY: the chunk lies inside of the mapping, as asserted.
        unsafe { self.memory.base().add(usize::from(id) * CHUNK_LEN) }
    }

    /// Receives into a free chunk without waiting.
    pub(crate) fn try_recv(self: &Rc<Self>, fd: &Fd) -> Result<Option<Chunk>, Errno> {
        let id = self.free.borrow_mut().pop().ok_or(Errno::AGAIN)?;
        let mut chunk = Chunk { pool: self.clone(), id, len: 0 };
        // SAFETY: the chunk was free and now is ours (C1), and its memory is zero-filled or has
        // been received into.
        let memory = unsafe { std::slice::from_raw_parts_mut(self.address(id), CHUNK_LEN) };
        let (len, _) = rustix::net::recv(fd, memory, RecvFlags::DONTWAIT)?;
        chunk.len = len as u32;
        Ok((len > 0).then_some(chunk))
    }

    /// Takes over the chunk that a completion names.
    ///
    /// # Safety
    /// `id` and `len` are the kernel's: chunk `id` was provided, the kernel has used it up for this
    /// completion and written `len` bytes.
    pub(crate) unsafe fn claim(self: &Rc<Self>, id: u16, len: usize) -> Chunk {
        assert!(len <= CHUNK_LEN && id < CHUNKS);
        self.provided.set(self.provided.get() - 1);
        self.on_found();
        Chunk { pool: self.clone(), id, len: len as u32 }
    }

    /// A receive found a chunk (C3).
    fn on_found(&self) {
        let calm = self.calm.get() + 1;
        self.calm.set(calm % CALM);
        if calm == CALM {
            self.target.set((self.target.get() / 2).max(PROVIDED_MIN));
        }
    }
}

/// Received bytes. The memory goes back to the core's pool when dropped.
pub struct Chunk {
    pool: Rc<ChunkPool>,
    id: u16,
    len: u32,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the chunk is in this place only (C1), so nobody writes to it; the kernel has
        // written `len` bytes, and the rest of the mapping is zero-filled.
        unsafe { std::slice::from_raw_parts(self.pool.address(self.id), self.len as usize) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.id);
    }
}

impl std::fmt::Debug for Chunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chunk({} bytes)", self.len)
    }
}
