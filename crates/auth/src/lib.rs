//! DH-HMAC-CHAP (Base, clause 8.3.4.5): a host that knows a volume's secret may open it, and nothing
//! secret crosses the wire.
//!
//! ```text
//! Secret ──► Response ◄── Hash           proves that a party knows a secret
//!               ▲
//!            Group                       ephemeral Diffie-Hellman, against guessing off line
//!
//! Controller, Host                       the two sides of an exchange, as state machines
//! ```
//! - AUTH-1: a response is compared in constant time, and every failure of a host looks the same to
//!   it.
//! - AUTH-2: secrets are wiped from memory when dropped, and are not shown by `Debug`.
//! - AUTH-3: an exchange asks for no randomness and no time of its own: the caller hands in random
//!   bytes.
//! - AUTH-4: arithmetic in a group takes milliseconds. It is handed out as a [`Job`] that the caller
//!   may run on any thread.
//!
//! Absent from this crate: I/O, clocks, sources of randomness, the assignment of secrets to hosts.
#![no_std]

extern crate alloc;

mod controller;
mod group;
mod hash;
mod host;
mod job;
mod response;
mod secret;
mod text;

pub use controller::{Controller, Key, Keys, Policy};
pub use group::Group;
pub use hash::{Digest, Hash};
pub use host::Host;
pub use job::{Computed, Job};
pub use response::Parties;
pub use secret::{KEY_LEN_MAX, Secret, SecretError};
pub use text::{TokenTextError, token_in, without_mark};

/// The state of an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Not decided.
    UnderWay,
    /// Each party that had to prove itself did.
    Authenticated,
    /// It failed for this reason; the connection is to be ended.
    Failed(nvme_wire::auth::Explanation),
}

#[cfg(test)]
mod tests;
