//! Doubts about the API's certificate: what clients refuse of it, found by the server that shows it.

use std::time::Duration;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};
use tls_files::{is_of_authority, trouble_of_certificate, utc};

use crate::{ServerNotice, ServerNoticeKind};

/// The time before its end at which a certificate is told of. Renewals leave more.
const TOLD_BEFORE: Duration = Duration::from_secs(7 * 86_400);
/// The remedy for most of it.
const ANOTHER: &str =
    "have another one made, or remove certificate.pem and key.pem, and the server makes both";

/// Returns why clients refuse `chain` at the time `now` or soon after, each with what to do; nothing if they do not. `names` are
/// those by which clients may know the server: one that is in the certificate is enough.
pub(crate) fn doubts(
    chain: &[CertificateDer<'static>],
    names: &[String],
    now: UnixTime,
) -> Vec<ServerNotice> {
    let Some(first) = chain.first() else { return Vec::new() };
    let parsed = match ParsedCertificate::try_from(first) {
        Ok(parsed) => parsed,
        Err(error) => {
            let text =
                format!("the API's certificate is none that clients can read ({error}): {ANOTHER}");
            return vec![ServerNotice { kind: ServerNoticeKind::Certificate, text }];
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
    let refusal_at = |time| {
        let others = &chain[1..];
        let all = algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, others, time, all).err()
    };
    let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + TOLD_BEFORE);
    if let Some(text) = refusal_at(now).as_ref().and_then(of_chain) {
        all.push(ServerNotice { kind: ServerNoticeKind::Certificate, text });
    } else if let Some(text) = refusal_at(later).as_ref().and_then(of_end) {
        all.push(ServerNotice { kind: ServerNoticeKind::CertificateExpires, text });
    }
    let fits = |name: &String| {
        ServerName::try_from(name.as_str())
            .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
    };
    if !names.is_empty() && !names.iter().any(fits) {
        let text = format!(
            "the API's certificate is for none of the names of this server ({}), so that clients have to be given another \
             name, which is in the certificate's subjectAltName: {ANOTHER}",
            names.join(", ")
        );
        all.push(ServerNotice { kind: ServerNoticeKind::CertificateNames, text });
    }
    all
}

/// Returns what to say if `error` is that of a later time, to which a certificate is not valid.
fn of_end(error: &Error) -> Option<String> {
    match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            Some(format!(
                "the API's certificate expires on {}: put a new one there and send SIGHUP",
                utc(not_after.as_secs())
            ))
        }
        _ => None,
    }
}

fn of_chain(error: &Error) -> Option<String> {
    let Error::InvalidCertificate(why) = error else {
        return Some(format!("clients refuse the API's certificate ({error}): {ANOTHER}"));
    };
    Some(match why {
        // Its authority is the clients' matter.
        CertificateError::UnknownIssuer => return None,
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "the API's certificate has expired on {}: put a new one there and send SIGHUP",
            utc(not_after.as_secs())
        ),
        CertificateError::Expired => {
            format!("the API's certificate ends before it begins: {ANOTHER}")
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the API's certificate is valid from {} on: wait, or see that the clock of this machine is right",
            utc(not_before.as_secs())
        ),
        other if is_of_authority(other) => format!(
            "the API's certificate is one of an authority (CA:TRUE), as `openssl req -x509` makes it, and clients refuse it as a \
             server's: make it with `-addext basicConstraints=critical,CA:FALSE`, or {ANOTHER}"
        ),
        _ => {
            let trouble = trouble_of_certificate(error).unwrap_or_default();
            format!("clients refuse the API's certificate: {trouble}: {ANOTHER}")
        }
    })
}
