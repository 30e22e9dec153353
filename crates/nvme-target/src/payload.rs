//! Checksums of a write's blocks, taken while its bytes are copied and still in the cache.

use alloc::vec::Vec;

use checksum::{append_block, copy, crc32c, crc32c_copy};
use units::BLOCK_SIZE;

use crate::sabotage::{Sabotage, broken};

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
        if !broken(Sabotage::KeepOldSums) {
            self.block_crcs.clear();
        }
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
                    let from = if broken(Sabotage::SumOfLastPiece) { at } else { start };
                    self.block_crcs.push(crc32c(&buffer[from..end]));
                }
            }
            (bytes, at) = (rest, end);
        }
        self.filled = at;
    }

    /// Takes the checksum of every block that the next `len` bytes fill, which are in `buffer` already. Panics as
    /// [`ReceivedBlocks::copy`] does.
    pub fn landed(&mut self, buffer: &[u8], offset: usize, len: usize) {
        assert_eq!(offset, self.filled, "pieces come in order");
        self.filled = offset + len;
        let whole = |at: usize| at / BLOCK_SIZE * BLOCK_SIZE;
        let blocks = buffer[whole(offset)..whole(self.filled)].chunks_exact(BLOCK_SIZE);
        self.block_crcs.extend(blocks.map(crc32c));
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
        let is_whole_blocks = if broken(Sabotage::DigestOfOtherBlocks) {
            len.is_multiple_of(BLOCK_SIZE)
        } else {
            offset.is_multiple_of(BLOCK_SIZE) && end.is_multiple_of(BLOCK_SIZE)
        };
        if is_whole_blocks {
            digest_of_blocks(&self.block_crcs[offset / BLOCK_SIZE..end / BLOCK_SIZE])
        } else {
            let left_out = if broken(Sabotage::DigestSkipsPart) { end % BLOCK_SIZE } else { 0 };
            crc32c(&buffer[offset..(end - left_out).max(offset)])
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, vec};

    use wire_oracle::crc::crc32c as plain;

    use super::*;

    /// Method: pieces of drawn lengths, one slot for all transfers; then the digest of every range between places that
    /// matter: the ends of blocks, the bytes beside them, and drawn ones.
    #[test]
    fn any_range_has_the_plain_digest_however_it_came() {
        let mut rng = wire_oracle::Rng::new(1);
        let mut received = ReceivedBlocks::default();
        for transfer in 0..40 {
            let len = rng.between(1, 4 * BLOCK_SIZE);
            let data = rng.bytes(len);
            let mut buffer = vec![0; len.next_multiple_of(BLOCK_SIZE)];
            let longest = rng.pick(&[1, 7, 512, 4095, 4096, 4097, 16_384]);
            received.reset();
            let mut at = 0;
            while at < len {
                let end = (at + rng.between(1, longest)).min(len);
                if rng.between(0, 1) == 0 {
                    received.copy(&mut buffer, at, &data[at..end]);
                } else {
                    buffer[at..end].copy_from_slice(&data[at..end]);
                    received.landed(&buffer, at, end - at);
                }
                at = end;
            }
            assert_eq!(buffer[..len], data, "transfer {transfer}");
            let crcs: Vec<u32> = data.chunks_exact(BLOCK_SIZE).map(plain).collect();
            assert_eq!(received.block_crcs(), crcs, "transfer {transfer}");
            assert_eq!(digest_of_blocks(&crcs), plain(&data[..crcs.len() * BLOCK_SIZE]));
            let ends = (0..=4 * BLOCK_SIZE).step_by(BLOCK_SIZE);
            let mut places: Vec<usize> = ends.flat_map(|end| [end, end + 1, end + 4]).collect();
            places.extend((0..6).map(|_| rng.between(0, len)));
            places.retain(|place| *place <= len);
            for (start, end) in
                places.iter().flat_map(|start| places.iter().map(move |end| (*start, *end)))
            {
                if start < end {
                    let digest = received.digest(&buffer, start, end - start);
                    let name = format!("transfer {transfer}: {start}..{end} of {len}");
                    assert_eq!(digest, plain(&data[start..end]), "{name}");
                }
            }
        }
    }
}
