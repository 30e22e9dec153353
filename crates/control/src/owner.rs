//! The user that owns the socket at the other end of an API connection, if that is on this host.
//!
//! - SOCKET-OWNER-1: the kernel reports the user (sock_diag(7)), as the other end cannot be trusted. A socket without a
//!   process, such as that of a process which has sent its request and ended, may be shown with the user 0:
//!   it counts as having no owner.
//! - SOCKET-OWNER-2: a connection is looked up when it begins. From then on no other socket can have its addresses, as
//!   this end is open.
//! - SOCKET-OWNER-3: the lookup asks for this one socket. It takes no longer if there are many on this host, or if the
//!   peer is on another. Reading the kernel's table of all sockets (`/proc/net/tcp`) takes milliseconds on a
//!   large machine.
//! - SOCKET-OWNER-4: the socket by which the kernel is asked is kept, so that a process without descriptors still knows its
//!   callers. An answer counts only for the question before it, and a socket that failed is replaced.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, TCP_ESTABLISHED};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

/// Room for an answer: the socket, and attributes that were not asked for.
const ANSWER_BYTES_MAX: usize = 4096;
/// Whichever of the sockets with these addresses: there is one.
const ANY_COOKIE: [u8; 8] = [0xFF; 8];

/// The way to ask the kernel.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Option<Asking>>);

/// A socket to the kernel, and the number of the last question.
struct Asking {
    socket: Socket,
    sequence: u32,
}

impl Owners {
    /// Returns the user whose socket at `peer` is connected to `own`; `None` if the socket is not on this host,
    /// or has no owner. Never blocks.
    ///
    /// # Errors
    /// The kernel does not say it.
    pub(crate) fn owner_of(&self, peer: SocketAddr, own: SocketAddr) -> io::Result<Option<u32>> {
        let wanted = identity(peer, own);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SOCKET-OWNER-4: after an error it is not put back.
        let mut asking = kept.take().map_or_else(Asking::open, Ok)?;
        let found = asking.ask(wanted.clone())?;
        *kept = Some(asking);
        Ok(found.filter(|socket| is_held(socket, &wanted)).map(|socket| socket.uid))
    }

    /// Checks that the kernel reports owners of sockets, with a socket of this process.
    ///
    /// # Errors
    /// It does not, or this host has no loopback.
    pub(crate) fn check(&self) -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        match self.owner_of(stream.local_addr()?, stream.peer_addr()?)? {
            Some(_) => Ok(()),
            None => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// The kernel's name of the socket at `peer`. An IPv4 address in the form of an IPv6 one is that address.
fn identity(peer: SocketAddr, own: SocketAddr) -> SocketId {
    let interface_id = match peer {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(peer) => peer.scope_id(),
    };
    SocketId {
        source_port: peer.port(),
        destination_port: own.port(),
        source_address: peer.ip().to_canonical(),
        destination_address: own.ip().to_canonical(),
        interface_id,
        cookie: ANY_COOKIE,
    }
}

impl Asking {
    fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        // The kernel has answered when a question is sent: an answer that is not there does not come.
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks the kernel for a socket. It may answer with one that only listens there.
    fn ask(&mut self, socket_id: SocketId) -> io::Result<Option<InetResponseHeader>> {
        let family = if socket_id.source_address.is_ipv4() { AF_INET } else { AF_INET6 };
        let request = InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::all(),
            socket_id,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
        self.socket.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.to_string()))?;
        if answer.header.sequence_number != self.sequence {
            return Err(ErrorKind::InvalidData.into());
        }
        match answer.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                Ok(Some(found.header))
            }
            NetlinkPayload::Error(error) => match error.to_io() {
                error if error.kind() == ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// SOCKET-OWNER-1: whether it is the socket that was asked for, and a process has it.
fn is_held(socket: &InetResponseHeader, wanted: &SocketId) -> bool {
    let ends = |id: &SocketId| {
        let addresses = [id.source_address, id.destination_address];
        (addresses.map(|address| address.to_canonical()), id.source_port, id.destination_port)
    };
    ends(&socket.socket_id) == ends(wanted) && socket.state == TCP_ESTABLISHED && socket.inode != 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// The user of what the kernel shows so of the socket at port 50000 that is connected to port 7420.
    fn shown(change: impl FnOnce(&mut InetResponseHeader)) -> Option<u32> {
        let address = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
        let own = address("::ffff:127.0.0.1", 7420);
        let wanted = identity(address("127.0.0.1", 50_000), own);
        let mut socket = InetResponseHeader {
            family: AF_INET,
            state: TCP_ESTABLISHED,
            timer: None,
            socket_id: wanted.clone(),
            recv_queue: 0,
            send_queue: 0,
            uid: 1000,
            inode: 42,
        };
        change(&mut socket);
        is_held(&socket, &wanted).then_some(socket.uid)
    }

    #[test]
    fn a_connection_is_its_process_s_user_s() {
        assert_eq!(shown(|_| ()), Some(1000));
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(shown(|socket| socket.socket_id.source_address = mapped), Some(1000));
        assert_eq!(shown(|socket| socket.socket_id.source_port = 50_001), None);
        assert_eq!(shown(|socket| socket.socket_id.destination_port = 0), None, "it listens");
    }

    /// The user 0 that such are shown with is not root.
    #[test]
    fn a_socket_without_a_process_has_no_owner() {
        for state in (0..=11).filter(|state| *state != TCP_ESTABLISHED) {
            assert_eq!(shown(|socket| socket.state = state), None, "{state}");
        }
        assert_eq!(shown(|socket| socket.inode = 0), None);
    }

    #[test]
    fn a_real_connection_is_our_own_until_it_is_closed() {
        let owners = Owners::default();
        owners.check().unwrap();
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        for (any, to) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.9.9.9"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let listener = TcpListener::bind(any).unwrap();
            let port = listener.local_addr().unwrap().port();
            let stream = TcpStream::connect((to, port)).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let own = accepted.local_addr().unwrap();
            assert_eq!(owners.owner_of(peer, own).unwrap(), Some(uid), "{any}");
            drop(stream);
            assert_eq!(owners.owner_of(peer, own).unwrap(), None, "{any}");
            drop(accepted);
        }
    }

    /// Method: addresses of documentation, which no host has; and a port at which this process only listens.
    #[test]
    fn a_peer_that_is_not_connected_here_has_no_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = SocketAddr::from(([127, 0, 0, 1], 7420));
        let listening = listener.local_addr().unwrap().to_string();
        for peer in ["192.0.2.7:9", "[2001:db8::7]:9", "127.255.0.7:9", &listening] {
            let found = Owners::default().owner_of(peer.parse().unwrap(), own);
            assert_eq!(found.unwrap(), None, "{peer}");
        }
    }
}
