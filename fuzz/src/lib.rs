//! Fuzz targets: every decoder of a peer's bytes or a device's, and the state machines behind them.
//!
//! The body of each is a plain function of a byte slice that panics when a promise is broken. So
//! libFuzzer drives it (`make fuzz`), a test on stable Rust does so briefly (`make fuzz-smoke`), and
//! an input that once failed becomes a file below `corpus/`.

pub mod access;
pub mod agent_messages;
pub mod api_requests;
pub mod auth;
pub mod commands;
pub mod damaged_image;
pub mod discovering;
pub mod discovery_log;
pub mod etcd_answers;
pub mod exchange_commands;
mod image;
pub mod initiator_stream;
mod input;
pub mod iscsi_stream;
pub mod layout_decode;
mod liar;
pub mod lying_target;
pub mod nbd_stream;
pub mod pdu;
pub mod repaired_image;
pub mod request_trace;
pub mod resp_requests;
mod session;
pub mod target_commands;
pub mod target_stream;

// The smallest complete driver of a target: it belongs to that crate's tests.
#[path = "../../crates/nvme-target/tests/driver/mod.rs"]
mod target_driver;

use test_hosts::nvme as raw_host;
use test_hosts::nvme::portal;

/// One fuzz target.
pub struct Target {
    /// As libFuzzer and `corpus/` know it.
    pub name: &'static str,
    /// Runs it on one input; panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Well-formed inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "access", run: access::run, seeds: access::seeds },
    Target { name: "agent_messages", run: agent_messages::run, seeds: agent_messages::seeds },
    Target { name: "api_requests", run: api_requests::run, seeds: api_requests::seeds },
    Target { name: "auth", run: auth::run, seeds: auth::seeds },
    Target { name: "etcd_answers", run: etcd_answers::run, seeds: etcd_answers::seeds },
    Target {
        name: "exchange_commands",
        run: exchange_commands::run,
        seeds: exchange_commands::seeds,
    },
    Target { name: "discovering", run: discovering::run, seeds: discovering::seeds },
    Target { name: "discovery_log", run: discovery_log::run, seeds: discovery_log::seeds },
    Target { name: "lying_target", run: lying_target::run, seeds: lying_target::seeds },
    Target { name: "iscsi_stream", run: iscsi_stream::run, seeds: iscsi_stream::seeds },
    Target { name: "nbd_stream", run: nbd_stream::run, seeds: nbd_stream::seeds },
    Target { name: "pdu", run: pdu::run, seeds: pdu::seeds },
    Target { name: "commands", run: commands::run, seeds: commands::seeds },
    Target { name: "target_commands", run: target_commands::run, seeds: target_commands::seeds },
    Target { name: "target_stream", run: target_stream::run, seeds: target_stream::seeds },
    Target { name: "initiator_stream", run: initiator_stream::run, seeds: initiator_stream::seeds },
    Target { name: "layout_decode", run: layout_decode::run, seeds: layout_decode::seeds },
    Target { name: "damaged_image", run: damaged_image::run, seeds: damaged_image::seeds },
    Target { name: "request_trace", run: request_trace::run, seeds: request_trace::seeds },
    Target { name: "resp_requests", run: resp_requests::run, seeds: resp_requests::seeds },
    Target { name: "repaired_image", run: repaired_image::run, seeds: repaired_image::seeds },
];
