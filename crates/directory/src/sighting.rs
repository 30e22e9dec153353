//! What is seen of a host that the directory has lost.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use uuid::Uuid;

use crate::ClaimRecord;
use crate::view::View;

/// Looks for the holder of a device's claim, whose lease has ended, at the addresses that the claim names, in a
/// bounded time. `None`: nobody there is the holder, as far as can be seen from here.
pub type Seek = Arc<
    dyn Fn(Uuid, &ClaimRecord, &View) -> Pin<Box<dyn Future<Output = Option<Sighting>> + Send>>
        + Send
        + Sync,
>;

/// How the holder of a claim was seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// Where.
    pub address: SocketAddr,
    /// Whether it answered; otherwise connections are taken there, and nothing is said.
    pub answers: bool,
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.answers {
            true => write!(f, "answers at {}", self.address),
            false => write!(f, "may hang: {} takes connections and says nothing", self.address),
        }
    }
}
