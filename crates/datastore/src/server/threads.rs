//! Threads, all of which are made when the server starts: where they have a limit, a lack of them refuses the start, and nothing
//! later.
//!
//! - THREADS-1: RocksDB makes the threads of its pools with their first work, and ends the process where it gets none. So they
//!   get some work at once.
//! - THREADS-2: before, it is tried whether there are enough for all. A file system that was full is recovered in a thread that
//!   RocksDB makes then; room for that one is left.
//! - THREADS-3: a database is opened by no more threads than the server makes later, and those have ended by then.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

use datastore::Serve;
use rocksdb::{DB, Env, Error, FlushOptions, Options};

use super::Failure;

/// The fewest threads of RocksDB's pools: one flushes, one compacts.
const POOLS_MIN: u32 = 2;
/// RocksDB's timer, and the thread in which it recovers.
const OTHERS: u32 = 2;
/// Threads by which RocksDB opens the files of a database if it is not told otherwise.
const OPENING_MAX: i32 = 16;
/// Bounds how long threads that have ended are waited for: the kernel counts them some time longer.
const GONE_WITHIN: Duration = Duration::from_secs(1);
const REMEDY: &str = "raise the limit on processes and threads (ulimit -u; a unit's LimitNPROC= and TasksMax=; a \
                      container's --pids-limit), or lower --readers, --writers, --io-threads and --background-jobs";

/// Refuses if the threads that the server makes cannot be had (THREADS-2).
pub(crate) fn check(serve: &Serve) -> Result<(), Failure> {
    let pools = serve.tuning.background_jobs.max(POOLS_MIN);
    let wanted = serve.readers + serve.writers + serve.io_threads + pools + OTHERS;
    let before = count();
    let gate = Mutex::new(());
    let made = scope(|scope| {
        let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = || drop(gate.lock());
        let made = (0..wanted).take_while(|_| Builder::new().spawn_scoped(scope, wait).is_ok());
        let made = made.count();
        drop(closed);
        made
    });
    let until = Instant::now() + GONE_WITHIN;
    while count() > before && Instant::now() < until {
        sleep(Duration::from_millis(1));
    }
    match made < wanted as usize {
        true => {
            let what = format!("{wanted} more threads are needed, and {made} can be had");
            Err(Failure::runtime(&what, REMEDY))
        }
        false => Ok(()),
    }
}

/// Returns the number of threads by which RocksDB opens the files of a database, the caller among them (THREADS-3).
pub(crate) fn opening(serve: &Serve) -> i32 {
    let later = serve.readers + serve.writers + serve.io_threads;
    i32::try_from(later).unwrap_or(i32::MAX).min(OPENING_MAX)
}

/// Threads of this process.
fn count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Returns the failure where a thread cannot be made all the same.
pub(crate) fn none(error: &dyn std::fmt::Display) -> Failure {
    Failure::runtime(&format!("a thread is needed, and none can be had: {error}"), REMEDY)
}

/// Has RocksDB make the threads of its pools, which all databases of a process share, by work on one in memory (THREADS-1).
pub(crate) fn start_pools(serve: &Serve) -> Result<(), Error> {
    let env = Env::mem_env()?;
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_env(&env);
    options
        .set_max_background_jobs(i32::try_from(serve.tuning.background_jobs).unwrap_or(i32::MAX));
    options.set_max_file_opening_threads(opening(serve));
    let scratch = DB::open(&options, "/threads")?;
    let mut flush = FlushOptions::default();
    flush.set_wait(true);
    for value in ["one", "other"] {
        scratch.put("key", value)?;
        scratch.flush_opt(&flush)?;
    }
    scratch.compact_range(None::<&[u8]>, None::<&[u8]>);
    Ok(())
}
