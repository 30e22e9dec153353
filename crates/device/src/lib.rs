//! Block devices in memory.
//!
//! [`MemDevice`] completes every request at once. Its memory is shared by all cores; unwritten and
//! discarded memory is not resident.
//!
//! Absent: threads, clocks, any waiting.

mod mem;
mod memory;

pub use mem::{MemDevice, MemError};
