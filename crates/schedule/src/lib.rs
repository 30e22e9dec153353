//! Sharing a device among volumes: pure decisions, no I/O and no clock of its own.
//!
//! ```text
//! enqueue ──► a queue for each volume ──► policy ──► window ──► dispatch
//!             (reads and writes apart)      ▲                       │
//!                     quotas of the volumes │            complete ◄─┘
//! ```
//! - [`Ceiling`]: what a device can do within the latency that its operator wants (Decibel,
//!   section 3.2). [`Slo`]: what a volume is promised of it. [`plan`] turns both into a [`Quota`]
//!   for each volume, and refuses what the device cannot promise.
//! - [`Scheduler`]: the queues of one core before one device. It lets about a window of blocks be
//!   under way, a part of which is the reads' and a part the writes', and asks a [`Policy`] for each whose request leaves next.
//! - [`Policy`]: one file each under `policy/`; the table there makes one known to users.
//!
//! Cost is counted in blocks of 4 KiB, and apart for reads and writes unless a [`CostModel`] says
//! what a write is worth.
//!
//! Absent from this crate: devices, tasks, waiting. A caller with nothing to do until an instant is
//! told which.
#![no_std]

extern crate alloc;

mod bucket;
mod cost;
mod parked;
mod plan;
mod policy;
mod sabotage;
mod scheduler;
mod slo;

pub use cost::{CLASSES, Cost, CostModel, Direction, Request, UNITS_PER_BLOCK};
pub use plan::{AdmissionError, CorePart, Plan, Promise, plan};
pub use policy::{FlowId, Next, POLICIES, Policy, PolicyKind, UnknownPolicy, policy_names};
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use scheduler::{Dispatch, Scheduler, SchedulerConfig};
pub use slo::{Ceiling, Quota};
pub use units::Slo;
