//! Memory that the server puts the data of writes into.

use std::hint::black_box;

use anyhow::{Result, ensure};
use checksum::{Crc32c, copy_to_memory};

use super::COMMAND_BYTES;
use super::outgoing::scramble;

/// Memory that is written over and over.
const WARM_BYTES: usize = 1 << 30;
/// Memory for first writes: more than a measurement fills.
const FRESH_BYTES: usize = 8 << 30;
/// Bytes under one checksum.
const BLOCK_BYTES: usize = 4096;

/// The data of a server's requests, stored: the checksum of each block is computed, and the block is copied to its place.
pub(super) struct Stored {
    memory: Vec<u8>,
    /// No place is written twice (NULL-9).
    is_fresh: bool,
    data_bytes: usize,
    /// Requests that have come, and the bytes of the one under way.
    requests: u64,
    phase: usize,
    block: Crc32c,
}

impl Stored {
    /// Memory for requests of `data_bytes`, a whole number of blocks. That for first writes is not touched yet.
    pub(super) fn new(data_bytes: usize, is_fresh: bool) -> Result<Self> {
        ensure!(data_bytes.is_multiple_of(BLOCK_BYTES), "data is stored in blocks of 4 KiB");
        let memory = match is_fresh {
            true => vec![0; FRESH_BYTES],
            // Any byte but zero touches it.
            false => vec![0xA5; WARM_BYTES],
        };
        let block = Crc32c::new();
        Ok(Self { memory, is_fresh, data_bytes, requests: 0, phase: 0, block })
    }

    /// Takes in what was received: commands, each with its data behind it.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let at = self.phase.checked_sub(COMMAND_BYTES);
            let end = match at {
                None => COMMAND_BYTES,
                Some(at) => COMMAND_BYTES + (at / BLOCK_BYTES + 1) * BLOCK_BYTES,
            };
            let (piece, rest) = bytes.split_at(bytes.len().min(end - self.phase));
            if let Some(at) = at {
                self.store(at, piece)?;
            }
            (self.phase, bytes) = (self.phase + piece.len(), rest);
            if self.phase == COMMAND_BYTES + self.data_bytes {
                (self.phase, self.requests) = (0, self.requests + 1);
            }
        }
        Ok(())
    }

    /// A piece of a block, from byte `at` of the data on.
    fn store(&mut self, at: usize, piece: &[u8]) -> Result<()> {
        let start = self.place()? + at;
        let target = &mut self.memory[start..start + piece.len()];
        self.block.update(piece);
        copy_to_memory(piece, target);
        if (at + piece.len()).is_multiple_of(BLOCK_BYTES) {
            black_box(std::mem::take(&mut self.block).value());
        }
        Ok(())
    }

    fn place(&self) -> Result<usize> {
        let count = (self.memory.len() / self.data_bytes) as u64;
        ensure!(!self.is_fresh || self.requests < count, "all memory for first writes is used up");
        let number = if self.is_fresh { self.requests } else { scramble(self.requests) % count };
        Ok(usize::try_from(number)? * self.data_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: requests cut into pieces of several lengths; the data of each lies in a place of its own.
    #[test]
    fn data_is_stored_without_its_commands_however_it_comes() {
        for length in [1, 72, 100, 4096, 5000] {
            let mut stored = Stored::new(2 * BLOCK_BYTES, true).expect("whole blocks");
            let data: Vec<u8> = (0..6 * BLOCK_BYTES).map(|n| (n / 5) as u8).collect();
            let sent: Vec<u8> = data
                .chunks(2 * BLOCK_BYTES)
                .flat_map(|data| [&[0xEE; COMMAND_BYTES], data].concat())
                .collect();
            sent.chunks(length).for_each(|piece| stored.take(piece).expect("there is room"));
            assert_eq!((stored.requests, stored.phase), (3, 0));
            assert!(stored.memory.starts_with(&data));
        }
    }
}
