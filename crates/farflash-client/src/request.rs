//! What a volume can be asked.

use client::Swap;

use crate::{Data, Error, ReadData};

/// A request to a volume. Offsets and lengths are in bytes, and multiples of its block size.
#[derive(Debug)]
pub enum Request {
    /// Reads; answered by [`Reply::Data`].
    Read {
        /// From where.
        offset: u64,
        /// How much.
        len: usize,
    },
    /// Writes; answered by [`Reply::Done`]. Atomic up to [`crate::Properties::atomic_write_bytes`]; more
    /// than [`crate::Properties::transfer_bytes_max`] is several writes.
    Write {
        /// To where.
        offset: u64,
        /// What.
        data: Data,
    },
    /// Makes a range read as zeroes; answered by [`Reply::Done`].
    WriteZeroes {
        /// From where.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// Gives a range's space back, so that it reads as zeroes; answered by [`Reply::Done`].
    Deallocate {
        /// From where.
        offset: u64,
        /// How much.
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
        /// Where.
        offset: u64,
        /// What has to be there.
        expected: Data,
        /// What is to be there.
        data: Data,
    },
}

/// What came of a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// What was read.
    Data(ReadData),
    /// It is done.
    Done,
    /// Whether the data is the same.
    Equal(bool),
    /// Whether the data was replaced.
    Swap(Swap),
}

impl Request {
    /// Offset and length, if it has them.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, len } => Some((*offset, *len as u64)),
            Self::WriteZeroes { offset, len } | Self::Deallocate { offset, len } => {
                Some((*offset, *len))
            }
            Self::Write { offset, data }
            | Self::Compare { offset, data }
            | Self::CompareAndSwap { offset, data, .. } => Some((*offset, data.len() as u64)),
            Self::Flush => None,
        }
    }

    /// What can be said against it without asking anybody.
    pub(crate) fn check(&self, block_size: u32) -> Result<(), Error> {
        if let Self::CompareAndSwap { expected, data, .. } = self
            && expected.len() != data.len()
        {
            let (expected, data) = (expected.len() as u64, data.len() as u64);
            return Err(Error::LengthsDiffer { expected, data });
        }
        let Some((offset, len)) = self.range() else { return Ok(()) };
        let block = u64::from(block_size);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Error::Misaligned { offset, len, block_size });
        }
        Ok(())
    }

    /// The answer to a request for no bytes.
    pub(crate) fn of_nothing(&self) -> Reply {
        match self {
            Self::Read { .. } => Reply::Data(ReadData::default()),
            Self::Compare { .. } => Reply::Equal(true),
            Self::CompareAndSwap { .. } => Reply::Swap(Swap::Done),
            _ => Reply::Done,
        }
    }
}
