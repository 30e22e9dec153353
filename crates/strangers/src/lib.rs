//! Limits for unauthenticated peers, at a portal or at the API: the unit that an address is accounted to, and the
//! log lines per unit.
//!
//! Absent from this crate: connections, clocks, the log itself.
#![no_std]

extern crate alloc;

mod quiet;
mod repeats;
mod source;
mod throttle;

pub use quiet::{LeftOut, PeerSource, Quiet};
pub use repeats::Repeats;
pub use source::source;
pub use throttle::Throttle;
