//! Requests and their outcomes, as every protocol has them.

use std::ops::Range;

use io_traits::{Buffer, BufferSlice};
use reservation::Access;
use schedule::Direction;
use situations::{Situation, situation};
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize};
use volume::{Blocks, CompareError, Crcs, ReadData, VolumeError, VolumeExtent};

use crate::memory::Share;
use crate::payload::split;

/// Blocks of data that cost as much of the processor as a request: to copy them and take their checksum.
const BLOCKS_PER_UNIT: u64 = 4;

/// The cost on the processor of looking up extents, in units: some leaves of the map.
const EXTENTS_UNITS: u64 = 8;

/// Data that came with a request.
pub struct Payload {
    /// Whole blocks, each followed by its metadata if the volume has some. That of a write may be pinned, where
    /// [`Volume::may_hold_writes`]: if the write has to wait, it takes a copy.
    ///
    /// [`Volume::may_hold_writes`]: volume::Volume::may_hold_writes
    pub data: BufferSlice,
    /// CRC-32C of each block, if it was taken as the data came. Not used for blocks with metadata.
    pub crcs: Option<Crcs>,
    /// Memory that is charged for the data, and for what the request reads.
    pub share: Option<Share>,
}

impl Payload {
    /// Takes a copy of data that lies where it was received, for a request that is to wait.
    pub(crate) fn let_go(&mut self) {
        if self.data.is_pinned() {
            situation(Situation::KeptDataIsCopied);
            self.data = self.data.clone().unpinned();
        }
    }

    /// The blocks, taken apart only if they have metadata.
    pub(crate) fn blocks(&self, metadata: MetadataSize) -> Blocks {
        if metadata.is_none() {
            self.data.clone().into()
        } else {
            split(self.data.as_bytes(), metadata).0
        }
    }
}

/// A request for an export. Its blocks are checked by the engine, so a request that names blocks beyond the end of the
/// volume fails with [`VolumeError::OutOfRange`].
pub enum Request {
    /// Return the blocks.
    Read(LbaRange),
    /// Store the blocks, durably.
    Write {
        /// The blocks.
        range: LbaRange,
        /// As many.
        data: Box<Payload>,
    },
    /// Deallocate the ranges: they read as zeroes from then on.
    Unmap {
        /// The blocks.
        ranges: Vec<LbaRange>,
        /// Memory that is charged for the list.
        share: Option<Share>,
    },
    /// Make the blocks read as zeroes.
    WriteZeroes(LbaRange),
    /// Make every completed write durable.
    Flush,
    /// Compare the blocks with the data.
    Compare {
        /// The blocks.
        range: LbaRange,
        /// As many.
        expected: Box<Payload>,
    },
    /// Compare the blocks with `expected`, and store `data` in their place if they are equal, as one.
    CompareAndWrite {
        /// The blocks.
        range: LbaRange,
        /// As many.
        expected: Box<Payload>,
        /// As many.
        data: Box<Payload>,
    },
    /// Read and check the blocks, return nothing.
    Verify(LbaRange),
    /// Store bytes, durably: what else is in their blocks, and the metadata of these, stays.
    WritePart {
        /// All blocks of which some bytes are stored.
        range: LbaRange,
        /// As many.
        data: Box<PartPayload>,
    },
    /// Compare bytes with the data.
    ComparePart {
        /// All blocks of which some bytes are compared.
        range: LbaRange,
        /// Bytes of the first block before these.
        skip: usize,
        /// The bytes.
        expected: Box<Payload>,
    },
    /// Compare bytes with `expected`, and store `data` in their place if they are equal, as one.
    CompareAndWritePart {
        /// All blocks of which some bytes are compared and stored.
        range: LbaRange,
        /// As many bytes as are stored.
        expected: Box<Payload>,
        /// As many blocks.
        data: Box<PartPayload>,
    },
    /// Deallocate the ranges, and make parts of blocks zeroes: each of these by itself.
    UnmapParts {
        /// The blocks.
        ranges: Vec<LbaRange>,
        /// The parts of other blocks, of which the rest stays.
        ends: Vec<BlockPart>,
        /// Memory that is charged for the list.
        share: Option<Share>,
    },
    /// Return which of the blocks hold data, as far as that is known at once.
    Extents {
        /// The blocks.
        range: LbaRange,
        /// Most extents to return.
        extents_max: usize,
    },
}

/// A part of a block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BlockPart {
    /// The block.
    pub lba: Lba,
    /// The bytes of it.
    pub part: Range<usize>,
}

/// Bytes that came with a request, and that need not be whole blocks.
pub struct PartPayload {
    /// Whole blocks, of which only a part has been filled.
    pub buffer: Buffer,
    /// That part.
    pub part: Range<usize>,
    /// Memory that is charged for the blocks, and for those that are read beside the part.
    pub share: Option<Share>,
}

/// The end of a request.
pub enum Outcome {
    /// It was carried out.
    Done,
    /// The blocks that it reads, and the memory that is charged for them until they were sent.
    Data(ReadData, Share),
    /// The extents of data and holes, from the first block that was asked for on.
    Extents(Vec<VolumeExtent>),
    /// It was not carried out.
    Failed(IoError),
}

