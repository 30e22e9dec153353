//! A task that steps back for a moment.

use std::future::poll_fn;
use std::mem;
use std::task::Poll;

/// Lets the core's other ready tasks run: the caller is polled again after those that are ready by now.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use super::*;
    use crate::testing::{Wakes, poll};

    #[test]
    fn a_task_that_yields_is_ready_again_at_once_and_goes_on_when_polled() {
        let wakes = Arc::new(Wakes::default());
        let mut yielding = pin!(yield_now());
        assert!(poll(&mut yielding, &wakes).is_pending());
        assert_eq!(wakes.count(), 1);
        assert!(poll(&mut yielding, &wakes).is_ready());
        assert_eq!(wakes.count(), 1);
    }
}
