//! TLS to the server that is loaded.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde::{Deserialize, Serialize};
use tls_files::{Identity, TlsError, certificates_in, client_config, roots, trusted_roots};

use crate::connection::{Connection, RunError};
use crate::run::Setup;

/// The file that errors name: an agent gets what was in it.
const AUTHORITIES: &str = "the file of the server's authorities";

/// Settings of TLS to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetTls {
    /// The name or address that the server's certificate has to be for.
    pub name: String,
    /// Authorities by which the certificate is believed, in PEM; absent: those of the machine that connects.
    pub authorities: Option<String>,
    /// Directory of the certificate that is shown to the server. It is never sent to an agent.
    #[serde(skip)]
    pub identity: Option<PathBuf>,
}

impl TargetTls {
    fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let path = Path::new(AUTHORITIES);
        let roots = match &self.authorities {
            Some(pem) => roots(path, certificates_in(path, pem.as_bytes())?)?,
            None => trusted_roots(None)?,
        };
        let identity = self.identity.as_deref().map(Identity::open).transpose()?;
        client_config(roots, identity.as_ref())
    }
}

/// Connects to a server.
pub(crate) struct Dialler<'a> {
    address: SocketAddr,
    password: Option<&'a str>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl<'a> Dialler<'a> {
    pub(crate) fn new(
        address: SocketAddr,
        tls: Option<&TargetTls>,
        password: Option<&'a str>,
    ) -> Result<Self, RunError> {
        let tls = tls.map(|tls| {
            let name = ServerName::try_from(tls.name.clone())
                .map_err(|_| RunError::BadName { name: tls.name.clone() })?;
            let config = tls.client_config().map_err(RunError::NoTls)?;
            Ok::<_, RunError>((Arc::new(config), name))
        });
        Ok(Self { address, password, tls: tls.transpose()? })
    }

    /// One for the server of a setup.
    pub(crate) fn of(setup: &'a Setup) -> Result<Self, RunError> {
        Self::new(setup.address, setup.tls.as_ref(), setup.password.as_deref())
    }

    pub(crate) fn connect(&self) -> Result<Connection, RunError> {
        let tls = self.tls.as_ref().map(|(config, name)| (Arc::clone(config), name.clone()));
        Connection::open(self.address, tls, self.password)
    }
}

/// Goes through the handshake on a socket that blocks.
pub(crate) fn handshake(
    (config, name): (Arc<ClientConfig>, ServerName<'static>),
    stream: &mut TcpStream,
) -> std::io::Result<Box<ClientConnection>> {
    let mut tls = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    // What may be outstanding bounds what is sent at a time.
    tls.set_buffer_limit(None);
    while tls.is_handshaking() {
        tls.complete_io(stream)?;
    }
    Ok(Box::new(tls))
}
