//! Data that a side sends: the same bytes over and over, or blocks from all over some memory.

use std::cell::Cell;
use std::sync::OnceLock;

use super::RESPONSE_BYTES;

/// Periods of the pattern kept in memory are at most this long together: half of a typical L2.
const PATTERN_BYTES: usize = 128 << 10;
/// The memory that blocks come from (NULL-4).
const SCATTERED_BYTES: usize = 1 << 30;

/// Data that a side sends, over and over.
pub(super) enum Outgoing {
    /// Whole periods of it.
    Pattern(Vec<u8>),
    /// A header, and a block from all over some memory (NULL-4).
    /// Which of them is a matter of `seed`, lest what one connection sends be in the caches for the next.
    Scattered {
        header: [u8; RESPONSE_BYTES],
        blocks: &'static [u8],
        seed: u64,
        /// The first period that is not checked, if they are (NULL-5).
        unchecked: Option<Cell<u64>>,
    },
}

impl Outgoing {
    pub(super) fn pattern(period: usize) -> Self {
        let periods = (PATTERN_BYTES / period).max(2);
        Self::Pattern(vec![0xA5; periods * period])
    }

    pub(super) fn scattered(seed: u64, is_checked: bool) -> Self {
        let (header, unchecked) = ([0xA5; RESPONSE_BYTES], is_checked.then(Cell::default));
        Self::Scattered { header, blocks: memory(), seed, unchecked }
    }

    /// Computes the checksums of the blocks of period `number`, unless that was done or is not wanted.
    pub(super) fn check(&self, number: u64, period: usize) {
        let Self::Scattered { header, unchecked: Some(unchecked), .. } = self else { return };
        if number < unchecked.get() {
            return;
        }
        unchecked.set(number + 1);
        let header_bytes = header.len();
        let blocks = self.from(number, header_bytes, period);
        for sum in checksum::crc32c_of_blocks(blocks) {
            std::hint::black_box(sum);
        }
    }

    /// The bytes from offset `phase` of period `number`, as far as they lie together.
    pub(super) fn from(&self, number: u64, phase: usize, period: usize) -> &[u8] {
        match self {
            Self::Pattern(pattern) => &pattern[phase..],
            Self::Scattered { header, .. } if phase < header.len() => &header[phase..],
            Self::Scattered { header, blocks, seed, .. } => {
                let block_bytes = period - header.len();
                let count = blocks.len() / block_bytes;
                let start = usize::try_from(scramble(number ^ (seed << 40))).expect("64 bits")
                    % count
                    * block_bytes;
                &blocks[start + phase - header.len()..start + block_bytes]
            }
        }
    }
}

/// A number that looks random (the finalizer of SplitMix64).
pub(super) fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Memory that blocks come from, made once.
pub(super) fn memory() -> &'static [u8] {
    static MEMORY: OnceLock<Vec<u8>> = OnceLock::new();
    MEMORY.get_or_init(|| vec![0xA5; SCATTERED_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NULL-4: each reply is a header and a whole block, wherever the last send ended.
    #[test]
    fn scattered_blocks_go_on_where_they_were_cut() {
        let blocks: &'static [u8] = Vec::leak((0..64u8).collect());
        let header = [0xA5; RESPONSE_BYTES];
        let outgoing = Outgoing::Scattered { header, blocks, seed: 3, unchecked: None };
        let period = RESPONSE_BYTES + 8;
        for number in 0..100 {
            let whole: Vec<u8> =
                (0..period).map(|phase| outgoing.from(number, phase, period)[0]).collect();
            assert_eq!(whole[..RESPONSE_BYTES], [0xA5; RESPONSE_BYTES]);
            let first = whole[RESPONSE_BYTES];
            assert!(first.is_multiple_of(8), "a block begins where blocks do");
            assert_eq!(whole[RESPONSE_BYTES..], [0, 1, 2, 3, 4, 5, 6, 7].map(|byte| first + byte));
        }
    }

    /// NULL-5: each block is checked once, however often a send ends within it.
    #[test]
    fn blocks_are_checked_once() {
        let outgoing = Outgoing::scattered(1, true);
        let period = RESPONSE_BYTES + 8192;
        for (number, next) in [(0, 1), (0, 1), (1, 2), (0, 2)] {
            outgoing.check(number, period);
            let Outgoing::Scattered { unchecked, .. } = &outgoing else { panic!("scattered") };
            assert_eq!(unchecked, &Some(Cell::new(next)));
        }
    }
}
