//! Block devices in memory, and as slow as a drive.
//!
//! [`MemDevice`] completes every request at once. Its memory is shared by all cores; unwritten and
//! discarded memory is not resident.
//!
//! [`ModelDevice`] delays another device, usually that, as a modelled SSD would, on whatever clock it
//! is given.
//!
//! Absent: threads, clocks, any waiting that is not a clock's.

mod mem;
mod memory;
mod model;
mod pins;

pub use mem::{MemDevice, MemError};
pub use model::{ModelDevice, SharedModel};
