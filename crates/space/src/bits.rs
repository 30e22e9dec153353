//! One bitmap: as many bits as an extent has blocks at most.

use std::ops::Range;

use layout::EXTENT_BLOCKS_MAX;
use units::BLOCK_SIZE;

const WORDS: usize = EXTENT_BLOCKS_MAX as usize / 64;

/// A bit per block of an extent; set means in use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bits(Box<[u64; WORDS]>);

impl Bits {
    /// None is set.
    pub fn zeroes() -> Self {
        Self(Box::new([0; WORDS]))
    }

    #[inline]
    /// Returns whether it is set.
    pub fn get(&self, bit: u32) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    /// Sets a bit and says whether it was clear.
    #[inline]
    pub fn set(&mut self, bit: u32) -> bool {
        let word = &mut self.0[bit as usize / 64];
        let mask = 1 << (bit % 64);
        let was_clear = *word & mask == 0;
        *word |= mask;
        was_clear
    }

    /// Clears a bit and says whether it was set.
    #[inline]
    pub fn clear(&mut self, bit: u32) -> bool {
        let word = &mut self.0[bit as usize / 64];
        let mask = 1 << (bit % 64);
        let was_set = *word & mask != 0;
        *word &= !mask;
        was_set
    }

    /// Returns whether any bit in `range` is set.
    #[inline]
    pub fn any(&self, range: Range<u32>) -> bool {
        words(range).any(|(word, mask)| self.0[word] & mask != 0)
    }

    /// Bits in `range` that are clear.
    #[inline]
    pub(crate) fn count_clear(&self, range: Range<u32>) -> u32 {
        words(range).map(|(word, mask)| (mask & !self.0[word]).count_ones()).sum()
    }

    /// Sets the bits in `range`. `set` is told those that were clear: the number of a word, and which of it.
    #[inline]
    pub(crate) fn set_range(&mut self, range: Range<u32>, mut set: impl FnMut(usize, u64)) {
        for (word, mask) in words(range) {
            set(word, mask & !self.0[word]);
            self.0[word] |= mask;
        }
    }

    /// Clears bits of a word, and says how many of them were set.
    #[inline]
    pub(crate) fn clear_in_word(&mut self, word: usize, mask: u64) -> u32 {
        let were_set = mask & self.0[word];
        self.0[word] &= !mask;
        were_set.count_ones()
    }

    /// Clears the bits in `range`. `cleared` is told those that were set: the number of a word, and which of it.
    #[inline]
    pub(crate) fn clear_range(&mut self, range: Range<u32>, mut cleared: impl FnMut(usize, u64)) {
        for (word, mask) in words(range) {
            cleared(word, self.0[word] & mask);
            self.0[word] &= !mask;
        }
    }

    /// Sets bits of a word, and says how many of them were clear.
    #[inline]
    pub(crate) fn set_in_word(&mut self, word: usize, mask: u64) -> u32 {
        let were_clear = mask & !self.0[word];
        self.0[word] |= mask;
        were_clear.count_ones()
    }

    /// Returns whether every bit that is set here is set there.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0.iter()).all(|(ours, theirs)| ours & !theirs == 0)
    }

    /// Bits that are set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Bits set among the first `end`.
    pub fn count_below(&self, end: u32) -> u32 {
        let whole = end as usize / 64;
        let set: u32 = self.0[..whole].iter().map(|word| word.count_ones()).sum();
        let rest = self.0.get(whole).map_or(0, |word| word & ((1 << (end % 64)) - 1));
        set + rest.count_ones()
    }

    /// The first bit in `from..end` that is `value`, or `end`.
    pub fn next(&self, value: bool, from: u32, end: u32) -> u32 {
        let flip = if value { 0 } else { u64::MAX };
        let mut at = from;
        while at < end {
            let rest = (self.0[at as usize / 64] ^ flip) >> (at % 64);
            if rest != 0 {
                return (at + rest.trailing_zeros()).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Fills a block.
    pub fn encode(&self, block: &mut [u8]) {
        for (place, word) in block.chunks_exact_mut(8).zip(self.0.iter()) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads a block.
    pub fn decode(block: &[u8]) -> Self {
        assert_eq!(block.len(), BLOCK_SIZE, "a bitmap fills its block");
        let mut bits = Self::zeroes();
        for (word, place) in bits.0.iter_mut().zip(block.chunks_exact(8)) {
            *word = u64::from_le_bytes(place.try_into().expect("eight bytes"));
        }
        bits
    }
}

/// The words that the bits in `range` lie in, and which of each.
#[inline]
fn words(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let (first, behind) = (range.start / 64, range.end.div_ceil(64));
    let places = if range.is_empty() { 0..0 } else { first..behind };
    places.map(move |word| {
        let from = u64::MAX << range.start.saturating_sub(word * 64);
        let to = u64::MAX >> (64 * (word + 1)).saturating_sub(range.end);
        (word as usize, from & to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_set_and_cleared() {
        let mut bits = Bits::zeroes();
        for bit in [0, 63, 64, 200, 32_767] {
            assert!(bits.set(bit) && !bits.set(bit) && bits.get(bit));
        }
        assert_eq!(bits.next(true, 65, 32_768), 200);
        assert_eq!(bits.next(true, 201, 1000), 1000);
        assert_eq!(bits.next(false, 63, 32_768), 65);
        assert_eq!(bits.count(), 5);
        assert_eq!(
            [0, 1, 64, 65, 200, 201, 32_768].map(|n| bits.count_below(n)),
            [0, 1, 2, 3, 3, 4, 5]
        );
        let mut block = vec![0; BLOCK_SIZE];
        bits.encode(&mut block);
        assert_eq!((block[0], block[7], block[8], block[25]), (1, 0x80, 1, 1));
        assert_eq!(Bits::decode(&block), bits);
        assert!(bits.clear(200) && !bits.clear(200));
    }

    /// Method: ranges around the ends of words, against one bit after the other.
    #[test]
    fn a_range_is_as_good_as_its_bits() {
        let ends = [0, 1, 5, 63, 64, 65, 127, 128, 129, 300, 32_767, 32_768];
        let all = ends.iter().flat_map(|start| ends.map(|end| *start..end));
        for range in all.filter(|range| range.start <= range.end) {
            let mut bits = Bits::zeroes();
            (0..32_768).step_by(3).for_each(|bit| assert!(bits.set(bit)));
            let (mut one_by_one, mut words) = (bits.clone(), Bits::zeroes());
            let cleared = range.clone().filter(|bit| one_by_one.clear(*bit)).collect::<Vec<_>>();
            assert_eq!(bits.any(range.clone()), !cleared.is_empty(), "{range:?}");
            let mut count = 0;
            bits.clear_range(range.clone(), |word, mask| count += words.set_in_word(word, mask));
            assert_eq!(bits, one_by_one, "{range:?}");
            assert_eq!(count as usize, cleared.len(), "{range:?}");
            assert!(cleared.iter().all(|bit| words.get(*bit)), "{range:?}");
            assert!(!bits.any(range.clone()), "{range:?}");
        }
    }
}
