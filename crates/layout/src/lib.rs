//! All that lies on a device, as pure bytes: `docs/on-disk-format.md` is the same in prose.
//!
//! - [`Superblock`]: what the device is. [`overhead`]: what farflash takes of it. [`ClaimMark`]:
//!   the host that served it last.
//! - [`Root`]: a shard's last checkpoint. [`Record`] and [`Entry`]: its journal since then.
//! - [`NodeView`] and [`encode_node`]: nodes of maps and tables. [`Descriptor`]: a volume.
//!
//! Absent from this crate: I/O, clocks, threads, `async`.
#![no_std]

extern crate alloc;
#[cfg(test)]
#[macro_use]
extern crate std;

mod claim_mark;
mod descriptor;
mod entry;
mod mapping;
mod metadata;
mod node;
mod owner_mark;
mod record;
mod root;
mod seal;
mod size;
mod slo;
mod superblock;
#[cfg(test)]
mod tests;

pub use claim_mark::{ClaimMark, HOST_NAME_BYTES_MAX};
pub use descriptor::{
    ACCESS_BYTES_MAX, Descriptor, NAME_BYTES_MAX, PENDING_UNMAPS_MAX, VOLUME_BLOCKS_MAX,
};
pub use entry::{Entry, WRITE_BLOCKS_MAX, write_entry_len};
pub use mapping::{Mapping, PackedMapping, RUN_BLOCKS_MAX};
pub use node::{
    INNER_CAPACITY, KEY_LIMIT, LEVEL_MAX, NodeHead, NodeView, encode_node, key_width, leaf_capacity,
};
pub use owner_mark::OwnerMark;
pub use record::{
    RECORD_BLOCKS_MAX, RECORD_ENTRIES_MAX, RECORD_HEADER_SIZE, Record, RecordHead, record_blocks,
    seal_record,
};
pub use root::{COUNT_MAX, ReplayPoint, Root};
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
/// Tree number of a shard's extent table.
pub const EXTENT_TREE: u32 = u32::MAX;
/// Tree number of a shard's volume table.
pub const VOLUME_TREE: u32 = u32::MAX - 1;
