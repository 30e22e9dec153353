//! The iSCSI target's decisions (RFC 7143) and those of its direct-access logical unit (SPC-4, SBC-3), without I/O.
//!
//! ```text
//! bytes ──► Connection::poll ──► Step ──► the caller finds memory, executes ──► Connection::complete, data_in ──► Outbox
//!              │ login, CmdSN window, R2Ts        │
//!              └ framing, digests                 └ scsi::decode: what a CDB asks for
//! ```
//! - ISCSI-TARGET-1: nothing of a session exists before its login has ended; what initiators send before is bounded by
//!   [`Limits`].
//! - ISCSI-TARGET-2: a session has one connection, and error recovery is at level 0: what breaks the protocol ends the
//!   connection.
//! - ISCSI-TARGET-3: status numbers rise by one with each status, and command numbers are taken in order.
//!
//! Absent from this crate: I/O, clocks, random numbers, volumes, `std`.
#![no_std]

extern crate alloc;

pub mod chap;
mod connection;
mod limits;
mod login;
mod negotiate;
mod outbox;
pub mod scsi;

pub use connection::{Abort, CloseReason, Completion, Connection, Step, TASKS_MAX, TaskId};
pub use limits::Limits;
pub use login::{
    Admission, Authentication, ChapSecret, LoginQuestion, PORTAL_GROUP, Secrets, SecretsOf,
    SessionType,
};
pub use negotiate::Parameters;
pub use outbox::Outbox;
