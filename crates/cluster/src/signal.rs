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

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>, woken: &Arc<Woken>) -> Poll<T> {
        let waker = Waker::from(woken.clone());
        future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Each task is woken once for a change, however often it has looked; changes before the wait count.
    #[test]
    fn a_change_wakes_all_that_wait_for_one() {
        let signal = Signal::default();
        let wakers: [Arc<Woken>; 2] = Default::default();
        let mut waits: Vec<_> = wakers.iter().map(|_| Box::pin(signal.after(0))).collect();
        for _ in 0..2 {
            for (wait, woken) in waits.iter_mut().zip(&wakers) {
                assert!(poll(wait, woken).is_pending());
            }
        }
        signal.notify();
        for (wait, woken) in waits.iter_mut().zip(&wakers) {
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
            assert_eq!(poll(wait, woken), Poll::Ready(1));
        }
        signal.notify();
        assert_eq!(signal.times(), 2);
        assert_eq!(poll(&mut Box::pin(signal.after(1)), &wakers[0]), Poll::Ready(2));
        assert!(poll(&mut Box::pin(signal.after(2)), &wakers[0]).is_pending());
    }

    /// A task that waits for a state goes on waiting while changes make another one.
    #[test]
    fn a_state_is_waited_for_until_a_change_makes_it() {
        let (signal, is_done) = (Signal::default(), std::cell::Cell::new(false));
        let woken = Arc::new(Woken::default());
        let mut wait = Box::pin(signal.until(|| is_done.get()));
        assert!(poll(&mut wait, &woken).is_pending());
        signal.notify();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(poll(&mut wait, &woken).is_pending());
        is_done.set(true);
        signal.notify();
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
        assert!(poll(&mut wait, &woken).is_ready());
        assert!(poll(&mut Box::pin(signal.until(|| true)), &woken).is_ready());
    }
}
