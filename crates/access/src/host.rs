//! Names of hosts: NVMe qualified names, and names of iSCSI initiators.

use core::fmt;
use core::str::FromStr;

use iscsi_wire::{IscsiName, NameError};
use nvme_wire::Nqn;
use nvme_wire::nqn::NqnError;

/// The name of a host. The two kinds begin differently, so a host of one protocol never has a name of the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum HostName {
    /// An NVMe host, whose name is compared byte by byte.
    Nvme(Nqn),
    /// An iSCSI initiator, whose name is compared in lower case (RFC 7143, clause 4.2.7).
    Iscsi(IscsiName),
}

/// The reason for which a text is no name of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HostNameError {
    /// It begins like the name of an NVMe host.
    #[error(transparent)]
    Nvme(#[from] NqnError),
    /// It begins like the name of an iSCSI initiator.
    #[error(transparent)]
    Iscsi(#[from] NameError),
    /// It begins like neither.
    #[error(
        "a host has an NVMe qualified name (`nqn.…`) or the name of an iSCSI initiator (`iqn.…`, `eui.…`, `naa.…`)"
    )]
    Neither,
}

impl HostName {
    /// The name as text, in the form in which it is compared.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Nvme(name) => name.as_str(),
            Self::Iscsi(name) => name.as_str(),
        }
    }

    /// Returns what makes it likely that no host has this name.
    #[must_use]
    pub fn matches_no_host(&self) -> Option<&'static str> {
        match self {
            Self::Nvme(_) => None,
            Self::Iscsi(name) => name.departs_from_its_form(),
        }
    }
}

impl From<Nqn> for HostName {
    fn from(name: Nqn) -> Self {
        Self::Nvme(name)
    }
}

impl From<IscsiName> for HostName {
    fn from(name: IscsiName) -> Self {
        Self::Iscsi(name)
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, HostNameError> {
        let begins_with = |prefix: &str| {
            text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
        };
        if text.starts_with("nqn.") {
            return Ok(Self::Nvme(Nqn::new(text)?));
        }
        if ["iqn.", "eui.", "naa."].into_iter().any(begins_with) {
            return Ok(Self::Iscsi(IscsiName::new(text)?));
        }
        Err(HostNameError::Neither)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
