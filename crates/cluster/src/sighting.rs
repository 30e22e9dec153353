//! What is seen of a host that the directory has lost.

use std::fmt;
use std::net::SocketAddr;

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
