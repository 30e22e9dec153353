//! NVMe/TCP as a front end of the data plane's core.
//!
//! ```text
//!  NvmeCore ── Connection ── Association ── dataplane::Export
//!     │            │              └ one controller and the connections that are its queues
//!     │            └ one queue pair: receives, finds memory, submits requests, replies
//!     └ a core together with what NVMe adds to it: controllers, discovery, authentication
//! ```
//! Decisions of the protocol are `nvme_target`'s; this crate drives its state machines, and maps I/O commands
//! to requests of the core and their outcomes to statuses (`io.rs`, `status.rs`).
//!
//! Absent from this crate: sockets, files, threads, real time; how volumes share processor and device; how
//! tokens are made and handed out.

mod admin;
mod admission;
mod association;
mod authentication;
mod commands;
mod connection;
mod cross_reset;
mod discovery;
mod even;
mod extended;
mod frontend;
mod fused;
mod health;
mod incoming;
mod io;
mod life;
mod options;
mod received;
mod reservations;
mod sectors;
mod status;

pub use discovery::DiscoveryRecord;
pub use frontend::{NvmeCore, NvmeStats, nqn_of};
pub use life::Line;
pub use options::NvmeOptions;
