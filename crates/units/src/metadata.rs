//! Metadata of blocks.

/// Bytes of a tenant's metadata that each block of a volume has, beside its data.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MetadataSize {
    /// None.
    #[default]
    None,
    /// 8 bytes.
    Bytes8,
    /// 16 bytes.
    Bytes16,
    /// 64 bytes.
    Bytes64,
}

impl MetadataSize {
    /// All sizes.
    pub const ALL: [Self; 4] = [Self::None, Self::Bytes8, Self::Bytes16, Self::Bytes64];

    /// Bytes of each block.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes8 => 8,
            Self::Bytes16 => 16,
            Self::Bytes64 => 64,
        }
    }

    /// The size of so many bytes, if there is one.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bytes() as u64 == bytes)
    }

    /// Returns whether blocks have none.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_found_by_its_bytes() {
        for size in MetadataSize::ALL {
            assert_eq!(MetadataSize::from_bytes(size.bytes() as u64), Some(size));
            assert_eq!(size.is_none(), size.bytes() == 0);
        }
        assert_eq!([4, 32, 128].map(MetadataSize::from_bytes), [None; 3]);
    }
}
