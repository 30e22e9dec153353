//! The interface by which a connection came in.

use std::mem::{offset_of, size_of};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{c_int, c_void, cmsghdr, socklen_t};
use rustix::net::{SocketAddrAny, getsockname};

/// Linux: ancillary data of a stream socket, as of when it was accepted.
const IP_PKTOPTIONS: c_int = 9;
/// Linux: the same for IPv6.
const IPV6_2292PKTOPTIONS: c_int = 6;
/// Room for what both options return, and more.
const OPTIONS_LEN: usize = 256;
/// Messages and the IPv4 information begin with what is read of them.
const _: () =
    assert!(offset_of!(cmsghdr, cmsg_len) == 0 && offset_of!(libc::in_pktinfo, ipi_ifindex) == 0);

/// The index of the interface that received the connection `fd`; `None` if the system does not tell,
/// as for a connection that this host has made.
///
/// An address tells less: a host answers on any interface for the addresses of all.
pub fn receiving_interface(fd: &impl AsFd) -> Option<u32> {
    let local = getsockname(fd).ok()?;
    let family = local.address_family();
    let is_ipv4 = family == rustix::net::AddressFamily::INET || is_mapped(&local);
    let (level, enable, query) = match is_ipv4 {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO, IP_PKTOPTIONS),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, IPV6_2292PKTOPTIONS),
    };
    set(fd, level, enable, 1)?;
    let mut bytes = [0_u8; OPTIONS_LEN];
    let len = get(fd, level, query, &mut bytes)?;
    // Nothing else on this socket uses the information, and it costs a little with each segment.
    set(fd, level, enable, 0)?;
    let index = index_in(&bytes[..len], level)?;
    (index != 0).then_some(index)
}

fn is_mapped(address: &SocketAddrAny) -> bool {
    let address = rustix::net::SocketAddrV6::try_from(address.clone());
    address.is_ok_and(|address| {
        address.ip().to_ipv4_mapped().is_some_and(|ip| ip != Ipv4Addr::UNSPECIFIED)
    })
}

/// The index in the control messages `bytes`.
fn index_in(bytes: &[u8], level: c_int) -> Option<u32> {
    let number = |at: usize| Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let mut at = 0;
    while at + size_of::<cmsghdr>() <= bytes.len() {
        let len = usize::from_ne_bytes(*bytes[at..].first_chunk()?);
        let kind = (
            number(at + offset_of!(cmsghdr, cmsg_level))?,
            number(at + offset_of!(cmsghdr, cmsg_type))?,
        );
        let data = at + size_of::<cmsghdr>();
        if kind == (libc::IPPROTO_IP, libc::IP_PKTINFO) && level == libc::IPPROTO_IP {
            return u32::try_from(number(data)?).ok();
        }
        if kind == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            return u32::try_from(number(data + offset_of!(libc::in6_pktinfo, ipi6_ifindex))?).ok();
        }
        let len = len.max(size_of::<cmsghdr>()).checked_next_multiple_of(size_of::<usize>())?;
        at = at.checked_add(len)?;
    }
    None
}

fn set(fd: &impl AsFd, level: c_int, option: c_int, value: c_int) -> Option<()> {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: the option takes an integer, which lives through the call.
    let outcome = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            ptr::from_ref(&value).cast::<c_void>(),
            len,
        )
    };
    (outcome == 0).then_some(())
}

/// Asks for an option; returns how many of `bytes` it takes.
pub(crate) fn get(fd: &impl AsFd, level: c_int, option: c_int, bytes: &mut [u8]) -> Option<usize> {
    let mut len = bytes.len() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is how many there are, and says how many.
    let outcome = unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            bytes.as_mut_ptr().cast::<c_void>(),
            &mut len,
        )
    };
    (outcome == 0).then_some((len as usize).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// The kernel's index of the interface of this name.
    fn index_of(name: &str) -> u32 {
        let path = format!("/sys/class/net/{name}/ifindex");
        std::fs::read_to_string(path).expect("an interface").trim().parse().expect("a number")
    }

    #[test]
    fn a_connection_to_this_host_comes_in_by_the_loopback() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().expect("bound").port();
            let to =
                if address == "[::]:0" { "127.0.0.1" } else { address.rsplit_once(':').unwrap().0 };
            let _host = TcpStream::connect(format!("{to}:{port}")).expect("listens");
            let (connection, _) = listener.accept().expect("connected");
            assert_eq!(receiving_interface(&connection), Some(index_of("lo")), "{address}");
            // Asking leaves nothing behind that would change the answer.
            assert_eq!(receiving_interface(&connection), Some(index_of("lo")));
        }
    }

    /// A control message with so many bytes of data, filled up to the next.
    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let len = size_of::<cmsghdr>() + data.len();
        let mut bytes =
            [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data].concat();
        bytes.resize(len.next_multiple_of(size_of::<usize>()), 0xEE);
        bytes
    }

    #[test]
    fn the_index_is_found_behind_other_messages() {
        const V4: c_int = libc::IPPROTO_IP;
        const V6: c_int = libc::IPPROTO_IPV6;
        let other = message(V4, libc::IP_TTL, &[9; 5]);
        let info = message(V4, libc::IP_PKTINFO, &[&7_i32.to_ne_bytes()[..], &[1; 8]].concat());
        let info6 = message(V6, libc::IPV6_PKTINFO, &[&[1; 16][..], &8_i32.to_ne_bytes()].concat());
        assert_eq!(index_in(&info, V4), Some(7));
        assert_eq!(index_in(&[&other[..], &info].concat(), V4), Some(7));
        assert_eq!(index_in(&[&other[..], &other, &info].concat(), V4), Some(7));
        assert_eq!(index_in(&[&other[..], &info6].concat(), V6), Some(8));
        assert_eq!(
            index_in(&[&info[..], &info6].concat(), V6),
            Some(8),
            "of the level that was asked"
        );
        assert_eq!(index_in(&other, V4), None);
        let long = message(V4, libc::IP_TTL, &[9; 64]);
        assert_eq!(index_in(&[&long[..], &info].concat(), V4), Some(7));
        for len in 0..other.len() + size_of::<cmsghdr>() + 4 {
            assert_eq!(index_in(&[&other[..], &info].concat()[..len], V4), None, "{len} bytes");
        }
    }

    #[test]
    fn an_address_of_the_older_kind_may_be_mapped() {
        use std::net::SocketAddr;
        let is_mapped = |text: &str| {
            let address: SocketAddr = text.parse().expect("an address");
            super::is_mapped(&SocketAddrAny::from(address))
        };
        assert!(is_mapped("[::ffff:127.0.0.1]:80"));
        assert!(!is_mapped("[::ffff:0.0.0.0]:80"));
        assert!(!is_mapped("[::1]:80"));
        assert!(!is_mapped("127.0.0.1:80"));
    }

    #[test]
    fn what_the_system_does_not_tell_is_none() {
        assert_eq!(index_in(&[], libc::IPPROTO_IP), None);
        assert_eq!(index_in(&[0xFF; 64], libc::IPPROTO_IP), None);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("an address");
        assert_eq!(receiving_interface(&socket), None);
    }
}
