//! What a start builds on, made durable before it writes anything else.
//!
//! A process that ended, or a flush that failed, may leave on the device what reads see and the next power cut takes back: the
//! newest root, records that no later one calls settled, and their data. A start takes all of it for there.
//! - W1: it is durable before anything is written where the root before, or the state before such a record, has something.
//! - W2: nothing changes by it. Records and data are written once more as they were read, if they are what they should be, and
//!   the root follows under the next generation: so the newest one stays as it is until then.
//! - W3: a block that is refused, or cannot be read, stays as it is: others are not kept back by it. The root has to be written.

use io_traits::{Buffer, Device, DeviceError};
use layout::{Entry, Record, Root};
use units::{BLOCK_SIZE, PbaRange};

use super::Inner;
use super::checkpoint::CheckpointError;
use super::records::Placed;

/// Attempts to read what is to be written once more.
const READ_TRIES: u32 = 3;

/// What a shard was read back from, and no flush is known to cover.
pub(super) struct Unproven {
    root: Root,
    /// Where they lie, and their checksums.
    records: Vec<(PbaRange, u32)>,
    /// Runs of data, with the checksum of each block.
    data: Vec<(PbaRange, Vec<u32>)>,
}

impl Unproven {
    /// The newest root, and the records behind it that none calls settled.
    pub(super) fn of(root: &Root, unsettled: &[Placed]) -> Self {
        let (mut records, mut data) = (Vec::new(), Vec::new());
        for Placed { pba, record } in unsettled {
            records.push((PbaRange::new(*pba, record.blocks.into()), record.crc));
            for entry in &record.entries {
                let Entry::Write { trusted: false, runs, crcs, .. } = entry else { continue };
                let mut crcs = &crcs[..];
                for run in runs.iter() {
                    let blocks = usize::try_from(run.blocks).unwrap_or(usize::MAX);
                    let Some((of_run, others)) = crcs.split_at_checked(blocks) else { break };
                    crcs = others;
                    data.push((*run, of_run.to_vec()));
                }
            }
        }
        Self { root: *root, records, data }
    }
}

impl<D: Device> Inner<D> {
    /// Makes durable what the shard was read back from (W1).
    pub(super) async fn confirm(&self) -> Result<(), CheckpointError> {
        let unproven = self.unproven.take().filter(|_| self.volatile);
        let Some(Unproven { root, records, data }) = unproven else { return Ok(()) };
        for (range, crc) in records {
            let is_meant = |bytes: &[u8]| Record::decode(bytes).is_ok_and(|it| it.crc == crc);
            self.write_as_read(range, is_meant).await?;
        }
        for (run, crcs) in data {
            let is_meant = |bytes: &[u8]| {
                bytes.chunks_exact(BLOCK_SIZE).map(checksum::crc32c).eq(crcs.iter().copied())
            };
            // What nobody replays may lie anywhere.
            if self.pool.borrow().contains(run) {
                self.write_as_read(run, is_meant).await?;
            }
        }
        let generation = self.tables.borrow().generation + 1;
        self.write_root(&Root { generation, ..root }).await?;
        self.tables.borrow_mut().generation = generation;
        self.generation.set(generation);
        Ok(())
    }

    /// Writes blocks once more, if they are what is meant (W2, W3).
    async fn write_as_read(
        &self,
        range: PbaRange,
        is_meant: impl Fn(&[u8]) -> bool,
    ) -> Result<(), DeviceError> {
        let blocks = usize::try_from(range.blocks).expect("bounded by one write");
        for _ in 0..READ_TRIES {
            let buffer = match self.device.read(range.start, Buffer::new(blocks)).await {
                Ok(buffer) if is_meant(buffer.as_bytes()) => buffer,
                Ok(_) | Err(DeviceError::Io { .. }) => continue,
                Err(error) => return Err(error),
            };
            return match self.device.write(range.start, buffer.into_slice()).await {
                Ok(()) | Err(DeviceError::Io { .. } | DeviceError::NoSpace { .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        Ok(())
    }
}
