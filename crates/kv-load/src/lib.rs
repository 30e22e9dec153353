//! Load generator for key-value servers that speak RESP, after mutilate.
//!
//! An open loop sends each request at its intended time, whatever the server does, and counts its latency from
//! there; a closed loop sends the next request when the one before is answered. A separate connection, the probe,
//! sends one request at a time and shows what a client sees that adds no load.
//!
//! - `sizes.rs`, `keys.rs`, `arrivals.rs`, `workload.rs`, `profile.rs`: distributions, as functions of a seed.
//! - `engine.rs`: one thread's requests in time. It reads no clock and has no socket.
//! - `latency.rs`, `peak.rs`, `cpu.rs`: histograms; the search for the highest rate; the generator's own limit.
//! - `drive.rs`, `probe.rs`, `run.rs`: threads, sockets and clocks around them; `tls.rs`: TLS to the server.
//! - `agent/`: load from many machines.

mod agent;
mod arrivals;
mod connection;
mod cpu;
mod drive;
mod engine;
mod exact;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod keys;
mod latency;
mod observer;
mod outcome;
mod peak;
mod probe;
mod profile;
mod run;
mod sizes;
mod tls;
mod workload;

pub use agent::{
    Agent, AgentAddress, AgentError, AgentEvent, Agents, Cause, ChannelError, FrameError,
    MessageError, ParseAgentError,
};
pub use arrivals::Arrivals;
pub use connection::RunError;
pub use keys::{KEY_LEN_MIN, ParsePopularityError, Popularity};
pub use latency::{Latencies, Summary};
pub use observer::Observer;
pub use outcome::{AgentPart, Outcome, Point};
pub use peak::PeakSearch;
pub use profile::Profile;
pub use run::{CONNECTIONS_MAX, Loop, Setup, SetupError, THREADS_MAX, fill, run};
pub use sizes::{ParseSizesError, Sizes};
pub use tls::TargetTls;
pub use workload::{VALUE_LEN_MAX, Workload, WorkloadError, WriteCommand};
