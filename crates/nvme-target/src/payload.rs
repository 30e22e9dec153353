//! Checksums of a write's blocks, taken while its bytes are copied and still in the cache.

use alloc::vec::Vec;

use checksum::{append_block, copy, crc32c, crc32c_copy};
use units::BLOCK_SIZE;

/// CRC-32C of consecutive blocks from the CRC-32C of each: the data digest of a PDU that carries
/// them.
#[must_use]
pub fn digest_of_blocks(block_crcs: &[u32]) -> u32 {
    match block_crcs.split_first() {
        None => crc32c(&[]),
        Some((first, rest)) => rest.iter().fold(*first, |sum, block| append_block(sum, *block)),
    }
}

/// Data that arrives in pieces of any length, in order from offset 0, as a [`crate::Connection`]
/// hands it out. Meant to be kept and reused: it allocates only while it has not yet seen a
/// transfer as long.
#[derive(Debug, Default)]
pub struct ReceivedBlocks {
    filled: usize,
    block_crcs: Vec<u32>,
}

impl ReceivedBlocks {
    /// Forgets the last transfer.
    pub fn reset(&mut self) {
        self.filled = 0;
        self.block_crcs.clear();
    }

    /// Copies `bytes` to `offset` of `buffer` and takes the checksum of every block that this
    /// fills. Panics if `offset` does not continue where the last piece ended, or if `buffer` is
    /// too short: both are promises of the connection and its driver, not of the host.
    pub fn copy(&mut self, buffer: &mut [u8], offset: usize, bytes: &[u8]) {
        assert_eq!(offset, self.filled, "pieces come in order");
        let (mut bytes, mut at) = (bytes, offset);
        while !bytes.is_empty() {
            let start = at / BLOCK_SIZE * BLOCK_SIZE;
            let (piece, rest) = bytes.split_at(bytes.len().min(start + BLOCK_SIZE - at));
            let target = &mut buffer[at..at + piece.len()];
            let end = at + piece.len();
            if piece.len() == BLOCK_SIZE {
                self.block_crcs.push(crc32c_copy(piece, target));
            } else {
                copy(piece, target);
                if end == start + BLOCK_SIZE {
                    self.block_crcs.push(crc32c(&buffer[start..end]));
                }
            }
            (bytes, at) = (rest, end);
        }
        self.filled = at;
    }

    /// The checksum of each whole block so far.
    #[must_use]
    pub fn block_crcs(&self) -> &[u32] {
        &self.block_crcs
    }

    /// CRC-32C of bytes `offset..offset + len` of `buffer`, which have been copied: from the block
    /// checksums if the range is whole blocks, else from the bytes.
    #[must_use]
    pub fn digest(&self, buffer: &[u8], offset: usize, len: usize) -> u32 {
        let end = offset + len;
        if offset.is_multiple_of(BLOCK_SIZE) && end.is_multiple_of(BLOCK_SIZE) {
            digest_of_blocks(&self.block_crcs[offset / BLOCK_SIZE..end / BLOCK_SIZE])
        } else {
            crc32c(&buffer[offset..end])
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn pieces_of_any_length_give_the_same_checksums() {
        let data: Vec<u8> = (0..3 * BLOCK_SIZE).map(|i| (i / 3) as u8).collect();
        for piece in [1, 7, 4095, 4096, 5000, 12_288] {
            let mut buffer = vec![0; data.len()];
            let mut received = ReceivedBlocks::default();
            for (n, bytes) in data.chunks(piece).enumerate() {
                received.copy(&mut buffer, n * piece, bytes);
            }
            assert_eq!(buffer, data);
            let crcs: Vec<u32> = data.chunks(BLOCK_SIZE).map(crc32c).collect();
            assert_eq!(received.block_crcs(), crcs);
            assert_eq!(received.digest(&buffer, 0, data.len()), crc32c(&data));
            assert_eq!(received.digest(&buffer, 4096, 8192), crc32c(&data[4096..]));
            assert_eq!(received.digest(&buffer, 100, 50), crc32c(&data[100..150]));
        }
    }
}
