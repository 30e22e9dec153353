//! One core's work: connections, volumes and devices joined, generic over the world.
//!
//! ```text
//!  Listener ── Connection ── Association ── Export ── volume::Volume ── Device
//!                  │              │            └ what a dVol is to hosts: a subsystem
//!                  │              └ one controller and the connections that are its queues
//!                  └ one queue pair: receives, finds memory, executes, replies
//! ```
//! A [`Core`] owns all of these for one CPU; nothing in it is shared with another. A request is a
//! task: it translates, reads or writes, and replies. What a task waits for (memory, the device, the
//! journal) lets others run. A read that waits for nothing needs none (`reads.rs`).
//!
//! - D1: a request is answered once, or its connection is closed.
//! - D2: the data of requests is bounded: see `memory.rs`.
//! - D3: whatever a peer sends harms at most its own connections.
//! - D4: volumes share the processor (`commands.rs`) and their device (`gate.rs`), and none takes
//!   another's part. A core can have several devices (`devices.rs`).
//!
//! Absent from this crate: sockets, files, threads, real time; how tokens are made and handed out.

mod admin;
mod admission;
mod allotment;
mod association;
mod authentication;
mod commands;
mod computing;
mod connection;
mod core;
mod cross_reset;
mod crowd;
mod devices;
mod discovery;
mod done;
mod errors;
mod even;
mod export;
mod extended;
mod flow_stats;
mod gate;
mod health;
mod incoming;
mod io;
mod latency;
mod life;
mod memory;
mod nearest;
mod options;
mod outbox;
mod places;
mod reads;
mod sabotage;
mod shards;
mod status;
mod suspended;
mod swap;
mod throttle;
mod turns;
mod uncounted;
mod watched;

pub use crate::core::{Core, VolumeStatus};
pub use allotment::Allotment;
pub use crowd::LEAVING_MAX as CONNECTIONS_LEAVING_MAX;
pub use devices::{CoreStats, DeviceStats, ShardFailure, VolumeFlow};
pub use discovery::DiscoveryRecord;
pub use done::Done;
pub use errors::ErrorCounts;
pub use export::nqn_of;
pub use flow_stats::FlowStats;
pub use gate::WindowStats;
pub use latency::{LATENCY_BOUNDS_US, LatencyCounts};
pub use life::Line;
pub use options::CoreOptions;
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
#[cfg(feature = "uncounted")]
pub use uncounted::count_requests;
pub use watched::Watched;
