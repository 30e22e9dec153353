//! iSCSI as a front end of the data plane's core: one target for each volume, with the volume as unit 0.
//!
//! ```text
//!  IscsiCore ── Connection ── dataplane::Export
//!      │            └ one session: receives, finds memory, submits requests, answers
//!      └ a core together with what iSCSI adds to it: sessions by target, discovery
//! ```
//! Decisions of the protocol are `iscsi_target`'s; this crate drives its state machine, and maps SCSI commands to
//! requests of the core and their outcomes to sense data (`commands.rs`, `sense.rs`).
//!
//! Absent from this crate: sockets, files, threads, real time; how tokens are made and handed out.

mod commands;
mod connection;
mod discovery;
mod frontend;
mod incoming;
mod login;
mod options;
mod reservations;
mod secret;
mod sense;
mod tasks;

pub use discovery::TargetRecord;
pub use frontend::{IscsiCore, target_name_of};
pub use options::IscsiOptions;
pub use secret::{ChapSecrets, chap_secrets};
