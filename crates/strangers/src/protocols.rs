//! Protocols that clients speak which took the port for another's.

/// The protocol that begins with `bytes`, if it is one that is known. Eight bytes are enough for all,
/// and four for most.
#[must_use]
pub fn protocol_of(bytes: &[u8]) -> Option<&'static str> {
    const HTTP: [&[u8]; 9] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"OPTIONS ",
        b"PATCH ",
        b"CONNECT ",
        b"PRI * ",
    ];
    // A record of a handshake, of whatever version 3.x.
    if let [0x16, 0x03, ..] = bytes {
        return Some("TLS");
    }
    if HTTP.iter().any(|method| bytes.starts_with(method)) {
        return Some("HTTP");
    }
    if bytes.starts_with(b"SSH-") {
        return Some("SSH");
    }
    // A Login Request for immediate delivery, with reserved bits 0.
    if let [0x43, _, 0, 0, ..] = bytes {
        return Some("iSCSI");
    }
    // An Initialize Connection Request.
    if let [0, _, 128, 0] | [0, _, 128, 0, 128, 0, 0, 0, ..] = bytes {
        return Some("NVMe/TCP");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_known_by_their_first_bytes() {
        for (bytes, name) in [
            (&[0x16, 3, 1, 2, 0, 1, 0, 1][..], Some("TLS")),
            (b"GET / HT", Some("HTTP")),
            (b"CONNECT ", Some("HTTP")),
            (b"SSH-2.0-", Some("SSH")),
            (&[0x43, 0x87, 0, 0, 0, 0, 0, 60], Some("iSCSI")),
            (&[0, 0, 128, 0, 128, 0, 0, 0], Some("NVMe/TCP")),
            (&[0, 0, 128, 0], Some("NVMe/TCP")),
            (&[0, 0, 128, 0, 0, 0, 0, 0], None),
            (&[0x55; 8], None),
            (b"", None),
        ] {
            assert_eq!(protocol_of(bytes), name, "{bytes:?}");
        }
    }
}
