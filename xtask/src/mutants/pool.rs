//! A few threads that share a list of work.

use std::io;
use std::sync::Mutex;
use std::thread;

/// Calls `work` with the number of a worker and each of `items`, on `jobs` threads; the results are in order.
pub(super) fn map<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(usize, &T) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let queue = Mutex::new(items.iter().enumerate());
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| -> io::Result<()> {
        let run = |worker| {
            loop {
                let Some((index, item)) = queue.lock().expect("no worker panics").next() else {
                    return Ok(());
                };
                let result = work(worker, item)?;
                results.lock().expect("no worker panics").push((index, result));
            }
        };
        let workers: Vec<_> =
            (0..jobs.max(1)).map(|worker| scope.spawn(move || run(worker))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker ends"))
    })?;
    let mut results = results.into_inner().expect("no worker panics");
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
