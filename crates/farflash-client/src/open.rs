//! Names of volumes, and options to open them.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use client::{Backoff, Credentials, Options, Reconnect};
use nvme_wire::Nqn;
use uuid::Uuid;

use crate::Error;

/// File in which `nvme-cli` and the kernel keep the NQN of this host.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";
/// Time for which a lost connection is sought at its old location before the cluster is asked.
const SAME_PLACE: units::Duration = units::Duration::from_millis(500);
const CONNECT_TIMEOUT: units::Duration = units::Duration::from_secs(5);

/// The name by which a volume is opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// Its name or id, which a server's API knows.
    Name(String),
    /// `tcp://IP:PORT/NQN`: its location; no cluster is asked.
    Place {
        /// The portal that serves it.
        address: SocketAddr,
        /// The NVMe qualified name of its subsystem.
        nqn: Box<Nqn>,
    },
}

/// Why a text names no volume.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// Nothing at all.
    #[error("a volume is given by its name, its id, or tcp://IP:PORT/NQN; this is empty")]
    Empty,
    /// The part behind the address is missing.
    #[error("`{text}` has no NQN; write tcp://IP:PORT/NQN")]
    NoNqn {
        /// The text.
        text: String,
    },
    /// The part before the NQN is no address.
    #[error("`{address}` is no address; write IP:PORT, such as 192.0.2.1:4420")]
    BadAddress {
        /// The part.
        address: String,
    },
    /// The part behind the address is no NQN.
    #[error("`{nqn}` is no NQN: {error}")]
    BadNqn {
        /// The part.
        nqn: String,
        /// The error in the NQN.
        error: nvme_wire::nqn::NqnError,
    },
    /// It looks like a URL of another kind.
    #[error("`{text}` is no volume; there are names, ids and tcp://IP:PORT/NQN")]
    BadScheme {
        /// The text.
        text: String,
    },
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let Some(rest) = text.strip_prefix("tcp://") else {
            return match text {
                "" => Err(TargetError::Empty),
                _ if text.contains("://") => Err(TargetError::BadScheme { text: text.to_owned() }),
                _ => Ok(Self::Name(text.to_owned())),
            };
        };
        let no_nqn = || TargetError::NoNqn { text: text.to_owned() };
        let (address, nqn) = rest.split_once('/').ok_or_else(no_nqn)?;
        let bad_address = |_| TargetError::BadAddress { address: address.to_owned() };
        let bad_nqn = |error| TargetError::BadNqn { nqn: nqn.to_owned(), error };
        Ok(Self::Place {
            address: address.parse().map_err(bad_address)?,
            nqn: Box::new(nqn.parse().map_err(bad_nqn)?),
        })
    }
}

/// Options to open a volume. [`OpenOptions::default`] suits a volume that is open to all; [`OpenOptions::from_env`]
/// takes the tokens from the environment.
#[derive(Clone)]
pub struct OpenOptions {
    /// The volume's token, `DHHC-1:…`.
    pub token: Option<String>,
    /// If given, the server has to prove that it knows this one. A server without authentication cannot,
    /// and is refused.
    pub controller_token: Option<String>,
    /// NQN of this host; by default that of `/etc/nvme/hostnqn`, or else a generated one.
    pub host_nqn: Option<String>,
    /// TCP connections, 1 to 256.
    pub connections: u16,
    /// Requests on each at a time; further ones wait in line.
    pub depth: u16,
    /// Checksums over headers and data on the way. Without them, only TCP's checksum protects those.
    pub digests: bool,
    /// Time that requests wait for a server that went away before they fail. Whatever this says, a request that was
    /// sent on [`crate::SENDS_MAX`] connections and never answered fails, too.
    pub recovery_timeout: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            token: None,
            controller_token: None,
            host_nqn: None,
            connections: 1,
            depth: 128,
            digests: true,
            recovery_timeout: Duration::from_secs(600),
        }
    }
}

