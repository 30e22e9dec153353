//! Range locks of a volume: overlapping changes happen one after the other.
//!
//! - R1: held ranges are disjoint.
//! - R2: first come, first served: a range waits for every earlier one that it overlaps, whether
//!   held or waiting, and for no other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use units::LbaRange;

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    range: (u64, u64),
    granted: bool,
    waker: Option<Waker>,
}

/// Ranges held and waited for.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    /// (start, end), by start (R1).
    held: Vec<(u64, u64)>,
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

impl RangeLocks {
    /// Takes a range if nothing overlaps it.
    fn try_lock(&mut self, range: (u64, u64)) -> bool {
        let overlaps = |w: &Waiter| w.range.0 < range.1 && range.0 < w.range.1;
        !self.waiters.iter().any(|waiter| !waiter.granted && overlaps(waiter)) && self.take(range)
    }

    fn take(&mut self, range: (u64, u64)) -> bool {
        let place = self.held.partition_point(|held| held.0 < range.0);
        let before_ends_in_it = place > 0 && self.held[place - 1].1 > range.0;
        let next_starts_in_it = self.held.get(place).is_some_and(|next| next.0 < range.1);
        if before_ends_in_it || next_starts_in_it {
            return false;
        }
        self.held.insert(place, range);
        true
    }

    fn unlock(&mut self, start: u64) -> Vec<Waker> {
        let place = self.held.binary_search_by_key(&start, |held| held.0);
        self.held.remove(place.expect("only held ranges are unlocked"));
        if self.waiters.is_empty() { Vec::new() } else { self.grant() }
    }

    /// Grants what no longer waits for anything, in order.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut earlier: Vec<(u64, u64)> = Vec::new();
        for index in 0..self.waiters.len() {
            let (range, granted) = (self.waiters[index].range, self.waiters[index].granted);
            let waits = granted || earlier.iter().any(|e| e.0 < range.1 && range.0 < e.1);
            if !waits && self.take(range) {
                self.waiters[index].granted = true;
                wakers.extend(self.waiters[index].waker.take());
            } else if !granted {
                earlier.push(range);
            }
        }
        wakers
    }
}

/// A range that is held; unlocks it when dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Rc<RefCell<RangeLocks>>,
    start: u64,
}

/// Waits for a range.
pub(crate) struct Lock {
    locks: Rc<RefCell<RangeLocks>>,
    range: (u64, u64),
    ticket: Option<u64>,
}

/// Locks `range` of whoever `locks` belongs to. An empty range is as good as its first block.
pub(crate) fn lock(locks: &Rc<RefCell<RangeLocks>>, range: LbaRange) -> Lock {
    let end = range.start.0.saturating_add(range.blocks.max(1));
    Lock { locks: locks.clone(), range: (range.start.0, end), ticket: None }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let wakers = self.locks.borrow_mut().unlock(self.start);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Lock {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let this = &mut *self;
        let guard = || RangeGuard { locks: this.locks.clone(), start: this.range.0 };
        let mut locks = this.locks.borrow_mut();
        let Some(ticket) = this.ticket else {
            if locks.try_lock(this.range) {
                return Poll::Ready(guard());
            }
            let ticket = locks.next_ticket;
            locks.next_ticket += 1;
            let waker = Some(context.waker().clone());
            locks.waiters.push_back(Waiter { ticket, range: this.range, granted: false, waker });
            this.ticket = Some(ticket);
            return Poll::Pending;
        };
        let place = locks.waiters.iter().position(|waiter| waiter.ticket == ticket);
        let place = place.expect("a waiter stays until it is granted and polled");
        if locks.waiters[place].granted {
            locks.waiters.remove(place);
            this.ticket = None;
            return Poll::Ready(guard());
        }
        locks.waiters[place].waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let wakers = {
            let mut locks = self.locks.borrow_mut();
            let place = locks.waiters.iter().position(|waiter| waiter.ticket == ticket);
            let waiter = place.and_then(|place| locks.waiters.remove(place));
            if waiter.is_some_and(|waiter| waiter.granted) {
                locks.unlock(self.range.0)
            } else {
                locks.grant()
            }
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use units::Lba;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn overlapping_ranges_are_served_in_the_order_of_asking() {
        let locks = Rc::default();
        let range = |start, blocks| lock(&locks, LbaRange::new(Lba(start), blocks));
        let first = poll(pin!(range(10, 10))).expect("nothing is held");
        let apart = poll(pin!(range(20, 1))).expect("disjoint");
        let mut wide = pin!(range(15, 10));
        assert!(poll(wide.as_mut()).is_none());
        let mut behind = pin!(range(24, 2));
        assert!(poll(behind.as_mut()).is_none(), "overlaps only a waiting range, but a later one");
        drop(first);
        assert!(poll(wide.as_mut()).is_none(), "still overlaps the second");
        drop(apart);
        let wide = poll(wide.as_mut()).expect("nothing overlaps");
        assert!(poll(behind.as_mut()).is_none());
        drop(wide);
        assert!(poll(behind.as_mut()).is_some());
        assert!(locks.borrow().held.is_empty());
    }

    #[test]
    fn whoever_gives_up_lets_the_others_through() {
        let locks = Rc::default();
        let range = |start, blocks| lock(&locks, LbaRange::new(Lba(start), blocks));
        let first = poll(pin!(range(0, 5))).expect("nothing is held");
        let mut granted = Box::pin(range(0, 10));
        let mut behind = pin!(range(7, 1));
        assert!(poll(granted.as_mut()).is_none() && poll(behind.as_mut()).is_none());
        drop(first);
        drop(granted);
        assert!(poll(behind.as_mut()).is_some());
    }
}
