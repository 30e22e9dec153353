//! etcd in memory: transactions, leases, changes as they are told, and backups. For the simulator.
//!
//! - ETCD-MODEL-1: a transaction that changes something has the next revision, which all of its changes share; one that
//!   changes nothing leaves the revision.
//! - ETCD-MODEL-2: the keys of a lease end with it, at one revision. A `Put` without a lease takes the key off its lease.
//! - ETCD-MODEL-3: a backup has keys, leases and the revision. What is restored goes on from that revision, and gives its
//!   leases their whole time once more. An id of a lease is never given again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::Compared;
use crate::{BootTime, Compare, KeyValue, Op, TxnReply, WatchEvent};

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Duration,
    ends: BootTime,
}

/// The lease that a request names has ended: nothing was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoLease;

/// The contents of an etcd at one moment.
#[derive(Clone, Debug)]
pub struct Backup {
    revision: i64,
    keys: BTreeMap<String, KeyValue>,
    leases: BTreeMap<i64, Lease>,
}

/// An etcd in memory. Time passes by [`MemoryStore::advance`] alone.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    now: BootTime,
    revision: i64,
    keys: BTreeMap<String, KeyValue>,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
    /// All changes since it was started or restored.
    log: Vec<WatchEvent>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        // As a real one begins.
        let (now, revision, last_lease) = (BootTime::default(), 1, 0);
        let (keys, leases) = (BTreeMap::new(), BTreeMap::new());
        Self { now, revision, keys, leases, last_lease, log: Vec::new() }
    }
}

