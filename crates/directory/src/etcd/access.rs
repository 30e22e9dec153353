//! Access to an etcd that requires authentication: TLS, client certificates, and a user's name and password.
//!
//! - ETCD-ACCESS-1: over TLS etcd has to show a certificate for the name by which it is reached, of an
//!   authority that is trusted; there is no way to do without.
//! - ETCD-ACCESS-2: a password leaves this machine encrypted only, and stands in no message.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tls_files::{Identity, TlsError, client_config, trusted_roots};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::EtcdAddress;

/// The credentials for etcd, as configured.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct EtcdCredentials {
    /// The certificates of the authorities that vouch for etcd, in PEM; by default those that this machine
    /// trusts.
    pub authorities: Option<PathBuf>,
    /// A certificate by which etcd knows this host, and its key, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A user's name and password.
    pub user: Option<(String, String)>,
}

impl fmt::Debug for EtcdCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // ETCD-ACCESS-2
        let user = self.user.as_ref().map(|(name, _)| name);
        let Self { authorities, certificate, .. } = self;
        write!(f, "EtcdCredentials({authorities:?}, {certificate:?}, {user:?})")
    }
}

/// Why etcd cannot be asked with these credentials.
#[derive(Debug, thiserror::Error)]
pub enum EtcdAccessError {
    /// A file of certificates or a key is of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Certificates are of no use without TLS.
    #[error("the directory's certificates are given, but {address} is not encrypted")]
    Plain {
        /// The address of etcd.
        address: String,
    },
    /// ETCD-ACCESS-2.
    #[error("a password would cross the network as it is on its way to {address}")]
    Exposed {
        /// The address of etcd.
        address: String,
    },
}

/// The credentials for etcd, loaded and checked.
#[derive(Clone)]
pub(super) struct Access {
    tls: Option<TlsConnector>,
    pub(super) user: Option<(String, String)>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access")
    }
}

impl EtcdCredentials {
    /// Looks whether etcd at `address` can be asked with them.
    ///
    /// # Errors
    /// See [`EtcdAccessError`].
    pub fn check(&self, address: &EtcdAddress) -> Result<(), EtcdAccessError> {
        self.open(address).map(drop)
    }

    pub(super) fn open(&self, address: &EtcdAddress) -> Result<Access, EtcdAccessError> {
        let user = self.user.clone();
        if !address.tls {
            let address_text = address.to_string();
            if self.authorities.is_some() || self.certificate.is_some() {
                return Err(EtcdAccessError::Plain { address: address_text });
            }
            if user.is_some() && !address.is_local() {
                return Err(EtcdAccessError::Exposed { address: address_text });
            }
            return Ok(Access { tls: None, user });
        }
        let roots = trusted_roots(self.authorities.as_deref())?;
        let shown = self.certificate.as_ref();
        let shown = shown.map(|(certificate, key)| Identity::of_files(certificate, key));
        let mut config = client_config(roots, shown.transpose()?.as_ref())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Access { tls: Some(TlsConnector::from(Arc::new(config))), user })
    }
}

/// A connection to etcd, encrypted or not.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

impl Access {
    /// Makes of a connection to `authority` one over which etcd is asked (ETCD-ACCESS-1). No request goes
    /// another way.
    pub(super) async fn secured(
        self,
        authority: &str,
        stream: TcpStream,
    ) -> io::Result<Box<dyn Wire>> {
        let Some(connector) = self.tls else { return Ok(Box::new(stream)) };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_neither_shown_nor_sent_in_the_clear() {
        let user = Some(("farflash".to_owned(), "hunter2".to_owned()));
        let credentials = EtcdCredentials { user, ..EtcdCredentials::default() };
        assert!(!format!("{credentials:?}").contains("hunter2"), "{credentials:?}");
        let refused = |address: &str| credentials.check(&address.parse().expect("an address"));
        assert!(matches!(refused("etcd://10.0.0.1:1/a"), Err(EtcdAccessError::Exposed { .. })));
        let one_is_far = "etcd://127.0.0.1:1,10.0.0.1:1/a";
        assert!(matches!(refused(one_is_far), Err(EtcdAccessError::Exposed { .. })));
        refused("etcds://10.0.0.1:1/a").expect("encrypted");
        refused("etcd://127.0.0.1:1/a").expect("no network");
    }

    #[test]
    fn files_that_are_none_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = Some(file.path().to_owned());
        let with = |authorities, certificate| {
            let credentials = EtcdCredentials { authorities, certificate, user: None };
            let address = "etcds://a:1/b".parse().expect("an address");
            credentials.check(&address).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(with(path.clone(), None).contains("no certificate"));
        assert!(with(Some("/nowhere".into()), None).contains("/nowhere"));
        let both = path.clone().zip(path);
        assert!(with(None, both).contains("no certificate"));
    }
}
