//! Access as it lies on a device: a list of fields.
//!
//! ```text
//! 0      1     3
//! +------+-----+-------+
//! | kind | len | value |  …
//! +------+-----+-------+
//! ```
//! `len` is little-endian. Kinds: 1 token (u64: until, 0 for never; then its text), 2 the secret by which the server
//! authenticates itself to hosts that know the preceding token (text), 3 host (NQN), 4 network (prefix length, then 4 or 16 bytes
//! of address), 5 interface, 6 owner, 7 network of NBD clients (as 4), 8 name in certificates of NBD clients, 9 NBD clients by
//! the unix socket (nothing), 10 reservations (`crates/reservation/src/record.rs`), 11 iSCSI initiator (its name in lower case).
//! A server that does not know a kind lets no host in (ACCESS-2).

use alloc::vec::Vec;
use core::net::IpAddr;
use core::str;

use auth::Secret;
use iscsi_wire::IscsiName;
use nvme_wire::Nqn;

use crate::{Access, HostName, Network, TOKENS_MAX, Token, UnixSeconds};

/// Most bytes of a volume's access: it has to fit into the volume's descriptor.
pub const ACCESS_BYTES_MAX: usize = 2048;

const KIND_TOKEN: u8 = 1;
const KIND_CONTROLLER: u8 = 2;
const KIND_HOST: u8 = 3;
const KIND_NETWORK: u8 = 4;
const KIND_INTERFACE: u8 = 5;
const KIND_OWNER: u8 = 6;
const KIND_NBD_NETWORK: u8 = 7;
const KIND_NBD_CERTIFICATE: u8 = 8;
const KIND_NBD_UNIX: u8 = 9;
const KIND_RESERVATIONS: u8 = 10;
const KIND_INITIATOR: u8 = 11;
/// Most bytes of an owner's name.
pub const OWNER_BYTES_MAX: usize = 63;

/// Why bytes are no access, or an access cannot be kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// Restrictions of too many hosts, networks or interfaces, beside what hosts have reserved.
    #[error(
        "tokens, restrictions and reservations take {bytes} bytes, and at most {ACCESS_BYTES_MAX} fit"
    )]
    TooLong {
        /// Bytes that they take.
        bytes: usize,
    },
    /// A field ends beyond the end.
    #[error("a field of the access record is cut short")]
    Short,
    /// A field is of no kind that is known, comes too often, or holds what its kind does not.
    #[error("field of kind {kind} of the access record is invalid")]
    Field {
        /// The kind.
        kind: u8,
    },
}

impl Access {
    /// The bytes that say so.
    ///
    /// # Errors
    /// [`AccessError::TooLong`].
    pub fn encode(&self) -> Result<Vec<u8>, AccessError> {
        let mut bytes = Vec::new();
        let mut put = |kind: u8, parts: &[&[u8]]| {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            bytes.push(kind);
            bytes.extend_from_slice(&u16::try_from(len).expect("short fields").to_le_bytes());
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        };
        for Token { secret, controller, until } in &self.tokens {
            let until = until.map_or(0, |until| until.0).to_le_bytes();
            put(KIND_TOKEN, &[&until, secret.reveal().as_bytes()]);
            if let Some(secret) = controller {
                put(KIND_CONTROLLER, &[secret.reveal().as_bytes()]);
            }
        }
        for host in &self.restrictions.hosts {
            let kind = match host {
                HostName::Nvme(_) => KIND_HOST,
                HostName::Iscsi(_) => KIND_INITIATOR,
            };
            put(kind, &[host.as_str().as_bytes()]);
        }
        let networks = |kind| move |network| (kind, network);
        let restricted = self.restrictions.networks.iter().map(networks(KIND_NETWORK));
        for (kind, network) in
            restricted.chain(self.nbd.networks.iter().map(networks(KIND_NBD_NETWORK)))
        {
            let prefix = [network.prefix_len()];
            match network.address() {
                IpAddr::V4(address) => put(kind, &[&prefix, &address.octets()]),
                IpAddr::V6(address) => put(kind, &[&prefix, &address.octets()]),
            }
        }
        for interface in &self.restrictions.interfaces {
            put(KIND_INTERFACE, &[interface.as_str().as_bytes()]);
        }
        for name in &self.nbd.certificates {
            put(KIND_NBD_CERTIFICATE, &[name.as_str().as_bytes()]);
        }
        if self.nbd.unix {
            put(KIND_NBD_UNIX, &[]);
        }
        if let Some(owner) = &self.owner {
            put(KIND_OWNER, &[owner.as_bytes()]);
        }
        if !self.reservations.is_empty() {
            put(KIND_RESERVATIONS, &[&self.reservations]);
        }
        if bytes.len() > ACCESS_BYTES_MAX {
            return Err(AccessError::TooLong { bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// Decodes the bytes. No bytes are an access without tokens and restrictions.
    ///
    /// # Errors
    /// All or part of the bytes cannot be understood (ACCESS-2).
    pub fn decode(mut bytes: &[u8]) -> Result<Self, AccessError> {
        if bytes.len() > ACCESS_BYTES_MAX {
            return Err(AccessError::TooLong { bytes: bytes.len() });
        }
        let mut access = Self::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or(AccessError::Short)?;
            let (value, rest) =
                rest.split_at_checked(u16::from_le_bytes(*len).into()).ok_or(AccessError::Short)?;
            access.take(kind, value).ok_or(AccessError::Field { kind })?;
            bytes = rest;
        }
        Ok(access)
    }

    fn take(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        let text = || str::from_utf8(value).ok();
        match kind {
            KIND_TOKEN if self.tokens.len() < TOKENS_MAX => {
                let (until, secret) = value.split_first_chunk::<8>()?;
                let until = u64::from_le_bytes(*until);
                self.tokens.push(Token {
                    secret: secret_of(secret)?,
                    controller: None,
                    until: (until != 0).then_some(UnixSeconds(until)),
                });
            }
            KIND_CONTROLLER => {
                let token = self.tokens.last_mut().filter(|token| token.controller.is_none())?;
                token.controller = Some(secret_of(value)?);
            }
            KIND_HOST => self.restrictions.hosts.push(Nqn::new(text()?).ok()?.into()),
            KIND_INITIATOR => self.restrictions.hosts.push(IscsiName::saved(text()?).ok()?.into()),
            KIND_NETWORK => self.restrictions.networks.push(network_of(value)?),
            KIND_NBD_NETWORK => self.nbd.networks.push(network_of(value)?),
            KIND_NBD_CERTIFICATE => self.nbd.certificates.push(text()?.parse().ok()?),
            KIND_NBD_UNIX if value.is_empty() && !self.nbd.unix => self.nbd.unix = true,
            KIND_INTERFACE => self.restrictions.interfaces.push(text()?.parse().ok()?),
            KIND_OWNER if self.owner.is_none() && value.len() <= OWNER_BYTES_MAX => {
                self.owner = Some(text()?.into());
            }
            KIND_RESERVATIONS if self.reservations.is_empty() && !value.is_empty() => {
                self.reservations = value.to_vec();
            }
            _ => return None,
        }
        Some(())
    }
}

fn network_of(value: &[u8]) -> Option<Network> {
    let (&prefix, address) = value.split_first()?;
    let address = match *address {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
    };
    Network::new(address, prefix).ok()
}

fn secret_of(text: &[u8]) -> Option<Secret> {
    str::from_utf8(text).ok()?.parse().ok()
}
