//! Range locks of a volume: overlapping changes happen one after the other.
//!
//! - RANGE-LOCK-1: held ranges are disjoint.
//! - RANGE-LOCK-2: first come, first served: a range waits for every earlier one that it overlaps, whether
//!   held or waiting, and for no other.
//! - RANGE-LOCK-3: several ranges are locked together or not at all, so that no task waits for one while it
//!   holds another.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use units::LbaRange;

/// Disjoint ranges, each (start, end).
type Ranges = SmallVec<[(u64, u64); 1]>;

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    ranges: Ranges,
    granted: bool,
    waker: Option<Waker>,
}

/// Ranges held and waited for.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    /// (start, end), by start (RANGE-LOCK-1).
    held: Vec<(u64, u64)>,
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

fn overlap(a: &Ranges, b: &Ranges) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.0 < b.1 && b.0 < a.1))
}

impl RangeLocks {
    /// Returns whether nothing that is held or waited for overlaps `range`.
    pub(crate) fn is_open(&self, range: LbaRange) -> bool {
        let ranges = Ranges::from_buf([(range.start.0, end_of(&range))]);
        let waits = self.waiters.iter().any(|waiter| overlap(&waiter.ranges, &ranges));
        !waits && self.is_free(ranges[0])
    }

    /// Takes ranges if nothing overlaps any of them.
    fn try_lock(&mut self, ranges: &Ranges) -> bool {
        let blocks = |waiter: &Waiter| !waiter.granted && overlap(&waiter.ranges, ranges);
        !self.waiters.iter().any(blocks) && self.take(ranges)
    }

    /// All or none (RANGE-LOCK-3).
    fn take(&mut self, ranges: &Ranges) -> bool {
        if !ranges.iter().all(|range| self.is_free(*range)) {
            return false;
        }
        for range in ranges {
            let place = self.held.partition_point(|held| held.0 < range.0);
            self.held.insert(place, *range);
        }
        true
    }

    fn is_free(&self, range: (u64, u64)) -> bool {
        let place = self.held.partition_point(|held| held.0 < range.0);
        let before_ends_in_it = place > 0 && self.held[place - 1].1 > range.0;
        let next_starts_in_it = self.held.get(place).is_some_and(|next| next.0 < range.1);
        !before_ends_in_it && !next_starts_in_it
    }

    fn unlock(&mut self, ranges: &Ranges) -> Vec<Waker> {
        for (start, _) in ranges {
            let place = self.held.binary_search_by_key(start, |held| held.0);
            self.held.remove(place.expect("only held ranges are unlocked"));
        }
        if self.waiters.is_empty() { Vec::new() } else { self.grant() }
    }

    /// Grants what no longer waits for anything, in order.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut earlier: Vec<Ranges> = Vec::new();
        for index in 0..self.waiters.len() {
            let (ranges, granted) =
                (self.waiters[index].ranges.clone(), self.waiters[index].granted);
            let waits = granted || earlier.iter().any(|earlier| overlap(earlier, &ranges));
            if !waits && self.take(&ranges) {
                self.waiters[index].granted = true;
                wakers.extend(self.waiters[index].waker.take());
            } else if !granted {
                earlier.push(ranges);
            }
        }
        wakers
    }
}

/// Ranges that are held; unlocks them when dropped.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Rc<RefCell<RangeLocks>>,
    ranges: Ranges,
}

/// Waits for ranges.
pub(crate) struct Lock {
    locks: Rc<RefCell<RangeLocks>>,
    ranges: Ranges,
    ticket: Option<u64>,
}

/// Locks `range` in `locks`. An empty range locks its first block.
pub(crate) fn lock(locks: &Rc<RefCell<RangeLocks>>, range: LbaRange) -> Lock {
    lock_all(locks, &[range])
}

/// Locks `range` if nothing overlaps it.
pub(crate) fn try_lock(locks: &Rc<RefCell<RangeLocks>>, range: LbaRange) -> Option<RangeGuard> {
    let ranges = Ranges::from_buf([(range.start.0, end_of(&range))]);
    let is_locked = locks.borrow_mut().try_lock(&ranges);
    is_locked.then(|| RangeGuard { locks: locks.clone(), ranges })
}

fn end_of(range: &LbaRange) -> u64 {
    range.start.0.saturating_add(range.blocks.max(1))
}

