//! How a core serves NVMe/TCP.

use std::net::{IpAddr, SocketAddr};

use auth::Policy;
use dataplane::CoreOptions;
use nvme_target::Limits;

/// How a core serves NVMe/TCP.
#[derive(Clone, Debug)]
pub struct NvmeOptions {
    /// How the core serves whatever protocol.
    pub core: CoreOptions,
    /// Where hosts reach this core: the discovery log says so.
    pub portal: SocketAddr,
    /// Further addresses at which they do, on the same port.
    pub portal_also: Vec<IpAddr>,
    /// The limits of connections.
    pub limits: Limits,
    /// What hosts have to agree to when they authenticate; `None` lets them in without.
    pub authentication: Option<Policy>,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}

impl NvmeOptions {
    /// Where hosts reach the core.
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
