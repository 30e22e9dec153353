//! Refused claims to extents.

/// Why a shard cannot have an extent.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClaimError {
    /// The device has no such extent.
    #[error("there is no such extent")]
    NoExtent,
    /// Two shards claim the same extent.
    #[error("extent {extent} is claimed by shards {first} and {second}")]
    DoubleOwner {
        /// The extent.
        extent: u32,
        /// The shard that claimed it first.
        first: u16,
        /// The shard that claims it too.
        second: u16,
    },
}