impl fmt::Debug for OpenOptions {
    /// Without the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("has_token", &self.token.is_some())
            .field("connections", &self.connections)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

impl OpenOptions {
    /// The defaults, with the tokens that are in `FARFLASH_TOKEN` and `FARFLASH_CONTROLLER_TOKEN`.
    #[must_use]
    pub fn from_env() -> Self {
        Self {
            token: variable("FARFLASH_TOKEN"),
            controller_token: variable("FARFLASH_CONTROLLER_TOKEN"),
            ..Self::default()
        }
    }

    /// As the client takes them.
    pub(crate) fn client_options(&self) -> Result<Options, Error> {
        let secret = |text: &Option<String>| {
            let parsed = |text| {
                auth::token_in(text).map_err(Error::TokenText)?.parse().map_err(Error::Token)
            };
            text.as_deref().map(parsed).transpose()
        };
        let credentials = match (secret(&self.token)?, secret(&self.controller_token)?) {
            (Some(secret), controller_secret) => Some(Credentials { secret, controller_secret }),
            (None, None) => None,
            (None, Some(_)) => return Err(Error::TokenMissing),
        };
        let id = Uuid::new_v4().into_bytes();
        let mut options = Options::for_host(id);
        if let Some(nqn) = self.host_nqn.as_deref() {
            options.host_nqn = nqn.parse().map_err(Error::HostNqn)?;
        } else if let Some(nqn) = host_nqn_of_this_machine() {
            options.host_nqn = nqn;
        }
        let backoff = Backoff {
            delay_min: units::Duration::from_millis(10),
            delay_max: SAME_PLACE / 2,
            give_up_after: SAME_PLACE,
            refused_for: SAME_PLACE,
            seed: u64::from_le_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[7], id[9]]),
        };
        Ok(Options {
            queues: self.connections.max(1),
            depth: self.depth.max(1),
            header_digest: self.digests,
            data_digest: self.digests,
            connect_timeout: CONNECT_TIMEOUT,
            reconnect: Reconnect::Backoff(backoff),
            credentials,
            ..options
        })
    }
}

/// Returns an environment variable, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.trim().is_empty())
}

fn host_nqn_of_this_machine() -> Option<Nqn> {
    std::fs::read_to_string(HOST_NQN_FILE).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_told_apart() {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa";
        let place = format!("tcp://[2001:db8::1]:4420/{nqn}").parse::<Target>();
        let Ok(Target::Place { address, nqn: parsed }) = place else { panic!("{place:?}") };
        assert_eq!((address.port(), parsed.as_str()), (4420, nqn));
        assert_eq!("db-1".parse(), Ok(Target::Name("db-1".to_owned())));
    }

    #[test]
    fn each_mistake_has_its_error() {
        let error = |text: &str| text.parse::<Target>().unwrap_err();
        assert_eq!(error(""), TargetError::Empty);
        assert!(matches!(error("tcp://192.0.2.1:4420"), TargetError::NoNqn { .. }));
        assert!(matches!(error("tcp://host:4420/nqn"), TargetError::BadAddress { .. }));
        assert!(matches!(error("tcp://192.0.2.1:4420/x"), TargetError::BadNqn { .. }));
        assert!(matches!(error("http://192.0.2.1"), TargetError::BadScheme { .. }));
        let options = OpenOptions { token: Some("secret".to_owned()), ..OpenOptions::default() };
        assert!(matches!(options.client_options(), Err(Error::Token(_))));
        let options =
            OpenOptions { controller_token: Some(valid_token()), ..OpenOptions::default() };
        assert!(matches!(options.client_options(), Err(Error::TokenMissing)));
        let options = OpenOptions { host_nqn: Some("me".to_owned()), ..OpenOptions::default() };
        assert!(matches!(options.client_options(), Err(Error::HostNqn(_))));
        let options = OpenOptions { token: Some(valid_token()), ..OpenOptions::default() };
        assert!(options.client_options().is_ok() && !format!("{options:?}").contains("DHHC"));
    }

    fn valid_token() -> String {
        auth::Secret::new(auth::Hash::Sha256, &[3; auth::KEY_LEN_MAX]).reveal().to_string()
    }
}
