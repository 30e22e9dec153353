//! Configurations of TLS, of either side.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientCertVerifierBuilder, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::identity::{Identity, TlsError, content, read};

/// The certificates that a server wants of its clients.
#[derive(Debug)]
pub enum Clients {
    /// None.
    Unasked,
    /// One that these vouch for, of clients that have one.
    Asked(RootCertStore),
    /// One that these vouch for.
    Required(RootCertStore),
}

/// Returns the cryptography that all of TLS uses here.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Identity {
    /// Configures a server that shows this certificate.
    ///
    /// # Errors
    /// The key is not that of the certificate, or nothing vouches for clients.
    pub fn server_config(&self, clients: Clients) -> Result<ServerConfig, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let verifier =
            |roots| WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = match clients {
            Clients::Unasked => None,
            Clients::Asked(roots) => Some(verifier(roots).allow_unauthenticated()),
            Clients::Required(roots) => Some(verifier(roots)),
        };
        let builder = match verifier.map(ClientCertVerifierBuilder::build).transpose() {
            Ok(None) => builder.with_no_client_auth(),
            Ok(Some(verifier)) => builder.with_client_cert_verifier(verifier),
            Err(error) => {
                let why = format!("no authorities of clients ({error})");
                return Err(content(&self.clients_file(), why));
            }
        };
        let (chain, key) = self.parts();
        builder.with_single_cert(chain, key).map_err(|error| self.mismatch(&error))
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
    let (chain, key) = identity.parts();
    builder.with_client_auth_cert(chain, key).map_err(|error| identity.mismatch(&error))
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

/// Collects the certificates of the authorities to believe: all in the file, or else those of this machine that can be believed
/// here.
///
/// # Errors
/// The file cannot be read, or holds something else than certificates.
pub fn trusted_roots(authorities: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let certificates = trusted(authorities)?;
    if let Some(path) = authorities {
        return roots(path, certificates);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    Ok(roots)
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
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
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
