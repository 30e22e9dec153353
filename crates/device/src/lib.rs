//! All kinds of block devices, and all layers before them.
//!
//! - [`kind`]: the registry. Each kind is a file with its specification, opening and help, and a line in the list of
//!   [`device_kinds!`], which makes [`AnyDevice`](kind::AnyDevice) of all of them.
//! - [`layer`]: devices before a device, a file for each: a time limit for requests, a fence.
//! - [`MemDevice`]: memory, which completes every request at once and is shared by all cores; unwritten and discarded
//!   memory is not resident. [`ModelDevice`] delays another device, usually that, as a modelled SSD would, on whatever
//!   clock it is given. Files and drives are the ring's: `reactor`.
//!
//! Absent: what lies on a device, threads, clocks, any waiting that is not a clock's.

pub mod kind;
pub mod layer;
mod mem;
mod memory;
mod model;
mod stripe;

#[doc(hidden)]
pub use {io_traits, pin_project_lite, units};

pub use mem::{MemDevice, MemError};
pub use model::{ModelDevice, SharedModel};
pub use reactor::{FileDevice, OwnedDevice};
