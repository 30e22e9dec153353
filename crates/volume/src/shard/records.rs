//! The journal's records as they lie on the device, in the order of their sequence.
//!
//! A record counts if it is the valid continuation of the one before (REPLAY-1). What the reader finds behind
//! the last one may prove that one is missing. Neither is decided by one read, which may have gone astray.

use std::cmp::Ordering;

use io_traits::{Buffer, Device, DeviceError};
use layout::{COUNT_MAX, DecodeError, RECORD_BLOCKS_MAX, Record, ReplayPoint, Root};
use situations::{Situation, situation, situation_if};
use units::{BLOCK_SIZE, Pba, PbaRange};

use super::Inner;
use crate::OpenError;
use crate::sabotage::{Sabotage, broken, tries};

/// Attempts to read a record before the journal ends there.
const RECORD_READ_TRIES: u32 = 3;
/// `EIO` of Linux.
const EIO: i32 = 5;

/// A record, and where it lies.
pub(super) struct Placed {
    pub(super) pba: Pba,
    pub(super) record: Record,
}

/// Reads the journal record by record.
pub(super) struct Reader<'a, D: Device> {
    pub(super) inner: &'a Inner<D>,
    pub(super) root: &'a Root,
    /// Blocks read ahead, and where in the journal they begin.
    window: Option<(u64, Buffer)>,
    /// Blocks of the window that cannot be read, and are zeroes in it.
    unreadable: Vec<u64>,
    /// Blocks to read at once.
    ahead: u64,
    /// The expected position of the next record.
    pub(super) at: ReplayPoint,
}

impl<'a, D: Device> Reader<'a, D> {
    /// Begins at the root's replay point.
    pub(super) fn new(inner: &'a Inner<D>, root: &'a Root) -> Self {
        let ahead = RECORD_BLOCKS_MAX.into();
        Self { inner, root, window: None, unreadable: Vec::new(), ahead, at: root.replay }
    }

    /// The next record, if there is one (REPLAY-1).
    ///
    /// What does not continue the journal is read again, and no more than the record: where the journal has its end that is
    /// two blocks in vain, or four if the record could lie at the start as well.
    pub(super) async fn next(&mut self) -> Result<Option<Placed>, OpenError> {
        let mut found = self.continuation().await;
        for _ in 1..tries(RECORD_READ_TRIES, Sabotage::RecoverByOneRead) {
            if !matches!(found, Ok(None) | Err(OpenError::Device(DeviceError::Io { .. }))) {
                break;
            }
            self.window = None;
            self.ahead = 1;
            found = self.continuation().await;
            situation_if(Situation::RecordReadAgain, || matches!(found, Ok(Some(_))));
            self.ahead = RECORD_BLOCKS_MAX.into();
        }
        found
    }

    /// The same, of what was read.
    async fn continuation(&mut self) -> Result<Option<Placed>, OpenError> {
        let position = u64::from(self.at.position);
        let mut found = None;
        // Only a record that does not fit before the end lies at the start: otherwise the start,
        // which may be unreadable, is not read.
        let may_wrap = position + u64::from(RECORD_BLOCKS_MAX) > self.root.journal.blocks;
        for start in std::iter::once(position).chain(may_wrap.then_some(0)) {
            if start >= self.root.journal.blocks {
                continue;
            }
            let record = self.record_at(start).await?;
            // What cannot be read may be the record that is wanted.
            if self.unreadable.contains(&start) {
                let range = PbaRange::new(self.root.journal.start.plus(start), 1);
                return Err(DeviceError::Io { range, errno: EIO }.into());
            }
            found = record.filter(|r| self.continues(r)).map(|r| (start, r));
            if found.is_some() {
                break;
            }
        }
        let Some((start, record)) = found else { return Ok(None) };
        if record.head.generation > self.root.generation {
            return Err(self.missing());
        }
        let end = start + u64::from(record.blocks);
        situation_if(Situation::ReplayWraps, || {
            end >= self.root.journal.blocks || start < position
        });
        self.at = ReplayPoint {
            sequence: self.at.sequence + 1,
            position: u32::try_from(end % self.root.journal.blocks).expect("less than 2^32"),
            previous_crc: record.crc,
        };
        Ok(Some(Placed { pba: self.root.journal.start.plus(start), record }))
    }

    fn missing(&self) -> OpenError {
        situation(Situation::RecordIsMissing);
        OpenError::Journal { shard: self.root.shard, sequence: self.at.sequence }
    }

    /// Returns whether the shard made it, and not a tenant (JOURNAL-7).
    fn is_ours(&self, record: &Record) -> bool {
        let head = &record.head;
        let has_secret = self.root.secret == 0 || head.secret == self.root.secret;
        has_secret && head.device == self.root.device && head.shard == self.root.shard
    }

