//! Quantities that must not be mixed up, and the arithmetic between them.
//!
//! Everything counts in blocks of [`BLOCK_SIZE`] bytes: an [`Lba`] is a block of a volume, a [`Pba`]
//! a block of a device, and no function takes one for the other.
//!
//! Absent from this crate: I/O, clocks, threads, allocation beyond error messages.
#![no_std]

extern crate alloc;

mod block;
mod byte_len;
mod index;
mod instant;
mod metadata;
mod sector;
mod slo;

pub use block::{BLOCK_SIZE, Lba, LbaRange, Pba, PbaRange};
pub use byte_len::{ByteLen, ParseByteLenError};
pub use core::time::Duration;
pub use index::{CoreIndex, DeviceIndex, ShardIndex};
pub use instant::Instant;
pub use metadata::MetadataSize;
pub use sector::SectorSize;
pub use slo::Slo;
