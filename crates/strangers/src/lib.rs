//! Limits for unauthenticated peers, at a portal or at the API: the unit that an address is accounted to, and the
//! log lines per unit; and the protocols of clients that took the port for another one.
//!
//! Absent from this crate: connections, clocks, the log itself.
#![no_std]

extern crate alloc;

mod protocols;
mod quiet;
mod repeats;
mod source;
mod throttle;

pub use protocols::protocol_of;
pub use quiet::{LeftOut, PeerSource, Quiet};
pub use repeats::Repeats;
pub use source::source;
pub use throttle::Throttle;
