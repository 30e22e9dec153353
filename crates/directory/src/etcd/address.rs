//! The address of etcd, and the prefix under which a cluster's keys lie there.

use std::fmt;
use std::str::FromStr;

/// `etcd://HOST:PORT[,HOST:PORT…]/CLUSTER`, or `etcds://…`, which is encrypted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EtcdAddress {
    /// True if etcd is reached over TLS.
    pub tls: bool,
    /// Members of etcd, `host:port` each.
    pub members: Vec<String>,
    /// The cluster's name: several may share an etcd.
    pub cluster: String,
}

/// Why a text is no [`EtcdAddress`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum EtcdAddressError {
    /// It does not begin as one.
    #[error("it does not begin with `etcd://` or `etcds://`")]
    Scheme,
    /// A member without port, or with something else besides.
    #[error("`{member}` is not of the form HOST:PORT")]
    Member {
        /// As it was given.
        member: String,
    },
    /// The cluster's name is missing or has characters that a key does not take.
    #[error("behind a `/` it has to name the cluster with 1 to 63 of a-z, 0-9, `.`, `_` and `-`")]
    Cluster,
}

impl EtcdAddress {
    /// Returns true if etcd is reached without a network: then all hosts are on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let local = |member: &String| {
            let host = member.rsplit_once(':').map_or("", |(host, _)| host);
            let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        };
        self.members.iter().all(local)
    }
}

impl FromStr for EtcdAddress {
    type Err = EtcdAddressError;

    fn from_str(text: &str) -> Result<Self, EtcdAddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(EtcdAddressError::Scheme)?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(EtcdAddressError::Scheme),
        };
        let (members, cluster) = rest.split_once('/').ok_or(EtcdAddressError::Cluster)?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        if !(1..=63).contains(&cluster.len()) || !cluster.chars().all(plain) {
            return Err(EtcdAddressError::Cluster);
        }
        let members = members.split(',').map(|member| {
            let parts = member.rsplit_once(':');
            let whole = parts.is_some_and(|(host, port)| {
                let bracketed = host.starts_with('[') && host.ends_with(']');
                let plain = !host.is_empty() && !host.contains([':', '@', ' ']);
                (plain || bracketed) && port.parse::<u16>().is_ok_and(|port| port != 0)
            });
            let wrong = || EtcdAddressError::Member { member: member.to_owned() };
            whole.then(|| member.to_owned()).ok_or_else(wrong)
        });
        let members = members.collect::<Result<_, _>>()?;
        Ok(Self { tls, members, cluster: cluster.to_owned() })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.members.join(","), self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["etcd://10.0.0.1:2379,[::1]:2379,etcd.example:1/prod", "etcds://a:1/b.c-d_e"] {
            let address: EtcdAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let member = |text: &str| EtcdAddressError::Member { member: text.to_owned() };
        for (text, error) in [
            ("http://a:1/b", EtcdAddressError::Scheme),
            ("etcd://a:1", EtcdAddressError::Cluster),
            ("etcd://a:1/", EtcdAddressError::Cluster),
            ("etcd://a:1/b/c", EtcdAddressError::Cluster),
            ("etcd://a/b", member("a")),
            ("etcd://a:1,/b", member("")),
            ("etcd://a:0/b", member("a:0")),
            ("etcd://u@a:1/b", member("u@a:1")),
            ("etcd://::1:1/b", member("::1:1")),
        ] {
            assert_eq!(text.parse::<EtcdAddress>(), Err(error), "{text}");
        }
    }
}
