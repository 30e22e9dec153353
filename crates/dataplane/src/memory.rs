//! Limits on the memory of a core for data, by connection.
//!
//! - MEMORY-1: the data of all requests of a core, from the moment memory is found for it until it was written or
//!   sent, stays within the core's budget. A request for which there is no room waits its turn. It is
//!   charged once, for all that it will need, before it holds any: no request waits while it holds memory.
//! - MEMORY-2: a connection holds at most its window, and at most a fixed fraction of what is left over
//!   (dynamic thresholds, as switches share their buffers), so that few cannot take all. Where many
//!   have taken all and others wait, a peer that holds memory and hardly moves is cut off soon (PACE-2).
//! - MEMORY-3: data that comes inside a command capsule cannot be refused. If there is no room it is
//!   charged all the same, as debt: the core lends nothing to anybody before it is paid back, and a
//!   connection with more than a little of it is not read from.
//! - MEMORY-4: what is charged is what is allocated: the size class of the buffer, not the bytes in it.
//! - MEMORY-5: a request whose first data comes before memory is found for the rest holds a part meanwhile. Parts do not count
//!   for what a connection may have (MEMORY-2) when a request asks for its memory, and all parts together take a small fraction
//!   of the budget: while they take more, no request with a part is to be begun. So no request waits for memory that waiting
//!   requests hold.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::buffer_footprint_bytes;
use local_sync::{Notify, Semaphore, first_of};
use units::BLOCK_SIZE;

/// A connection may hold one part in so many of the memory that is free.
const FREE_SHARE: i64 = 8;
/// A pool of which less than one part in so many is free is short.
const SHORT_SHARE: i64 = 16;
/// Parts may take one in so many of the pool (MEMORY-5). The largest request fits beside them in the smallest pool.
const PARTS_SHARE: i64 = 8;

struct Pool {
    bytes: i64,
    /// Negative if there is debt (MEMORY-3).
    free: Cell<i64>,
    /// The part of what is not free that is held by requests which are not whole (MEMORY-5).
    parts: Cell<i64>,
    released: Notify,
    /// Requests that wait for `released`.
    waiting: Cell<usize>,
    /// Requests that wait because the pool is short, not because their connection has its share.
    in_need: Cell<usize>,
}

/// A core's memory for data. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(crate) struct Memory {
    pool: Rc<Pool>,
}

struct Held {
    pool: Rc<Pool>,
    bytes: Cell<i64>,
    bytes_max: i64,
    /// The part of `bytes` that was lent without room (MEMORY-3).
    debt: Cell<i64>,
    /// The part of `bytes` that is held by requests which are not whole (MEMORY-5).
    parts: Cell<i64>,
    /// One request of the connection waits for memory, the rest wait in line behind it.
    turn: Semaphore,
    /// A share came back, or the window was closed.
    changed: Notify,
    is_closed: Cell<bool>,
}

/// The memory that one connection may use.
#[derive(Clone)]
pub struct Window {
    held: Rc<Held>,
}

/// Memory that a request holds; given back when dropped.
pub struct Share {
    held: Rc<Held>,
    bytes: i64,
    is_debt: bool,
    is_part: bool,
}

/// Why a request has to wait.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Obstacle {
    /// Its connection has all that it may have, whatever others do.
    Window,
    /// Too little is free.
    Pool,
}

/// MEMORY-4: the memory that `len_bytes` bytes of data take.
pub fn footprint(len_bytes: usize) -> i64 {
    let bytes = buffer_footprint_bytes(len_bytes.div_ceil(BLOCK_SIZE));
    i64::try_from(bytes).expect("a length in memory")
}

impl Pool {
    /// Returns whether requests wait for want of memory.
    fn is_short(&self) -> bool {
        self.in_need.get() > 0
    }
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let pool = Pool {
            bytes,
            free: Cell::new(bytes),
            parts: Cell::new(0),
            released: Notify::new(),
            waiting: Cell::new(0),
            in_need: Cell::new(0),
        };
        Self { pool: Rc::new(pool) }
    }

    /// Bytes that requests hold.
    pub(crate) fn used_bytes(&self) -> u64 {
        u64::try_from(self.pool.bytes - self.pool.free.get()).unwrap_or(0)
    }

    /// A window of `bytes_max` for one connection.
    pub(crate) fn window(&self, bytes_max: u64) -> Window {
        let held = Held {
            pool: self.pool.clone(),
            bytes: Cell::new(0),
            bytes_max: i64::try_from(bytes_max).unwrap_or(i64::MAX),
            debt: Cell::new(0),
            parts: Cell::new(0),
            turn: Semaphore::new(1),
            changed: Notify::new(),
            is_closed: Cell::new(false),
        };
        Window { held: Rc::new(held) }
    }
}

