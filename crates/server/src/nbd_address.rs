//! Places where clients of NBD connect to, as those clients have them written.

use data_core::NbdAddress;

/// The encryption of connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Encryption {
    /// None.
    None,
    /// TLS.
    Tls,
}

/// The URI of the export `name` there.
pub(crate) fn uri(place: &NbdAddress, encryption: Encryption, name: &str) -> String {
    match (place, encryption) {
        (NbdAddress::Tcp(address), Encryption::None) => format!("nbd://{address}/{name}"),
        (NbdAddress::Tcp(address), Encryption::Tls) => format!("nbds://{address}/{name}"),
        (NbdAddress::Unix(path), _) => format!("nbd+unix:///{name}?socket={}", escaped(path)),
    }
}

/// The command with which a Linux host connects the export `name` there.
pub(crate) fn connect_line(place: &NbdAddress, encryption: Encryption, name: &str) -> String {
    let place = match place {
        NbdAddress::Tcp(address) => format!("{} {}", address.ip(), address.port()),
        NbdAddress::Unix(path) => format!("-unix {}", control::shell_word(&path.to_string_lossy())),
    };
    let certificates = match encryption {
        Encryption::None => "",
        Encryption::Tls => " -cacertfile CA.pem -certfile CERTIFICATE.pem -keyfile KEY.pem",
    };
    format!("nbd-client {place} /dev/nbd0 -N {name}{certificates}")
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
    fn uris_are_those_of_clients() {
        let (tcp, unix) = (place("192.0.2.7:10809"), place("unix:/run/far flash"));
        assert_eq!(uri(&tcp, Encryption::None, "db-1"), "nbd://192.0.2.7:10809/db-1");
        assert_eq!(uri(&tcp, Encryption::Tls, "db-1"), "nbds://192.0.2.7:10809/db-1");
        let socket = uri(&unix, Encryption::None, "db-1");
        assert_eq!(socket, "nbd+unix:///db-1?socket=/run/far%20flash");
        let line = connect_line(&tcp, Encryption::None, "db-1");
        assert_eq!(line, "nbd-client 192.0.2.7 10809 /dev/nbd0 -N db-1");
        assert!(
            connect_line(&tcp, Encryption::Tls, "db-1").starts_with(&format!("{line} -cacertfile"))
        );
        let line = connect_line(&unix, Encryption::None, "db-1");
        assert_eq!(line, "nbd-client -unix '/run/far flash' /dev/nbd0 -N db-1");
    }
}
