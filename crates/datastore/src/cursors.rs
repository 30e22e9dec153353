//! Cursors of `SCAN`: numbers for clients, each the place of a key.
//!
//! Clients take a cursor for an integer, and a key does not fit into one. So the server remembers where a
//! scan goes on. It remembers a bounded number, and forgets the oldest first: a client with a forgotten one
//! gets an error and begins again.

use std::collections::{BTreeMap, HashMap};

/// Scans of which the server remembers where they go on.
#[derive(Debug)]
pub struct Cursors {
    limit: usize,
    last: u64,
    keys: BTreeMap<u64, Vec<u8>>,
    /// Cursors by key, so that scans which go on at the same key share one.
    by_key: HashMap<Vec<u8>, u64>,
}

impl Cursors {
    /// Remembers up to `limit` cursors.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, last: 0, keys: BTreeMap::new(), by_key: HashMap::new() }
    }

    /// A cursor for a scan that goes on at `key`; never 0, which means the end.
    pub fn put(&mut self, key: Vec<u8>) -> u64 {
        if let Some(cursor) = self.by_key.get(&key) {
            return *cursor;
        }
        while self.keys.len() >= self.limit {
            let Some((_, oldest)) = self.keys.pop_first() else { break };
            self.by_key.remove(&oldest);
        }
        self.last += 1;
        self.keys.insert(self.last, key.clone());
        self.by_key.insert(key, self.last);
        self.last
    }

    /// The key at which a scan goes on. It stays, since a client whose connection broke may ask again.
    #[must_use]
    pub fn get(&self, cursor: u64) -> Option<&[u8]> {
        self.keys.get(&cursor).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut cursors = Cursors::new(2);
        let [a, b] = [b"a", b"b"].map(|key| cursors.put(key.to_vec()));
        assert_eq!(cursors.put(b"a".to_vec()), a, "the same place has the same cursor");
        let c = cursors.put(b"c".to_vec());
        assert_eq!(
            [a, b, c].map(|cursor| cursors.get(cursor)),
            [None, Some(&b"b"[..]), Some(&b"c"[..])]
        );
        assert_eq!((cursors.get(0), cursors.keys.len(), cursors.by_key.len()), (None, 2, 2));
    }
}
