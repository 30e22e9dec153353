//! Doubts about the API's certificate: what clients will refuse of it, found where the server reads it.

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use crate::utc::utc;

/// The remedy for most of it.
const ANOTHER: &str =
    "have another one made, or remove certificate.pem and key.pem, and the server makes both";

/// Returns why clients will refuse `chain` at the time `now`, each with what to do; nothing if they will not. `names` are those by
/// which clients may know the server: one that is in the certificate is enough.
pub(crate) fn doubts(
    chain: &[CertificateDer<'static>],
    names: &[String],
    now: UnixTime,
) -> Vec<String> {
    let Some(first) = chain.first() else { return Vec::new() };
    let parsed = match ParsedCertificate::try_from(first) {
        Ok(parsed) => parsed,
        Err(error) => {
            return vec![format!(
                "the certificate is none that clients can read ({error}): {ANOTHER}"
            )];
        }
    };
    let mut all = Vec::new();
    let mut roots = RootCertStore::empty();
    // Clients are given it, or the last one, or one that vouches for the last one.
    for trusted in [first, &chain[chain.len() - 1]] {
        // One that cannot be trusted is told below.
        let _ = roots.add(trusted.clone());
    }
    let algorithms = default_provider().signature_verification_algorithms;
    let verified = verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &roots,
        &chain[1..],
        now,
        algorithms.all,
    );
    all.extend(verified.err().and_then(|error| of_chain(&error)));
    let fits = |name: &String| {
        ServerName::try_from(name.as_str())
            .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
    };
    if !names.is_empty() && !names.iter().any(fits) {
        all.push(format!(
            "the certificate is for none of the names of this server ({}), so that clients have to be given another name, which \
             is in the certificate's subjectAltName: {ANOTHER}",
            names.join(", ")
        ));
    }
    all
}

fn of_chain(error: &Error) -> Option<String> {
    let Error::InvalidCertificate(why) = error else {
        return Some(format!("clients will refuse the certificate ({error}): {ANOTHER}"));
    };
    Some(match why {
        // Its authority is the clients' matter.
        CertificateError::UnknownIssuer => return None,
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "the certificate has expired on {}: put a new one there and send SIGHUP",
            utc(not_after.as_secs())
        ),
        CertificateError::Expired => {
            format!("the certificate ends before it begins: {ANOTHER}")
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the certificate is valid from {} on: wait, or see that the clock of this machine is right",
            utc(not_before.as_secs())
        ),
        other if is_authority(other) => format!(
            "the certificate is one of an authority (CA:TRUE), as `openssl req -x509` makes it, and clients refuse it as a \
             server's: make it with `-addext basicConstraints=critical,CA:FALSE`, or {ANOTHER}"
        ),
        other => format!("clients will refuse the certificate ({other}): {ANOTHER}"),
    })
}

/// The library has no variant of its own for it.
fn is_authority(error: &CertificateError) -> bool {
    match error {
        CertificateError::Other(other) => other.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}
