//! Blocks with metadata: apart for the application, one behind the other on the wire (extended LBA).

use io_traits::{Buffer, BufferSlice, World};
use nvme_wire::IoOpcode;
use nvme_wire::io::BlockCommand;
use units::Lba;

use crate::requests::Body;
use crate::{Error, Swap, Volume};

/// Whole blocks, and the metadata of each.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// The data of all blocks.
    pub data: &'a [u8],
    /// The metadata of all blocks, [`Volume::metadata_size`] bytes for each.
    pub metadata: &'a [u8],
}

/// Blocks that were read.
#[derive(Debug)]
pub struct BlocksRead {
    /// The data of all blocks. Should it not fill whole buffer blocks of 4 KiB, zeroes follow.
    pub data: Buffer,
    /// The metadata of all blocks, [`Volume::metadata_size`] bytes for each.
    pub metadata: Vec<u8>,
}

/// Requests that take and give the metadata of blocks. On a volume without, it is no bytes.
impl<W: World> Volume<W> {
    /// Reads `blocks` blocks from `lba` with their metadata. Of a block that was never written, or was
    /// deallocated, both are zeroes.
    pub async fn read_ex(&self, lba: Lba, blocks: u32) -> Result<BlocksRead, Error> {
        let data_len = self.transfer_len(u64::from(blocks))? as usize;
        let len = self.wire_len(blocks)?;
        let sqe = self.block_command(IoOpcode::READ, BlockCommand::new(lba.0, blocks));
        let completion = self.run(IoOpcode::READ, sqe, Body::to_host(len)).await?;
        let received = completion.buffer.expect("a read has a buffer");
        let (block, each) = (self.block_size() as usize, self.metadata_size() as usize);
        let mut data = Buffer::zeroed(data_len.div_ceil(units::BLOCK_SIZE));
        let mut metadata = Vec::with_capacity(blocks as usize * each);
        let targets = data.as_mut_bytes().chunks_exact_mut(block);
        for (target, found) in targets.zip(received.as_bytes()[..len as usize].chunks(block + each))
        {
            let (of_data, of_metadata) = found.split_at(block);
            target.copy_from_slice(of_data);
            metadata.extend_from_slice(of_metadata);
        }
        Ok(BlocksRead { data, metadata })
    }

    /// Writes blocks and their metadata to `lba`, as [`Volume::write`] does: both or neither.
    pub async fn write_ex(&self, lba: Lba, blocks: Blocks<'_>) -> Result<(), Error> {
        let (count, bytes) = self.interleave([blocks])?;
        let sqe = self.block_command(IoOpcode::WRITE, BlockCommand::new(lba.0, count));
        self.run(IoOpcode::WRITE, sqe, Body::ToController(bytes)).await?;
        Ok(())
    }

    /// Like [`Volume::write_ex`], all or nothing, as [`Volume::write_tx`]: more than [`Volume::atomic_write_blocks`] is
    /// refused ([`Error::NotAtomic`]), and nothing of it written.
    pub async fn write_tx_ex(&self, lba: Lba, blocks: Blocks<'_>) -> Result<(), Error> {
        self.must_be_atomic(blocks.data.len())?;
        self.write_ex(lba, blocks).await
    }

    /// Returns true if the blocks from `lba` hold these, metadata included.
    pub async fn compare_ex(&self, lba: Lba, blocks: Blocks<'_>) -> Result<bool, Error> {
        let (count, bytes) = self.interleave([blocks])?;
        self.compare_command(lba, count, Body::ToController(bytes)).await
    }

    /// As [`Volume::compare_and_swap`], metadata included. Where the blocks differ is counted as if the
    /// metadata of each came behind its data.
    pub async fn compare_and_swap_ex(
        &self,
        lba: Lba,
        expected: Blocks<'_>,
        blocks: Blocks<'_>,
    ) -> Result<Swap, Error> {
        if expected.data.len() != blocks.data.len() {
            let (len_bytes, block_bytes) = (expected.data.len() as u64, self.block_size());
            return Err(Error::NotWholeBlocks { len_bytes, block_bytes });
        }
        let (count, both) = self.interleave([expected, blocks])?;
        self.swap_command(lba, count, Body::ToController(both)).await
    }

    /// Bytes of `blocks` blocks as they are transferred.
    fn wire_len(&self, blocks: u32) -> Result<u32, Error> {
        let len = u64::from(blocks) * u64::from(self.block_size() + self.metadata_size());
        let limit = u64::from(self.max_transfer_blocks());
        u32::try_from(len).map_err(|_| Error::TooLarge { blocks: blocks.into(), limit })
    }

    /// Returns the number of blocks of each of `parts`, and the bytes of all of them as they are transferred.
    fn interleave<const N: usize>(
        &self,
        parts: [Blocks<'_>; N],
    ) -> Result<(u32, BufferSlice), Error> {
        let (mut count, mut len) = (0, 0);
        for blocks in parts {
            count = self.blocks_in(blocks.data.len())?;
            self.must_have_metadata(count, blocks.metadata.len() as u64)?;
            len += self.wire_len(count)? as usize;
        }
        let (block, each) = (self.block_size() as usize, self.metadata_size() as usize);
        let mut buffer = Buffer::new(len.div_ceil(units::BLOCK_SIZE));
        let (bytes, padding) = buffer.as_mut_bytes().split_at_mut(len);
        padding.fill(0);
        let mut places = bytes.chunks_exact_mut(block + each);
        for blocks in parts {
            let datas = blocks.data.chunks_exact(block).enumerate();
            for ((at, data), place) in datas.zip(&mut places) {
                let (of_data, of_metadata) = place.split_at_mut(block);
                of_data.copy_from_slice(data);
                of_metadata.copy_from_slice(&blocks.metadata[at * each..][..each]);
            }
        }
        Ok((count, buffer.into_slice().slice(0..len)))
    }
}
