//! One value from one task to another.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender_gone: bool,
}

/// Sends the value. Dropped without sending, the receiver gets `None`.
pub struct Sender<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

/// Resolves to the value, or to `None` if the sender was dropped without sending.
pub struct Receiver<T> {
    slot: Rc<RefCell<Slot<T>>>,
}

/// A pair of ends for one value.
#[must_use]
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Rc::new(RefCell::new(Slot { value: None, waker: None, sender_gone: false }));
    (Sender { slot: slot.clone() }, Receiver { slot })
}

impl<T> Sender<T> {
    /// Hands the value over; without a receiver it is dropped.
    pub fn send(self, value: T) {
        self.slot.borrow_mut().value = Some(value);
    }

    /// Returns true if the receiver was dropped, so that no task waits for the value.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.slot) == 1
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.slot.borrow_mut();
            slot.sender_gone = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.slot.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Some(value));
        }
        if slot.sender_gone {
            return Poll::Ready(None);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{Wakes, poll};

    #[test]
    fn the_value_arrives_once_and_wakes_its_waiter() {
        let wakes = Arc::new(Wakes::default());
        let (sender, mut receiver) = oneshot();
        assert!(poll(&mut receiver, &wakes).is_pending());
        sender.send(5);
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &wakes), Poll::Ready(Some(5)));
    }

    #[test]
    fn a_dropped_sender_ends_the_wait() {
        let wakes = Arc::new(Wakes::default());
        let (sender, mut receiver) = oneshot::<u8>();
        assert!(poll(&mut receiver, &wakes).is_pending());
        assert!(!sender.is_abandoned());
        drop(sender);
        assert_eq!(wakes.count(), 1);
        assert_eq!(poll(&mut receiver, &wakes), Poll::Ready(None));
    }

    #[test]
    fn a_sender_knows_when_the_receiver_is_gone() {
        let (sender, receiver) = oneshot::<u8>();
        drop(receiver);
        assert!(sender.is_abandoned());
        sender.send(1);
    }
}
