//! io_uring behind a safe interface.
//!
//! A [`Ring`] belongs to one thread. Its operations are futures that were handed to the ring when
//! they were made, not when first polled.
//!
//! - URING-1: memory that the kernel may touch is owned by the ring's table of operations until the completion has arrived,
//!   whether or not a task still waits for it. Nothing in the table moves such memory: it holds heap blocks, and the kernel
//!   knows the blocks.
//! - URING-2: an operation is named to the kernel by index and generation of its place in the table, so that a late completion
//!   finds no operation rather than another one.
//! - URING-3: a receiver waits for the event that something has come ([`Watch`]), and then takes a chunk of memory from the
//!   core's shared pool. Without a free chunk it waits for one; that is never an error.
//! - URING-4: dropping a watch or the future of a connect cancels it. Everything else runs
//!   to its end unobserved, short sends, reads and writes included.
//! - URING-5: dropping the last handle of a ring cancels sends and waits for all that is in flight; what
//!   the kernel will not let go of within [`DRAIN_MAX`] is leaked, never freed. Before, [`Ring::settle`] says whether a file may
//!   still change by it.
//!
//! Nearly all `unsafe` of the workspace is here. Absent: tasks, timers, protocols above TCP.

mod chunk;
mod fd;
mod fuse;
mod interface;
mod operation;
mod request;
mod ring;
mod send;
mod setup;
mod table;
mod tcp;
mod wake;
mod watch;
mod window;

pub use chunk::{CHUNK_LEN, CHUNKS, Chunk, Received};
pub use fd::Fd;
pub use fuse::{FUSE_ANSWER_LEN, FUSE_HEADER_LEN, FuseCall, FuseRing, fuse_queues};
pub use interface::receiving_interface;
pub use operation::{Connect, Done, Read, Send, Signal, Write};
pub use ring::{DRAIN_MAX, Ring, RingCounters};
pub use rustix::io::Errno;
pub use setup::{SetupError, self_test};
pub use tcp::acknowledged_bytes;
pub use wake::RemoteWake;
pub use watch::{Arrival, Watch};
pub use window::ReadWindow;

#[cfg(test)]
mod tests;
