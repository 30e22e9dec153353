//! Load from many machines: agents make it, a coordinator tells them what, starts them together, and adds up what they measured.
//!
//! ```text
//! coordinator                       agent
//!   TLS: the agent shows its certificate
//!   Hello (version, token)    ───>
//!                             <───  Welcome
//!   Clock                     ───>                  several times: the agent's clock, and how far it is away
//!                             <───  Clock
//!   Plan                      ───>                  connections to the server are made
//!                             <───  Connected
//!   Start (on agent's clock)  ───>                  the load
//!                             <───  Alive           while it works, before Connected, too
//!                             <───  Measured
//! ```
//!
//! - AGENT-1: nothing but a hello of bounded length is read from a peer before its token is known to be right.
//! - AGENT-2: all agents start at one time, to within half of a round trip each, and none before all have their connections.
//! - AGENT-3: histograms are sent whole, so that the sum is that of one process which measured the same latencies.
//! - AGENT-4: an agent that fails or is lost fails the run, and ends it for all others; without its coordinator an agent stops.
//!
//! - `frame.rs`, `message.rs`: bytes, messages, and the checks of both. `channel.rs`: both over a TLS connection, with deadlines.
//! - `serve.rs`: the agent. `coordinate.rs`: the coordinator.

mod channel;
mod coordinate;
mod frame;
mod message;
mod serve;

pub use channel::ChannelError;
pub use coordinate::{AgentAddress, AgentError, Agents, Cause, ParseAgentError};
pub use frame::FrameError;
pub use message::MessageError;
pub use serve::{Agent, AgentEvent};

#[cfg(feature = "fuzzing")]
pub(crate) use frame::Frames;
#[cfg(feature = "fuzzing")]
pub(crate) use message::{FromAgent, ToAgent};

/// Decodes a message, and encodes it again.
#[cfg(feature = "fuzzing")]
pub(crate) fn message_of<M: message::Message>(bytes: &[u8]) -> Option<Vec<u8>> {
    M::decode(bytes).ok().map(|message| message.encode())
}
