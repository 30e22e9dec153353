//! Addresses to listen on and to connect to, as people write them.

use std::net::SocketAddr;

/// Why a text is no address with a port.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is no address; write IP:PORT, such as 127.0.0.1:4420 or [::1]:4420")]
pub(crate) struct ParseAddressError(String);

/// Reads `IP:PORT`. Names are not looked up: which address one stands for can change, and may be several.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, ParseAddressError> {
    text.parse().map_err(|_| ParseAddressError(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_number_and_a_port() {
        for text in ["127.0.0.1:4420", "[::1]:0", "0.0.0.0:65535"] {
            assert_eq!(parse_address(text).map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "127.0.0.1", ":4420", "4420", "localhost:4420", "::1:4420", "1.2.3.4:x"] {
            assert_eq!(parse_address(text), Err(ParseAddressError(text.to_owned())), "{text}");
        }
    }
}
