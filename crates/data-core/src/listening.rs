//! The addresses at which a core listens: its portal, discovery, and the places of other protocols.

use std::net::SocketAddr;

use io_traits::{Clock, Network, NetworkError};
use local_devices::storage::{RELEASE_POLL, RELEASE_TIMEOUT};
use reactor::{Handle, TcpListener};
use user_messages::Failure;

use crate::front_ends::{self, Place};

/// The address at which NVMe discovery is answered apart from the portals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Discovery {
    /// Nowhere.
    Off,
    /// There, or the server does not start.
    At(SocketAddr),
    /// There, unless another process listens there.
    IfFree(SocketAddr),
}

/// Opens the portal, and what else the core is to listen on: for NVMe, and for other protocols.
pub(super) async fn listen_all(
    handle: &Handle,
    (portal, discovery): (SocketAddr, Discovery),
    places: Vec<Place>,
) -> Result<(Vec<TcpListener>, Vec<(Place, TcpListener)>), Failure> {
    let refused = |what, flag| move |error| not_bound(what, flag, &error);
    let listening = listen_patiently(handle, portal).await;
    let mut listeners = vec![listening.map_err(refused("a portal", "--listen"))?];
    match discovery {
        Discovery::Off => {}
        Discovery::At(address) => {
            let listening = listen_patiently(handle, address).await;
            listeners.push(listening.map_err(refused("discovery", "--discovery"))?);
        }
        // It is the default: the server starts also if the port cannot be had.
        Discovery::IfFree(address) => match handle.listen(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => tracing::warn!(
                "discovery is answered on the portals only, and not on its usual port: {error}; \
                 --discovery names another, or `off`"
            ),
        },
    }
    let mut others = Vec::new();
    for place in places {
        others.push(front_ends::listen(handle, place).await?);
    }
    Ok((listeners, others))
}

/// Takes a port; tries again for a while if it may still belong to a server that was killed.
pub(super) async fn listen_patiently(
    handle: &Handle,
    address: SocketAddr,
) -> Result<TcpListener, NetworkError> {
    let deadline = handle.now() + RELEASE_TIMEOUT;
    let mut said = false;
    loop {
        match handle.listen(address) {
            Err(NetworkError::AddressInUse { .. }) if handle.now() < deadline => {
                if !std::mem::replace(&mut said, true) {
                    tracing::info!("waiting for {address}, which is in use");
                }
                handle.sleep_until(handle.now() + RELEASE_POLL).await;
            }
            listening => return listening,
        }
    }
}

/// The failure when a port cannot be had.
pub fn not_bound(what: &str, flag: &str, error: &NetworkError) -> Failure {
    /// The operating system's number for a permission that is missing.
    const EACCES: i32 = 13;
    match error {
        NetworkError::AddressInUse { address } => Failure::runtime(
            format!("{what} cannot listen on {address}: the port is in use"),
            format!("stop the program that has it, or give another port with {flag}"),
        ),
        NetworkError::AddressNotAvailable { address } => Failure::runtime(
            format!("{what} cannot listen on {address}: it is no address of this host"),
            format!("give an address of this host with {flag} (`ip address` lists them)"),
        ),
        NetworkError::Io { address, errno: EACCES } => Failure::runtime(
            format!("{what} cannot listen on {address}: permission denied"),
            format!("give a port above 1023 with {flag}, or grant CAP_NET_BIND_SERVICE"),
        ),
        NetworkError::Refused { .. }
        | NetworkError::Unreachable { .. }
        | NetworkError::Io { .. } => Failure::runtime(
            format!("{what} cannot listen: {error}"),
            format!("give another address with {flag}"),
        ),
    }
}
