//! The service level objective of a volume.

/// The service level objective of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Slo {
    /// A part of what is not promised by rate, in proportion to the weights of all such volumes.
    Share {
        /// At least one.
        weight: u32,
    },
    /// So many blocks a second.
    Rate {
        /// Blocks read a second.
        reads_per_second: u64,
        /// Blocks written a second.
        writes_per_second: u64,
    },
}

impl Default for Slo {
    fn default() -> Self {
        Self::Share { weight: 100 }
    }
}
