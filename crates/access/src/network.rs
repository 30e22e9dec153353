//! Networks that hosts may come from.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use ipnet::IpNet;

/// Bits in front of an IPv4 address that is written as an IPv6 one, `::ffff:192.0.2.1`.
const MAPPED_BITS: u8 = 96;

/// A network: an address and how many of its bits count. One of IPv4 addresses is kept as such, however it was written:
/// addresses of hosts are compared in that form.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Network(IpNet);

/// Why a text is no network.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NetworkError {
    /// Neither an address nor a network.
    #[error("a network is an address and a prefix, such as 192.0.2.0/24 or 2001:db8::/32")]
    Form,
    /// The address has bits behind the prefix: one of the two is mistyped.
    #[error("the address has bits beyond its prefix; the network is {network}")]
    HostBits {
        /// The network that the address lies in.
        network: Network,
    },
}

impl Network {
    /// # Errors
    /// The prefix is longer than the address, or the address has bits beyond it.
    pub fn new(address: IpAddr, prefix_len: u8) -> Result<Self, NetworkError> {
        let net = IpNet::new(address, prefix_len).map_err(|_| NetworkError::Form)?;
        let network = Self(canonical(net.trunc()));
        if net.addr() == net.network() {
            Ok(network)
        } else {
            Err(NetworkError::HostBits { network })
        }
    }

    /// Returns true if `address` lies in it. An IPv4 address may come in the form of an IPv6 one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns the reason for which no host can come from an address of it, if none can.
    #[must_use]
    pub fn matches_no_host(&self) -> Option<&'static str> {
        let first = self.address();
        let is_in = |other: &str| other.parse::<IpNet>().is_ok_and(|other| other.contains(&self.0));
        match first {
            _ if ["224.0.0.0/4", "ff00::/8"].into_iter().any(is_in) => {
                Some("no host comes from a multicast address")
            }
            _ if ["0.0.0.0/8", "::/128"].into_iter().any(is_in) => {
                Some("no host comes from an unspecified address")
            }
            IpAddr::V4(address) if address.is_broadcast() => {
                Some("no host comes from the broadcast address")
            }
            IpAddr::V4(_) | IpAddr::V6(_) => None,
        }
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.network()
    }

    /// The number of bits of the address that count.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }
}

/// The same network, as one of IPv4 if all its addresses are of IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let prefix_len = v6.prefix_len().checked_sub(MAPPED_BITS);
    let mapped = v6.addr().to_ipv4_mapped().zip(prefix_len);
    let mapped = mapped.and_then(|(address, len)| IpNet::new(address.into(), len).ok());
    mapped.unwrap_or(net)
}

impl FromStr for Network {
    type Err = NetworkError;

    /// A single address is a network of one.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let net = match text.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => IpNet::from(text.parse::<IpAddr>().map_err(|_| NetworkError::Form)?),
        };
        Self::new(net.addr(), net.prefix_len())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
