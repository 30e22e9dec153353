//! Tasks that have to live as long as the server: one that panics is told in the log, counted, and begun again.

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use super::stats::Stats;

/// Pause before a task is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the task that `make` makes to its end, and another after each panic.
pub(crate) async fn keep<F>(name: &str, stats: &Stats, mut make: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while let Err(error) = tokio::spawn(make()).await {
        let Ok(panic) = error.try_into_panic() else { return };
        note_panic(name, stats, &*panic);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells and counts a panic of what goes on behind it.
pub(crate) fn note_panic(name: &str, stats: &Stats, panic: &(dyn Any + Send)) {
    stats.panics.add(1);
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    let text = owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    tracing::error!("`{name}` failed by a fault of this program, and goes on: {text}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_begun_again_and_counted() {
        let (stats, begun) = (Stats::default(), Arc::new(AtomicU64::new(0)));
        let count = begun.clone();
        keep("the task", &stats, || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move { assert_eq!(number, 2, "the first two panic") }
        })
        .await;
        assert_eq!((begun.load(Ordering::Relaxed), stats.panics.get()), (3, 2));
    }
}
