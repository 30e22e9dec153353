//! TLS on the API: the server's certificate, and the certificates that a client trusts.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use base64ct::{Base64, Encoding};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use sha2::{Digest, Sha256};
use tls_files::{Clients, Identity, TlsError, provider, trusted};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::ServerNotice;
use crate::doubts::doubts;
use crate::hex::hex;

/// The server's side of TLS. Clones are the same, also when another certificate takes its place.
#[derive(Clone)]
pub struct ApiTls(Arc<RwLock<Shown>>);

/// The certificate that clients are shown.
#[derive(Clone)]
struct Shown {
    acceptor: TlsAcceptor,
    chain: Vec<CertificateDer<'static>>,
}

impl Shown {
    fn certificate(&self) -> &CertificateDer<'static> {
        // There is one: an empty chain is refused.
        &self.chain[0]
    }
}

impl ApiTls {
    /// With the certificate and key in `directory`. If neither is there, they are made: a key, and a
    /// certificate for `names` (host names and addresses) that the key itself has signed, for clients
    /// that are given the certificate.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open_or_make(directory: &Path, names: &[String]) -> Result<Self, TlsError> {
        Self::of(&Identity::open_or_make(directory, names, "farflash API")?)
    }

    /// With the certificate and key that are in `directory`.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open(directory: &Path) -> Result<Self, TlsError> {
        Self::of(&Identity::open(directory)?)
    }

    fn of(identity: &Identity) -> Result<Self, TlsError> {
        let chain = identity.chain().to_vec();
        let mut config = identity.server_config(Clients::Unasked)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let shown = Shown { acceptor: TlsAcceptor::from(Arc::new(config)), chain };
        Ok(Self(Arc::new(RwLock::new(shown))))
    }

    /// From now on clients that connect are shown the certificate of `other`.
    pub fn replace(&self, other: &Self) {
        let other = other.shown();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = other;
    }

    fn shown(&self) -> Shown {
        // A panic elsewhere leaves it whole: it is replaced at once.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificate that is shown to clients: DER in Base64.
    #[must_use]
    pub fn certificate(&self) -> String {
        Base64::encode_string(self.shown().certificate())
    }

    /// The SHA-256 of it, by which operators know it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        hex(&Sha256::digest(self.shown().certificate()))
    }

    /// Returns why clients refuse the certificate now, or soon will, each with what to do; nothing if they do not. `names` are
    /// those by which they may know the server.
    #[must_use]
    pub fn doubts(&self, names: &[String]) -> Vec<ServerNotice> {
        doubts(&self.shown().chain, names, UnixTime::now())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.shown().acceptor
    }
}

/// Builds a client's TLS configuration with the certificates that it trusts.
///
/// # Errors
/// `authorities` names a file that cannot be read or holds no certificate.
pub(crate) fn client_config(authorities: Option<&Path>) -> Result<TlsConfig, TlsError> {
    let trusted: Vec<Certificate<'static>> = trusted(authorities)?
        .iter()
        .map(|certificate| Certificate::from_der(certificate).to_owned())
        .collect();
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider())
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .build())
}

/// Encrypts a connection to the host whose API shows `certificate` (DER in Base64), and to no other.
pub(crate) async fn connect_to(
    certificate: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let invalid = |error: &dyn std::error::Error| {
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    };
    let pinned = Base64::decode_vec(certificate).map_err(|error| invalid(&error))?;
    let verifier = Pinned { certificate: pinned.into(), provider: provider() };
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Believes one certificate, by whatever name: the directory says whose it is.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *shown == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
