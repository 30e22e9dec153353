//! Counters of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use datastore::Class;

/// A number that many threads change.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one class of requests.
#[derive(Debug, Default)]
pub(crate) struct ClassStats {
    pub(crate) requests: Counter,
    /// Microseconds that groups of requests waited for a thread, and that they were served.
    pub(crate) waited_us: Counter,
    pub(crate) served_us: Counter,
    /// Groups that wait for a thread.
    pub(crate) queued: Counter,
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) reads: ClassStats,
    pub(crate) writes: ClassStats,
    pub(crate) session: ClassStats,
    pub(crate) errors: Counter,
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
    pub(crate) connected: Counter,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    /// Tasks and requests that panicked.
    pub(crate) panics: Counter,
}

impl Stats {
    pub(crate) fn of(&self, class: Class) -> &ClassStats {
        match class {
            Class::Read => &self.reads,
            Class::Write => &self.writes,
            Class::Session => &self.session,
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        [&self.reads, &self.writes, &self.session].map(|class| class.requests.get()).iter().sum()
    }
}

/// A connection, which counts until it is dropped.
pub(crate) struct Connected(Arc<Stats>);

impl Connected {
    pub(crate) fn new(stats: &Arc<Stats>) -> Self {
        stats.connected.add(1);
        Self(Arc::clone(stats))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connected.sub(1);
    }
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
