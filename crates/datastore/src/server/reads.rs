//! Requests that read.

use std::borrow::Cow;

use datastore::{Read, Reserved, Scan, parse_read};
use resp::{Protocol, Reply, Request};
use rocksdb::{DBPinnableSlice, Error, ReadOptions, properties};

use super::stats::Stats;
use super::store::Store;

/// So many keys are counted one by one, which takes about a tenth of a second. RocksDB's own estimate counts a key
/// that was overwritten several times.
const COUNTED_KEYS_MAX: u64 = 100_000;
/// A page of a scan ends early when its keys have this many bytes.
const SCAN_BYTES_MAX: usize = 256 << 10;

/// A request's reply is larger than what is left of the memory for replies.
const NO_MEMORY: &str =
    "NOMEMORY the reply does not fit into --request-memory; ask for fewer keys, or later";

/// The buffer of replies, with the memory that it may take.
pub(crate) struct Room<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) share: &'a mut Reserved,
    /// Memory that the share has for other things.
    pub(super) held: usize,
}

impl Room<'_> {
    /// Reserves memory for `more` bytes behind what there is.
    pub(super) fn reserve(&mut self, more: usize) -> bool {
        self.share.resize(self.held + self.out.len() + more)
    }
}

impl Store {
    /// Appends the reply to a request that reads.
    pub(crate) fn read(
        &self,
        request: &Request,
        protocol: Protocol,
        room: &mut Room<'_>,
        stats: &Stats,
    ) {
        let read = match parse_read(request) {
            Ok(read) => read,
            Err(error) => {
                stats.errors.add(1);
                return Reply::new(room.out, protocol).error(&error.to_string());
            }
        };
        let start = room.out.len();
        if let Err(error) = self.serve_read(&read, protocol, room, stats) {
            stats.errors.add(1);
            let mut reply = Reply::new(room.out, protocol);
            reply.truncate(start);
            reply.error(&error);
        }
    }

    fn serve_read(
        &self,
        read: &Read<'_>,
        protocol: Protocol,
        room: &mut Room<'_>,
        stats: &Stats,
    ) -> Result<(), Cow<'static, str>> {
        match read {
            Read::Get(key) => return self.put_value(key, protocol, room, stats),
            Read::MGet(keys) => {
                Reply::new(room.out, protocol).array(keys.len());
                return keys.iter().try_for_each(|key| self.put_value(key, protocol, room, stats));
            }
            Read::Scan(scan) => return self.scan(scan, protocol, room),
            Read::Type(key) => {
                let is_there = self.value(key, stats)?.is_some();
                Reply::new(room.out, protocol).status(if is_there { "string" } else { "none" });
            }
            Read::Exists(keys) => {
                let mut count = 0;
                for key in keys {
                    count += i64::from(self.value(key, stats)?.is_some());
                }
                Reply::new(room.out, protocol).integer(count);
            }
            Read::StrLen(key) => {
                let len = self.value(key, stats)?.map_or(0, |value| value.len());
                Reply::new(room.out, protocol).integer(len as i64);
            }
            Read::DbSize => {
                let count = self.key_count()?;
                Reply::new(room.out, protocol).integer(count as i64);
            }
        }
        Ok(())
    }

    fn value(
        &self,
        key: &[u8],
        stats: &Stats,
    ) -> Result<Option<DBPinnableSlice<'_>>, Cow<'static, str>> {
        let value = self.db.get_pinned(key).map_err(|error| self.reply_of(&error))?;
        if value.is_some() {
            stats.hits.add(1)
        } else {
            stats.misses.add(1)
        }
        Ok(value)
    }

    fn put_value(
        &self,
        key: &[u8],
        protocol: Protocol,
        room: &mut Room<'_>,
        stats: &Stats,
    ) -> Result<(), Cow<'static, str>> {
        let value = self.value(key, stats)?;
        if !room.reserve(value.as_ref().map_or(0, |value| value.len())) {
            return Err(NO_MEMORY.into());
        }
        let mut reply = Reply::new(room.out, protocol);
        match value {
            Some(value) => reply.bulk(&value),
            None => reply.null(),
        }
        Ok(())
    }

    fn scan(
        &self,
        scan: &Scan<'_>,
        protocol: Protocol,
        room: &mut Room<'_>,
    ) -> Result<(), Cow<'static, str>> {
        let from = match scan.cursor {
            0 => Vec::new(),
            cursor => {
                let cursors = self.cursors.lock().expect("no panic while it is held");
                let key = cursors.get(cursor).map(<[u8]>::to_vec);
                key.ok_or("ERR this cursor is unknown or forgotten; begin the scan again with 0")?
            }
        };
        let (keys, next) = self.page(&from, scan).map_err(|error| self.reply_of(&error))?;
        if !room.reserve(keys.iter().map(Vec::len).sum()) {
            return Err(NO_MEMORY.into());
        }
        let cursor =
            next.map_or(0, |key| self.cursors.lock().expect("no panic while it is held").put(key));
        let mut reply = Reply::new(room.out, protocol);
        reply.array(2);
        reply.bulk(cursor.to_string().as_bytes());
        reply.array(keys.len());
        keys.iter().for_each(|key| reply.bulk(key));
        Ok(())
    }

    /// Keys from `from` on, and the key with which the next page begins.
    #[expect(clippy::type_complexity, reason = "a list and the key behind it")]
    fn page(&self, from: &[u8], scan: &Scan<'_>) -> Result<(Vec<Vec<u8>>, Option<Vec<u8>>), Error> {
        let mut iterator = self.db.raw_iterator_opt(scan_options());
        iterator.seek(from);
        let (mut keys, mut looked_at, mut bytes) = (Vec::new(), 0, 0);
        while let Some(key) = iterator.key() {
            if looked_at == scan.count || bytes >= SCAN_BYTES_MAX {
                return Ok((keys, Some(key.to_vec())));
            }
            looked_at += 1;
            if scan.strings && scan.pattern.is_none_or(|pattern| datastore::matches(pattern, key)) {
                bytes += key.len();
                keys.push(key.to_vec());
            }
            iterator.next();
        }
        iterator.status()?;
        Ok((keys, None))
    }

    /// Returns the number of keys: exact up to [`COUNTED_KEYS_MAX`], else RocksDB's estimate.
    pub(crate) fn key_count(&self) -> Result<u64, Cow<'static, str>> {
        let mut iterator = self.db.raw_iterator_opt(scan_options());
        iterator.seek_to_first();
        let mut count = 0;
        while iterator.valid() {
            count += 1;
            if count > COUNTED_KEYS_MAX {
                return Ok(self.number(properties::ESTIMATE_NUM_KEYS).max(count));
            }
            iterator.next();
        }
        iterator.status().map_err(|error| self.reply_of(&error))?;
        Ok(count)
    }
}

/// A scan must not push out of the cache what others read.
fn scan_options() -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    options
}
