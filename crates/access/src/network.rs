//! Networks that hosts may come from.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use ipnet::IpNet;

/// A network: an address and how many of its bits count.
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
        let network = Self(net.trunc());
        if net.addr() == net.network() {
            Ok(network)
        } else {
            Err(NetworkError::HostBits { network })
        }
    }

    /// Whether `address` lies in it. An IPv4 address may come in the form of an IPv6 one.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.network()
    }

    /// How many bits of the address count.
    #[must_use]
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }
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
