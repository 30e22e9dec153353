//! etcd in memory: revisions, transactions, leases, watches, compaction and backups, for tests and simulations.
//!
//! - M1: a transaction that changes something has the next revision, which all of its changes share; one that changes
//!   nothing leaves the revision.
//! - M2: a refused transaction changes nothing, whichever of its parts is the reason.
//! - M3: the keys of a lease end with it, at one revision. A `Put` without a lease takes the key off its lease.
//! - M4: a restored backup is older in all: keys, revisions, leases, which begin their time again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::{BootTime, Change, Compare, KeyValue, Op, Store, StoreError, TxnReply};

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Duration,
    ends: BootTime,
}

#[derive(Clone, Debug)]
struct State {
    now: BootTime,
    revision: i64,
    /// Changes of this revision and of those before are forgotten.
    compacted: i64,
    keys: BTreeMap<String, KeyValue>,
    history: Vec<Change>,
    leases: BTreeMap<i64, Lease>,
    /// The number of the last lease. No backup takes it back: real numbers are random.
    last_lease: i64,
}

/// An etcd in memory. Clones are the same; time passes by [`MemoryStore::advance`] alone.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Mutex<State>>);

/// The state of a store at one time.
#[derive(Clone, Debug)]
pub struct Backup(State);

impl Default for MemoryStore {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            now: BootTime::default(),
            // As a real one begins.
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
        })))
    }
}

impl MemoryStore {
    fn state<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets time pass: leases whose time is over end.
    pub fn advance(&self, time: Duration) {
        self.state(|state| {
            state.now = state.now + time;
            let over = state.leases.iter().filter(|(_, lease)| lease.ends <= state.now);
            let over: Vec<i64> = over.map(|(id, _)| *id).collect();
            over.into_iter().for_each(|id| state.end_lease(id));
        });
    }

    /// Does a transaction now, as [`Store::txn`] does.
    ///
    /// # Errors
    /// A lease is unknown, or a key is written twice.
    pub fn txn_now(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        self.state(|state| state.txn(compare, then, or_else))
    }

    /// Returns all keys with a prefix, and the revision.
    #[must_use]
    pub fn range_now(&self, prefix: &str) -> (Vec<KeyValue>, i64) {
        self.state(|state| {
            let keys = state.keys.values().filter(|kv| kv.key.starts_with(prefix));
            (keys.cloned().collect(), state.revision)
        })
    }

    /// Begins a lease.
    #[must_use]
    pub fn grant_lease_now(&self, ttl: Duration) -> i64 {
        self.state(|state| {
            state.last_lease += 1;
            let lease = Lease { ttl, ends: state.now + ttl };
            state.leases.insert(state.last_lease, lease);
            state.last_lease
        })
    }

    /// Extends a lease. `false`: it has ended.
    #[must_use]
    pub fn keep_lease_now(&self, lease: i64) -> bool {
        self.state(|state| {
            let now = state.now;
            let kept = state.leases.get_mut(&lease);
            kept.map(|lease| lease.ends = now + lease.ttl).is_some()
        })
    }

    /// Forgets changes of `revision` and of those before.
    pub fn compact(&self, revision: i64) {
        self.state(|state| {
            state.compacted = state.compacted.max(revision.min(state.revision));
            let compacted = state.compacted;
            state.history.retain(|change| change.revision > compacted);
        });
    }

    /// Returns a backup of the present state.
    #[must_use]
    pub fn backup(&self) -> Backup {
        self.state(|state| Backup(state.clone()))
    }

    /// Goes back to a backup (M4).
    pub fn restore(&self, backup: &Backup) {
        self.state(|state| {
            let (now, last_lease) = (state.now, state.last_lease);
            *state = State { now, last_lease, ..backup.0.clone() };
            for lease in state.leases.values_mut() {
                lease.ends = now + lease.ttl;
            }
        });
    }
}

impl State {
    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::ModRevision(key, revision) => {
                self.keys.get(key).map_or(0, |kv| kv.mod_revision) == *revision
            }
            Compare::Value(key, value) => self.keys.get(key).is_some_and(|kv| kv.value == *value),
            Compare::Lease(key, lease) => self.keys.get(key).map_or(0, |kv| kv.lease) == *lease,
        }
    }

    /// M2. etcd compares keys that are written on either branch by themselves.
    fn check(&self, ops: &[Op]) -> Result<(), StoreError> {
        let mut written = BTreeSet::new();
        let deleted = ops.iter().filter_map(|op| match op {
            Op::Delete(key) => Some(key),
            _ => None,
        });
        let deleted: BTreeSet<&String> = deleted.collect();
        for op in ops {
            if let Op::Put { key, .. } = op
                && (!written.insert(key) || deleted.contains(key))
            {
                return Err(StoreError::DuplicateKey);
            }
        }
        Ok(())
    }

    fn txn(
        &mut self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        self.check(then)?;
        self.check(or_else)?;
        let succeeded = compare.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { then } else { or_else };
        let is_known = |op: &Op| match op {
            Op::Put { lease: Some(lease), .. } => *lease == 0 || self.leases.contains_key(lease),
            _ => true,
        };
        if !ops.iter().all(is_known) {
            return Err(StoreError::NoLease);
        }
        let next = self.revision + 1;
        let mut read = Vec::new();
        for op in ops {
            match op {
                Op::Put { key, value, lease } => self.put(key, value, lease.unwrap_or(0), next),
                Op::Delete(key) => self.delete(key, next),
                Op::Get(key) => read.push(self.keys.get(key).cloned()),
            }
        }
        Ok(TxnReply { succeeded, revision: self.revision, read })
    }

    fn put(&mut self, key: &str, value: &[u8], lease: i64, revision: i64) {
        self.revision = revision;
        let create_revision = self.keys.get(key).map_or(revision, |kv| kv.create_revision);
        let kv = KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
            create_revision,
            mod_revision: revision,
            lease,
        };
        self.keys.insert(key.to_owned(), kv.clone());
        self.history.push(Change { key: key.to_owned(), put: Some(kv), revision });
    }

    fn delete(&mut self, key: &str, revision: i64) {
        if self.keys.remove(key).is_some() {
            self.revision = revision;
            self.history.push(Change { key: key.to_owned(), put: None, revision });
        }
    }

    /// M3.
    fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys = self.keys.values().filter(|kv| kv.lease == lease);
        let keys: Vec<String> = keys.map(|kv| kv.key.clone()).collect();
        let next = self.revision + 1;
        keys.iter().for_each(|key| self.delete(key, next));
    }
}

impl Store for MemoryStore {
    async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), StoreError> {
        Ok(self.range_now(prefix))
    }

    async fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, StoreError> {
        self.txn_now(compare, then, or_else)
    }

    async fn watch(&self, prefix: &str, from: i64) -> Result<Vec<Change>, StoreError> {
        self.state(|state| {
            if from <= state.compacted {
                return Err(StoreError::Compacted(state.compacted));
            }
            let changes = state.history.iter();
            let changes = changes.filter(|it| it.revision >= from && it.key.starts_with(prefix));
            Ok(changes.cloned().collect())
        })
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, StoreError> {
        Ok(self.grant_lease_now(ttl))
    }

    async fn keep_lease(&self, lease: i64) -> Result<bool, StoreError> {
        Ok(self.keep_lease_now(lease))
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), StoreError> {
        self.state(|state| {
            let is_known = state.leases.contains_key(&lease);
            is_known.then(|| state.end_lease(lease)).ok_or(StoreError::NoLease)
        })
    }
}
