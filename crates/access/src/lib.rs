//! The hosts that may open a volume (Decibel, section 3.1, access control; figure 6: `vol_auth`,
//! `vol_restrict`).
//!
//! ```text
//! Access = tokens (the host proves that it knows one)  +  Restrictions (its address, interface and name)
//! ```
//! - ACCESS-1: a host that may not open a volume is not told that it exists: a restriction that refuses
//!   looks to its host like a volume that is not there.
//! - ACCESS-2: a record that cannot be read admits no host.
//! - ACCESS-3: a token is valid until the second at which it expires, and no longer.
//!
//! Absent from this crate: I/O, clocks, the exchange that proves knowledge (`auth`), connections.
#![no_std]

extern crate alloc;

mod host;
mod interface;
mod nbd;
mod network;
mod record;
mod restrictions;

use alloc::string::String;
use alloc::vec::Vec;

use auth::Secret;

pub use host::{HostName, HostNameError};
pub use interface::{INTERFACE_BYTES_MAX, InterfaceName, InterfaceNameError};
pub use nbd::{
    CERTIFICATE_NAME_BYTES_MAX, CertificateName, CertificateNameError, NbdAccess, NbdClient,
};
pub use network::{Network, NetworkError};
pub use record::{ACCESS_BYTES_MAX, AccessError, OWNER_BYTES_MAX};
pub use restrictions::{Restrictions, Visitor};

/// Tokens that a volume has at most: one, and another that it takes the place of.
pub const TOKENS_MAX: usize = 2;

/// Seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(pub u64);

/// A secret that opens a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Token {
    /// The secret that a host must know.
    pub secret: Secret,
    /// With what the server proves itself to a host that knows it and asks.
    pub controller: Option<Secret>,
    /// When it ceases to be of use (ACCESS-3); `None` for never.
    pub until: Option<UnixSeconds>,
}

/// The conditions for opening a volume.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// A host must know one of these; the newest is first. Without any, no host can authenticate.
    pub tokens: Vec<Token>,
    /// Further conditions for a host.
    pub restrictions: Restrictions,
    /// Clients of NBD that may open it.
    pub nbd: NbdAccess,
    /// The tenant whose volume it is, if it is one's.
    pub owner: Option<String>,
    /// Reservations that outlive a restart, in the form of the crate `reservation`; empty for none. Hosts change them, and the
    /// owner of the volume does not.
    pub reservations: Vec<u8>,
}

impl Access {
    /// The tokens that open the volume at `now` (ACCESS-3).
    pub fn tokens_at(&self, now: UnixSeconds) -> impl Iterator<Item = &Token> {
        self.tokens.iter().filter(move |token| token.is_valid_at(now))
    }

    /// Forgets what opens nothing any more (ACCESS-3): it need not lie on a device longer than until this is next written.
    pub fn forget_expired(&mut self, now: UnixSeconds) {
        self.tokens.retain(|token| token.is_valid_at(now));
    }

    /// Takes `token` from now on, for ever. The one before stays of use until `grace`, if there
    /// is one; older ones are forgotten.
    pub fn rotate(&mut self, token: Token, now: UnixSeconds, grace: Option<UnixSeconds>) {
        self.forget_expired(now);
        self.tokens.truncate(usize::from(grace.is_some()));
        if let Some(old) = self.tokens.first_mut() {
            old.until = old.until.into_iter().chain(grace).min();
        }
        self.tokens.insert(0, Token { until: None, ..token });
    }
}

impl Token {
    fn is_valid_at(&self, now: UnixSeconds) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[cfg(test)]
mod tests;
