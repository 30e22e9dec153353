//! Looks for a host that the directory has lost, before a device of its is taken over.
//!
//! - SEEK-HOLDER-1: it is asked at every address that its claim names, at the same time: its API whether it
//!   serves the device, its portals whether they speak NVMe/TCP. A peer that does neither is not the holder.
//! - SEEK-HOLDER-2: the API says which host it is and what it serves, and its answer goes before all else. A
//!   portal says less: a peer that speaks NVMe/TCP there is taken for the holder.
//! - SEEK-HOLDER-3: a peer that accepts connections and sends nothing is taken for the holder, too: a process
//!   that is stopped, or has as many connections as it may have, looks so, and may serve again.
//! - SEEK-HOLDER-4: addresses that are known to be another's are left out: this host's own, those of hosts
//!   that live, and loopback of another machine or network namespace.
//!
//! An address that was given to another program or host delays no takeover for ever: it answers otherwise, or
//! is known (SEEK-HOLDER-4), or the operator keeps this host from reaching it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use control::{OtherHost, Presence, ask_serving};
use directory::{ClaimRecord, Seek, Sighting, View};
use nvme_wire::pdu::{CommonHeader, Digests, IcReq, PduType};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use uuid::Uuid;
use zerocopy::IntoBytes;

/// Longest time for all of it. The kernel repeats a lost request for a connection after one second, and an
/// answer on the same network takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// Portals that are asked: more than a host has cores. A claim that names more is not ours.
const PORTALS_MAX: usize = 256;

/// The addresses of this host, and the machine on which it runs.
#[derive(Clone, Debug)]
pub(super) struct Here {
    /// Addresses that it listens on, as they were bound: some on all addresses; and those that others are
    /// told.
    pub(super) own: Vec<SocketAddr>,
    pub(super) boot: String,
}

/// Looks from here.
pub(super) fn from(here: Here) -> Seek {
    let here = Arc::new(here);
    Arc::new(move |device, claim, view| {
        let places = here.places(claim, view);
        Box::pin(async move { places.ask(device, PATIENCE).await })
    })
}

/// Addresses at which a holder is to be looked for.
#[derive(Debug, Eq, PartialEq)]
struct Places {
    api: Option<OtherHost>,
    portals: Vec<SocketAddr>,
}

impl Here {
    /// The places that a claim names, without those that are known to be another's (SEEK-HOLDER-4).
    fn places(&self, claim: &ClaimRecord, view: &View) -> Places {
        let others = view.hosts.values().filter(|host| host.id != claim.host);
        let others =
            others.flat_map(|host| host.cores.iter().map(|core| core.portal).chain([host.api]));
        let others: Vec<SocketAddr> = others.collect();
        let may_be_its = |address: &SocketAddr| {
            let elsewhere = address.ip().is_loopback() && claim.boot != self.boot;
            let nowhere = address.ip().is_unspecified() || address.port() == 0;
            !elsewhere && !nowhere && !others.contains(address) && !self.is_own(*address)
        };
        let api = claim.api.filter(&may_be_its).map(|api| OtherHost {
            id: claim.host,
            name: claim.host_name.clone(),
            api,
            api_certificate: claim.api_certificate.clone(),
        });
        let portals = claim.portals.iter().copied().filter(may_be_its);
        Places { api, portals: portals.take(PORTALS_MAX).collect() }
    }

    /// Returns true if `address` leads to this host itself.
    fn is_own(&self, address: SocketAddr) -> bool {
        self.own.iter().any(|own| {
            let everywhere = own.ip().is_unspecified() && own.port() == address.port();
            *own == address || (everywhere && is_of_this_machine(address.ip()))
        })
    }
}

/// Returns true if an address is certainly one of this machine's. Nothing is sent.
fn is_of_this_machine(ip: IpAddr) -> bool {
    let family = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    let setting = std::fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    // Where sockets are bound to addresses of other machines, too, that one can be bound tells nothing.
    setting.is_ok_and(|setting| setting.trim() == "0") && UdpSocket::bind((ip, 0)).is_ok()
}

impl Places {
    /// Returns the address at which the holder of `device` is seen, if there is one (SEEK-HOLDER-1).
    async fn ask(self, device: Uuid, patience: Duration) -> Option<Sighting> {
        let mut asked = JoinSet::new();
        if let Some(host) = self.api {
            asked.spawn(async move { (host.api, ask_serving(&host, device, patience).await) });
        }
        for portal in self.portals {
            asked.spawn(async move { (portal, ask_portal(portal, patience).await) });
        }
        let mut seen: Option<Sighting> = None;
        while let Some(asked) = asked.join_next().await {
            // A task that panicked has found no holder; none panics.
            let Ok((address, presence)) = asked else { continue };
            match presence {
                Presence::Absent | Presence::Another => {}
                // SEEK-HOLDER-2.
                Presence::Idle => return None,
                Presence::Serving => seen = Some(Sighting { address, answers: true }),
                Presence::Silent => {
                    seen = seen.or(Some(Sighting { address, answers: false }));
                }
            }
        }
        seen
    }
}

/// Probes a portal.
async fn ask_portal(portal: SocketAddr, patience: Duration) -> Presence {
    let mut connected = false;
    let asked = async {
        let Ok(stream) = TcpStream::connect(portal).await else { return Presence::Absent };
        connected = true;
        exchange(&stream).await
    };
    match tokio::time::timeout(patience, asked).await {
        Ok(presence) => presence,
        Err(_) if connected => Presence::Silent,
        Err(_) => Presence::Absent,
    }
}

/// Begins an NVMe/TCP connection, and looks at the first bytes of what comes back.
async fn exchange(stream: &TcpStream) -> Presence {
    let request = IcReq::new(Digests::default(), 1);
    let mut rest = request.as_bytes();
    while !rest.is_empty() {
        match ready(stream.writable().await, || stream.try_write(rest)) {
            Some(Ok(sent)) => rest = &rest[sent..],
            None => {}
            // It may have said something before it closed.
            Some(Err(_)) => break,
        }
    }
    let mut bytes = [0; size_of::<CommonHeader>()];
    let mut len = 0;
    loop {
        match ready(stream.readable().await, || stream.try_read(&mut bytes[len..])) {
            None => continue,
            Some(Ok(read @ 1..)) => len += read,
            // Closed.
            Some(_) if len == 0 => return Presence::Silent,
            Some(_) => return Presence::Another,
        }
        let Some(header) = CommonHeader::from_prefix(&bytes[..len]) else {
            // The first byte tells most of what is something else.
            match is_answer(PduType::from_u8(bytes[0])) {
                true => continue,
                false => return Presence::Another,
            }
        };
        let layout = header.layout(Digests::default(), 4);
        let speaks = is_answer(layout.ok().map(|layout| layout.pdu_type));
        return if speaks { Presence::Serving } else { Presence::Another };
    }
}

/// Returns true if the PDU is a controller's answer to an ICReq.
fn is_answer(pdu: Option<PduType>) -> bool {
    matches!(pdu, Some(PduType::IcResp | PduType::C2hTermReq))
}

/// The result of an attempt; `None` if the socket was not ready after all.
fn ready<T>(
    ready: std::io::Result<()>,
    attempt: impl FnOnce() -> std::io::Result<T>,
) -> Option<std::io::Result<T>> {
    match ready.and_then(|()| attempt()) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
        done => Some(done),
    }
}

#[cfg(test)]
mod tests;
