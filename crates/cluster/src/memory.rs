//! etcd in memory: transactions and leases, for tests.
//!
//! - M1: a transaction that changes something has the next revision, which all of its changes share; one that changes
//!   nothing leaves the revision.
//! - M2: the keys of a lease end with it, at one revision. A `Put` without a lease takes the key off its lease.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{BootTime, Compare, KeyValue, Op, TxnReply};

#[derive(Clone, Copy)]
struct Lease {
    ttl: Duration,
    ends: BootTime,
}

/// An etcd in memory. Time passes by [`MemoryStore::advance`] alone.
pub(crate) struct MemoryStore {
    now: BootTime,
    revision: i64,
    keys: BTreeMap<String, KeyValue>,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        // As a real one begins.
        let (now, revision, last_lease) = (BootTime::default(), 1, 0);
        Self { now, revision, keys: BTreeMap::new(), leases: BTreeMap::new(), last_lease }
    }
}

impl MemoryStore {
    /// Lets time pass: leases whose time is over end.
    pub(crate) fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        let over = self.leases.iter().filter(|(_, lease)| lease.ends <= self.now);
        let over: Vec<i64> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end_lease(id));
    }

    /// Begins a lease.
    pub(crate) fn grant_lease(&mut self, ttl: Duration) -> i64 {
        self.last_lease += 1;
        self.leases.insert(self.last_lease, Lease { ttl, ends: self.now + ttl });
        self.last_lease
    }

    /// Extends a lease. `false`: it has ended.
    pub(crate) fn keep_lease(&mut self, lease: i64) -> bool {
        let now = self.now;
        let kept = self.leases.get_mut(&lease);
        kept.map(|lease| lease.ends = now + lease.ttl).is_some()
    }

    /// Does `then` if all of `compare` holds, else `or_else`: at one revision. Leases that it names are there.
    pub(crate) fn txn(&mut self, compare: &[Compare], then: &[Op], or_else: &[Op]) -> TxnReply {
        let succeeded = compare.iter().all(|compare| self.holds(compare));
        let next = self.revision + 1;
        let mut read = Vec::new();
        for op in if succeeded { then } else { or_else } {
            match op {
                Op::Put { key, value, lease } => self.put(key, value, lease.unwrap_or(0), next),
                Op::Delete(key) => self.delete(key, next),
                Op::Get(key) => read.push(self.keys.get(key).cloned()),
            }
        }
        TxnReply { succeeded, revision: self.revision, read }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::ModRevision(key, revision) => {
                self.keys.get(key).map_or(0, |kv| kv.mod_revision) == *revision
            }
            Compare::Value(key, value) => self.keys.get(key).is_some_and(|kv| kv.value == *value),
            Compare::Lease(key, lease) => self.keys.get(key).map_or(0, |kv| kv.lease) == *lease,
        }
    }

    fn put(&mut self, key: &str, value: &[u8], lease: i64, revision: i64) {
        assert!(lease == 0 || self.leases.contains_key(&lease), "the lease is unknown");
        self.revision = revision;
        let create_revision = self.keys.get(key).map_or(revision, |kv| kv.create_revision);
        let (key, value) = (key.to_owned(), value.to_vec());
        let kv =
            KeyValue { key: key.clone(), value, create_revision, mod_revision: revision, lease };
        self.keys.insert(key, kv);
    }

    fn delete(&mut self, key: &str, revision: i64) {
        if self.keys.remove(key).is_some() {
            self.revision = revision;
        }
    }

    /// M2.
    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys = self.keys.values().filter(|kv| kv.lease == lease);
        let keys: Vec<String> = keys.map(|kv| kv.key.clone()).collect();
        let next = self.revision + 1;
        keys.iter().for_each(|key| self.delete(key, next));
    }
}
