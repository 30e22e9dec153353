//! The host's side of NVMe/TCP without any I/O: one [`Connection`] is one queue pair.
//!
//! The driver hands in the bytes that it received, and gets [`Event`]s; it hands in commands, and
//! gets the bytes to send. Payload passes by: an event says to which command the next bytes of
//! the stream belong, and the driver moves them itself, once.
//!
//! ```text
//!             submit ──► capsule header ──► (in-capsule data, digest by the driver)
//! on_bytes ──► R2t ────► h2c_pdus ────────► (data, digest by the driver)
//! on_bytes ──► Data ───► the driver copies `len` bytes, then on_payload
//!         └──► DataDigest, Completed
//! ```
//! - INITIATOR-1: a command occupies one slot from [`Connection::submit`] until its `Completed`
//!   event. No command allocates.
//! - INITIATOR-2: a Command Identifier holds the slot and a generation, so that a stray or repeated
//!   reply is noticed.
//! - INITIATOR-3: data comes, and is asked for, in order and without gaps: a C2HData or R2T starts
//!   where the one before it ended, and ends within the command's data.
//! - INITIATOR-4: whatever the peer sends is an event or an error, never a panic. After an error
//!   the connection is over; [`Connection::term_req`] says why to the peer.
//!
//! Absent from this crate: sockets, clocks, tasks. Which command to send again after a reset is
//! the client's matter.
#![no_std]

extern crate alloc;
#[cfg(feature = "sabotage")]
extern crate std;

mod capabilities;
mod connection;
mod error;
mod h2c;
mod receive;
pub mod sabotage;
mod slots;

pub use capabilities::{CapabilityError, ControllerLimits, NamespaceShape, TRANSFER_BYTES_MAX};
pub use connection::{Config, Connection, DEPTH_MAX, Transfer};
pub use error::ConnectionError;
pub use h2c::{H2cPdu, H2cPdus, HeaderBytes};
pub use receive::{Event, Payload, R2tRequest};
