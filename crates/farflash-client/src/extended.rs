//! Requests for blocks with their metadata, which wait.

use std::ops::ControlFlow;

use client::{Blocks, Swap};

use crate::pieces::Piece;
use crate::{BlocksMut, Error, ReadBlocks, Reply, Request, Volume};

/// Requests that take and give the metadata of blocks, [`Volume::metadata_size`] bytes for each. On a volume
/// without, it is no bytes; on one with metadata, these are the only requests that read, write or compare.
impl Volume {
    /// Bytes of metadata that each block has beside its data; 0 if it has none.
    #[must_use]
    pub fn metadata_size(&self) -> u32 {
        self.format().metadata_size
    }

    /// Checks that `len` bytes of data are whole blocks that have `metadata_len` bytes of metadata.
    pub fn check_metadata(&self, len: usize, metadata_len: usize) -> Result<(), Error> {
        self.format().check_range(0, len as u64)?;
        self.format().check_metadata(len, metadata_len)
    }

    /// Fills `to` with the blocks at `offset`. Of one that was never written, or was deallocated, data and
    /// metadata are zeroes.
    pub fn read_ex(&self, to: BlocksMut<'_>, offset: u64) -> Result<(), Error> {
        let BlocksMut { data, metadata } = to;
        self.check_metadata(data.len(), metadata.len())?;
        self.read_ex_with(offset, data.len(), |at, read| {
            let at_metadata = self.format().metadata_len(at);
            read.data.copy_to(&mut data[at..at + read.data.len()]);
            metadata[at_metadata..at_metadata + read.metadata.len()]
                .copy_from_slice(&read.metadata);
            ControlFlow::Continue(())
        })
    }

    /// Reads the blocks of `len` bytes of data at `offset`, and hands them to `each` in parts as they come, in
    /// order, with the place of their data from the start. `each` can end it early.
    pub fn read_ex_with(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, &ReadBlocks) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let read = |piece: Piece| Request::ReadEx { offset: piece.offset, len: piece.len };
        self.in_strides(offset, len, read, |at, reply| match reply {
            Reply::Blocks(blocks) => each(at, &blocks),
            other => unreachable!("a read is answered by {other:?}"),
        })
    }

    /// Writes `blocks` to `offset`, as [`Volume::write_at`] does: each block with its metadata, both or
    /// neither. Atomic up to [`crate::Properties::atomic_write_bytes`] of data.
    pub fn write_ex(&self, blocks: Blocks<'_>, offset: u64) -> Result<(), Error> {
        self.check_metadata(blocks.data.len(), blocks.metadata.len())?;
        let write = |piece: Piece| {
            let blocks = self.format().part(blocks, piece).into();
            Request::WriteEx { offset: piece.offset, blocks }
        };
        self.in_strides(offset, blocks.data.len(), write, |_, _| ControlFlow::Continue(()))
    }

    /// Writes `blocks` to `offset`, all or nothing, as [`Volume::write_tx`]: after a power failure all of them are there with
    /// their metadata, or none. More data than [`crate::Properties::atomic_write_bytes`] is refused
    /// ([`Error::TooLarge`]), and nothing of it written.
    pub fn write_tx_ex(&self, blocks: Blocks<'_>, offset: u64) -> Result<(), Error> {
        self.carry_out(Request::WriteTxEx { offset, blocks: blocks.into() }).map(drop)
    }

    /// Returns true if `blocks`, metadata included, are what is at `offset`.
    pub fn compare_ex(&self, blocks: Blocks<'_>, offset: u64) -> Result<bool, Error> {
        match self.carry_out(Request::CompareEx { offset, blocks: blocks.into() })? {
            Reply::Equal(equal) => Ok(equal),
            other => unreachable!("a compare is answered by {other:?}"),
        }
    }

    /// As [`Volume::compare_and_swap`], metadata included. Where the blocks differ is counted as if the
    /// metadata of each came behind its data.
    pub fn compare_and_swap_ex(
        &self,
        offset: u64,
        expected: Blocks<'_>,
        blocks: Blocks<'_>,
    ) -> Result<Swap, Error> {
        let (expected, blocks) = (expected.into(), blocks.into());
        match self.carry_out(Request::CompareAndSwapEx { offset, expected, blocks })? {
            Reply::Swap(swap) => Ok(swap),
            other => unreachable!("a swap is answered by {other:?}"),
        }
    }
}
