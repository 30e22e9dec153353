//! The NVMe/TCP target, pure logic: what arrives on a connection is handed in, what to do and what
//! to send is handed out. See `docs/nvme-mapping.md` for what is supported and which status answers
//! what.
//!
//! - [`Connection`]: one TCP connection, that is one queue pair. Cuts the byte stream into commands
//!   and payload, asks for data with R2T, encodes replies, enforces the transport's rules.
//! - [`connect`]: what a Connect asks for, checked. The driver then finds the subsystem.
//! - [`Controller`]: what the connections of one association share: properties, features, log
//!   pages, events, keep alive. Answers every admin command.
//! - [`io`]: I/O commands, checked against the namespace.
//! - [`ReservationChange`]: commands that change reservations.
//! - [`ReceivedBlocks`]: checksums of a write's blocks, taken while its bytes are copied.
//!
//! ```text
//!  bytes ──► Connection::poll ──► Step::Prepare  driver: decode_io, find memory, grant
//!                            ├──► Step::Data     driver: copy into the slot's buffer
//!                            ├──► Step::Digest   driver: compare with its own checksum
//!                            ├──► Step::ExecuteFused  driver: decode_fused, then
//!                            └──► Step::Execute  driver: decode_io or Controller::on_admin, then
//!  bytes ◄── Outbox ◄──────────── Connection::complete, complete_with_data
//! ```
//! Absent from this crate: I/O, clocks, tasks. The data path allocates only when a queue has more commands
//! under way than ever before.
#![no_std]

extern crate alloc;
#[cfg(feature = "sabotage")]
extern crate std;

pub mod connect;
pub mod connection;
pub mod controller;
pub mod io;
mod outbox;
mod payload;
mod reservation;
pub mod sabotage;

pub use connect::{ConnectRefusal, ConnectRequest, Negotiated};
pub use connection::{Awaited, CloseReason, Connection, Limits, SlotId, Step};
pub use controller::{
    AdminReply, AsyncCompletion, Backend, Controller, ControllerEvent, ControllerKind,
    ControllerParameters, DiscoveryLog, Health, Namespace, ResetId,
};
pub use io::{IoCommand, NamespaceView, deallocate_ranges, decode_fused, decode_io};
pub use outbox::Outbox;
pub use payload::{ReceivedBlocks, digest_of_blocks};
pub use reservation::{ReservationChange, reservation_report, reservation_status};
