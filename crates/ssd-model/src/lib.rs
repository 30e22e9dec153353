//! A modelled SSD: says when a request would be done, and keeps no data.
//!
//! ```text
//!  request ─► controller ─┬─ read ──► the unit that the address hashes to ──► done
//!             (rate,      │              ▲ one operation at a time
//!              pauses)    └─ write ─► buffer ──► done
//!                                      └─ full program ─► unit, behind its reads
//!                                                          + garbage collection, erases
//! ```
//! - SSD-1: equal parameters, seed and calls give equal answers.
//! - SSD-2: the answer is final when the request is made. Time is handed in and must not go back.
//! - SSD-3: a unit does one thing at a time and interrupts nothing. Its reads keep their order. They
//!   go ahead of programs, collection and erases that have not begun, but only a bounded number of
//!   them, so that neither kind starves.
//! - SSD-4: no call allocates, and the work of a call does not depend on how long it is since the
//!   last.
//!
//! [`Model`] is the drive, [`Params`] its description with [`Preset`]s for known drives, and
//! [`closed_loop`] measures a model in its own time. What each parameter means, and how the presets
//! compare with the drives, is in `docs/ssd-model.md`.
//!
//! Absent from this crate: contents, clocks, threads, I/O.

mod chance;
mod closed_loop;
mod controller;
mod fit;
mod mapped;
mod model;
mod params;
mod preset;
mod timing;
mod unit;
mod wear;

pub use closed_loop::{Latencies, Load, Measured, Pattern, closed_loop};
pub use fit::{Observed, fit};
pub use model::Model;
pub use params::{Params, ParamsError};
pub use preset::{ParsePresetError, Preset};
