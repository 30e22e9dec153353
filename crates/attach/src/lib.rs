//! A volume as a local file, without a kernel initiator.
//!
//! ```text
//!  file ── kernel (FUSE) ─┬─ fs: /dev/fuse ── window ─┬─ engine ── order     backing ── volume (farflash-client)
//!                         └─ ring: io_uring ──────────┘  pieces    overlaps  the seam
//! ```
//! - The threads that read requests from `/dev/fuse` only start them: they wait for the window, and for nothing else.
//!   Everything after that happens in callbacks of the client.
//! - Where the kernel offers it, requests come by io_uring to the client's thread itself, which saves the threads in
//!   between. Memory for them is set aside within the bounds of the window.
//! - Nothing is cached. A write that the kernel was told is done is on the server.
//! - A file takes any range of bytes, a volume whole blocks: `span` turns the one into the other. Blocks of which a
//!   write has only a part are read, changed and written; `order` keeps changes of the same block apart.
//!
//! Absent from this crate: finding a volume, connections, the search for mounts and loop devices, processes, clocks.

#![forbid(unsafe_code)]

mod backing;
mod engine;
mod file;
mod fs;
mod mount;
mod order;
mod ring;
mod span;
mod window;

pub use backing::{Attend, Backing, Clearing, Done, ReadDone, Turn};
pub use engine::Trouble;
pub use mount::{Handle, MountError, Mounted, Options, mount};
pub use ring::NoRing;
pub use window::{Limits, Progress};
