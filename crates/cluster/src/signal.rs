//! A wake-up for all tasks that wait for a change.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
struct Waiting {
    times: u64,
    wakers: Vec<Waker>,
}

/// Counts changes, and wakes the tasks that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Signal(Mutex<Waiting>);

impl Signal {
    /// Returns the number of changes so far.
    pub(crate) fn times(&self) -> u64 {
        self.lock().times
    }

    /// Counts a change.
    pub(crate) fn notify(&self) {
        let wakers = {
            let mut waiting = self.lock();
            waiting.times += 1;
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until there were more changes than `times`; returns their number.
    pub(crate) async fn after(&self, times: u64) -> u64 {
        poll_fn(|context| {
            let mut waiting = self.lock();
            if waiting.times > times {
                return Poll::Ready(waiting.times);
            }
            if !waiting.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until `is_done`, which only changes that are counted here make so.
    pub(crate) async fn until(&self, is_done: impl Fn() -> bool) {
        loop {
            // Before it is looked: a change meanwhile is one that is waited for.
            let times = self.times();
            if is_done() {
                return;
            }
            self.after(times).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
