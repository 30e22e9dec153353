//! The operations of etcd that decisions of a cluster are made of.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::DirectoryError;

/// A key with its value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which the key was made.
    pub create_revision: i64,
    /// The revision at which the key was last changed.
    pub mod_revision: i64,
    /// The lease with which the key ends; 0 if with none.
    pub lease: i64,
}

/// A condition of a transaction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Compare {
    /// The key was last changed at this revision; 0: the key is absent.
    ModRevision(String, i64),
    /// The key has this value.
    Value(String, Vec<u8>),
    /// The key ends with this lease; 0: with none, or the key is absent.
    Lease(String, i64),
}

/// A part of a transaction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Op {
    /// Writes a key.
    Put {
        /// The key.
        key: String,
        /// Its value from now on.
        value: Vec<u8>,
        /// The lease with which it ends, if with one.
        lease: Option<i64>,
    },
    /// Removes a key, if it is there.
    Delete(String),
    /// Reads a key.
    Get(String),
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TxnReply {
    /// Set if all conditions held.
    pub succeeded: bool,
    /// The revision of the store behind the transaction.
    pub revision: i64,
    /// The keys that were read, in the order of the reads.
    pub read: Vec<Option<KeyValue>>,
}

impl TxnReply {
    /// Returns the first key that was read, if it is there.
    #[must_use]
    pub fn first(&self) -> Option<&KeyValue> {
        self.read.first().and_then(Option::as_ref)
    }
}

/// Encodes a record as it is kept in etcd.
///
/// # Panics
/// Never for the records of this crate: documents of numbers and strings always encode.
pub fn document(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("documents of numbers and strings always encode")
}

/// A member of etcd, as far as a request is under way.
///
/// A request that fails may be carried out all the same, or later: [`StoreError::may_be_done`].
pub trait Store: Clone + Send + Sync + 'static {
    /// A stream of changes.
    type Watch: Watch;

    /// Returns all keys with a prefix as of one revision, and that revision.
    fn range(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<(Vec<KeyValue>, i64), StoreError>> + Send;

    /// Does `then` if all of `compare` holds, else `or_else`: at once.
    fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> impl Future<Output = Result<TxnReply, StoreError>> + Send;

    /// Begins to tell changes of keys with a prefix, from a revision on.
    fn watch(
        &self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>> + Send;

    /// Compares the keys with a prefix with their state at a revision.
    fn compare(
        &self,
        prefix: &str,
        revision: i64,
    ) -> impl Future<Output = Result<Compared, StoreError>> + Send;

    /// Begins a lease, and returns its id.
    fn grant_lease(&self, ttl: Duration) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Extends a lease. `false`: it has ended.
    fn keep_lease(&self, lease: i64) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Ends a lease.
    fn revoke_lease(&self, lease: i64) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A stream of changes.
pub trait Watch: Send {
    /// Waits for the next changes. An error means that no more come.
    ///
    /// Cancel safe: changes that have come in part stay for the next call.
    fn next(&mut self) -> impl Future<Output = Result<Vec<WatchEvent>, StoreError>> + Send;
}

/// A change of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WatchEvent {
    /// The key, with the revision of the change.
    pub kv: KeyValue,
    /// Set if the key was removed.
    pub is_deleted: bool,
}

impl WatchEvent {
    /// Returns the growth of the number of keys.
    #[must_use]
    pub fn more_keys(&self) -> i64 {
        match self.is_deleted {
            true => -1,
            false => i64::from(self.kv.create_revision == self.kv.mod_revision),
        }
    }

    /// Returns the value that the key has now.
    #[must_use]
    pub fn put(&self) -> Option<&[u8]> {
        (!self.is_deleted).then_some(&self.kv.value)
    }
}

/// The keys with a prefix, compared with their state at a revision.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Compared {
    /// The number of keys.
    pub keys: u64,
    /// Set if one of them was made or changed after that revision.
    pub is_changed: bool,
}

/// The reason why etcd did not answer as asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreError {
    /// Set if the request may have been carried out, or may be later.
    pub may_be_done: bool,
    /// The reason, as operators are told it.
    pub error: DirectoryError,
}

impl From<StoreError> for DirectoryError {
    fn from(error: StoreError) -> Self {
        error.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_says_how_many_keys_there_are_more() {
        let event = |is_deleted, create_revision, mod_revision| {
            let kv =
                KeyValue { value: vec![1], create_revision, mod_revision, ..KeyValue::default() };
            WatchEvent { kv, is_deleted }
        };
        assert_eq!(event(false, 5, 5).more_keys(), 1);
        assert_eq!(event(false, 4, 5).more_keys(), 0);
        assert_eq!(event(true, 0, 5).more_keys(), -1);
        assert_eq!(event(false, 4, 5).put(), Some(&[1][..]));
        assert_eq!(event(true, 0, 5).put(), None);
    }
}
