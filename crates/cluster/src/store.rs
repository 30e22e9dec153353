//! The operations of etcd that decisions of a cluster are made of.

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

/// Encodes a record as it is kept in etcd.
///
/// # Panics
/// Never for the records of this crate: documents of numbers and strings always encode.
pub fn document(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("documents of numbers and strings always encode")
}
