//! Logical blocks, as hosts address a volume.

use core::ops::Range;

use crate::{BLOCK_SIZE, Lba, LbaRange};

/// Bytes of a logical block of a volume. The engine's blocks have [`BLOCK_SIZE`] bytes in any case.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum SectorSize {
    /// 4096 bytes: a logical block is a block.
    #[default]
    Bytes4096,
    /// 512 bytes, for hosts that take nothing else: eight logical blocks are a block.
    Bytes512,
}

impl SectorSize {
    /// All sizes.
    pub const ALL: [Self; 2] = [Self::Bytes4096, Self::Bytes512];

    /// Bytes of a logical block.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes4096 => BLOCK_SIZE,
            Self::Bytes512 => 512,
        }
    }

    /// The size of so many bytes, if there is one.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bytes() as u64 == bytes)
    }

    /// Logical blocks in a block.
    #[inline]
    #[must_use]
    pub const fn per_block(self) -> u64 {
        (BLOCK_SIZE / self.bytes()) as u64
    }

    /// The blocks that the logical blocks `range` lie in, and the bytes of these that they are. `range` lies within a volume and
    /// is short enough for memory.
    #[inline]
    #[must_use]
    pub fn blocks_of(self, range: LbaRange) -> (LbaRange, Range<usize>) {
        let blocks = self.blocks_around(range);
        let skip = (range.start.0 - blocks.start.0 * self.per_block()) as usize * self.bytes();
        (blocks, skip..skip + range.blocks as usize * self.bytes())
    }

    /// The blocks that the logical blocks `range` lie in, however many these are.
    #[must_use]
    pub fn blocks_around(self, range: LbaRange) -> LbaRange {
        let per_block = self.per_block();
        let first = range.start.0 / per_block;
        LbaRange::new(Lba(first), range.end().0.div_ceil(per_block) - first)
    }

    /// The blocks that lie wholly in the logical blocks `range`, if there are some.
    #[must_use]
    pub fn whole_blocks_of(self, range: LbaRange) -> Option<LbaRange> {
        let per_block = self.per_block();
        let (first, end) = (range.start.0.div_ceil(per_block), range.end().0 / per_block);
        (first < end).then(|| LbaRange::new(Lba(first), end - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_found_by_its_bytes() {
        for size in SectorSize::ALL {
            assert_eq!(SectorSize::from_bytes(size.bytes() as u64), Some(size));
            assert_eq!(size.per_block() as usize * size.bytes(), BLOCK_SIZE);
        }
        assert_eq!([0, 1024, 8192].map(SectorSize::from_bytes), [None; 3]);
        assert_eq!(SectorSize::default().bytes(), 4096);
    }

    #[test]
    fn logical_blocks_lie_in_blocks() {
        let range = |start, blocks| LbaRange::new(Lba(start), blocks);
        let whole = SectorSize::Bytes4096;
        assert_eq!(whole.blocks_of(range(5, 2)), (range(5, 2), 0..8192));
        assert_eq!(whole.whole_blocks_of(range(5, 2)), Some(range(5, 2)));
        let small = SectorSize::Bytes512;
        for (sectors, blocks, part, inner) in [
            (range(8, 16), range(1, 2), 0..8192, Some(range(1, 2))),
            (range(7, 2), range(0, 2), 3584..4608, None),
            (range(15, 1), range(1, 1), 3584..4096, None),
            (range(9, 16), range(1, 3), 512..8704, Some(range(2, 1))),
            (range(9, 0), range(1, 1), 512..512, None),
            (range(8, 0), range(1, 0), 0..0, None),
        ] {
            assert_eq!(small.blocks_of(sectors), (blocks, part), "{sectors}");
            assert_eq!(small.whole_blocks_of(sectors), inner, "{sectors}");
        }
    }
}
