//! Host tuning: proposes settings for a Flash server or a datastore host, applies them, and gives the
//! old values back.
//!
//! The rules are those of EuroSys'16, section 3.3 (interrupt placement, offloads, jumbo frames) and of
//! the all-flash-array study, section IV (priority, isolation, affinity, housekeeping).
//!
//! ```text
//! Root ──► Machine ──► settings::propose ──► Vec<Proposal> ──► Tuner::apply ──► Record ──► Tuner::undo
//! (files)  (topology)  (rules, pure)          (what, why)        (writes)         (old values)
//! ```
//!
//! - TUNE-1: the old value is durable in the record before the new one is written, so an apply that
//!   was killed at any instant can be undone and repeated.
//! - TUNE-2: undo writes only values that the record holds, and forgets each one after it is back.
//! - TUNE-3: a second apply of the same plan writes nothing.
//! - TUNE-4: a value that must be confirmed is written only after a process runs that undoes it.
//!
//! All files and programs are reached through [`Root`], so that a tree copied from another machine can be
//! planned, applied and undone. Absent from this crate: arguments and output.

mod card;
mod cpu_set;
mod machine;
mod place;
mod placement;
mod programs;
mod proposal;
mod record;
mod root;
pub mod settings;
mod thread;
mod tuner;

pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use machine::{Cpu, Drive, Interrupt, Machine, Nic};
pub use placement::{InterruptPlan, Purpose, place};
pub use programs::Programs;
pub use proposal::{Form, Lasting, Proposal, Risk, Target};
pub use record::{Record, RecordError, Saved};
pub use root::{Root, RootError, WriteLimit};
pub use settings::{Intent, Role};
pub use tuner::{Applied, State, Status, Tuner, Undone};
