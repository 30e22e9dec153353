//! A counted budget, served in the order of asking.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Waiter {
    ticket: u64,
    amount: u64,
    waker: Option<Waker>,
}

struct Budget {
    available: u64,
    total: u64,
    next_ticket: u64,
    queue: VecDeque<Waiter>,
}

/// A budget of permits. Cheap to clone; all clones are the same.
///
/// Strictly first come, first served: a large request is not starved by small ones behind it.
#[derive(Clone)]
pub struct Semaphore {
    budget: Rc<RefCell<Budget>>,
}

/// An amount taken from a [`Semaphore`]; goes back when dropped.
pub struct Permit {
    semaphore: Semaphore,
    amount: u64,
}

/// Waits for its turn and its amount.
pub struct Acquire {
    semaphore: Semaphore,
    amount: u64,
    ticket: Option<u64>,
}

impl Semaphore {
    /// A budget of `permits`.
    #[must_use]
    pub fn new(permits: u64) -> Self {
        let budget =
            Budget { available: permits, total: permits, next_ticket: 0, queue: VecDeque::new() };
        Self { budget: Rc::new(RefCell::new(budget)) }
    }

    /// Waits for `amount` permits. More than the whole budget counts as the whole budget.
    #[must_use]
    pub fn acquire(&self, amount: u64) -> Acquire {
        let amount = amount.min(self.budget.borrow().total);
        Acquire { semaphore: self.clone(), amount, ticket: None }
    }

    /// Takes `amount` permits if they are available and no task waits.
    #[must_use]
    pub fn try_acquire(&self, amount: u64) -> Option<Permit> {
        let mut budget = self.budget.borrow_mut();
        let amount = amount.min(budget.total);
        if !budget.queue.is_empty() || budget.available < amount {
            return None;
        }
        budget.available -= amount;
        drop(budget);
        Some(Permit { semaphore: self.clone(), amount })
    }

    /// Permits that are not taken.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.budget.borrow().available
    }

    fn wake_front(&self) {
        let waker = {
            let mut budget = self.budget.borrow_mut();
            let available = budget.available;
            budget.queue.front_mut().filter(|w| w.amount <= available).and_then(|w| w.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Permit {
    /// The amount that goes back when it is dropped.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Adds what `other` holds to this one. Panics if they are of different semaphores.
    pub fn merge(&mut self, mut other: Self) {
        let same = Rc::ptr_eq(&self.semaphore.budget, &other.semaphore.budget);
        assert!(same, "permits of two semaphores do not add up");
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.budget.borrow_mut().available += self.amount;
        self.semaphore.wake_front();
    }
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        let mut budget = this.semaphore.budget.borrow_mut();
        let ticket = *this.ticket.get_or_insert_with(|| {
            let ticket = budget.next_ticket;
            budget.next_ticket += 1;
            budget.queue.push_back(Waiter { ticket, amount: this.amount, waker: None });
            ticket
        });
        let first = budget.queue.front().expect("this waiter at least").ticket == ticket;
        if first && budget.available >= this.amount {
            budget.queue.pop_front();
            budget.available -= this.amount;
            this.ticket = None;
            drop(budget);
            this.semaphore.wake_front();
            return Poll::Ready(Permit { semaphore: this.semaphore.clone(), amount: this.amount });
        }
        let waiter = budget.queue.iter_mut().find(|w| w.ticket == ticket).expect("queued above");
        waiter.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.semaphore.budget.borrow_mut().queue.retain(|waiter| waiter.ticket != ticket);
            self.semaphore.wake_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{Wakes, poll};

    fn ready(poll: Poll<Permit>) -> Permit {
        match poll {
            Poll::Ready(permit) => permit,
            Poll::Pending => panic!("the budget has room"),
        }
    }

    #[test]
    fn large_requests_are_not_starved_by_small_ones() {
        let wakes = Arc::new(Wakes::default());
        let semaphore = Semaphore::new(4);
        let held = ready(poll(&mut semaphore.acquire(3), &wakes));
        let mut large = semaphore.acquire(4);
        let mut small = semaphore.acquire(1);
        assert!(poll(&mut large, &wakes).is_pending());
        assert!(poll(&mut small, &wakes).is_pending(), "behind the large one");
        assert!(semaphore.try_acquire(1).is_none());
        drop(held);
        let large = ready(poll(&mut large, &wakes));
        assert!(poll(&mut small, &wakes).is_pending());
        drop(large);
        drop(ready(poll(&mut small, &wakes)));
        assert_eq!(semaphore.available(), 4);
    }

    #[test]
    fn a_waiter_that_gives_up_lets_the_next_one_through() {
        let wakes = Arc::new(Wakes::default());
        let semaphore = Semaphore::new(2);
        let held = semaphore.try_acquire(1).expect("free");
        let mut large = semaphore.acquire(2);
        let mut small = semaphore.acquire(1);
        assert!(poll(&mut large, &wakes).is_pending());
        assert!(poll(&mut small, &wakes).is_pending());
        drop(large);
        assert_eq!(wakes.count(), 1);
        drop(ready(poll(&mut small, &wakes)));
        drop(held);
        assert_eq!(semaphore.available(), 2);
    }

    #[test]
    fn merged_permits_go_back_together() {
        let semaphore = Semaphore::new(5);
        let mut first = semaphore.try_acquire(2).expect("free");
        first.merge(semaphore.try_acquire(3).expect("free"));
        assert_eq!((first.amount(), semaphore.available()), (5, 0));
        drop(first);
        assert_eq!(semaphore.available(), 5);
    }

    #[test]
    fn a_request_beyond_the_budget_takes_all_of_it() {
        let wakes = Arc::new(Wakes::default());
        let semaphore = Semaphore::new(2);
        let all = ready(poll(&mut semaphore.acquire(9), &wakes));
        assert_eq!(semaphore.available(), 0);
        drop(all);
        assert_eq!(semaphore.available(), 2);
    }
}
