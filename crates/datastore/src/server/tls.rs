//! TLS, for clients and for metrics: certificates that SIGHUP reads again.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use datastore::Serve;
use tls_files::{
    CLIENTS_FILE, Clients, Doubt, Identity, ShownCertificate, TlsError, Words, connection_trouble,
    own_names, trusted_roots,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::server::TlsStream;

use super::Failure;

/// A client has this long for the handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
const WORDS: Words = Words {
    name: "the certificate of --tls",
    renewal: "put a new one there and send SIGHUP",
    another: "have another one made, or remove certificate.pem and key.pem, and send SIGHUP, and the server makes both",
};

/// The certificates of this server, and those of its clients.
pub(crate) struct Tls {
    directory: PathBuf,
    names: Vec<String>,
    shown: RwLock<Shown>,
}

/// Ways to accept a connection.
#[derive(Clone)]
struct Shown {
    clients: TlsAcceptor,
    /// Without certificates of clients: metrics hold no data, and supervisors often have none to show.
    metrics: TlsAcceptor,
    chain: Vec<CertificateDer<'static>>,
}

impl Tls {
    /// Reads the directory of `--tls`, and makes the certificate and key if neither is there.
    pub(crate) fn open(serve: &Serve) -> Result<Option<Self>, Failure> {
        let Some(directory) = serve.tls.clone() else { return Ok(None) };
        let addresses = [Some(serve.listen), serve.metrics].into_iter().flatten();
        let names = own_names(&addresses.map(|address| address.ip()).collect::<Vec<_>>());
        let shown = Shown::read(&directory, &names).map_err(|error| {
            Failure::runtime(
                &format!("the server has no TLS: {error}"),
                "put certificate.pem and key.pem in PEM into the directory of --tls, or neither, to have both made",
            )
        })?;
        Ok(Some(Self { directory, names, shown: RwLock::new(shown) }))
    }

    /// Has new connections see what lies in the directory now. What cannot be used changes nothing.
    pub(crate) fn reload(&self) {
        match Shown::read(&self.directory, &self.names) {
            Ok(shown) => {
                *self.shown.write().unwrap_or_else(PoisonError::into_inner) = shown;
                tracing::info!("certificates of {} read again", self.directory.display());
            }
            Err(error) => tracing::error!("the certificates stay as they were: {error}"),
        }
    }

    fn shown(&self) -> Shown {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns why clients refuse the certificate now, or soon will.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        let shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        ShownCertificate { words: WORDS, chain: &shown.chain }.doubt(UnixTime::now())
    }

    /// Goes through the handshake with a client.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        handshake(&self.shown().clients, stream).await
    }

    /// Goes through the handshake with a reader of metrics.
    pub(crate) async fn accept_metrics(
        &self,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        handshake(&self.shown().metrics, stream).await
    }

    /// Returns true if clients have to show a certificate.
    pub(crate) fn asks_clients(&self) -> bool {
        self.directory.join(CLIENTS_FILE).exists()
    }
}

/// Returns whether a client has gone in the middle of its handshake.
pub(crate) fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Returns why a handshake has failed. The library tells an alert in the form that Rust prints for debugging.
pub(crate) fn trouble(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match of_tls {
        Some(Error::InvalidMessage(_)) => "what the client sent is no TLS".to_owned(),
        Some(Error::NoCertificatesPresented) => "the client has shown no certificate".to_owned(),
        Some(Error::AlertReceived(_)) => "the client refuses this server's certificate".to_owned(),
        _ if error.kind() == io::ErrorKind::TimedOut => "it took too long".to_owned(),
        _ => connection_trouble(error),
    }
}

async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let accepted = timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await;
    accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

impl Shown {
    fn read(directory: &std::path::Path, names: &[String]) -> Result<Self, TlsError> {
        let identity = Identity::open_or_make(directory, names, "farflash datastore")?;
        let clients = directory.join(CLIENTS_FILE);
        let asked = match clients.exists() {
            true => Clients::Required(trusted_roots(Some(&clients))?),
            false => Clients::Unasked,
        };
        let acceptor = |config| TlsAcceptor::from(Arc::new(config));
        Ok(Self {
            clients: acceptor(identity.server_config(asked)?),
            metrics: acceptor(identity.server_config(Clients::Unasked)?),
            chain: identity.chain().to_vec(),
        })
    }
}
