//! Whose socket is at the other end of an API connection, if that is on this host.
//!
//! - W1: the kernel's table of sockets says it, as the other end cannot. A socket that nobody holds any more, such as that of
//!   a process which has sent its request and gone, is shown with the user 0: it is nobody's.
//! - W2: a connection is looked up when it begins. From then on nobody else can have its addresses, as this end is open.
//! - W3: who comes from an address that this host does not have is at another host, or in another network namespace, and so in no
//!   table here. Of such there may be many, and for them nothing is read.

use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};

use procfs::net::{TcpNetEntry, TcpState};

/// The table changes while it is read, and what moves in it can be missed.
const LOOKS: usize = 3;

/// The user whose socket at `peer` is connected to `own`; `None` if it is not on this host, or nobody's.
pub(crate) async fn owner_of(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    look_up(peer, own, read_tables).await
}

/// The same, by tables that `read` reads, which may wait.
async fn look_up(
    peer: SocketAddr,
    own: SocketAddr,
    read: impl Fn() -> Vec<TcpNetEntry> + Send + 'static,
) -> Option<u32> {
    if !may_be_here(peer) {
        return None;
    }
    let look = move || (0..LOOKS).find_map(|_| owner_in(&read(), peer, own));
    tokio::task::spawn_blocking(look).await.ok().flatten()
}

fn read_tables() -> Vec<TcpNetEntry> {
    // A host without IPv6 has one table.
    [procfs::net::tcp(), procfs::net::tcp6()].into_iter().flatten().flatten().collect()
}

/// Whether `peer` may be on this host (W3). Waits for nothing.
///
/// The kernel lets a socket have an address of this network namespace only, of whatever kind (all of 127.0.0.0/8, one of an interface
/// that is down), unless the host is set to let it have any. Anything else that keeps it from one says nothing.
fn may_be_here(peer: SocketAddr) -> bool {
    let address = match peer {
        // That of an interface is one with its scope.
        SocketAddr::V6(peer) if peer.ip().to_ipv4_mapped().is_none() => {
            SocketAddr::V6(SocketAddrV6::new(*peer.ip(), 0, 0, peer.scope_id()))
        }
        _ => SocketAddr::new(peer.ip().to_canonical(), 0),
    };
    !UdpSocket::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

fn owner_in(table: &[TcpNetEntry], peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let (peer, own) = (canonical(peer), canonical(own));
    let is_it = |entry: &&TcpNetEntry| {
        canonical(entry.local_address) == peer
            && canonical(entry.remote_address) == own
            // W1.
            && entry.state == TcpState::Established
            && entry.inode != 0
    };
    table.iter().find(is_it).map(|entry| entry.uid)
}

/// An IPv4 address in the form of an IPv6 one is that address. Scopes are not in the table.
fn canonical(address: SocketAddr) -> (std::net::IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use procfs::FromBufReadSI;
    use procfs::net::TcpNetEntries;

    use super::*;

    /// Rows as Linux 6.1 prints them: a listener, both ends of a connection of user 1000 to port 7420, one from an IPv6 socket,
    /// one whose process has gone, and one that has ended.
    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41 1 0 100 0 0 10 0
   1: 0100007F:1CFC 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 43 1 0 20 4 30 10 -1
   2: 0100007F:C350 0100007F:1CFC 01 00000000:00000000 00:00000000 00000000  1000        0 42 1 0 20 4 30 10 -1
   3: 0100007F:C351 0100007F:1CFC 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
   4: 0100007F:C352 0100007F:1CFC 06 00000000:00000000 03:00001770 00000000     0        0 0 3 0
";

    fn owner_at(port: u16) -> Option<u32> {
        let table = TcpNetEntries::from_buf_read(TABLE.as_bytes(), procfs::current_system_info());
        let address = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
        let own = address("::ffff:127.0.0.1", 7420);
        owner_in(&table.unwrap().0, address("127.0.0.1", port), own)
    }

    #[test]
    fn a_connection_is_its_process_s_user_s() {
        assert_eq!(owner_at(50_000), Some(1000));
        assert_eq!(owner_at(50_003), None, "there is none");
    }

    /// The user 0 that these rows show is not root.
    #[test]
    fn what_nobody_holds_any_more_is_nobody_s() {
        assert_eq!(owner_at(50_001), None);
        assert_eq!(owner_at(50_002), None);
    }

    #[tokio::test]
    async fn a_real_connection_is_our_own_until_it_is_closed() {
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
            assert_eq!(owner_of(peer, own).await, Some(uid), "{any}");
            drop(stream);
            assert_eq!(owner_of(peer, own).await, None, "{any}");
            drop(accepted);
        }
    }
    /// W3. Method: addresses of documentation, which are nobody's; and some of this host.
    #[tokio::test]
    async fn nothing_is_read_for_who_comes_from_another_host() {
        for family in ["ipv4", "ipv6"] {
            let path = format!("/proc/sys/net/{family}/ip_nonlocal_bind");
            let any = std::fs::read_to_string(path).is_ok_and(|setting| setting.trim() != "0");
            assert!(!any, "sockets here may have any address");
        }
        let own = SocketAddr::from(([192, 0, 2, 1], 7420));
        for (peer, expected) in [
            ("192.0.2.7:9", 0),
            ("[::ffff:192.0.2.7]:9", 0),
            ("[2001:db8::7]:9", 0),
            ("127.255.0.7:9", LOOKS),
            ("[::ffff:127.0.0.1]:9", LOOKS),
            ("[::1]:9", LOOKS),
        ] {
            let reads = Arc::new(AtomicUsize::new(0));
            let read = reads.clone();
            let count = move || {
                read.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            };
            assert_eq!(look_up(peer.parse().unwrap(), own, count).await, None);
            assert_eq!(reads.load(Ordering::Relaxed), expected, "{peer}");
        }
    }
}
