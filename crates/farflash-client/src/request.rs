//! Requests to a volume.

use std::sync::Arc;

use client::Swap;
use io_traits::Landing;

use crate::blocks::Format;
use crate::{BlockData, Data, Error, ReadBlocks, ReadData};

/// A request to a volume. Offsets and lengths are in bytes, and multiples of its block size.
///
/// Where blocks have metadata ([`crate::Properties::metadata_size`]), nothing is read, written or compared
/// without it: there the requests on data alone are refused ([`Error::MetadataLeftOut`]), and those that end in
/// `Ex` take their place. Lengths are those of the data; the metadata is as long as so many blocks have.
#[derive(Debug)]
pub enum Request {
    /// Reads; answered by [`Reply::Data`].
    Read {
        /// From where.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// Reads into memory of the caller's, as much as it is long, without a copy in between; answered by
    /// [`Reply::Done`]. If it fails, some of what was to be read may be there.
    ReadTo {
        /// From where.
        offset: u64,
        /// Destination of the data.
        landing: Arc<dyn Landing + Send + Sync>,
    },
    /// Writes; answered by [`Reply::Done`]. Atomic up to [`crate::Properties::atomic_write_bytes`]; more
    /// than [`crate::Properties::transfer_bytes_max`] is several writes.
    Write {
        /// To where.
        offset: u64,
        /// Data to write.
        data: Data,
    },
    /// Writes all or nothing; answered by [`Reply::Done`]. More than
    /// [`crate::Properties::atomic_write_bytes`] is refused ([`Error::TooLarge`]), and nothing of it written.
    WriteTx {
        /// To where.
        offset: u64,
        /// Data to write.
        data: Data,
    },
    /// Makes a range read as zeroes, metadata included; answered by [`Reply::Done`].
    WriteZeroes {
        /// From where.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Gives a range's space back, so that it reads as zeroes, metadata included; answered by
    /// [`Reply::Done`].
    Deallocate {
        /// From where.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Makes all that was written durable; answered by [`Reply::Done`].
    Flush,
    /// Compares; answered by [`Reply::Equal`].
    Compare {
        /// From where.
        offset: u64,
        /// With what.
        data: Data,
    },
    /// Replaces what is there if it is what is expected; answered by [`Reply::Swap`].
    CompareAndSwap {
        /// Offset in bytes.
        offset: u64,
        /// Data that has to be there.
        expected: Data,
        /// Data that replaces it.
        data: Data,
    },
    /// Reads blocks with their metadata; answered by [`Reply::Blocks`].
    ReadEx {
        /// From where.
        offset: u64,
        /// Length of the data in bytes.
        len: usize,
    },
    /// Writes blocks with their metadata, both or neither; answered by [`Reply::Done`]. Atomic as
    /// [`Request::Write`].
    WriteEx {
        /// To where.
        offset: u64,
        /// Blocks to write.
        blocks: BlockData,
    },
    /// Writes blocks with their metadata all or nothing, as [`Request::WriteTx`]; answered by [`Reply::Done`].
    WriteTxEx {
        /// To where.
        offset: u64,
        /// Blocks to write.
        blocks: BlockData,
    },
    /// Compares, metadata included; answered by [`Reply::Equal`].
    CompareEx {
        /// From where.
        offset: u64,
        /// With what.
        blocks: BlockData,
    },
    /// Replaces what is there if it is what is expected, metadata included; answered by [`Reply::Swap`], which
    /// counts as if the metadata of each block came behind its data.
    CompareAndSwapEx {
        /// Offset in bytes.
        offset: u64,
        /// Blocks that have to be there.
        expected: BlockData,
        /// Blocks that replace them.
        blocks: BlockData,
    },
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// The data read.
    Data(ReadData),
    /// The blocks read, with their metadata.
    Blocks(ReadBlocks),
    /// It is done.
    Done,
    /// True if the data is the same.
    Equal(bool),
    /// The outcome of a swap.
    Swap(Swap),
}

impl Request {
    /// Offset and length, if it has them.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len } | Self::ReadEx { offset, len } => {
                Some((*offset, *len as u64))
            }
            Self::ReadTo { offset, landing } => Some((*offset, landing.len_bytes() as u64)),
            Self::WriteZeroes { offset, len } | Self::Deallocate { offset, len } => {
                Some((*offset, *len))
            }
            Self::Write { offset, data }
            | Self::WriteTx { offset, data }
            | Self::Compare { offset, data }
            | Self::CompareAndSwap { offset, data, .. } => Some((*offset, data.len() as u64)),
            Self::WriteEx { offset, blocks }
            | Self::WriteTxEx { offset, blocks }
            | Self::CompareEx { offset, blocks }
            | Self::CompareAndSwapEx { offset, blocks, .. } => {
                Some((*offset, blocks.data.len() as u64))
            }
            Self::Flush => None,
        }
    }

    /// Checks the request as far as that needs no answer from the target.
    pub(crate) fn check(&self, format: Format) -> Result<(), Error> {
        match self {
            Self::CompareAndSwap { expected, data, .. } => check_lengths(expected, data)?,
            Self::CompareAndSwapEx { expected, blocks, .. } => {
                check_lengths(&expected.data, &blocks.data)?;
            }
            _ => {}
        }
        if let Some((offset, len)) = self.range() {
            format.check_range(offset, len)?;
        }
        let check =
            |blocks: &BlockData| format.check_metadata(blocks.data.len(), blocks.metadata.len());
        match self {
            Self::Read { .. }
            | Self::ReadTo { .. }
            | Self::Write { .. }
            | Self::WriteTx { .. }
            | Self::Compare { .. }
            | Self::CompareAndSwap { .. } => format.check_has_none(),
            Self::WriteEx { blocks, .. }
            | Self::WriteTxEx { blocks, .. }
            | Self::CompareEx { blocks, .. } => check(blocks),
            Self::CompareAndSwapEx { expected, blocks, .. } => {
                check(expected).and_then(|()| check(blocks))
            }
            Self::ReadEx { .. }
            | Self::WriteZeroes { .. }
            | Self::Deallocate { .. }
            | Self::Flush => Ok(()),
        }
    }

    /// The answer to a request for no bytes.
    pub(crate) fn of_nothing(&self) -> Reply {
        match self {
            Self::Read { .. } => Reply::Data(ReadData::default()),
            Self::ReadEx { .. } => Reply::Blocks(ReadBlocks::default()),
            Self::Compare { .. } | Self::CompareEx { .. } => Reply::Equal(true),
            Self::CompareAndSwap { .. } | Self::CompareAndSwapEx { .. } => Reply::Swap(Swap::Done),
            _ => Reply::Done,
        }
    }
}

/// Checks that the expected data and its replacement are equally long.
fn check_lengths(expected: &Data, data: &Data) -> Result<(), Error> {
    let (expected, data) = (expected.len() as u64, data.len() as u64);
    if expected == data { Ok(()) } else { Err(Error::LengthsDiffer { expected, data }) }
}
