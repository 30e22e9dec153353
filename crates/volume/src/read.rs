//! What a read returns.

use io_traits::{Buffer, BufferSlice};
use smallvec::SmallVec;
use units::BLOCK_SIZE;

/// Blocks of zeroes that a thread keeps for reads of unwritten space.
const ZEROES_BLOCKS: usize = 32;

thread_local! {
    static ZEROES: BufferSlice = Buffer::zeroed(ZEROES_BLOCKS).into_slice();
    static ZERO_CRC: u32 = checksum::crc32c(&[0; BLOCK_SIZE]);
}

/// The blocks of a read, in order, with the checksum of each.
///
/// Every block was checked against its checksum, so a data digest can be made of these
/// (`checksum::append_block`) without touching the data.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    /// The data: each piece a whole number of blocks.
    pub pieces: SmallVec<[BufferSlice; 1]>,
    /// CRC-32C of each block.
    pub crcs: SmallVec<[u32; 1]>,
}

impl ReadData {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.crcs.len() * BLOCK_SIZE
    }

    /// All bytes in one piece; copies.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|piece| piece.as_bytes()).copied().collect()
    }

    /// Appends `count` blocks of zeroes, which take no memory of their own.
    pub(crate) fn push_zeroes(&mut self, count: usize) {
        let crc = ZERO_CRC.with(|crc| *crc);
        self.crcs.extend(std::iter::repeat_n(crc, count));
        let mut rest = count;
        while rest > 0 {
            let part = rest.min(ZEROES_BLOCKS);
            self.pieces.push(ZEROES.with(|zeroes| zeroes.blocks(0, part)));
            rest -= part;
        }
    }
}
