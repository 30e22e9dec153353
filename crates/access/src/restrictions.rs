//! Conditions for a host, besides knowing a token.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::{HostName, InterfaceName, Network};

/// Conditions for a host. Each list that is empty restricts nothing; of one that is not, the host
/// must match an element.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Restrictions {
    /// Names under which hosts may come.
    pub hosts: Vec<HostName>,
    /// Networks that they may come from.
    pub networks: Vec<Network>,
    /// Interfaces of the server that they may come by: a VLAN or VXLAN is one.
    pub interfaces: Vec<InterfaceName>,
}

/// A host at the door.
#[derive(Clone, Copy, Debug)]
pub struct Visitor<'a> {
    /// The name that it gives: of an iSCSI initiator, in lower case.
    pub host: &'a str,
    /// The address that it comes from.
    pub address: IpAddr,
    /// The interface that received its connection, if that is known.
    pub interface: Option<&'a str>,
}

impl Restrictions {
    /// Returns true if the visitor meets all conditions.
    #[must_use]
    pub fn admit(&self, visitor: &Visitor<'_>) -> bool {
        let host =
            self.hosts.is_empty() || self.hosts.iter().any(|host| host.as_str() == visitor.host);
        let network = self.networks.is_empty()
            || self.networks.iter().any(|network| network.contains(visitor.address));
        let interface = self.interfaces.is_empty()
            || self.interfaces.iter().any(|name| Some(name.as_str()) == visitor.interface);
        host && network && interface
    }

    /// Returns whether a client without a name may come from `address`, by the interface that `interface` looks up.
    #[must_use]
    pub fn admit_from<'a>(
        &self,
        address: IpAddr,
        interface: impl FnOnce() -> Option<&'a str>,
    ) -> bool {
        let network = self.networks.is_empty()
            || self.networks.iter().any(|network| network.contains(address));
        network
            && (self.interfaces.is_empty()
                || interface()
                    .is_some_and(|found| self.interfaces.iter().any(|name| name.as_str() == found)))
    }

    /// Returns true if every host is admitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.networks.is_empty() && self.interfaces.is_empty()
    }
}
