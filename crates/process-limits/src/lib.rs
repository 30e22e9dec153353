//! Memory and threads that this process may have, by the machine and by control groups.

pub mod cgroup;
mod memory_bound;
pub mod threads;

pub use memory_bound::MemoryBound;
