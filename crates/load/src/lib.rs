//! Drives a volume or a device with a described load, measures it, and checks what it reads.
//!
//! [`run`] takes a [`Workload`] and one [`Target`] for each connection. Per target, as many tasks as
//! the workload is deep issue one request after another; all state is shared on one core without
//! locks. What comes back is an [`Outcome`]: totals, latency to six nines, a time series.
//!
//! With checking on, a [`Journal`] knows for each block which writes were acknowledged and which
//! were only begun, and every block carries a stamp; see `stamp.rs`. The journal outlives a run, so
//! that a caller can restart the server in between and check everything afterwards.
//!
//! [`play`] issues requests whose times are known instead: those of a [`Profile`] of a published
//! workload, or of a [`Trace`] that was recorded.
//!
//! Absent from this crate: I/O, a runtime, and its own clock.

mod address;
mod engine;
mod journal;
mod measure;
mod outcome;
mod planned;
mod profile;
mod stamp;
mod target;
mod trace;
mod verify;
mod workload;

pub use engine::{Observer, Setup, Stop, play, run};
pub use journal::{Journal, JournalTooLarge, Mismatch};
pub use measure::Kind;
pub use outcome::{Interval, Latency, Outcome, Tally};
pub use planned::{Planned, Terms};
pub use profile::Profile;
pub use target::{DeviceTarget, Target, UnusualBlockSize, VolumeTarget};
pub use trace::{Trace, TraceError, TraceProblem};
pub use verify::{Verified, VerifyError, WHOLE_BLOCKS_MAX, Watcher, holds_data, verify};
pub use workload::{Access, Arrivals, Distribution, Limit, OnError, Rate, Workload, WorkloadError};
