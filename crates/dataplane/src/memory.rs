//! Who may use how much of a core's memory for data.
//!
//! - M1: the data of all requests of a core, from the moment memory is found for it until it was
//!   written or sent, stays within the core's budget. What does not fit waits its turn.
//! - M2: a connection holds at most its window, and at most a fixed fraction of what is left over
//!   (dynamic thresholds, as switches share their buffers), so that few cannot take all. Where many
//!   have taken all and others wait, whoever holds memory without any progress is cut off soon.
//! - M3: data that comes inside a command capsule cannot be refused. It is counted if there is room;
//!   if not, at most one received chunk per connection goes uncounted before reading stops.

use std::cell::Cell;
use std::rc::Rc;

use local_sync::{Notify, Semaphore};

/// A connection may hold one part in so many of the memory that nobody holds.
const FREE_SHARE: u64 = 8;

struct Pool {
    free: Cell<u64>,
    released: Notify,
    /// Requests that wait for `released`.
    waiting: Cell<usize>,
}

/// A core's memory for data. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Memory {
    pool: Rc<Pool>,
}

struct Held {
    pool: Rc<Pool>,
    bytes: Cell<u64>,
    bytes_max: u64,
    /// One request of the connection waits for memory, the rest wait in line behind it.
    turn: Semaphore,
}

/// The memory that one connection may use.
#[derive(Clone)]
pub(crate) struct Window {
    held: Rc<Held>,
}

/// Memory that a request holds; given back when dropped.
pub(crate) struct Share {
    held: Rc<Held>,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let pool = Pool { free: Cell::new(bytes), released: Notify::new(), waiting: Cell::new(0) };
        Self { pool: Rc::new(pool) }
    }

    /// Whether requests wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.pool.waiting.get() > 0
    }

    /// A window of `bytes_max` for one connection.
    pub(crate) fn window(&self, bytes_max: u64) -> Window {
        let held = Held {
            pool: self.pool.clone(),
            bytes: Cell::new(0),
            bytes_max,
            turn: Semaphore::new(1),
        };
        Window { held: Rc::new(held) }
    }
}

impl Window {
    /// Takes `bytes` if they are to be had.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Share> {
        let bytes = bytes as u64;
        if !self.fits(bytes) {
            return None;
        }
        let held = &self.held;
        held.bytes.set(held.bytes.get() + bytes);
        held.pool.free.set(held.pool.free.get() - bytes);
        Some(Share { held: held.clone(), bytes })
    }

    /// Waits for `bytes`, at most one transfer's worth.
    pub(crate) async fn take(&self, bytes: usize) -> Share {
        let _turn = self.held.turn.acquire(1).await;
        loop {
            let released = self.held.pool.released.notified();
            if let Some(share) = self.try_take(bytes) {
                return share;
            }
            let pool = &self.held.pool;
            pool.waiting.set(pool.waiting.get() + 1);
            let _waiting = Waiting { pool };
            released.await;
        }
    }

    /// Whether the connection holds any.
    pub(crate) fn is_used(&self) -> bool {
        self.held.bytes.get() > 0
    }

    /// Whether the connection may have more: what has nothing always may.
    pub(crate) fn has_room(&self) -> bool {
        self.held.bytes.get() == 0 || self.fits(1)
    }

    /// Waits until there is room, and takes none.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            drop(self.take(1).await);
        }
    }

    fn fits(&self, bytes: u64) -> bool {
        let (held, free) = (self.held.bytes.get(), self.held.pool.free.get());
        let after = held + bytes;
        // Who holds nothing gets one request, whatever its size.
        bytes <= free
            && (held == 0 || (after <= self.held.bytes_max && after <= (free - bytes) / FREE_SHARE))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let held = &self.held;
        held.bytes.set(held.bytes.get() - self.bytes);
        held.pool.free.set(held.pool.free.get() + self.bytes);
        if held.pool.waiting.get() > 0 {
            held.pool.released.notify_all();
        }
    }
}

/// Counts a waiting request for as long as it waits, even if it is dropped.
struct Waiting<'a> {
    pool: &'a Pool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool.waiting.set(self.pool.waiting.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// M2: ten connections that take all they can get leave room for others.
    #[test]
    fn few_cannot_take_all() {
        let memory = Memory::new(256 * MIB as u64);
        let mut held = Vec::new();
        for _ in 0..10 {
            let window = memory.window(64 * MIB as u64);
            while let Some(share) = window.try_take(4096) {
                held.push(share);
            }
        }
        let free = memory.pool.free.get();
        assert!(free >= 64 * MIB as u64, "{free} bytes are left");
        held.clear();
        assert_eq!(memory.pool.free.get(), 256 * MIB as u64);
    }

    #[test]
    fn a_window_is_a_limit_of_its_own() {
        let memory = Memory::new(256 * MIB as u64);
        let window = memory.window(2 * MIB as u64);
        let first = window.try_take(2 * MIB).expect("room");
        assert!(window.try_take(1).is_none());
        assert!(!window.has_room());
        drop(first);
        assert!(window.has_room());
    }
}
