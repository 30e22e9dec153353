//! Two futures, of which the first to end counts.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The result of the future that ended first.
#[derive(Debug)]
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Waits until one of both ends. The first counts if both do at once; the other is dropped.
pub(crate) async fn race<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| {
        if let Poll::Ready(value) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}