/// Locks disjoint ranges together (RANGE-LOCK-3).
pub(crate) fn lock_all(locks: &Rc<RefCell<RangeLocks>>, ranges: &[LbaRange]) -> Lock {
    let ranges = ranges.iter().map(|range| (range.start.0, end_of(range))).collect();
    Lock { locks: locks.clone(), ranges, ticket: None }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let wakers = self.locks.borrow_mut().unlock(&self.ranges);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Lock {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let this = &mut *self;
        let guard = || RangeGuard { locks: this.locks.clone(), ranges: this.ranges.clone() };
        let mut locks = this.locks.borrow_mut();
        let Some(ticket) = this.ticket else {
            if locks.try_lock(&this.ranges) {
                return Poll::Ready(guard());
            }
            let ticket = locks.next_ticket;
            locks.next_ticket += 1;
            let waker = Some(context.waker().clone());
            let ranges = this.ranges.clone();
            locks.waiters.push_back(Waiter { ticket, ranges, granted: false, waker });
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
                locks.unlock(&self.ranges)
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
    fn a_waiter_that_gives_up_lets_the_others_through() {
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

    #[test]
    fn several_ranges_are_locked_together() {
        let locks = Rc::default();
        let range = |start, blocks| LbaRange::new(Lba(start), blocks);
        let middle = poll(pin!(lock(&locks, range(50, 10)))).expect("nothing is held");
        let mut both = pin!(lock_all(&locks, &[range(10, 5), range(55, 1)]));
        assert!(poll(both.as_mut()).is_none());
        assert_eq!(locks.borrow().held.len(), 1, "the free one is not held meanwhile");
        let mut behind = pin!(lock(&locks, range(12, 1)));
        assert!(poll(behind.as_mut()).is_none(), "first come, first served");
        drop(poll(pin!(lock(&locks, range(0, 5)))).expect("overlaps no other range"));
        drop(middle);
        let both = poll(both.as_mut()).expect("free now");
        assert!(poll(behind.as_mut()).is_none());
        drop(both);
        assert!(poll(behind.as_mut()).is_some());
        assert!(locks.borrow().waiters.is_empty());
    }

    /// One that asked, in a model of the rules.
    struct Asked {
        blocks: Vec<u64>,
        future: Option<Pin<Box<Lock>>>,
        guard: Option<RangeGuard>,
    }

    /// Draws one or two short ranges that do not overlap; an empty one is as good as its first block.
    fn draw(random: &mut impl FnMut(u64) -> u64) -> Vec<LbaRange> {
        let first = LbaRange::new(Lba(random(8)), random(4));
        let behind = first.start.0 + first.blocks.max(1);
        let second = LbaRange::new(Lba(behind + random(3)), random(3));
        if random(3) == 0 { vec![first, second] } else { vec![first] }
    }

    /// RANGE-LOCK-1 to RANGE-LOCK-3. Method: requests come, are polled, give up and end in an order drawn from a seed. Each
    /// holds its ranges exactly if no block of them is one of an earlier request that is still there. Ranges lie so close that
    /// many touch.
    #[test]
    fn a_range_waits_for_the_earlier_ones_that_it_overlaps_and_for_no_other() {
        for seed in 0..300_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % below
            };
            let locks: Rc<RefCell<RangeLocks>> = Rc::default();
            let mut asked: Vec<Asked> = Vec::new();
            for step in 0..60 {
                if random(2) == 0 || asked.is_empty() {
                    let ranges = draw(&mut random);
                    let ends = |range: &LbaRange| range.start.0 + range.blocks.max(1);
                    let blocks = ranges.iter().flat_map(|range| range.start.0..ends(range));
                    let future = Some(Box::pin(lock_all(&locks, &ranges)));
                    asked.push(Asked { blocks: blocks.collect(), future, guard: None });
                } else {
                    let index = random(asked.len() as u64) as usize;
                    asked.remove(index);
                }
                for index in 0..asked.len() {
                    let (earlier, later) = asked.split_at_mut(index);
                    let one = &mut later[0];
                    let guard = one.future.as_mut().and_then(|future| poll(future.as_mut()));
                    if guard.is_some() {
                        (one.future, one.guard) = (None, guard);
                    }
                    let overlaps = |it: &Asked| it.blocks.iter().any(|b| one.blocks.contains(b));
                    let is_free = !earlier.iter().any(overlaps);
                    assert_eq!(one.guard.is_some(), is_free, "seed {seed} step {step}: {index}");
                }
                let range = LbaRange::new(Lba(random(12)), 1 + random(3));
                let is_asked =
                    asked.iter().flat_map(|one| &one.blocks).any(|at| range.contains(Lba(*at)));
                assert_eq!(locks.borrow().is_open(range), !is_asked, "seed {seed} step {step}");
            }
            asked.clear();
            let locks = locks.borrow();
            assert!(locks.held.is_empty() && locks.waiters.is_empty(), "seed {seed}");
        }
    }
}
