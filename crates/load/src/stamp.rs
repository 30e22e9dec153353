//! Stamps in written blocks.
//!
//! Every 4 KiB block begins with a stamp, and the rest follows from it, so that a reader can tell
//! which write a block is from and whether all of it is.
//! ```text
//! 0       8     16         24     32                                      4096
//! +-------+-----+----------+------+------------------------------------------+
//! | magic | lba | sequence | seed | words that follow from the three before  |
//! +-------+-----+----------+------+------------------------------------------+
//! ```
//! Integers are little-endian.

use units::{BLOCK_SIZE, Lba};

use random::mix;

const MAGIC: u64 = u64::from_le_bytes(*b"FARLOAD1");
const WORD: usize = 8;
const HEAD_WORDS: usize = 4;
/// Odd, so that no two words of a block are equal.
const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The write that a block is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stamp {
    pub(crate) lba: Lba,
    pub(crate) sequence: u32,
    pub(crate) seed: u64,
}

/// Result of inspecting a block that was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Found {
    /// Nothing but zeroes.
    Zeroes,
    /// A whole block from this write.
    Whole(Stamp),
    /// A block that begins with this stamp and does not go on as it should.
    Damaged(Stamp),
    /// No block of ours.
    Foreign,
}

impl Stamp {
    fn base(self) -> u64 {
        mix(mix(self.seed ^ self.lba.0.rotate_left(20)) ^ u64::from(self.sequence))
    }

    pub(crate) fn fill(self, block: &mut [u8]) {
        let head = [MAGIC, self.lba.0, u64::from(self.sequence), self.seed];
        let (words, _) = block.as_chunks_mut::<WORD>();
        let (first, rest) = words.split_at_mut(HEAD_WORDS);
        for (word, value) in first.iter_mut().zip(head) {
            *word = value.to_le_bytes();
        }
        let mut value = self.base();
        for word in rest {
            *word = value.to_le_bytes();
            value = value.wrapping_add(STRIDE);
        }
    }
}

/// Reads one block.
pub(crate) fn inspect(block: &[u8]) -> Found {
    assert_eq!(block.len(), BLOCK_SIZE, "a block");
    let (words, _) = block.as_chunks::<WORD>();
    let word = |index: usize| u64::from_le_bytes(words[index]);
    let sequence = u32::try_from(word(2));
    let (MAGIC, Ok(sequence)) = (word(0), sequence) else {
        let zeroes = words.iter().all(|word| u64::from_le_bytes(*word) == 0);
        return if zeroes { Found::Zeroes } else { Found::Foreign };
    };
    let stamp = Stamp { lba: Lba(word(1)), sequence, seed: word(3) };
    let mut value = stamp.base();
    let mut difference = 0;
    for word in &words[HEAD_WORDS..] {
        difference |= u64::from_le_bytes(*word) ^ value;
        value = value.wrapping_add(STRIDE);
    }
    if difference == 0 { Found::Whole(stamp) } else { Found::Damaged(stamp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { lba: Lba(77), sequence: 5, seed: 9 };

    #[test]
    fn a_block_tells_which_write_it_is_from() {
        let mut block = [0xA5; BLOCK_SIZE];
        STAMP.fill(&mut block);
        assert_eq!(inspect(&block), Found::Whole(STAMP));
        assert_eq!(inspect(&[0; BLOCK_SIZE]), Found::Zeroes);
        assert_eq!(inspect(&[1; BLOCK_SIZE]), Found::Foreign);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let mut block = [0; BLOCK_SIZE];
        STAMP.fill(&mut block);
        for byte in 0..BLOCK_SIZE {
            block[byte] ^= 4;
            assert_ne!(inspect(&block), Found::Whole(STAMP), "byte {byte}");
            block[byte] ^= 4;
        }
    }
}
