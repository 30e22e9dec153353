//! Waiting for the first of two.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Runs `work` until it is done, or gives up when `stop` is.
pub(crate) async fn first_of<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> Option<T> {
    poll_fn(|context| {
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(context).map(|()| None)
    })
    .await
}
