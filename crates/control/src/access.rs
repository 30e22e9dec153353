//! The documents about restrictions: the hosts that may open a volume.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Volume;

/// Conditions that a host must meet to open a volume, besides knowing its token. An empty list restricts
/// nothing; of a list with elements the host must match one. For hosts that do not match, the volume does
/// not exist.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Restrictions {
    /// NVMe qualified names of hosts, and names of iSCSI initiators (`iqn.…`, `eui.…`, `naa.…`), which are compared in lower
    /// case.
    #[serde(default)]
    #[schema(example = json!(["nqn.2014-08.org.nvmexpress:uuid:550e8400-e29b-41d4-a716-446655440000"]))]
    pub hosts: Vec<String>,
    /// Networks that they may come from, IPv4 and IPv6.
    #[serde(default)]
    #[schema(example = json!(["192.0.2.0/24", "2001:db8::/32"]))]
    pub networks: Vec<String>,
    /// Interfaces of the server that they may come by; a VLAN or VXLAN is one.
    #[serde(default)]
    #[schema(example = json!(["vxlan42"]))]
    pub interfaces: Vec<String>,
}

impl fmt::Display for Restrictions {
    /// Writes the hosts that may open the volume, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, networks, interfaces } = self;
        let lists = [("hosts", hosts), ("networks", networks), ("interfaces", interfaces)];
        let shown: Vec<String> = lists
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(kind, list)| format!("{kind} {}", list.join(", ")))
            .collect();
        if shown.is_empty() {
            return f.write_str("any host that knows its token");
        }
        f.write_str(&shown.join("; "))
    }
}

/// Clients of NBD that may open a volume. NBD has no secret: where no list has an element and `unix` is not set, none may.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NbdClients {
    /// Networks that they come from, IPv4 and IPv6.
    #[serde(default)]
    #[schema(example = json!(["192.0.2.0/24"]))]
    pub networks: Vec<String>,
    /// Domain names in their certificates, which the server verifies.
    #[serde(default)]
    #[schema(example = json!(["backup.example.com"]))]
    pub certificates: Vec<String>,
    /// All that can open the server's unix socket for NBD.
    #[serde(default)]
    pub unix: bool,
}

impl NbdClients {
    /// Returns whether none may.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for NbdClients {
    /// The clients, in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { networks, certificates, unix } = self;
        let mut shown = Vec::new();
        if !networks.is_empty() {
            shown.push(format!("networks {}", networks.join(", ")));
        }
        if !certificates.is_empty() {
            shown.push(format!("certificates {}", certificates.join(", ")));
        }
        if *unix {
            shown.push("the unix socket".to_owned());
        }
        if shown.is_empty() {
            return f.write_str("no client");
        }
        f.write_str(&shown.join("; "))
    }
}

/// Asks for other restrictions. Lists that are left out stay as they are; an empty one restricts nothing.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeRestrictions {
    /// NVMe qualified names of hosts, and names of iSCSI initiators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Networks that they may come from, such as `192.0.2.0/24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// Interfaces of the server that they may come by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Vec<String>>,
    /// Clients of NBD that may open it: all of them, as they are to be from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<NbdClients>,
}

/// Asks for new tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeAuth {
    /// Ends the connections that are open.
    #[serde(default)]
    pub cut: bool,
    /// For how long the token before opens the volume, too. At most 30 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_592_000)]
    pub grace_seconds: Option<u32>,
}

/// Longest time for which two tokens open a volume.
pub const GRACE_SECONDS_MAX: u32 = 30 * 24 * 3600;

/// The secrets that open a volume. Shown once: the server does not show them again.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Tokens {
    /// The secret with which a host authenticates itself (`nvme connect --dhchap-secret`).
    #[schema(example = "DHHC-1:01:…:")]
    pub token: String,
    /// With this the server does, if the host asks (`--dhchap-ctrl-secret`).
    pub controller_token: String,
    /// The CHAP secret of iSCSI initiators, which is made of the token; none if initiators do not authenticate, or the server
    /// does not serve the volume by iSCSI. The user name is the volume's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap_secret: Option<String>,
    /// The same for the target, whose user name is that of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap_target_secret: Option<String>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

/// A new volume, and what opens it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct CreatedVolume {
    /// The volume.
    #[serde(flatten)]
    pub volume: Volume,
    /// Its tokens.
    #[serde(flatten)]
    pub tokens: Tokens,
}
