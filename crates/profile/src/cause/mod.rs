//! Causes of slow requests, from a list of kernel events: pure logic.
//!
//! ```text
//!  begin                                                                    end
//!    │ submit │ issue ........ device ........ complete │ waking │ queue │ run │
//!    └ on the CPU ┘└──────────── asleep ────────────────┘└ ready to run ┘└─────┘
//! ```
//!
//! - CAUSE-1: each instant of a request belongs to one part, so the parts add up to its latency.
//! - CAUSE-2: a cause is named only if its part exceeds what is usual by at least half of the request's whole excess.
//!   All others stay unknown.

mod advice;
mod attribute;
mod event;
mod parts;
mod period;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use advice::{Advice, Seen, advise};
pub use attribute::{Explained, attribute};
pub use event::{Event, Kind, Task};
pub use parts::{Parts, Request, Usual};
pub use period::{Period, period};

/// The cause of a slow request.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// Another task had the CPU while the thread was ready to run.
    Task {
        /// Its name.
        name: String,
        /// It has a real-time priority.
        realtime: bool,
    },
    /// An interrupt, or a softirq, came to the CPU.
    Interrupt {
        /// Its name: that of its device, softirq or vector.
        name: String,
    },
    /// The CPU had to leave an idle state.
    Idle {
        /// The number of the state.
        state: u32,
    },
    /// The drive itself took the time, from issue to completion.
    Drive,
    /// The request was complete, but the thread was woken late, or ran late on a CPU that was not asleep.
    LateWake,
    /// No cause can be named.
    Unknown {
        /// Why not.
        reason: Unknown,
    },
}

/// Why no cause can be named.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unknown {
    /// Several parts were slow, none of them by half of the excess.
    Several,
    /// The thread was on its CPU all the time: the kernel's own path, or a hypervisor that took the CPU.
    OnCpu,
    /// The thread slept, but no request to a block device of its own was seen.
    NoRequest,
    /// Events of that time were lost.
    Lost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task { name, realtime: true } => write!(f, "task `{name}` (real time)"),
            Self::Task { name, realtime: false } => write!(f, "task `{name}`"),
            Self::Interrupt { name } => write!(f, "interrupt {name}"),
            Self::Idle { state } => write!(f, "CPU asleep (idle state {state})"),
            Self::Drive => write!(f, "drive"),
            Self::LateWake => write!(f, "late wake-up"),
            Self::Unknown { reason } => write!(
                f,
                "unknown: {}",
                match reason {
                    Unknown::Several => "several parts were slow",
                    Unknown::OnCpu => "on the CPU (kernel, or hypervisor)",
                    Unknown::NoRequest => "no request to a block device was seen",
                    Unknown::Lost => "events were lost",
                }
            ),
        }
    }
}

#[cfg(test)]
mod tests;
