//! Configurations of TLS, of either side.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::identity::{CERTIFICATE_FILE, Identity, KEY_FILE, TlsError, content, read};

/// Returns the cryptography that all of TLS uses here.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Identity {
    /// Configures a server that shows this certificate. With `clients`, a client has to show one that these vouch for.
    ///
    /// # Errors
    /// The key is not that of the certificate, or `clients` is empty.
    pub fn server_config(&self, clients: Option<RootCertStore>) -> Result<ServerConfig, TlsError> {
        let key_file = self.directory().join(KEY_FILE);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier = verifier.build().map_err(|error| {
                    content(self.directory(), format!("no authorities of clients ({error})"))
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = self.parts();
        builder
            .with_single_cert(chain, key)
            .map_err(|error| content(&key_file, format!("no key of {CERTIFICATE_FILE} ({error})")))
    }
}

/// Configures a client that believes what `roots` vouch for, and shows `identity` where a server asks for a certificate.
///
/// # Errors
/// The key of `identity` is not that of its certificate.
pub fn client_config(
    roots: RootCertStore,
    identity: Option<&Identity>,
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots);
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let key_file = identity.directory().join(KEY_FILE);
    let (chain, key) = identity.parts();
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| content(&key_file, format!("no key of {CERTIFICATE_FILE} ({error})")))
}

/// Reads the certificates of the authorities to believe: those in the file, or else those of this machine.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn trusted(authorities: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    match authorities {
        Some(path) => certificates(path),
        // Where this machine trusts nothing, no server is believed, and says so.
        None => Ok(rustls_native_certs::load_native_certs().certs),
    }
}

/// Collects certificates to believe, each as one of an authority.
///
/// # Errors
/// A certificate of `path` cannot be read.
pub fn roots(
    path: &Path,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| content(path, format!("a certificate that is none ({error})")))?;
    }
    Ok(roots)
}

/// Reads the certificates in a file of PEM, at least one.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates_in(path, &read(path)?)
}

/// Returns the certificates in `pem`, which was read from `path`: at least one.
///
/// # Errors
/// There is none, or no PEM.
pub fn certificates_in(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let chain = chain.map_err(|error| content(path, format!("no PEM ({error})")))?;
    if chain.is_empty() {
        return Err(content(path, "no certificate in PEM".to_owned()));
    }
    Ok(chain)
}

/// Collects the certificates of `all` that can be believed here.
#[must_use]
pub fn roots_that_fit(all: Vec<CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(all);
    roots
}
