//! A host that reads an array of drives, in simulated time: the machine of the all-flash-array study (Jin, Ahn and Lee,
//! "Performance Analysis of NVMe SSD-based All-flash Array Systems"), and what spoils the tail of its latency.
//!
//! Each drive has one thread that keeps one random read of 4 KiB outstanding.
//! ```text
//!            +-- submit -- drive -- uplink -- interrupt ---- wake-up ----- run: reap, submit --+
//!            |              |                     |             |             |                |
//!            |        tail, SMART pause     busy with another   |        tick, sibling         |
//!            |                              handler, far CPU    |        thread busy           |
//!            |                                            idle state left,                     |
//!            |                                            background task has the CPU          |
//!            +------------------------------------ latency ----------------------+             |
//!            ^---------------------------------------------------------------------------------+
//! ```
//! - ARRAY-1: equal layouts, tunings, parameters and seeds give equal latencies.
//! - ARRAY-2: a CPU does one thing at a time: an interrupt's handler, then threads of drives, then a background task
//!   where the scheduler lets it.
//! - ARRAY-3: events are handled in the order of their times.
//!
//! [`Tuning`] holds the five steps of the study, [`Layout`] the CPU of each thread, [`Params`] every time and rate with
//! its source. `docs/reproduce.md` explains the model and compares its results with the paper.
//!
//! Absent from this crate: I/O, clocks, threads, plots, the paper's own results.

mod calendar;
mod cfs;
mod drive;
mod idle;
mod latencies;
mod layout;
mod params;
mod tuning;
mod world;

pub use latencies::{Column, DriveLatencies, OverDrives};
pub use layout::{CPUS, CpuIndex, DRIVES, Density, Layout};
pub use params::{Burst, Params};
pub use ssd_model::ParamsError;
pub use tuning::{Interrupts, Priority, Tuning};
pub use world::{Request, World};
