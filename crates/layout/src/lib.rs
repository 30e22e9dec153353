//! All that lies on a device, as pure bytes: `docs/on-disk-format.md` is the same in prose.
//!
//! - [`Superblock`]: what the device is. [`overhead`]: what farflash takes of it.
//!
//! Absent from this crate: I/O, clocks, threads, `async`.

mod seal;
mod size;
mod superblock;

pub use seal::DecodeError;
pub(crate) use seal::{seal, sealed};
pub use size::overhead;
pub use superblock::{
    DEVICE_BLOCKS_MAX, DEVICE_BLOCKS_MIN, SHARD_SLOTS, SUPERBLOCK_MAGIC, Superblock,
};

/// Version of everything on the device. A device of another version is not opened.
pub const FORMAT_VERSION: u32 = 1;
/// Most blocks of an extent: as many as a block has bits (Decibel, section 3.1).
pub const EXTENT_BLOCKS_MAX: u32 = 32_768;
/// Fewest blocks of an extent on a small device: 4 MiB.
pub const EXTENT_BLOCKS_MIN: u32 = 1_024;
/// Blocks at the start of each extent that hold its bitmap, written in turn.
pub const BITMAP_SLOTS: u32 = 2;
/// Fewest blocks of a journal.
pub const JOURNAL_BLOCKS_MIN: u32 = EXTENT_BLOCKS_MIN - BITMAP_SLOTS;
