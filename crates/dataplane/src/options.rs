//! How a core serves.

use std::net::{IpAddr, SocketAddr};

use auth::Policy;
use nvme_target::Limits;

/// How a core serves.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// What the core is called in the log: its CPU.
    pub core: u32,
    /// Where hosts reach this core: what the discovery log says.
    pub portal: SocketAddr,
    /// Further addresses at which they do, on the same port.
    pub portal_also: Vec<IpAddr>,
    /// What connections may do.
    pub limits: Limits,
    /// Connections at a time; more are closed as they come.
    pub connections_max: usize,
    /// Memory for the data of requests.
    pub memory_bytes: u64,
    /// Memory for the data of one connection's requests; at least two of the largest transfers.
    pub window_bytes: u64,
    /// What hosts have to agree to when they authenticate; `None` lets them in without.
    pub authentication: Option<Policy>,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}

impl CoreOptions {
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
            core: 0,
            portal,
            portal_also: Vec::new(),
            limits: Limits::default(),
            connections_max: 1200,
            memory_bytes: 256 << 20,
            window_bytes: 16 << 20,
            authentication: None,
            model: "farflash dVol".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
        }
    }
}