    fn continues(&self, record: &Record) -> bool {
        let follows = record.head.incarnation == self.root.incarnation
            && record.head.previous_crc == self.at.previous_crc;
        self.is_ours(record)
            && record.head.sequence == self.at.sequence
            && (follows || broken(Sabotage::TakeStaleRecord))
    }

    /// The record that begins at block `start` of the journal.
    async fn record_at(&mut self, start: u64) -> Result<Option<Record>, OpenError> {
        let blocks = match self.block_at(start, 1).await? {
            Some(block) => Record::peek_blocks(block),
            None => None,
        };
        let Some(blocks) = blocks else { return Ok(None) };
        let bytes = self.block_at(start, u64::from(blocks)).await?;
        Ok(bytes.and_then(|bytes| Record::decode(bytes).ok()))
    }

    /// `count` blocks of the journal, if they lie before its end.
    async fn block_at(&mut self, start: u64, count: u64) -> Result<Option<&[u8]>, OpenError> {
        let area = self.root.journal;
        if start + count > area.blocks {
            return Ok(None);
        }
        let inside = |(from, buffer): &(u64, Buffer)| {
            start >= *from && start + count <= *from + buffer.len_blocks() as u64
        };
        if !self.window.as_ref().is_some_and(inside) {
            let blocks = self.ahead.max(count).min(area.blocks - start);
            let buffer = Buffer::new(usize::try_from(blocks).expect("at most a record"));
            self.unreadable.clear();
            let buffer = match self.inner.device.read(area.start.plus(start), buffer).await {
                Ok(buffer) => buffer,
                Err(DeviceError::Io { .. }) => self.read_singly(start, blocks).await?,
                Err(error) => return Err(error.into()),
            };
            self.window = Some((start, buffer));
        }
        let (from, buffer) = self.window.as_ref().expect("just read");
        let first = usize::try_from(start - from).expect("inside the window") * BLOCK_SIZE;
        let len = usize::try_from(count).expect("inside the window") * BLOCK_SIZE;
        Ok(Some(&buffer.as_bytes()[first..first + len]))
    }

    /// Reads blocks one by one; those that cannot be read are zeroes.
    async fn read_singly(&mut self, start: u64, blocks: u64) -> Result<Buffer, OpenError> {
        let mut all = Buffer::zeroed(usize::try_from(blocks).expect("at most a record"));
        for (place, at) in all.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).zip(start..) {
            let pba = self.root.journal.start.plus(at);
            match self.inner.device.read(pba, Buffer::new(1)).await {
                Ok(block) => place.copy_from_slice(block.as_bytes()),
                Err(DeviceError::Io { .. }) => self.unreadable.push(at),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// A later record that says so proves that the missing one was there (JOURNAL-3, JOURNAL-6): what follows cannot be
    /// replayed without it.
    pub(super) async fn look_behind(&mut self) -> Result<(), OpenError> {
        self.window = None;
        let blocks = self.root.journal.blocks;
        for step in 0..blocks {
            let start = (u64::from(self.at.position) + step) % blocks;
            let Some(record) = self.record_at(start).await? else { continue };
            let head = &record.head;
            let proof = match head.incarnation.cmp(&self.root.incarnation) {
                Ordering::Less => false,
                Ordering::Equal => head.proves(self.at.sequence),
                Ordering::Greater => true,
            };
            // Or it builds on a newer root, which is gone.
            if self.is_ours(&record) && (proof || head.generation > self.root.generation) {
                return Err(self.missing());
            }
        }
        Ok(())
    }

    /// The highest generation and incarnation of any record, valid or not, or of the root. Behind a
    /// cut the journal starts over above both, so that what is left there is older than all that
    /// follows.
    pub(super) async fn newest(&mut self) -> Result<Newest, OpenError> {
        let Root { generation, incarnation, .. } = *self.root;
        let mut newest = Newest { generation, incarnation };
        for start in 0..self.root.journal.blocks {
            let Some(record) = self.record_at(start).await? else { continue };
            if self.is_ours(&record) {
                if record.head.generation.max(record.head.incarnation) > COUNT_MAX {
                    let pba = self.root.journal.start.plus(start);
                    let error = DecodeError::Field("generation or incarnation");
                    return Err(self.inner.damaged("journal record", pba, error));
                }
                newest.generation = newest.generation.max(record.head.generation);
                newest.incarnation = newest.incarnation.max(record.head.incarnation);
            }
        }
        Ok(newest)
    }
}

/// See [`Reader::newest`].
pub(super) struct Newest {
    pub(super) generation: u64,
    pub(super) incarnation: u64,
}
