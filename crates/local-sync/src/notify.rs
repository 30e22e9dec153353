//! Many tasks wait for the next time something happens.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct Waiters {
    /// Counts notifications. A waiter is done when it no longer has the value it began with.
    round: u64,
    /// Wakers of this round; a hole is a waiter that was dropped.
    wakers: Vec<Option<Waker>>,
}

/// Something that happens again and again. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Notify {
    waiters: Rc<RefCell<Waiters>>,
}

/// Waits for the first notification after it was made.
pub struct Notified {
    waiters: Rc<RefCell<Waiters>>,
    round: u64,
    place: Option<usize>,
}

impl Notify {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all tasks that wait.
    pub fn notify_all(&self) {
        let mut wakers = {
            let mut waiters = self.waiters.borrow_mut();
            waiters.round += 1;
            std::mem::take(&mut waiters.wakers)
        };
        wakers.drain(..).flatten().for_each(Waker::wake);
        // Hand the memory back for the next round, unless someone already began one.
        let mut waiters = self.waiters.borrow_mut();
        if waiters.wakers.is_empty() {
            waiters.wakers = wakers;
        }
    }

    /// Waits for the next [`Notify::notify_all`] after this call, even if polled only later.
    #[must_use]
    pub fn notified(&self) -> Notified {
        let round = self.waiters.borrow().round;
        Notified { waiters: self.waiters.clone(), round, place: None }
    }
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut waiters = this.waiters.borrow_mut();
        if waiters.round != this.round {
            return Poll::Ready(());
        }
        let waker = Some(context.waker().clone());
        match this.place {
            Some(place) => waiters.wakers[place] = waker,
            None => {
                this.place = Some(waiters.wakers.len());
                waiters.wakers.push(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let mut waiters = self.waiters.borrow_mut();
        if let Some(place) = self.place.filter(|_| waiters.round == self.round) {
            waiters.wakers[place] = None;
            while waiters.wakers.last().is_some_and(Option::is_none) {
                waiters.wakers.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{Wakes, poll};

    #[test]
    fn everyone_who_waits_goes_on_and_later_waiters_wait_again() {
        let wakes = Arc::new(Wakes::default());
        let notify = Notify::new();
        let (mut a, mut b) = (notify.notified(), notify.notified());
        assert!(poll(&mut a, &wakes).is_pending());
        assert!(poll(&mut a, &wakes).is_pending());
        notify.notify_all();
        assert_eq!(wakes.count(), 1);
        assert!(poll(&mut a, &wakes).is_ready());
        assert!(poll(&mut b, &wakes).is_ready(), "made before, polled after");
        assert!(poll(&mut notify.notified(), &wakes).is_pending());
    }

    #[test]
    fn dropped_waiters_leave_no_trace() {
        let wakes = Arc::new(Wakes::default());
        let notify = Notify::new();
        for _ in 0..1000 {
            let mut waiter = notify.notified();
            assert!(poll(&mut waiter, &wakes).is_pending());
        }
        assert!(notify.waiters.borrow().wakers.is_empty());
        notify.notify_all();
        assert_eq!(wakes.count(), 0);
    }
}