impl MemoryStore {
    /// Lets time pass: leases whose time is over end.
    pub fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        let over = self.leases.iter().filter(|(_, lease)| lease.ends <= self.now);
        let over: Vec<i64> = over.map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end_lease(id));
    }

    /// Returns the time until the next lease ends, if none is kept.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.ends - self.now).min()
    }

    /// Returns the revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// Returns all keys with a prefix.
    pub fn range<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a KeyValue> {
        let from = self.keys.range(prefix.to_owned()..);
        from.map(|(_, kv)| kv).take_while(move |kv| kv.key.starts_with(prefix))
    }

    /// Compares the keys with a prefix with their state at a revision.
    #[must_use]
    pub fn compare(&self, prefix: &str, revision: i64) -> Compared {
        let (keys, is_changed) =
            (self.range(prefix).count() as u64, |kv: &KeyValue| kv.mod_revision > revision);
        Compared { keys, is_changed: self.range(prefix).any(is_changed) }
    }

    /// Returns the number of changes since it was started or restored.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.log.len()
    }

    /// Returns the changes behind the first `known`, of keys with a prefix, from a revision on.
    #[must_use]
    pub fn changes_after(&self, known: usize, prefix: &str, revision: i64) -> Vec<WatchEvent> {
        let told = self.log.iter().skip(known);
        let told = told.filter(|event| event.kv.key.starts_with(prefix));
        told.filter(|event| event.kv.mod_revision >= revision).cloned().collect()
    }

    /// Begins a lease.
    pub fn grant_lease(&mut self, ttl: Duration) -> i64 {
        self.last_lease += 1;
        self.leases.insert(self.last_lease, Lease { ttl, ends: self.now + ttl });
        self.last_lease
    }

    /// Extends a lease. `false`: it has ended.
    pub fn keep_lease(&mut self, lease: i64) -> bool {
        let now = self.now;
        let kept = self.leases.get_mut(&lease);
        kept.map(|lease| lease.ends = now + lease.ttl).is_some()
    }

    /// Ends a lease, and its keys with it (ETCD-MODEL-2).
    pub fn end_lease(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let keys = self.keys.values().filter(|kv| kv.lease == lease);
        let keys: Vec<String> = keys.map(|kv| kv.key.clone()).collect();
        let next = self.revision + 1;
        keys.iter().for_each(|key| self.delete(key, next));
    }

    /// Does `then` if all of `compare` holds, else `or_else`: at one revision.
    ///
    /// # Errors
    /// A lease that it names has ended.
    pub fn txn(
        &mut self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnReply, NoLease> {
        let succeeded = compare.iter().all(|compare| self.holds(compare));
        let (next, ops) = (self.revision + 1, if succeeded { then } else { or_else });
        let known = |op: &Op| match op {
            Op::Put { lease: Some(lease), .. } => self.leases.contains_key(lease),
            _ => true,
        };
        if !ops.iter().all(known) {
            return Err(NoLease);
        }
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

    /// Returns a backup (ETCD-MODEL-3).
    #[must_use]
    pub fn backup(&self) -> Backup {
        let (keys, leases) = (self.keys.clone(), self.leases.clone());
        Backup { revision: self.revision, keys, leases }
    }

    /// Goes back to a backup (ETCD-MODEL-3). Watches get no event for that.
    pub fn restore(&mut self, backup: &Backup) {
        let Backup { revision, keys, leases } = backup.clone();
        (self.revision, self.keys, self.leases) = (revision, keys, leases);
        self.log.clear();
        let now = self.now;
        self.leases.values_mut().for_each(|lease| lease.ends = now + lease.ttl);
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
        self.revision = revision;
        let create_revision = self.keys.get(key).map_or(revision, |kv| kv.create_revision);
        let (key, value) = (key.to_owned(), value.to_vec());
        let kv =
            KeyValue { key: key.clone(), value, create_revision, mod_revision: revision, lease };
        self.log.push(WatchEvent { kv: kv.clone(), is_deleted: false });
        self.keys.insert(key, kv);
    }

    fn delete(&mut self, key: &str, revision: i64) {
        if self.keys.remove(key).is_some() {
            self.revision = revision;
            let kv =
                KeyValue { key: key.to_owned(), mod_revision: revision, ..KeyValue::default() };
            self.log.push(WatchEvent { kv, is_deleted: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn put(key: &str, value: u8, lease: Option<i64>) -> Op {
        Op::Put { key: key.to_owned(), value: vec![value], lease }
    }

    fn names(store: &MemoryStore, prefix: &str) -> Vec<String> {
        store.range(prefix).map(|kv| kv.key.clone()).collect()
    }

    /// ETCD-MODEL-1.
    #[test]
    fn what_one_transaction_changes_has_one_revision() {
        let mut store = MemoryStore::default();
        let first = store.revision();
        let made =
            store.txn(&[], &[put("a/1", 1, None), put("a/2", 2, None)], &[]).expect("no lease");
        assert_eq!((made.revision, store.revision()), (first + 1, first + 1));
        assert_eq!(
            (names(&store, "a/"), names(&store, "b/")),
            (vec!["a/1".into(), "a/2".into()], vec![])
        );
        let revisions = |key: &str| store.get(key).map(|kv| (kv.create_revision, kv.mod_revision));
        assert_eq!((revisions("a/1"), revisions("a/3")), (Some((first + 1, first + 1)), None));
        let read = store.clone().txn(&[], &[Op::Get("a/1".into()), Op::Delete("b".into())], &[]);
        let read = read.expect("no lease");
        assert_eq!(
            (read.revision, read.first().map(|kv| kv.value.clone())),
            (first + 1, Some(vec![1]))
        );
        let before = store.compare("a/", first + 1);
        assert_eq!(before, Compared { keys: 2, is_changed: false });
        assert_eq!(store.compare("a/", first), Compared { keys: 2, is_changed: true });
        assert_eq!(store.compare("b/", 0), Compared::default());
    }

    /// ETCD-MODEL-2.
    #[test]
    fn the_keys_of_a_lease_end_with_it_at_one_revision() {
        let mut store = MemoryStore::default();
        assert_eq!(store.next_end(), None);
        let first = store.grant_lease(TTL);
        store.advance(Duration::from_secs(1));
        let second = store.grant_lease(TTL);
        assert!(0 < first && first < second, "an id is never given again, and 0 stands for none");
        assert_eq!(store.next_end(), Some(Duration::from_secs(2)));
        let ops = [put("a", 1, Some(first)), put("b", 1, Some(first)), put("c", 1, Some(second))];
        store.txn(&[], &ops, &[]).expect("they live");
        let before = store.revision();
        store.advance(Duration::from_secs(2));
        assert_eq!((names(&store, ""), store.revision()), (vec!["c".into()], before + 1));
        assert!(store.changes_after(0, "", before + 1).iter().all(|event| event.is_deleted));
        assert!(store.txn(&[], &[put("a", 1, Some(first))], &[]).is_err());
    }

    /// ETCD-MODEL-3.
    #[test]
    fn a_backup_brings_back_keys_leases_and_the_revision() {
        let mut store = MemoryStore::default();
        let lease = store.grant_lease(TTL);
        store.txn(&[], &[put("a", 1, Some(lease))], &[]).expect("it lives");
        let (backup, revision) = (store.backup(), store.revision());
        store.advance(TTL);
        let later = store.grant_lease(TTL);
        store.txn(&[], &[put("b", 1, None)], &[]).expect("no lease");
        assert_eq!(names(&store, ""), ["b"]);
        store.restore(&backup);
        assert_eq!((names(&store, ""), store.revision()), (vec!["a".into()], revision));
        assert_eq!((store.changes(), store.next_end()), (0, Some(TTL)));
        assert!(!store.keep_lease(later) && store.grant_lease(TTL) > later);
        store.advance(TTL);
        assert!(names(&store, "").is_empty());
    }
}
