//! One core's work, whatever protocol hosts speak: sessions, volumes and devices joined, generic over the world.
//!
//! ```text
//!  Listener ── Frontend ── Session ── Export ── volume::Volume ── Device
//!                 │           │         └ a volume that hosts can open
//!                 │           └ one connection: decodes, submits requests, encodes outcomes
//!                 └ one protocol, in a crate of its own
//! ```
//! A [`Core`] owns all of these for one CPU; nothing in it is shared with another. A request is a
//! task: it translates, reads or writes, and ends. What a task waits for (memory, the device, the
//! journal) lets others run. A read that waits for nothing needs none (`reads.rs`).
//!
//! - PLANE-1: a request is answered once, or its session is closed (`session.rs`).
//! - PLANE-2: the data of requests is bounded: see `memory.rs`.
//! - PLANE-3: whatever a peer sends harms at most its own connections.
//! - PLANE-4: volumes share the processor (`commands.rs`) and their device (`gate.rs`), and none takes
//!   another's part. A core can have several devices (`devices.rs`).
//!
//! Absent from this crate: every protocol, sockets, files, threads, real time; how tokens are made and handed out.

mod admission;
mod allotment;
mod care;
mod commands;
mod computing;
mod core;
mod crowd;
mod devices;
mod done;
mod errors;
mod execute;
mod export;
mod flow_stats;
mod front_ends;
mod gate;
mod held;
mod latency;
mod memory;
mod nearest;
mod options;
mod outbox;
mod pace;
mod payload;
mod reads;
mod recording;
mod request;
mod reservations;
mod running;
mod sabotage;
mod sectors;
mod session;
mod sessions;
mod shards;
mod spare;
mod suspended;
mod turns;
mod uncounted;
mod writes;

pub use crate::core::{ChangeError, Core, Loss, VolumeStatus};
pub use admission::{Peer, Refused, Since};
pub use allotment::Allotment;
pub use computing::Computing;
pub use crowd::LEAVING_MAX as CONNECTIONS_LEAVING_MAX;
pub use devices::{CoreStats, DeviceStats, ShardFailure, VolumeFlow};
pub use done::Done;
pub use errors::ErrorCounts;
pub use export::Export;
pub use flow_stats::FlowStats;
pub use front_ends::FrontendStats;
pub use gate::WindowStats;
pub use latency::{LATENCY_BOUNDS_US, LatencyCounts};
pub use memory::{Share, Window, footprint};
pub use nearest::nearest;
pub use options::CoreOptions;
pub use outbox::{Filling, Outbox};
pub use pace::Pace;
pub use recording::{
    RECORDING_BUFFER_MAX, RECORDING_FETCH_MAX, RECORDINGS_MAX, RecordedRequest, RecordingCommand,
    RecordingError, RecordingStatus, RecordingTerms, UNASKED_MAX,
};
pub use request::{BlockPart, IoError, Outcome, PartPayload, Payload, Request};
pub use reservations::NotReserved;
#[cfg(feature = "sabotage")]
pub use sabotage::{Sabotage, sabotage};
pub use session::{ConnectionId, ExportId, Frontend, Link, Session, Tag, VolumeEvent};
pub use spare::{SPARE_THRESHOLD_PERCENT, spare_percent};
#[cfg(feature = "uncounted")]
pub use uncounted::count_requests;
pub use volume::Crcs;
