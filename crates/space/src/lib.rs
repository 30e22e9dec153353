//! The blocks and extents of a device's shards: what is free, what is in use, and whose it is.
//!
//! ```text
//!  Pool             the blocks of a shard's extents: handed out, given back, discarded
//!    │
//!  ExtentAllocator  owners of extents; shared by the cores
//! ```
//!
//! Absent from this crate: the device, I/O, clocks, randomness, protocols.

mod bits;
mod census;
mod claim_error;
mod epochs;
mod extents;
mod flushes;
mod inventory;
mod owner;
mod pool;
mod sabotage;
mod sync;

pub use bits::Bits;
pub use census::{Census, DOUBTS_MAX, Doubts};
pub use claim_error::ClaimError;
pub use epochs::Epochs;
pub use extents::ExtentAllocator;
pub use flushes::{Flushes, Turn};
pub use inventory::{Doubt, Inventory, Owners};
pub use owner::Owner;
pub use pool::{
    ExtentSnapshot, LARGE_BLOCKS, Pool, RUN_BLOCKS_MIN, ReturnableExtents, Returned, Runs, Search,
    SpaceSnapshot,
};
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
