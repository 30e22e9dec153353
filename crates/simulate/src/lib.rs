//! The simulator: the production engine and data plane on a simulated disk, clock and network.
//!
//! ```text
//!  seed ─> profile ─> boots: format or crash ─> recover ─> look at all ─> requests, faults ─┐
//!                       ^                                                                   │
//!                       └──────────────── what survives of the disk <───────────────────────┘
//! ```
//! A seed gives a whole run: what is asked, when the power goes, which sectors survive, what the disk
//! gets wrong, in which order tasks go on. So a finding is a number, and [`run`] shows it again.
//!
//! - `content.rs`: blocks that say which write they are from. `history.rs`: what was asked and answered.
//! - `image.rs`, `linear.rs`: could that have been? `model.rs`, `run.rs`: what is known, what is excused.
//! - `register.rs`, `run/terms.rs`, `hosts.rs`: what operators change, and which hosts may open which volume.
//! - `profile.rs`, `requests.rs`, `scenario.rs`, `outcome.rs`: the course of a run. `rig.rs`, `target.rs`,
//!   `fused.rs`: the targets of its requests.
//! - `reserved.rs`: which hosts exclude one another, by the rules.
//! - `sectors.rs`: hosts of volumes of logical blocks of 512 bytes.
//! - `exhaustive.rs`: short programs, crashed everywhere. `soak.rs`: many seeds at once.
//! - `sharing.rs`, `watched.rs`: ceilings that change under load, and policies held to their promises.
//! - `mending.rs`: damage at rest, and repairs. `scenario/breaking.rs`: blocks that fail for good. `scenario/refusing.rs`: all of
//!   them, for a while.
//! - `cluster.rs`: hosts that share devices, and their etcd.
//! - `tall.rs`: a map of three levels to begin with.
//! - `reached.rs`: the situations that runs reached, and those that none did.
//! - `seam.rs`: disks that break their promises, to see that it is seen.
//!
//! Absent from this crate: real time on the way of a run, threads but one for each seed at a time.

mod cluster;
mod content;
mod exhaustive;
mod fused;
mod history;
mod hosts;
mod image;
mod linear;
mod mending;
mod model;
mod outcome;
mod profile;
mod reached;
mod register;
mod requests;
mod reserved;
mod rig;
mod run;
mod scenario;
mod seam;
mod sectors;
mod sharing;
mod soak;
mod tall;
mod target;
mod watched;

pub use exhaustive::{Base, Crashes, Program, Step, programs, shape_programs, tall_programs};
pub use outcome::{Outcome, run};
pub use profile::Workload;
pub use reached::{Count, Reached, table};
pub use run::Counts;
pub use seam::Seam;
pub use soak::{Soak, Summary};
