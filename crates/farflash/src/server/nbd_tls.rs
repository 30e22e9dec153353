//! TLS for NBD: the server's certificate, and the authorities whose certificates of clients count.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nbd_frontend::NbdTls;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::failure::Failure;

/// The certificate, and those that vouch for it, in PEM.
const CERTIFICATE_FILE: &str = "certificate.pem";
/// Its private key, in PEM.
const KEY_FILE: &str = "key.pem";
/// The authorities that issue certificates of clients, in PEM. Without, no certificate of a client counts.
const CLIENTS_FILE: &str = "clients.pem";

/// The certificates that all cores use, which SIGHUP replaces. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Certificates {
    tls: NbdTls,
    /// The files as they were read last.
    contents: Arc<Mutex<Vec<u8>>>,
}

/// The certificates that lie in the directory now.
pub(super) struct Found {
    config: Arc<ServerConfig>,
    contents: Vec<u8>,
}

impl Certificates {
    /// Reads what lies in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let Found { config, contents } = Found::read(directory)?;
        let contents = Arc::new(Mutex::new(contents));
        Ok(Self { tls: NbdTls::new(config), contents })
    }

    pub(super) fn tls(&self) -> NbdTls {
        self.tls.clone()
    }

    /// Returns whether they are what was found.
    pub(super) fn are(&self, found: &Found) -> bool {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) == found.contents
    }

    /// Uses what was found for all that begin TLS from now on.
    pub(super) fn replace(&self, found: Found) {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) = found.contents;
        self.tls.replace(found.config);
    }
}

impl Found {
    /// Reads what lies in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, Failure> {
        let config = open(directory)?;
        let files = [CERTIFICATE_FILE, KEY_FILE, CLIENTS_FILE].map(|file| directory.join(file));
        let read = |path: &PathBuf| std::fs::read(path).unwrap_or_default();
        Ok(Self { config, contents: files.iter().flat_map(read).collect() })
    }
}

fn open(directory: &Path) -> Result<Arc<ServerConfig>, Failure> {
    let (certificate, key) = (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
    let chain = certificates(&certificate)?;
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| unusable(&key, &error))?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions");
    let clients = directory.join(CLIENTS_FILE);
    let builder = if clients.exists() {
        let mut authorities = RootCertStore::empty();
        for authority in certificates(&clients)? {
            authorities.add(authority).map_err(|error| unusable(&clients, &error))?;
        }
        // A client without a certificate may still have what is open to its network.
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities.into(), provider)
            .allow_unauthenticated()
            .build();
        let verifier: Arc<dyn ClientCertVerifier> =
            verifier.map_err(|error| unusable(&clients, &error))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let config = builder.with_single_cert(chain, private);
    Ok(Arc::new(config.map_err(|error| unusable(&certificate, &error))?))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?;
    let all = read.collect::<Result<Vec<_>, _>>().map_err(|error| unusable(path, &error))?;
    if all.is_empty() { Err(unusable(path, &"no certificate is there")) } else { Ok(all) }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let what = format!("TLS for NBD cannot be had: {}: {why}", path.display());
    let remedy = format!(
        "put {CERTIFICATE_FILE} and {KEY_FILE}, and for certificates of clients {CLIENTS_FILE}, into \
         the directory of --nbd-tls"
    );
    Failure::runtime(what, remedy)
}
