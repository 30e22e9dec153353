//! The certificate is replaced while the API is in use: open connections go on, and new ones are shown the
//! new certificate.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Api;
use control::{ApiClient, ApiError, ApiTls, CERTIFICATE_FILE, Guard, KEY_FILE, Limits};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use tempfile::TempDir;

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    files: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().unwrap();
        let files = tempfile::tempdir().unwrap();
        fs::write(files.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(params, key), files }
    }

    fn path(&self) -> std::path::PathBuf {
        self.files.path().join("ca.pem")
    }

    /// A certificate for the loopback address, and its key.
    fn sign(&self) -> (TempDir, ApiTls) {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(directory.path().join(CERTIFICATE_FILE), signed.pem()).unwrap();
        fs::write(directory.path().join(KEY_FILE), key.serialize_pem()).unwrap();
        let tls = ApiTls::open(directory.path()).unwrap();
        (directory, tls)
    }
}

fn serve(tls: &ApiTls) -> Api {
    let guard = Guard { tls: Some(tls.clone()), ..Guard::default() };
    Api::guarded(guard, Limits::default(), Duration::ZERO)
}

fn url(api: &Api) -> String {
    api.url().replace("http://", "https://")
}

fn certificate(directory: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(directory.join(CERTIFICATE_FILE)).unwrap()
}

/// A client that keeps its connections, and resumes sessions.
struct Keeping(Arc<ClientConfig>);

impl Keeping {
    fn trusting(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.path()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Self(Arc::new(config))
    }

    fn connect(&self, api: &Api) -> Kept {
        let stream = TcpStream::connect(api.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        Kept(StreamOwned::new(ClientConnection::new(self.0.clone(), name).unwrap(), stream))
    }
}

/// A connection that is kept.
struct Kept(StreamOwned<ClientConnection, TcpStream>);

impl Kept {
    /// Returns true if a request is answered.
    fn ask(&mut self) -> bool {
        self.0.write_all(b"GET /healthz HTTP/1.1\r\nhost: api\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            let mut some = [0; 4096];
            match self.0.read(&mut some) {
                Ok(0) | Err(_) => return false,
                Ok(len) => answer.extend_from_slice(&some[..len]),
            }
        }
        answer.starts_with(b"HTTP/1.1 200")
    }

    /// The certificate that it was shown.
    fn shown(&self) -> CertificateDer<'static> {
        self.0.conn.peer_certificates().unwrap()[0].clone().into_owned()
    }

    fn kind(&self) -> HandshakeKind {
        self.0.conn.handshake_kind().unwrap()
    }
}

/// Method: a connection from before the renewal is asked before and after it; sessions are resumed before it, with what
/// the server gave for that, and after it.
#[test]
fn an_open_connection_goes_on_and_a_session_is_not_resumed() {
    let authority = Authority::new();
    let ((before, tls), (after, renewed)) = (authority.sign(), authority.sign());
    let api = serve(&tls);
    let client = Keeping::trusting(&authority);
    let mut open = client.connect(&api);
    assert!(open.ask());
    assert_eq!((open.kind(), open.shown()), (HandshakeKind::Full, certificate(before.path())));
    let mut resumed = client.connect(&api);
    assert!(resumed.ask());
    assert_eq!(resumed.kind(), HandshakeKind::Resumed);
    tls.replace(&renewed);
    assert!(open.ask() && resumed.ask(), "what is open goes on");
    assert_eq!(open.shown(), certificate(before.path()));
    let mut again = client.connect(&api);
    assert!(again.ask());
    // Tickets given before are not taken any more: else a client that holds one would be shown no
    // certificate.
    assert_eq!((again.kind(), again.shown()), (HandshakeKind::Full, certificate(after.path())));
    assert!(open.ask(), "also behind that");
}

/// Method: one client of ours, which is kept, asks before and after renewals by its authority, by a broken pair, and by
/// another authority.
#[test]
fn a_client_goes_on_with_its_authority_and_with_no_other() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ((before, tls), (_, renewed)) = (authority.sign(), authority.sign());
    let (_, foreign) = other.sign();
    let api = serve(&tls);
    let client = ApiClient::trusting(&url(&api), Some(&authority.path())).unwrap();
    assert!(client.list().is_ok());
    tls.replace(&renewed);
    assert!(client.list().is_ok());
    fs::write(before.path().join(KEY_FILE), "no key").unwrap();
    assert!(ApiTls::open(before.path()).is_err());
    assert!(client.list().is_ok(), "what cannot be read replaces nothing");
    tls.replace(&foreign);
    let error = client.list().unwrap_err();
    assert!(matches!(error, ApiError::Untrusted { .. }), "{error}");
    assert!(!error.may_have_been_done() && error.hint().contains("--api-ca"), "{error}");
    tls.replace(&renewed);
    assert!(client.list().is_ok());
}
