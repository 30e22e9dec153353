//! Clients that may open a volume by NBD.
//!
//! NBD has no secret, so a volume is closed to it until its owner names clients: by a network, by the name in a certificate
//! that the server has verified, or by the unix socket, which the file system guards. Each of these opens it by itself. The
//! volume's restrictions of networks and interfaces hold besides; those of host names do not, as NBD has none.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::{Access, Network};

/// Most bytes of a [`CertificateName`]: those of a domain name.
pub const CERTIFICATE_NAME_BYTES_MAX: usize = 253;

/// A name that a client's certificate is issued for: a domain name among its subject's alternative names.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct CertificateName(String);

/// Why a text is no name of a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CertificateNameError {
    /// Empty, or longer than a domain name.
    #[error("the name in a certificate has 1 to 253 bytes")]
    Length,
    /// Something that no domain name has.
    #[error("the name in a certificate has only letters, digits, `-`, `_` and `.`")]
    Character,
}

impl CertificateName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CertificateName {
    type Err = CertificateNameError;

    /// In lower case: domain names are compared so.
    fn from_str(text: &str) -> Result<Self, CertificateNameError> {
        if !(1..=CERTIFICATE_NAME_BYTES_MAX).contains(&text.len()) {
            return Err(CertificateNameError::Length);
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !text.chars().all(is_allowed) {
            return Err(CertificateNameError::Character);
        }
        Ok(Self(text.to_owned().to_ascii_lowercase()))
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Clients that may open a volume by NBD. Without any, none may.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NbdAccess {
    /// Networks that they come from.
    pub networks: Vec<Network>,
    /// Names in their certificates.
    pub certificates: Vec<CertificateName>,
    /// They come by the unix socket.
    pub unix: bool,
}

/// A client of NBD that asks for a volume.
#[derive(Clone, Copy)]
pub enum NbdClient<'a> {
    /// It came by the unix socket.
    Unix,
    /// It came by the network.
    Network {
        /// Its address.
        address: IpAddr,
        /// Looks up the interface of the server that received its connection, if the system tells.
        interface: &'a dyn Fn() -> Option<&'a str>,
        /// Returns whether a certificate of the client, which was verified, has this name.
        has_certificate: &'a dyn Fn(&CertificateName) -> bool,
    },
}

impl NbdAccess {
    /// Returns whether the volume is closed to NBD.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.networks.is_empty() && self.certificates.is_empty() && !self.unix
    }
}

impl Access {
    /// Returns whether `client` may open the volume by NBD.
    #[must_use]
    pub fn admits_nbd(&self, client: &NbdClient<'_>) -> bool {
        let NbdClient::Network { address, interface, has_certificate } = *client else {
            return self.nbd.unix;
        };
        let is_named = self.nbd.networks.iter().any(|network| network.contains(address))
            || self.nbd.certificates.iter().any(has_certificate);
        is_named && self.restrictions.admit_from(address, interface)
    }
}
