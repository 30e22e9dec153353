//! Block addresses and runs of blocks.

use core::fmt;

/// Bytes in a block, the unit of mapping, checksums and atomic allocation (Decibel, section 3.1).
pub const BLOCK_SIZE: usize = 4096;

/// Logical block address: a block of a volume, as the tenant counts.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lba(pub u64);

/// Physical block address: a block of a device.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Pba(pub u64);

/// A run of blocks of a volume.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LbaRange {
    /// First block.
    pub start: Lba,
    /// Number of blocks; may be zero.
    pub blocks: u64,
}

/// A run of blocks of a device.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PbaRange {
    /// First block.
    pub start: Pba,
    /// Number of blocks; may be zero.
    pub blocks: u64,
}

macro_rules! address {
    ($address:ident, $range:ident, $tag:literal) => {
        impl $address {
            /// The address `blocks` further on. Panics on overflow: foreign sums use `checked_add`.
            #[must_use]
            pub fn plus(self, blocks: u64) -> Self {
                Self(self.0.checked_add(blocks).expect("block address overflow"))
            }

            /// The address `blocks` further on, or `None` beyond the 64-bit space.
            #[must_use]
            pub fn checked_add(self, blocks: u64) -> Option<Self> {
                self.0.checked_add(blocks).map(Self)
            }

            /// Byte offset of the block's first byte, or `None` if it exceeds 64 bits.
            #[must_use]
            pub fn byte_offset(self) -> Option<u64> {
                self.0.checked_mul(BLOCK_SIZE as u64)
            }
        }

        impl fmt::Display for $address {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, " {:#x}"), self.0)
            }
        }

        impl $range {
            /// `blocks` blocks from `start`.
            #[must_use]
            pub const fn new(start: $address, blocks: u64) -> Self {
                Self { start, blocks }
            }

            /// The address just behind the last block, or `None` beyond the 64-bit space.
            #[must_use]
            pub fn checked_end(self) -> Option<$address> {
                self.start.checked_add(self.blocks)
            }

            /// The address just behind the last block. Panics on overflow.
            #[must_use]
            pub fn end(self) -> $address {
                self.start.plus(self.blocks)
            }

            /// Returns whether the two runs share a block.
            #[must_use]
            pub fn overlaps(self, other: Self) -> bool {
                self.start < other.end() && other.start < self.end()
            }

            /// Returns whether `address` lies in the run.
            #[must_use]
            pub fn contains(self, address: $address) -> bool {
                address >= self.start && address.0 - self.start.0 < self.blocks
            }
        }

        impl fmt::Display for $range {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}+{}", self.start, self.blocks)
            }
        }
    };
}

address!(Lba, LbaRange, "LBA");
address!(Pba, PbaRange, "PBA");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_overlap_only_where_they_share_a_block() {
        let run = LbaRange::new(Lba(10), 5);
        assert!(run.overlaps(LbaRange::new(Lba(14), 1)));
        assert!(!run.overlaps(LbaRange::new(Lba(15), 1)));
        assert!(!run.overlaps(LbaRange::new(Lba(9), 1)));
        assert!(!run.overlaps(LbaRange::new(Lba(0), 0)));
    }

    #[test]
    fn sums_beyond_64_bits_are_refused() {
        assert_eq!(Lba(u64::MAX).checked_add(1), None);
        assert_eq!(PbaRange::new(Pba(u64::MAX), 2).checked_end(), None);
        assert_eq!(Pba(1 << 52).byte_offset(), None);
    }
}
