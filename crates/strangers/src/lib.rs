//! Those who have not shown who they are, at a portal or at the API: as whose an address counts, and how much the log
//! says of them.
//!
//! Absent from this crate: connections, clocks, the log itself.
#![no_std]

extern crate alloc;

mod quiet;
mod source;

pub use quiet::{LeftOut, Quiet, Whom};
pub use source::source;
