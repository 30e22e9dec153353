//! NBD as a front end of the data plane's core.
//!
//! ```text
//!  NbdFrontend ── Connection ── dataplane::Export
//!      │              └ one client: receives, finds memory, submits requests, replies
//!      └ the exports of the server by name, and the clients that may open each
//! ```
//! Decisions of the protocol are `nbd_server`'s; this crate drives its state machine, and maps ranges of bytes to
//! requests for blocks (`work.rs`).
//!
//! - NBD-EXPORT-1: a volume is an export only for clients that its owner named (`access::NbdAccess`); to others it does
//!   not exist.
//! - NBD-EXPORT-2: a completed write is durable, so a flush on one connection covers the writes of all: an export can
//!   have several connections.
//! - NBD-EXPORT-3: memory for a payload is found before the payload is read; meanwhile nothing more of its connection
//!   is.
//!
//! Absent from this crate: sockets, files, threads, real time; how volumes share processor and device.

mod admission;
mod connection;
mod errors;
mod exports;
mod frontend;
mod incoming;
mod tls;
mod work;

pub use exports::{ExportPlace, ExportRecord};
pub use frontend::{NbdFrontend, NbdOptions, NbdTls, Way};