impl Window {
    /// Takes `bytes` if they are to be had.
    pub fn try_take(&self, bytes: i64) -> Option<Share> {
        self.obstacle_of_whole(bytes).is_none().then(|| self.charge(bytes, false))
    }

    /// Takes `bytes` even if they are not to be had (MEMORY-3).
    pub fn take_anyway(&self, bytes: i64) -> Share {
        self.charge(bytes, self.obstacle(bytes).is_some())
    }

    /// Takes `bytes` for data that comes before memory is found for the rest of its request, even if they are not to be had
    /// (MEMORY-5).
    pub fn take_part(&self, bytes: i64) -> Share {
        let (held, pool) = (&self.held, &self.held.pool);
        let mut share = self.take_anyway(bytes);
        share.is_part = true;
        held.parts.set(held.parts.get() + bytes);
        pool.parts.set(pool.parts.get() + bytes);
        share
    }

    /// Returns true if no request with a part is to be begun (MEMORY-5).
    pub fn are_parts_many(&self) -> bool {
        self.held.pool.parts.get() > self.held.pool.bytes / PARTS_SHARE
    }

    /// Waits for the requests that wait already, then takes `bytes` that another request has paid for.
    pub async fn take_in_turn(&self, bytes: i64) -> Option<Share> {
        let _turn = self.held.turn.acquire(1).await;
        (!self.held.is_closed.get()).then(|| self.charge(bytes, false))
    }

    /// Waits for `bytes`, at most three transfers' worth. `None`: the window was closed.
    pub async fn take(&self, bytes: i64) -> Option<Share> {
        let _turn = self.held.turn.acquire(1).await;
        while !self.held.is_closed.get() {
            let Some(obstacle) = self.obstacle_of_whole(bytes) else {
                return Some(self.charge(bytes, false));
            };
            self.wait(obstacle, bytes).await;
        }
        None
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.held.is_closed.set(true);
        self.held.changed.notify_all();
    }

    /// Returns true if the connection holds memory while requests wait for want of it.
    pub fn is_needed_by_others(&self) -> bool {
        self.held.bytes.get() > 0 && self.held.pool.is_short()
    }

    /// Returns true if the connection may have more: one that holds nothing always may.
    pub fn has_room(&self) -> bool {
        self.held.bytes.get() == 0 || self.obstacle(footprint(1)).is_none()
    }

    /// Bytes that the connection holds though there was no room for them.
    pub fn debt_bytes(&self) -> u64 {
        u64::try_from(self.held.debt.get()).unwrap_or(0)
    }

    /// Waits until there may be room, or the window was closed. It stands in no line: a receiver must not
    /// wait behind requests that wait for the data that it will receive.
    pub async fn room(&self) {
        if !self.held.is_closed.get()
            && let Some(obstacle) = self.obstacle(footprint(1))
        {
            self.wait(obstacle, footprint(1)).await;
        }
    }

    /// Waits until the connection has given some back, or the window was closed.
    pub async fn changed(&self) {
        if !self.held.is_closed.get() {
            self.held.changed.notified().await;
        }
    }

    fn charge(&self, bytes: i64, is_debt: bool) -> Share {
        let held = &self.held;
        held.bytes.set(held.bytes.get() + bytes);
        held.pool.free.set(held.pool.free.get() - bytes);
        if is_debt {
            held.debt.set(held.debt.get() + bytes);
        }
        Share { held: held.clone(), bytes, is_debt, is_part: false }
    }

    fn obstacle(&self, bytes: i64) -> Option<Obstacle> {
        self.obstacle_beside(self.held.bytes.get(), bytes)
    }

    /// The obstacle of a request that holds no more than a part (MEMORY-5).
    fn obstacle_of_whole(&self, bytes: i64) -> Option<Obstacle> {
        self.obstacle_beside(self.held.bytes.get() - self.held.parts.get(), bytes)
    }

