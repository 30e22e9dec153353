//! The volume engine: thin volumes over a block device, durable before acknowledged, atomic,
//! verified (`docs/on-disk-format.md`).
//!
//! ```text
//!  Volume ── read, write, unmap, compare …          one dVol
//!    │
//!  Shard ── space, journal, checkpoint              the part of a device of one core
//!    │
//!  ExtentAllocator                                  owners of extents; shared by the cores
//!    │
//!  io_traits::Device
//! ```
//!
//! To open a device: [`probe`] or [`read_superblock`], an [`ExtentAllocator`] for all its shards,
//! [`Shard::recover`] for each of [`active_shards`] (and for each new one wanted), and only when all
//! are recovered, [`Recovered::confirm_all`] and [`Confirmed::start`]. The caller then runs [`Shard::run_committer`] and
//! [`Shard::run_checkpointer`] as tasks of their own, and ends both with [`Shard::shutdown`].
//!
//! Absent from this crate: any runtime, spawning, clocks, randomness, protocols.

mod allowance;
mod at_once;
mod blocks;
mod check;
mod claim_mark;
mod cluster;
mod copies;
mod described;
mod error;
mod format;
mod fsck;
mod grow;
mod holds;
mod io;
mod journal;
mod locks;
mod ops;
mod options;
mod part;
mod prefetch;
mod read;
mod sabotage;
mod shard;
mod state;
mod superblocks;
mod unmap;
mod volume;

pub use allowance::Allowance;
pub use at_once::{HeldWrite, Unattended};
#[cfg(feature = "small-structures")]
pub use block_map::{NodeCapacity, set_node_capacity};
pub use blocks::Blocks;
pub use check::{CheckReport, Finding};
pub use claim_mark::{read_claim_mark, write_claim_mark};
pub use cluster::{join_cluster, leave_cluster};
pub use error::{CompareError, FormatError, JournalLoss, OpenError, VolumeError};
pub use format::{FormatOptions, Probe, format, format_with_extents, probe};
pub use fsck::{Fault, FsckOptions, FsckReport, Problem, Repair, Repaired, fsck, repair};
pub use grow::{GROW_BLOCKS_MIN, find_superblock, grow, restore_superblock};
#[cfg(feature = "small-structures")]
pub use journal::set_journal_blocks;
pub use layout::{
    ACCESS_BYTES_MAX, ClaimMark, DecodeError, HOST_NAME_BYTES_MAX, OwnerMark, Superblock, overhead,
};
pub use ops::{Crcs, Tell};
pub use options::{
    Capacity, MapMemory, ShardOptions, Terms, VolumeSpec, VolumeStats, WRITE_BLOCKS_MAX,
};
pub use part::VolumeExtent;
pub use prefetch::{Located, Pinned};
pub use read::ReadData;
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use shard::{
    Confirmed, CutOff, Damaged, Loss, Mended, Recovered, ScrubCursor, ScrubStep, Shard, Structure,
    active_shards,
};
pub use space::{ExtentAllocator, Owner};
pub use superblocks::read_superblock;
pub use unmap::joined;
pub use volume::Volume;
