//! Requests that are under way, seen from other threads.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::Error;
use crate::runtime::{Claim, Runtime, on_runtime};

type Outcome<T> = Result<T, Error>;

struct Slot<T> {
    outcome: Option<Outcome<T>>,
    waker: Option<Waker>,
    callback: Option<Callback<T>>,
}

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    done: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is under way. Wait for it with [`Pending::wait`], await it under any executor, or be called by
/// [`Pending::on_done`].
/// Dropped, the request is carried out all the same.
#[must_use = "a request has an outcome"]
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

impl<T: Send + 'static> Pending<T> {
    /// A request, and what is to be called with its outcome.
    pub(crate) fn new() -> (Self, impl FnOnce(Outcome<T>) + Send + 'static) {
        let slot = Mutex::new(Slot { outcome: None, waker: None, callback: None });
        let shared = Arc::new(Shared { slot, done: Condvar::new() });
        let filled = shared.clone();
        let fill = move |outcome| {
            let mut slot = filled.lock();
            if let Some(callback) = slot.callback.take() {
                drop(slot);
                return callback(outcome);
            }
            slot.outcome = Some(outcome);
            let waker = slot.waker.take();
            drop(slot);
            filled.done.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        (Self { shared }, fill)
    }

    /// One that has failed before it began.
    pub(crate) fn failed(error: Error) -> Self {
        let (pending, fill) = Self::new();
        fill(Err(error));
        pending
    }

    /// Has `done` called with the outcome, exactly once: on the background thread, or, if that takes no more requests, on this
    /// one. It must be quick, and cannot wait for requests; it can start more.
    pub fn on_done(self, done: impl FnOnce(Outcome<T>) + Send + 'static) {
        let mut slot = self.shared.lock();
        match slot.outcome.take() {
            None => slot.callback = Some(Box::new(done)),
            Some(outcome) => {
                drop(slot);
                let completion = Completion::new(done);
                match Runtime::shared().and_then(|runtime| Ok((runtime.claim()?, runtime))) {
                    Ok((claim, runtime)) => {
                        let completion = completion.with_claim(claim);
                        // If it cannot be run, the completion is dropped and says so.
                        let _ = runtime.run(move |_| completion.complete(outcome));
                    }
                    Err(_) => completion.complete(outcome),
                }
            }
        }
    }

    /// Waits for the outcome.
    pub fn wait(self) -> Outcome<T> {
        let mut slot = self.shared.lock();
        loop {
            if let Some(outcome) = slot.outcome.take() {
                return outcome;
            }
            if on_runtime() {
                return Err(Error::WithinCallback);
            }
            slot = self.shared.done.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the outcome, but not much longer than `limit`; the request, if it is still under way.
    pub fn wait_timeout(self, limit: Duration) -> Result<Outcome<T>, Self> {
        let slot = self.shared.lock();
        let waits = |slot: &mut Slot<T>| slot.outcome.is_none() && !on_runtime();
        let waited = self.shared.done.wait_timeout_while(slot, limit, waits);
        let (mut slot, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match slot.outcome.take() {
            Some(outcome) => Ok(outcome),
            None if on_runtime() => Ok(Err(Error::WithinCallback)),
            None => {
                drop(slot);
                Err(self)
            }
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Outcome<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.shared.lock();
        if let Some(outcome) = slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The receiver of a request's outcome. It is called exactly once, even if the request is forgotten.
pub(crate) struct Completion<T> {
    callback: Option<Callback<T>>,
    /// Keeps the thread running until the request has its outcome.
    claim: Option<Claim>,
}

type Callback<T> = Box<dyn FnOnce(Outcome<T>) + Send>;

impl<T> Completion<T> {
    pub(crate) fn new(callback: impl FnOnce(Outcome<T>) + Send + 'static) -> Self {
        Self { callback: Some(Box::new(callback)), claim: None }
    }

    pub(crate) fn with_claim(mut self, claim: Claim) -> Self {
        self.claim = Some(claim);
        self
    }

    pub(crate) fn complete(mut self, outcome: Outcome<T>) {
        self.call(outcome);
    }

    fn call(&mut self, outcome: Outcome<T>) {
        if let Some(callback) = self.callback.take() {
            // A callback that panics must not take the other requests with it.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(outcome)));
        }
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if self.callback.is_some() {
            self.call(Err(Error::Stopped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_request_has_an_outcome() {
        let (pending, fill) = Pending::<()>::new();
        drop(Completion::new(fill));
        assert!(matches!(pending.wait(), Err(Error::Stopped)));
    }

    /// A callback is also called for a request that is done before; then by the background thread, so that it may
    /// take a lock that the caller holds while it registers the callback.
    #[test]
    fn a_callback_is_called_once() {
        let (sender, told) = std::sync::mpsc::channel();
        let own = std::thread::current().id();
        for is_done_before in [false, true] {
            let (pending, fill) = Pending::<u8>::new();
            let completion = Completion::new(fill);
            let sender = sender.clone();
            let done = move |outcome: Outcome<u8>| {
                assert!(!is_done_before || std::thread::current().id() != own);
                sender.send(outcome.expect("done")).unwrap();
            };
            if is_done_before {
                completion.complete(Ok(2));
                pending.on_done(done);
            } else {
                pending.on_done(done);
                assert!(told.try_recv().is_err(), "it is under way");
                completion.complete(Ok(1));
            }
        }
        drop(sender);
        assert_eq!(told.iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_panic_in_a_callback_is_contained() {
        Completion::<u8>::new(|_| panic!("on purpose")).complete(Ok(1));
        let (pending, fill) = Pending::<u8>::new();
        let Err(pending) = pending.wait_timeout(Duration::ZERO) else { panic!("not done") };
        Completion::new(fill).complete(Ok(1));
        assert!(matches!(pending.wait(), Ok(1)));
    }
}
