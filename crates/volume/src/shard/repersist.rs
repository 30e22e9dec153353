//! Makes the recovered state durable before a start writes anything else.
//!
//! After a crash or a failed flush the device may hold data that is visible but not durable: the
//! newest root, records that no later one calls settled, and their data. A start takes all of it
//! for there.
//! - REPERSIST-1: it is durable before anything is written where the root before, or the state
//!   before such a record, has something.
//! - REPERSIST-2: nothing changes by it. All is written once more as it was read, if it is what it
//!   should be; the root last, and one copy after the other (CHECKPOINT-6).
//! - REPERSIST-3: a block that is refused, or cannot be read, stays as it is: others are not kept
//!   back by it. The root has to be written.
//! - REPERSIST-5: all shards of a device are confirmed before one is started. The newest root of
//!   one may have given back an extent that the root before has: the shard that takes it must not
//!   become durable before the former root.
//! - REPERSIST-4: at most [`REQUESTS_AT_ONCE`] requests for [`BLOCKS_AT_ONCE`] blocks, or one for
//!   more, are under way at a time. So it is where data is compared, too (REPLAY-2).

use io_traits::{Buffer, Device, DeviceError};
use layout::{Entry, Record, Root};
use situations::{Phase, Situation, during, situation_if};
use units::{BLOCK_SIZE, PbaRange};

use super::Inner;
use super::checkpoint::CheckpointError;
use super::records::Placed;
use crate::io::join_all;
use crate::sabotage::{Sabotage, broken};

/// Attempts to read what is to be written once more.
const READ_TRIES: u32 = 3;
/// Bounds of what is read or written at the same time (REPERSIST-4): 4 MiB.
const REQUESTS_AT_ONCE: usize = 32;
const BLOCKS_AT_ONCE: u64 = 1024;

/// Recovered state that no flush is known to cover.
pub(super) struct Unflushed {
    root: Root,
    pieces: Vec<Piece>,
}

/// Blocks of the journal or of a tenant.
struct Piece {
    range: PbaRange,
    meant: Meant,
}

/// The expected content.
enum Meant {
    /// A record with this checksum.
    Record(u32),
    /// Data with the checksum of each block.
    Data(Vec<u32>),
}

impl Unflushed {
    /// The newest root, and the records behind it that none calls settled.
    pub(super) fn of(root: &Root, unsettled: &[Placed]) -> Self {
        let mut pieces = Vec::new();
        for Placed { pba, record } in unsettled {
            let range = PbaRange::new(*pba, record.blocks.into());
            pieces.push(Piece { range, meant: Meant::Record(record.crc) });
            for entry in &record.entries {
                let Entry::Write { trusted: false, runs, crcs, .. } = entry else { continue };
                let mut crcs = &crcs[..];
                for run in runs.iter() {
                    let blocks = usize::try_from(run.blocks).unwrap_or(usize::MAX);
                    let Some((of_run, others)) = crcs.split_at_checked(blocks) else { break };
                    crcs = others;
                    pieces.push(Piece { range: *run, meant: Meant::Data(of_run.to_vec()) });
                }
            }
        }
        Self { root: *root, pieces }
    }
}

impl Piece {
    fn is_meant(&self, bytes: &[u8]) -> bool {
        match &self.meant {
            Meant::Record(crc) => Record::decode(bytes).is_ok_and(|record| record.crc == *crc),
            Meant::Data(crcs) => {
                let found = bytes.chunks_exact(BLOCK_SIZE).map(checksum::crc32c);
                found.eq(crcs.iter().copied())
            }
        }
    }
}

/// Returns how many of the next requests, of so many blocks each, are made at the same time
/// (REPERSIST-4).
pub(super) fn at_once(blocks: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0;
    let fits = blocks.take(REQUESTS_AT_ONCE).take_while(|blocks| {
        sum += blocks;
        sum <= BLOCKS_AT_ONCE
    });
    fits.count().max(1)
}

impl<D: Device> Inner<D> {
    /// Returns whether the shard was recovered from state that no flush is known to cover.
    pub(super) fn is_unflushed(&self) -> bool {
        self.volatile && self.read_back.is_unflushed()
    }

    /// Makes durable what the shard was read back from (REPERSIST-1), unless that was done.
    pub(super) async fn repersist(&self) -> Result<(), CheckpointError> {
        let unflushed = self.read_back.take_unflushed().filter(|_| self.volatile);
        let Some(unflushed) = unflushed.filter(|_| !broken(Sabotage::BuildOnUnflushed)) else {
            return Ok(());
        };
        let _confirming = during(Phase::Confirmation);
        let confirmed = self.write_as_it_was(&unflushed).await;
        situation_if(Situation::ConfirmationFails, || confirmed.is_err());
        if confirmed.is_err() {
            self.read_back.set_unflushed(Some(unflushed));
        }
        confirmed
    }

    async fn write_as_it_was(&self, unflushed: &Unflushed) -> Result<(), CheckpointError> {
        // Data that is not replayed may lie anywhere.
        let is_here = |piece: &&Piece| match piece.meant {
            Meant::Record(_) => true,
            Meant::Data(_) => self.pool.borrow().contains(piece.range),
        };
        let pieces: Vec<&Piece> = unflushed.pieces.iter().filter(is_here).collect();
        let is_data = |piece: &&Piece| matches!(piece.meant, Meant::Data(_));
        situation_if(Situation::DataMadeDurableOnceMore, || pieces.iter().any(is_data));
        let mut left = &pieces[..];
        while !left.is_empty() {
            let (chunk, others) =
                left.split_at(at_once(left.iter().map(|piece| piece.range.blocks)));
            let written = join_all(chunk.iter().map(|piece| self.write_as_read(piece))).await;
            written.into_iter().collect::<Result<(), _>>()?;
            left = others;
        }
        self.write_root_singly(&unflushed.root).await
    }

    /// Writes blocks once more, if they are what is meant (REPERSIST-2, REPERSIST-3).
    async fn write_as_read(&self, piece: &Piece) -> Result<(), DeviceError> {
        let range = piece.range;
        let blocks = usize::try_from(range.blocks).expect("bounded by one write");
        for _ in 0..READ_TRIES {
            let buffer = match self.device.read(range.start, Buffer::new(blocks)).await {
                Ok(buffer) if piece.is_meant(buffer.as_bytes()) => buffer,
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
