//! Errors of RocksDB that requests met: counted by kind, and told in the log once in a while.

use std::sync::{Mutex, PoisonError};

use datastore::StoreErrorKind;

use super::lines::Lines;
use super::stats::Counter;

/// Errors by their kinds, and the last one.
pub(crate) struct StoreErrors {
    counts: [Counter; StoreErrorKind::ALL.len()],
    told: Mutex<Told>,
}

struct Told {
    lines: Lines<StoreErrorKind>,
    last: Option<String>,
}

impl StoreErrors {
    pub(super) fn new() -> Self {
        let told = Told { lines: Lines::new(), last: None };
        Self { counts: Default::default(), told: Mutex::new(told) }
    }

    /// Notes an error with this message, and returns the reply to the request that met it.
    pub(super) fn note(&self, message: &str) -> String {
        let kind = StoreErrorKind::of(message);
        let reply = kind.reply(message);
        self.counts[kind as usize].add(1);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = told.lines.line(kind, &reply) {
            tracing::error!("a request failed: {line}");
        }
        told.last = Some(reply.clone());
        reply
    }

    /// The number of requests that met an error, by its kind.
    pub(super) fn counts(&self) -> impl Iterator<Item = (StoreErrorKind, u64)> {
        StoreErrorKind::ALL.into_iter().map(|kind| (kind, self.counts[kind as usize].get()))
    }

    /// The reply to the last request that met one.
    pub(super) fn last(&self) -> Option<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }
}
