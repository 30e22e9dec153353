//! Progress of a TCP connection.

use std::os::fd::AsFd;

use crate::interface::get;

/// Offset of `tcpi_bytes_acked` in Linux' `struct tcp_info`: 64 bits, since 4.1.
const BYTES_ACKED: usize = 120;
/// Room for that field and the one behind it.
const INFO_LEN: usize = 136;

/// Bytes sent over the connection `fd` that its peer has acknowledged. `None` if the system does not tell.
pub fn acknowledged_bytes(fd: &impl AsFd) -> Option<u64> {
    let mut info = [0_u8; INFO_LEN];
    let len = get(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    info[..len].get(BYTES_ACKED..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn acknowledged_bytes_count_what_the_peer_took() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
        let address = listener.local_addr().expect("bound");
        let mut host = TcpStream::connect(address).expect("listens");
        let (mut server, _) = listener.accept().expect("connected");
        let before = acknowledged_bytes(&server).expect("told");
        server.write_all(&[1; 1000]).expect("room");
        host.read_exact(&mut [0; 1000]).expect("sent");
        // The peer answers behind what acknowledges all of that.
        host.write_all(&[2]).expect("room");
        server.read_exact(&mut [0]).expect("sent");
        assert_eq!(acknowledged_bytes(&server), Some(before + 1000));
    }

    #[test]
    fn what_is_no_tcp_socket_tells_nothing() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("an address");
        assert_eq!(acknowledged_bytes(&socket), None);
    }
}
