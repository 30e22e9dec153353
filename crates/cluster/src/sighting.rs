//! The sighting of a host that the directory has lost.

use std::fmt;
use std::net::SocketAddr;

/// The way in which the holder of a claim was seen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// The address at which it was seen.
    pub address: SocketAddr,
    /// True if it answered; otherwise connections are accepted there, without an answer.
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
