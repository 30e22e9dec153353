//! Blocks with their metadata, on their way between threads.

use client::Blocks;

use crate::pieces::Piece;
use crate::{Data, Error, ReadData};

/// Whole blocks to be written or compared, and the metadata of each: what a request takes with it.
#[derive(Debug)]
pub struct BlockData {
    /// The data of all blocks.
    pub data: Data,
    /// The metadata of all blocks, [`crate::Properties::metadata_size`] bytes for each.
    pub metadata: Vec<u8>,
}

impl BlockData {
    /// All of it.
    #[must_use]
    pub fn as_blocks(&self) -> Blocks<'_> {
        Blocks { data: self.data.as_bytes(), metadata: &self.metadata }
    }
}

impl From<Blocks<'_>> for BlockData {
    /// A copy.
    fn from(blocks: Blocks<'_>) -> Self {
        Self { data: blocks.data.into(), metadata: blocks.metadata.to_vec() }
    }
}

/// Room for blocks that are read, and for the metadata of each.
#[derive(Debug)]
pub struct BlocksMut<'a> {
    /// For the data of all blocks.
    pub data: &'a mut [u8],
    /// For the metadata of all blocks, [`crate::Properties::metadata_size`] bytes for each.
    pub metadata: &'a mut [u8],
}

/// Blocks that were read.
#[derive(Debug, Default)]
pub struct ReadBlocks {
    /// The data of all blocks.
    pub data: ReadData,
    /// The metadata of all blocks, [`crate::Properties::metadata_size`] bytes for each.
    pub metadata: Vec<u8>,
}

/// The format of a volume's blocks, which never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) block_size: u32,
    pub(crate) metadata_size: u32,
}

impl Format {
    /// Bytes of metadata that `len` bytes of data have.
    pub(crate) fn metadata_len(self, len: usize) -> usize {
        len / self.block_size as usize * self.metadata_size as usize
    }

    /// Checks that the range is whole blocks, and that its end does not overflow.
    pub(crate) fn check_range(self, offset: u64, len: u64) -> Result<(), Error> {
        let (block_size, block) = (self.block_size, u64::from(self.block_size));
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Error::Misaligned { offset, len, block_size });
        }
        offset.checked_add(len).map_or(Err(Error::OutOfRange { offset, len }), |_| Ok(()))
    }

    /// Checks that blocks can be read and written without their metadata: they have none.
    pub(crate) fn check_has_none(self) -> Result<(), Error> {
        let metadata_size = self.metadata_size;
        if metadata_size == 0 { Ok(()) } else { Err(Error::MetadataLeftOut { metadata_size }) }
    }

    /// Checks that `len` bytes of data are whole blocks, and that `given` is the size of their metadata.
    pub(crate) fn check_metadata(self, len: usize, given: usize) -> Result<(), Error> {
        let (wanted, given) = (self.metadata_len(len) as u64, given as u64);
        match self.metadata_size {
            _ if given == wanted => Ok(()),
            0 => Err(Error::NoMetadata { given }),
            _ => Err(Error::MetadataLength { given, len: len as u64, wanted }),
        }
    }

    /// A piece of `blocks`, whose metadata was checked.
    pub(crate) fn part(self, blocks: Blocks<'_>, piece: Piece) -> Blocks<'_> {
        let (start, len) = (self.metadata_len(piece.at), self.metadata_len(piece.len));
        Blocks {
            data: &blocks.data[piece.at..piece.at + piece.len],
            metadata: &blocks.metadata[start..start + len],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::pieces::pieces;

    #[test]
    fn a_piece_has_the_metadata_of_its_blocks() {
        let format = Format { block_size: 4, metadata_size: 2 };
        let (data, metadata): (Vec<u8>, Vec<u8>) = ((0..20).collect(), (100..110).collect());
        let blocks = BlockData::from(Blocks { data: &data, metadata: &metadata });
        let (mut all_data, mut all_metadata) = (Vec::new(), Vec::new());
        for piece in pieces(400, data.len(), 8) {
            let part = format.part(blocks.as_blocks(), piece);
            assert_eq!(part.metadata.len() * 2, part.data.len());
            all_data.extend_from_slice(part.data);
            all_metadata.extend_from_slice(part.metadata);
        }
        assert_eq!((all_data, all_metadata), (data, metadata));
    }

    #[test]
    fn metadata_that_does_not_fit_is_told_apart() {
        let with = Format { block_size: 4096, metadata_size: 8 };
        let without = Format { metadata_size: 0, ..with };
        assert!(with.check_metadata(8192, 16).is_ok() && without.check_metadata(8192, 0).is_ok());
        assert!(without.check_has_none().is_ok());
        let wrong = Error::MetadataLength { given: 8, len: 8192, wanted: 16 }.to_string();
        for (error, says) in [
            (with.check_metadata(8192, 8), wrong.as_str()),
            (with.check_metadata(8192, 0), "0 bytes of metadata were given"),
            (without.check_metadata(8192, 16), "have no metadata"),
            (with.check_has_none(), "have 8 bytes of metadata each"),
        ] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