    /// The obstacle of a request for `bytes` of a connection that counts as holding `held`.
    fn obstacle_beside(&self, held: i64, bytes: i64) -> Option<Obstacle> {
        let free = self.held.pool.free.get();
        let after = held + bytes;
        // A connection that holds nothing gets one request, whatever its size.
        if held > 0 && after > self.held.bytes_max {
            return Some(Obstacle::Window);
        }
        let is_fair = held == 0 || after <= (free - bytes) / FREE_SHARE;
        (bytes > free || !is_fair).then_some(Obstacle::Pool)
    }

    /// Waits for something that may remove `obstacle`.
    async fn wait(&self, obstacle: Obstacle, bytes: i64) {
        let pool = &self.held.pool;
        let changed = self.held.changed.notified();
        if obstacle == Obstacle::Window {
            return changed.await;
        }
        let free = pool.free.get();
        let _in_need =
            (bytes > free || free < pool.bytes / SHORT_SHARE).then(|| Count::one(&pool.in_need));
        let _waiting = Count::one(&pool.waiting);
        first_of(pool.released.notified(), changed).await;
    }
}

impl Share {
    /// Bytes that were lent though there was no room for them (MEMORY-3).
    #[must_use]
    pub fn debt_bytes(&self) -> u64 {
        if self.is_debt { u64::try_from(self.bytes).unwrap_or(0) } else { 0 }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let (held, pool) = (&self.held, &self.held.pool);
        held.bytes.set(held.bytes.get() - self.bytes);
        pool.free.set(pool.free.get() + self.bytes);
        if self.is_debt {
            held.debt.set(held.debt.get() - self.bytes);
        }
        if self.is_part {
            held.parts.set(held.parts.get() - self.bytes);
            pool.parts.set(pool.parts.get() - self.bytes);
        }
        held.changed.notify_all();
        if pool.waiting.get() > 0 {
            pool.released.notify_all();
        }
    }
}

/// Counts one for as long as it lives.
struct Count<'a>(&'a Cell<usize>);

