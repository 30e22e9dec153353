//! One NBD connection's state machine, seen from the server.
//!
//! ```text
//!              flags          options                       GO, EXPORT_NAME
//!  Greeting ──────────► Haggling ◄──► answers ─────────────────────────────► Transmission
//!                          │  STARTTLS: forgets what was agreed                requests, replies
//! ```
//! Bytes that came are handed to [`Connection::poll`], which hands out a [`Step`]; replies go into an [`Outbox`].
//! The driver finds exports, and memory for data; what a client sends decides nothing else.
//!
//! - NBD-SERVER-1: of an option no more than [`Limits::option_bytes_max`] is kept, whatever its length says.
//! - NBD-SERVER-2: payload passes by: it is handed on as it comes, and never kept here.
//! - NBD-SERVER-3: what was agreed before TLS counts for nothing after it, and no byte that came before it is read
//!   after it.
//! - NBD-SERVER-4: no option tells whether there is an export that the client may not open.
//!
//! Absent from this crate: sockets, TLS itself, clocks, memory for data, the volumes.

#![no_std]

extern crate alloc;

mod connection;
mod haggling;
mod operation;
mod reply;

pub use connection::{CloseReason, Connection, Limits, Outbox, Step};
pub use haggling::{Export, Purpose, Refusal, TlsOffer};
pub use operation::{Operation, Refused, decode_operation};

/// The only metadata context that is known.
pub const BASE_ALLOCATION: &str = "base:allocation";
