//! Places where clients of NBD connect to, as people write them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use units::CoreIndex;

/// Begins the path of a unix socket.
const UNIX: &str = "unix:";

/// A place where clients of NBD connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NbdAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// The encryption of connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Encryption {
    /// None.
    None,
    /// TLS.
    Tls,
}

/// Why a text is no such place.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is no place for NBD; write IP:PORT, such as 127.0.0.1:10809, or unix:/PATH")]
pub struct ParseNbdAddressError(String);

impl FromStr for NbdAddress {
    type Err = ParseNbdAddressError;

    fn from_str(text: &str) -> Result<Self, ParseNbdAddressError> {
        if let Some(path) = text.strip_prefix(UNIX).filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(path.into()));
        }
        text.parse().map(Self::Tcp).map_err(|_| ParseNbdAddressError(text.to_owned()))
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl NbdAddress {
    /// The place of a core: its port is so much higher, or its path ends so.
    pub(crate) fn of_core(&self, core: CoreIndex) -> Option<Self> {
        Some(match self {
            Self::Tcp(base) if base.port() == 0 => self.clone(),
            Self::Tcp(base) => {
                let port = base.port().checked_add(u16::try_from(core.0).ok()?)?;
                Self::Tcp(SocketAddr::new(base.ip(), port))
            }
            Self::Unix(_) if core.0 == 0 => self.clone(),
            Self::Unix(path) => {
                let mut path = path.clone().into_os_string();
                path.push(format!(".{core}"));
                Self::Unix(path.into())
            }
        })
    }

    /// The URI of the export `name` there.
    pub(crate) fn uri(&self, encryption: Encryption, name: &str) -> String {
        match (self, encryption) {
            (Self::Tcp(address), Encryption::None) => format!("nbd://{address}/{name}"),
            (Self::Tcp(address), Encryption::Tls) => format!("nbds://{address}/{name}"),
            (Self::Unix(path), _) => format!("nbd+unix:///{name}?socket={}", escaped(path)),
        }
    }

    /// The command with which a Linux host connects the export `name` there.
    pub(crate) fn connect_line(&self, encryption: Encryption, name: &str) -> String {
        let place = match self {
            Self::Tcp(address) => format!("{} {}", address.ip(), address.port()),
            Self::Unix(path) => format!("-unix {}", control::shell_word(&path.to_string_lossy())),
        };
        let certificates = match encryption {
            Encryption::None => "",
            Encryption::Tls => " -cacertfile CA.pem -certfile CERTIFICATE.pem -keyfile KEY.pem",
        };
        format!("nbd-client {place} /dev/nbd0 -N {name}{certificates}")
    }
}

/// The path as the query of a URI has it.
fn escaped(path: &std::path::Path) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(byte);
    let escape = |byte: u8| match is_plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.as_os_str().as_encoded_bytes().iter().map(|byte| escape(*byte)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> NbdAddress {
        text.parse().expect("a place")
    }

    #[test]
    fn each_core_has_a_place_of_its_own() {
        for (base, first, third) in [
            ("127.0.0.1:10809", "127.0.0.1:10809", "127.0.0.1:10811"),
            ("[::1]:0", "[::1]:0", "[::1]:0"),
            ("unix:/run/nbd.sock", "unix:/run/nbd.sock", "unix:/run/nbd.sock.2"),
        ] {
            let of_core = |core| place(base).of_core(CoreIndex(core)).expect("a place").to_string();
            assert_eq!((of_core(0).as_str(), of_core(2).as_str()), (first, third));
        }
        assert_eq!(place("127.0.0.1:65535").of_core(CoreIndex(1)), None);
    }

    #[test]
    fn uris_are_those_of_clients() {
        let (tcp, unix) = (place("192.0.2.7:10809"), place("unix:/run/far flash"));
        assert_eq!(tcp.uri(Encryption::None, "db-1"), "nbd://192.0.2.7:10809/db-1");
        assert_eq!(tcp.uri(Encryption::Tls, "db-1"), "nbds://192.0.2.7:10809/db-1");
        let socket = unix.uri(Encryption::None, "db-1");
        assert_eq!(socket, "nbd+unix:///db-1?socket=/run/far%20flash");
        let line = tcp.connect_line(Encryption::None, "db-1");
        assert_eq!(line, "nbd-client 192.0.2.7 10809 /dev/nbd0 -N db-1");
        assert!(
            tcp.connect_line(Encryption::Tls, "db-1").starts_with(&format!("{line} -cacertfile"))
        );
        let line = unix.connect_line(Encryption::None, "db-1");
        assert_eq!(line, "nbd-client -unix '/run/far flash' /dev/nbd0 -N db-1");
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in ["", "localhost:10809", "10809", "unix:", "unix:nbd.sock", "/run/nbd.sock"] {
            assert!(text.parse::<NbdAddress>().is_err(), "{text}");
        }
    }
}
