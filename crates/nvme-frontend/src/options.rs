//! Options of a core that serves NVMe/TCP.

use std::net::{IpAddr, SocketAddr};

use auth::Policy;
use dataplane::CoreOptions;
use nvme_target::Limits;

/// Options of a core that serves NVMe/TCP.
#[derive(Clone, Debug)]
pub struct NvmeOptions {
    /// Options of the core for any protocol.
    pub core: CoreOptions,
    /// The address of this core, as the discovery log shows it.
    pub portal: SocketAddr,
    /// Further addresses at which they do, on the same port.
    pub portal_also: Vec<IpAddr>,
    /// The limits of connections.
    pub limits: Limits,
    /// Policy that hosts have to agree to when they authenticate; `None` lets them in without.
    pub authentication: Option<Policy>,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}

impl NvmeOptions {
    /// Addresses at which hosts reach the core.
    pub(crate) fn portals(&self) -> impl Iterator<Item = SocketAddr> {
        let port = self.portal.port();
        let also = self.portal_also.iter().map(move |&address| SocketAddr::new(address, port));
        std::iter::once(self.portal).chain(also)
    }

    /// The defaults, for hosts that reach the core at `portal`.
    #[must_use]
    pub fn new(portal: SocketAddr) -> Self {
        Self {
            core: CoreOptions::default(),
            portal,
            portal_also: Vec::new(),
            limits: Limits::default(),
            authentication: None,
            model: "farflash dVol".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
        }
    }
}