impl<'a> Count<'a> {
    fn one(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MIB: i64 = 1 << 20;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn memory(bytes: i64) -> Memory {
        Memory::new(bytes as u64)
    }

    /// MEMORY-2: ten connections that take all they can get leave room for others.
    #[test]
    fn few_cannot_take_all() {
        let memory = memory(256 * MIB);
        let mut held = Vec::new();
        for _ in 0..10 {
            let window = memory.window(64 << 20);
            while let Some(share) = window.try_take(4096) {
                held.push(share);
            }
        }
        let free = memory.pool.free.get();
        assert!(free >= 64 * MIB, "{free} bytes are left");
        held.clear();
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn a_window_is_a_limit_of_its_own() {
        let memory = memory(256 * MIB);
        let window = memory.window(2 << 20);
        let first = window.try_take(2 * MIB).expect("room");
        assert!(window.try_take(1).is_none());
        assert!(!window.has_room());
        drop(first);
        assert!(window.has_room());
    }

    /// MEMORY-2: a connection that waits for its own requests says nothing about the pool.
    #[test]
    fn only_connections_for_which_too_little_is_free_are_in_need() {
        let memory = memory(64 * MIB);
        let window = memory.window(2 << 20);
        let share = window.try_take(2 * MIB).expect("room");
        let mut waiting = pin!(window.take(MIB));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(!memory.pool.is_short(), "62 MiB are free");

        let all: Vec<Share> =
            (0..62).map(|_| memory.window(2 << 20).try_take(MIB).expect("free")).collect();
        let other = memory.window(2 << 20);
        let mut in_need = pin!(other.take(MIB));
        assert!(poll(in_need.as_mut()).is_pending());
        assert!(memory.pool.is_short());
        drop((all, share));
        assert!(poll(in_need.as_mut()).is_ready() && poll(waiting.as_mut()).is_ready());
        assert!(!memory.pool.is_short());
    }

    /// MEMORY-2: a connection over its share is in need as soon as the pool is nearly empty, though what it asks for would fit.
    #[test]
    fn a_pool_of_which_little_is_free_is_short() {
        let memory = memory(64 * MIB);
        let window = memory.window(2 << 20);
        let _share = window.try_take(MIB).expect("room");
        let mut others: Vec<Share> =
            (0..59).map(|_| memory.window(2 << 20).try_take(MIB).expect("free")).collect();
        assert_eq!(memory.pool.free.get(), 64 * MIB / SHORT_SHARE);
        let mut waiting = pin!(window.take(4096));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(!memory.pool.is_short(), "a sixteenth is free");

        others.push(memory.window(2 << 20).try_take(4096).expect("free"));
        let other = memory.window(2 << 20);
        let _small = other.try_take(MIB).expect("free");
        let mut in_need = pin!(other.take(4096));
        assert!(poll(in_need.as_mut()).is_pending());
        assert!(memory.pool.is_short());
        drop(others);
        assert!(poll(in_need.as_mut()).is_ready() && poll(waiting.as_mut()).is_ready());
        assert!(!memory.pool.is_short());
    }

    #[test]
    fn a_closed_window_ends_a_wait_for_memory_that_others_hold() {
        let memory = memory(4 * MIB);
        let all = memory.window(4 << 20).try_take(4 * MIB).expect("room");
        let window = memory.window(2 << 20);
        let (mut taking, mut receiving) = (pin!(window.take(MIB)), pin!(window.room()));
        assert!(poll(taking.as_mut()).is_pending() && poll(receiving.as_mut()).is_pending());
        window.close();
        assert!(matches!(poll(taking.as_mut()), Poll::Ready(None)));
        assert!(poll(receiving.as_mut()).is_ready());
        assert_eq!((memory.pool.waiting.get(), memory.pool.is_short()), (0, false));
        drop(all);
    }

    #[test]
    fn a_closed_window_ends_every_wait() {
        let memory = memory(64 * MIB);
        let window = memory.window(2 << 20);
        let _share = window.try_take(2 * MIB).expect("room");
        let (mut first, mut second) = (pin!(window.take(MIB)), pin!(window.take(MIB)));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        window.close();
        let is_refused = |polled: Poll<Option<Share>>| matches!(polled, Poll::Ready(None));
        assert!(is_refused(poll(first.as_mut())));
        assert!(is_refused(poll(second.as_mut())), "behind the first in line");
        assert_eq!(memory.pool.waiting.get(), 0);
    }

    /// MEMORY-3: debt is charged, and nothing is lent to any connection before it is paid back.
    #[test]
    fn debt_is_paid_back_before_anything_is_lent() {
        let memory = memory(4 * MIB);
        let window = memory.window(2 << 20);
        let shares: Vec<Share> = (0..5).map(|_| window.take_anyway(MIB)).collect();
        assert_eq!((memory.used_bytes(), window.debt_bytes()), (5 << 20, 4 << 20));
        assert!(memory.window(2 << 20).try_take(4096).is_none());
        drop(shares);
        assert_eq!((memory.used_bytes(), window.debt_bytes()), (0, 0));
    }

    /// MEMORY-5: a connection whose requests all wait gets memory for one, whatever its share; no more of them begin than leave
    /// room.
    #[test]
    fn requests_that_wait_keep_no_memory_from_one_another() {
        let memory = memory(32 * MIB);
        let others = memory.window(64 << 20).try_take(28 * MIB).expect("room");
        let window = memory.window(16 << 20);
        let mut parts: Vec<Share> = (0..8).map(|_| window.take_part(65_536)).collect();
        let whole = window.try_take(2 * MIB).expect("it holds nothing else");
        assert!(window.try_take(MIB).is_none(), "more than its share");
        drop((whole, others));
        while !window.are_parts_many() {
            parts.push(memory.window(16 << 20).take_part(65_536));
        }
        assert_eq!(parts.len(), 65, "4 MiB and one more");
        assert!(window.try_take(24 * MIB).is_some(), "the largest request");
        parts.pop();
        assert!(!window.are_parts_many());
        parts.clear();
        assert_eq!((memory.used_bytes(), window.held.parts.get()), (0, 0));
    }

    /// MEMORY-4.
    #[test]
    fn what_is_charged_is_what_is_allocated() {
        assert_eq!([0, 1, 4096, 12_288].map(footprint), [0, 4096, 4096, 16_384]);
    }
}
