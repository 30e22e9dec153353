//! Messages into a core, from any thread.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Messages that wait in a mailbox at most. Control messages are few; a core that stopped fetching
/// them must not take the senders' memory with it.
pub const MAILBOX_MAX: usize = 1 << 16;

struct Queue<T> {
    messages: VecDeque<T>,
    waiting: Option<Waker>,
    senders: usize,
    receiver_gone: bool,
}

type Shared<T> = Arc<Mutex<Queue<T>>>;

/// The way in. Clonable, and usable on any thread.
pub struct Sender<T>(Shared<T>);

/// The way out. Usable on one thread at a time, under any executor.
pub struct Receiver<T>(Shared<T>);

/// A message that could not be left, with the reason.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered<T> {
    /// The receiver is gone.
    #[error("the receiver is gone")]
    Closed(T),
    /// [`MAILBOX_MAX`] messages wait.
    #[error("the mailbox is full")]
    Full(T),
}

/// A mailbox. A message that arrives wakes the core whose task waits for it.
#[must_use]
pub fn mailbox<T: Send>() -> (Sender<T>, Receiver<T>) {
    let queue =
        Queue { messages: VecDeque::new(), waiting: None, senders: 1, receiver_gone: false };
    let shared = Arc::new(Mutex::new(queue));
    (Sender(shared.clone()), Receiver(shared))
}

fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, Queue<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Sender<T> {
    /// Leaves a message. Never waits.
    pub fn send(&self, message: T) -> Result<(), Undelivered<T>> {
        let waiting = {
            let mut queue = lock(&self.0);
            if queue.receiver_gone {
                return Err(Undelivered::Closed(message));
            }
            if queue.messages.len() >= MAILBOX_MAX {
                return Err(Undelivered::Full(message));
            }
            queue.messages.push_back(message);
            queue.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0).senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = lock(&self.0);
            queue.senders -= 1;
            if queue.senders > 0 {
                return;
            }
            queue.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next message, in the order of sending; `None` once all senders are gone.
    pub fn recv(&mut self) -> impl Future<Output = Option<T>> + '_ {
        poll_fn(|context| self.poll_recv(context))
    }

    /// The next message, if one is there.
    pub fn try_recv(&mut self) -> Option<T> {
        lock(&self.0).messages.pop_front()
    }

    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut queue = lock(&self.0);
        if let Some(message) = queue.messages.pop_front() {
            return Poll::Ready(Some(message));
        }
        if queue.senders == 0 {
            return Poll::Ready(None);
        }
        match &mut queue.waiting {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let messages = {
            let mut queue = lock(&self.0);
            queue.receiver_gone = true;
            std::mem::take(&mut queue.messages)
        };
        // Messages may hold senders of this very mailbox, so they go while it is not locked.
        drop(messages);
    }
}
