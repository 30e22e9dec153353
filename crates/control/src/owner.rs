//! Whose socket is at the other end of an API connection, if that is on this host.
//!
//! - W1: the kernel's table of sockets says it, as the other end cannot. A socket that nobody holds any more, such as that of
//!   a process which has sent its request and gone, is shown with the user 0: it is nobody's.
//! - W2: a connection is looked up when it begins. From then on nobody else can have its addresses, as this end is open.

use std::net::SocketAddr;

use procfs::net::{TcpNetEntry, TcpState};

/// The table changes while it is read, and what moves in it can be missed.
const LOOKS: usize = 3;

/// The user whose socket at `peer` is connected to `own`; `None` if it is not on this host, or nobody's. Reads files.
pub(crate) fn owner_of(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    (0..LOOKS).find_map(|_| {
        let tables = [procfs::net::tcp(), procfs::net::tcp6()];
        // A host without IPv6 has one table.
        tables.into_iter().flatten().find_map(|table| owner_in(&table, peer, own))
    })
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

    #[test]
    fn a_real_connection_is_our_own_until_it_is_closed() {
        let uid = std::fs::metadata("/proc/self").unwrap().uid();
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let own = listener.local_addr().unwrap();
            let stream = TcpStream::connect(own).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            assert_eq!(owner_of(peer, own), Some(uid), "{any}");
            drop(stream);
            assert_eq!(owner_of(peer, own), None, "{any}");
            drop(accepted);
        }
    }
}