/// Why a request was not carried out.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum IoError {
    /// The engine refused or failed it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The contents differ from what was expected. Nothing was changed.
    #[error("contents differ at byte {offset_bytes}")]
    Miscompare {
        /// First byte that differs, counted from the start of the request.
        offset_bytes: u64,
    },
    /// The contents were as expected, and the data that was to take their place could not be written.
    #[error("contents were as expected, but the new data is not written")]
    Write(#[source] VolumeError),
    /// A reservation of another host excludes it. Nothing was changed.
    #[error("reservation conflict")]
    ReservationConflict,
    /// Another host preempted its host, and aborted its commands. Nothing was changed.
    #[error("aborted by a reservation command of another host")]
    Aborted,
}

impl IoError {
    /// The engine's error, unless a comparison found a difference.
    pub(crate) fn volume_error(&self) -> Option<&VolumeError> {
        match self {
            Self::Volume(error) | Self::Write(error) => Some(error),
            Self::Miscompare { .. } | Self::ReservationConflict | Self::Aborted => None,
        }
    }
}

impl From<CompareError> for IoError {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Miscompare { offset_bytes } => Self::Miscompare { offset_bytes },
            CompareError::Volume(error) => Self::Volume(error),
            CompareError::Write(error) => Self::Write(error),
        }
    }
}

/// The cost on the processor of moving so many bytes.
pub(crate) fn units_of_data(len_bytes: u64) -> u32 {
    let blocks = len_bytes / BLOCK_SIZE as u64;
    1 + u32::try_from(blocks / BLOCKS_PER_UNIT).unwrap_or(u32::MAX / 4)
}

impl Request {
    /// The block of a write of one block.
    pub(crate) fn single_write(&self) -> Option<Lba> {
        match self {
            Self::Write { range, .. } if range.blocks == 1 => Some(range.start),
            _ => None,
        }
    }

    /// Its kind, as reservations tell requests apart.
    pub(crate) fn access(&self) -> Access {
        match self {
            Self::Read(_)
            | Self::Verify(_)
            | Self::Compare { .. }
            | Self::ComparePart { .. }
            | Self::Extents { .. } => Access::Read,
            Self::Write { .. }
            | Self::Unmap { .. }
            | Self::WriteZeroes(_)
            | Self::Flush
            | Self::UnmapParts { .. }
            | Self::CompareAndWrite { .. }
            | Self::CompareAndWritePart { .. }
            | Self::WritePart { .. } => Access::Write,
        }
    }

    /// The blocks of its volume that it reads or writes.
    pub(crate) fn blocks(&self) -> Option<(Direction, LbaRange)> {
        match self {
            Self::Read(range)
            | Self::Verify(range)
            | Self::Compare { range, .. }
            | Self::ComparePart { range, .. } => Some((Direction::Read, *range)),
            Self::Write { range, .. }
            | Self::CompareAndWrite { range, .. }
            | Self::CompareAndWritePart { range, .. }
            | Self::WritePart { range, .. } => Some((Direction::Write, *range)),
            Self::Unmap { .. }
            | Self::WriteZeroes(_)
            | Self::Flush
            | Self::UnmapParts { .. }
            | Self::Extents { .. } => None,
        }
    }

    /// Its cost on the processor.
    pub(crate) fn units(&self) -> u32 {
        let blocks = match self {
            Self::Read(range)
            | Self::Verify(range)
            | Self::Write { range, .. }
            | Self::Compare { range, .. }
            | Self::ComparePart { range, .. } => range.blocks,
            // Some are read first.
            Self::CompareAndWrite { range, .. }
            | Self::CompareAndWritePart { range, .. }
            | Self::WritePart { range, .. } => 2 * range.blocks,
            Self::UnmapParts { ranges, ends, .. } => {
                (ranges.len() + ends.len()) as u64 * BLOCKS_PER_UNIT
            }
            Self::Extents { .. } => EXTENTS_UNITS * BLOCKS_PER_UNIT,
            Self::Unmap { ranges, .. } => ranges.len() as u64 * BLOCKS_PER_UNIT,
            Self::WriteZeroes(_) | Self::Flush => 0,
        };
        units_of_data(blocks.saturating_mul(BLOCK_SIZE as u64))
    }

    /// Its cost at the device.
    pub(crate) fn cost(&self) -> Option<(Direction, u64)> {
        match self {
            Self::Read(_)
            | Self::Verify(_)
            | Self::Compare { .. }
            | Self::ComparePart { .. }
            | Self::Write { .. }
            | Self::CompareAndWrite { .. }
            | Self::CompareAndWritePart { .. }
            | Self::WritePart { .. } => {
                self.blocks().map(|(direction, range)| (direction, range.blocks))
            }
            // A record in the journal, however much is deallocated.
            Self::WriteZeroes(_) => Some((Direction::Write, 1)),
            Self::UnmapParts { ranges, ends, .. } => {
                Some((Direction::Write, (ranges.len() + ends.len()).max(1) as u64))
            }
            Self::Unmap { ranges, .. } => Some((Direction::Write, ranges.len().max(1) as u64)),
            // The map is in memory, as a rule.
            Self::Flush | Self::Extents { .. } => None,
        }
    }
}
