//! A volume as a local file, without a kernel initiator.
//!
//! ```text
//!  file ── kernel (FUSE) ── fs ── window ── engine ── order     backing ── volume (farflash-client)
//!                           │     bounds    pieces    overlaps  the seam
//!                           └─ replies come from the client's thread
//! ```
//! - The threads that read requests from the kernel only start them: they wait for the window, and for nothing else.
//!   Everything after that happens in callbacks of the client.
//! - Nothing is cached. A write that the kernel was told is done is on the server.
//! - A file takes any range of bytes, a volume whole blocks: `span` turns the one into the other. Blocks of which a
//!   write has only a part are read, changed and written; `order` keeps changes of the same block apart.
//!
//! Absent from this crate: finding a volume, connections, the search for mounts and loop devices, processes, clocks.

#![forbid(unsafe_code)]

mod backing;
mod engine;
mod fs;
mod mount;
mod order;
mod span;
mod window;

pub use backing::{Backing, Clearing, Done, ReadDone};
pub use engine::Trouble;
pub use mount::{Handle, MountError, Mounted, Options, mount};
pub use window::{Limits, Progress};
