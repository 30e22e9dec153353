//! Futures that are polled together.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Waits until all futures are done. Returns their outputs, in their order. Each wake polls all that are left, so they should
/// be few.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut left: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = left.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (output, future) in outputs.iter_mut().zip(&mut left).filter(|(it, _)| it.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("all are done")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::oneshot;
    use crate::testing::{Wakes, poll};

    use super::*;

    #[test]
    fn outputs_come_in_the_order_of_the_futures() {
        let wakes = Arc::new(Wakes::default());
        let (first, waits) = oneshot::<u32>();
        let (second, also_waits) = oneshot::<u32>();
        let mut joined = Box::pin(all([waits, also_waits]));
        assert_eq!(poll(&mut joined, &wakes), Poll::Pending);
        second.send(2);
        assert_eq!(poll(&mut joined, &wakes), Poll::Pending);
        first.send(1);
        assert_eq!(poll(&mut joined, &wakes), Poll::Ready(vec![Some(1), Some(2)]));
        let mut none = Box::pin(all(Vec::<std::future::Ready<()>>::new()));
        assert_eq!(poll(&mut none, &wakes), Poll::Ready(vec![]));
    }
}
