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
    #[must_use]
    pub fn of_core(&self, core: CoreIndex) -> Option<Self> {
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
    fn what_is_no_place_is_refused() {
        for text in ["", "localhost:10809", "10809", "unix:", "unix:nbd.sock", "/run/nbd.sock"] {
            assert!(text.parse::<NbdAddress>().is_err(), "{text}");
        }
    }
}
