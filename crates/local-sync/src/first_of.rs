//! Waiting for whichever of two comes first.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// The first of two outcomes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Either<A, B> {
    /// The outcome of the first.
    First(A),
    /// The outcome of the second.
    Second(B),
}

impl<A, B> Either<A, B> {
    /// The outcome of the first, if that came first.
    #[must_use]
    pub fn first(self) -> Option<A> {
        match self {
            Self::First(outcome) => Some(outcome),
            Self::Second(_) => None,
        }
    }
}

/// The outcome of whichever is done first; of the first, if both are. The other is dropped, unless it was lent.
pub async fn first_of<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Either::First(outcome)),
        Poll::Pending => second.as_mut().poll(context).map(Either::Second),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::Arc;

    use super::*;
    use crate::Notify;
    use crate::testing::{Wakes, poll};

    #[test]
    fn the_first_wins_where_both_are_done() {
        let wakes = Arc::new(Wakes::default());
        let mut both = pin!(first_of(ready(1), ready(2)));
        assert_eq!(poll(&mut both, &wakes), Poll::Ready(Either::First(1)));
        let mut other = pin!(first_of(pending::<u8>(), ready(2)));
        assert_eq!(poll(&mut other, &wakes), Poll::Ready(Either::Second(2)));
    }

    /// Both are waited for, and what is lent can be waited for again.
    #[test]
    fn either_of_two_wakes_who_waits() {
        let wakes = Arc::new(Wakes::default());
        let (left, right) = (Notify::new(), Notify::new());
        let mut lent = pin!(left.notified());
        {
            let mut waiting = pin!(first_of(lent.as_mut(), right.notified()));
            assert_eq!(poll(&mut waiting, &wakes), Poll::Pending);
            right.notify_all();
            assert_eq!(wakes.count(), 1);
            assert_eq!(poll(&mut waiting, &wakes), Poll::Ready(Either::Second(())));
        }
        left.notify_all();
        assert_eq!(poll(&mut lent, &wakes), Poll::Ready(()));
    }
}
