//! The operations of etcd that decisions of a cluster are made of.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

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

/// One change, as a watch reports it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The key with its value; `None` if the key was removed.
    pub put: Option<KeyValue>,
    /// The revision of the change.
    pub revision: i64,
}

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// No such lease, or one that has ended. Nothing was done.
    #[error("the lease is unknown")]
    NoLease,
    /// A transaction writes one key twice. Nothing was done.
    #[error("a transaction writes one key twice")]
    DuplicateKey,
    /// Changes of that revision are no longer kept: read all keys again.
    #[error("changes before revision {0} are compacted")]
    Compacted(i64),
    /// No answer came, or none that is understood. What was asked may have been done.
    #[error("{0}")]
    NoAnswer(String),
}

/// A store with the semantics of etcd.
pub trait Store {
    /// Returns all keys with a prefix in order, and the revision at which they were read.
    fn range(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<(Vec<KeyValue>, i64), StoreError>> + Send;
    /// Does `then` if all of `compare` holds, else `or_else`: at one revision.
    fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> impl Future<Output = Result<TxnReply, StoreError>> + Send;
    /// Returns the changes to keys with a prefix from revision `from` to the newest.
    fn watch(
        &self,
        prefix: &str,
        from: i64,
    ) -> impl Future<Output = Result<Vec<Change>, StoreError>> + Send;
    /// Begins a lease, and returns its number.
    fn grant_lease(&self, ttl: Duration) -> impl Future<Output = Result<i64, StoreError>> + Send;
    /// Extends a lease. `false`: it has ended.
    fn keep_lease(&self, lease: i64) -> impl Future<Output = Result<bool, StoreError>> + Send;
    /// Ends a lease, and with it its keys.
    fn revoke_lease(&self, lease: i64) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Encodes a record as it is kept in etcd.
///
/// # Panics
/// Never for the records of this crate: documents of numbers and strings always encode.
pub fn document(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("documents of numbers and strings always encode")
}
