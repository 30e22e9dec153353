//! Requests that write.
//!
//! Writes that read nothing before are collected and written together: those of a pipeline cost one write to the
//! log. They share the locks of their keys. A request that reads before it writes (`DEL`, `APPEND`, `SET` with
//! options) has the locks of its keys alone, so that no write comes in between.

use std::borrow::Cow;

use datastore::{Condition, SetMode, Write, appended_len, parse_write};
use resp::{Protocol, Reply, Request};
use rocksdb::WriteBatch;

use super::reads::Room;
use super::stats::Stats;
use super::store::Store;

/// Bytes that are written together at most.
const BATCH_BYTES_MAX: usize = 1 << 20;

type Refused = Cow<'static, str>;

/// Writes that are not written yet.
#[derive(Default)]
struct Collected {
    batch: WriteBatch,
    stripes: Vec<usize>,
    requests: u64,
}

impl Store {
    /// Appends the replies to requests that write.
    pub(crate) fn write(
        &self,
        requests: &[Request],
        protocol: Protocol,
        room: &mut Room<'_>,
        stats: &Stats,
    ) {
        let value_max = usize::try_from(self.serve.value_max.0).unwrap_or(usize::MAX);
        let mut collected = Collected::default();
        for request in requests {
            match parse_write(request, value_max) {
                Ok(Write::Set { key, value, condition: None, returns_old: false }) => {
                    self.put(&mut collected, key, value);
                }
                Ok(Write::MSet(pairs)) => {
                    for (key, value) in pairs {
                        collected.stripes.push(self.stripe(key));
                        collected.batch.put(key, value);
                    }
                    collected.requests += 1;
                }
                other => {
                    self.flush(&mut collected, protocol, room, stats);
                    let done = match other {
                        Ok(write) => self.read_and_write(&write, protocol, room),
                        Err(error) => Err(Cow::Owned(error.to_string())),
                    };
                    if let Err(error) = done {
                        stats.errors.add(1);
                        Reply::new(room.out, protocol).error(&error);
                    }
                }
            }
            if collected.batch.size_in_bytes() >= BATCH_BYTES_MAX {
                self.flush(&mut collected, protocol, room, stats);
            }
        }
        self.flush(&mut collected, protocol, room, stats);
    }

    fn put(&self, collected: &mut Collected, key: &[u8], value: &[u8]) {
        collected.stripes.push(self.stripe(key));
        match self.serve.set {
            SetMode::Replace => collected.batch.put(key, value),
            SetMode::Append => collected.batch.merge(key, value),
        }
        collected.requests += 1;
    }

    /// Writes what was collected, and replies to all of it.
    fn flush(
        &self,
        collected: &mut Collected,
        protocol: Protocol,
        room: &mut Room<'_>,
        stats: &Stats,
    ) {
        let Collected { batch, mut stripes, requests } = std::mem::take(collected);
        if requests == 0 {
            return;
        }
        // In order, so that no two threads wait for each other.
        stripes.sort_unstable();
        stripes.dedup();
        let locks: Vec<_> = stripes.iter().map(|stripe| self.stripes[*stripe].read()).collect();
        let written =
            self.db.write_opt(batch, &self.write_options()).map_err(|error| self.reply_of(&error));
        drop(locks);
        let mut reply = Reply::new(room.out, protocol);
        for _ in 0..requests {
            match &written {
                Ok(()) => reply.status("OK"),
                Err(error) => {
                    stats.errors.add(1);
                    reply.error(error);
                }
            }
        }
    }

    fn read_and_write(
        &self,
        write: &Write<'_>,
        protocol: Protocol,
        room: &mut Room<'_>,
    ) -> Result<(), Refused> {
        match write {
            Write::Set { key, value, condition, returns_old } => {
                let _lock = self.stripes[self.stripe(key)].write();
                let old = self.db.get_pinned(key).map_err(|error| self.reply_of(&error))?;
                let wanted = condition
                    .is_none_or(|condition| (condition == Condition::Present) == old.is_some());
                if *returns_old && !room.reserve(old.as_ref().map_or(0, |old| old.len())) {
                    return Err("NOMEMORY the value before does not fit into --request-memory; nothing was set".into());
                }
                if wanted {
                    self.set(key, value)?;
                }
                let mut reply = Reply::new(room.out, protocol);
                match old {
                    Some(old) if *returns_old => reply.bulk(&old),
                    None if *returns_old => reply.null(),
                    _ if wanted => reply.status("OK"),
                    _ => reply.null(),
                }
            }
            Write::Del(keys) => {
                let count = self.delete(keys)?;
                Reply::new(room.out, protocol).integer(count);
            }
            Write::Append { key, value } => {
                let len = self.append(key, value)?;
                Reply::new(room.out, protocol).integer(len);
            }
            // Collected by the caller.
            Write::MSet(_) => {}
        }
        Ok(())
    }

    fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        let options = self.write_options();
        let written = match self.serve.set {
            SetMode::Replace => self.db.put_opt(key, value, &options),
            SetMode::Append => self.db.merge_opt(key, value, &options),
        };
        written.map_err(|error| self.reply_of(&error))
    }

    /// Deletes keys, all or none, and returns the number of those that existed.
    fn delete(&self, keys: &[&[u8]]) -> Result<i64, Refused> {
        let mut stripes: Vec<usize> = keys.iter().map(|key| self.stripe(key)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let _locks: Vec<_> = stripes.iter().map(|stripe| self.stripes[*stripe].write()).collect();
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let (mut batch, mut count) = (WriteBatch::default(), 0);
        for key in keys {
            if self.db.get_pinned(key).map_err(|error| self.reply_of(&error))?.is_some() {
                batch.delete(key);
                count += 1;
            }
        }
        if count > 0 {
            self.db
                .write_opt(batch, &self.write_options())
                .map_err(|error| self.reply_of(&error))?;
        }
        Ok(count)
    }

    /// Appends to a value by a merge, and returns its new length.
    fn append(&self, key: &[u8], value: &[u8]) -> Result<i64, Refused> {
        let len_max = usize::try_from(self.serve.append_max.0).unwrap_or(usize::MAX);
        let _lock = self.stripes[self.stripe(key)].write();
        let len = self
            .db
            .get_pinned(key)
            .map_err(|error| self.reply_of(&error))?
            .map_or(0, |value| value.len());
        let all = appended_len(len, value.len(), len_max).ok_or_else(|| {
            format!(
                "ERR the value would have {} bytes, the limit is {len_max} (--append-max)",
                len + value.len()
            )
        })?;
        self.db
            .merge_opt(key, value, &self.write_options())
            .map_err(|error| self.reply_of(&error))?;
        Ok(all as i64)
    }
}
