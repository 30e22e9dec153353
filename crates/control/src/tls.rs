//! TLS on the API: the server's certificate, and the certificates that a client trusts.
//!
//! - K1: a key that is made here can be read by its owner only, from its first byte on.
//! - K2: what lies in the directory is never replaced; one of two files without the other is an error.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use base64ct::{Base64, Encoding};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::ServerNotice;
use crate::doubts::doubts;
use crate::hex::hex;

/// The certificate, and those that vouch for it, in PEM.
pub const CERTIFICATE_FILE: &str = "certificate.pem";
/// Its private key, in PEM.
pub const KEY_FILE: &str = "key.pem";
/// Largest file that is taken for a certificate or key.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why TLS cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file does not hold what it should.
    #[error("{} holds {why}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault of the file.
        why: String,
    },
    /// One file without the other.
    #[error("{} is there, but {} is not", .there.display(), .missing.display())]
    Half {
        /// The file that is there.
        there: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
}

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
        let (certificate, key) = (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        match (certificate.exists(), key.exists()) {
            (true, true) => {}
            (false, false) => make(&certificate, &key, names)?,
            (true, false) => return Err(TlsError::Half { there: certificate, missing: key }),
            (false, true) => return Err(TlsError::Half { there: key, missing: certificate }),
        }
        Self::open(directory)
    }

    /// With the certificate and key that are in `directory`.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn open(directory: &Path) -> Result<Self, TlsError> {
        let (certificate, key) = (&directory.join(CERTIFICATE_FILE), &directory.join(KEY_FILE));
        let chain = certificates(certificate, &read(certificate)?)?;
        let private = private_key(key, &read(key)?)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions")
            .with_no_client_auth()
            .with_single_cert(chain.clone(), private)
            .map_err(|error| content(key, format!("no key of {CERTIFICATE_FILE} ({error})")))?;
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

/// The object identifier of the curve P-521, in DER.
const P521: [u8; 7] = [0x06, 0x05, 0x2B, 0x81, 0x04, 0x00, 0x23];

/// The key in a file, if this server can use it.
fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    if has(pem, b"BEGIN ENCRYPTED PRIVATE KEY") || has(pem, b"Proc-Type: 4,ENCRYPTED") {
        let why = "an encrypted key, for which this server has no passphrase: decrypt it with `openssl pkey -in key.pem -out \
                   NEW`, where its owner alone can read it";
        return Err(content(path, why.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| content(path, format!("no private key in PEM ({error})")))?;
    if has(key.secret_der(), &P521) {
        let why = "a key on the curve P-521, which neither this server nor its clients use: make one on P-256 or P-384 \
                   (`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`), and a certificate for it";
        return Err(content(path, why.to_owned()));
    }
    Ok(key)
}

/// Makes a key, and a certificate signed by it. It does not expire: a client that trusts it trusts this
/// file.
fn make(certificate: &Path, key: &Path, names: &[String]) -> Result<(), TlsError> {
    let pair = KeyPair::generate().map_err(|error| content(key, error.to_string()))?;
    let mut params = CertificateParams::new(names)
        .map_err(|error| content(certificate, format!("a name that none may have ({error})")))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "farflash API");
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let signed = params
        .self_signed(&pair)
        .map_err(|error| content(certificate, format!("nothing ({error})")))?;
    // The certificate comes last: where it is, its key is, too.
    write_new(key, 0o600, pair.serialize_pem().as_bytes())?;
    write_new(certificate, 0o644, signed.pem().as_bytes())
}

/// Builds a client's TLS configuration with the certificates that it trusts.
///
/// # Errors
/// `authorities` names a file that cannot be read or holds no certificate.
pub(crate) fn client_config(authorities: Option<&Path>) -> Result<TlsConfig, TlsError> {
    let trusted: Vec<Certificate<'static>> = match authorities {
        Some(path) => certificates(path, &read(path)?)?
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect(),
        // What this machine trusts. Where there is nothing, no server is believed, and says so.
        None => rustls_native_certs::load_native_certs()
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect(),
    };
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

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| content(path, format!("no PEM ({error})")))?;
    if chain.is_empty() {
        return Err(content(path, "no certificate in PEM".to_owned()));
    }
    Ok(chain)
}

fn content(path: &Path, why: String) -> TlsError {
    TlsError::Content { path: path.to_owned(), why }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(File::open(path)?, PEM_BYTES_MAX), &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| TlsError::File { path: path.to_owned(), error })
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), TlsError> {
    let write = || {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| TlsError::File { path: path.to_owned(), error })
}
