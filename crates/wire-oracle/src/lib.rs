//! NVMe/TCP a second time, for tests: a peer that draws everything the specification allows.
//!
//! What encodes and decodes with the same code agrees with itself, whatever the bytes are. So nothing here is
//! taken from the product: layouts are byte offsets as the figures of the TCP transport, Base and NVM Command
//! Set specifications state them, and CRC-32C is one table of 256 entries. `Cargo.toml` names no dependency.
//!
//! - [`Host`]: one queue of a host. Draws commands, sizes and offsets of PDUs, padding, the order of PDUs of
//!   several commands, and where the stream is cut; checks each byte that comes back, and that what is read is
//!   what was written. On request it damages a digest or breaks a rule, and checks the refusal.
//! - [`Target`]: the mirror. Draws R2Ts and C2HData PDUs, and checks each byte that a host sends.
//! - [`pdu`]: bytes of PDUs, both ways.
//!
//! All is a function of a seed, takes bytes in and hands bytes out, and returns the first finding as text.
//! There is no I/O: the same generator runs against a state machine and against a server in a simulated world.

mod check;
mod command;
mod controller;
pub mod crc;
mod draw;
mod fault;
mod host;
mod image;
pub mod pdu;
mod rng;
mod setup;
mod target;

pub use controller::Controller;
pub use fault::Fault;
pub use host::Host;
pub use image::Image;
pub use rng::Rng;
pub use setup::{Cut, Identity, Namespace, Queue, Setup};
pub use target::{Target, TargetFault, TargetSetup};

/// A violation by a peer, in one line.
pub type Finding = String;
