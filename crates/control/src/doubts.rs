//! Doubts about a certificate: what clients refuse of it, found by the server that shows it.

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

/// A certificate, as messages call it.
const OF_API: &str = "the API's certificate";
const OF_NBD: &str = "the certificate of --nbd-tls";

/// The certificate that clients see, and what vouches for it.
struct Seen<'a> {
    parsed: ParsedCertificate<'a>,
    others: &'a [CertificateDer<'static>],
    roots: RootCertStore,
}

impl<'a> Seen<'a> {
    fn new(
        first: &'a CertificateDer<'static>,
        chain: &'a [CertificateDer<'static>],
    ) -> Result<Self, Error> {
        let parsed = ParsedCertificate::try_from(first)?;
        let mut roots = RootCertStore::empty();
        // Clients are given it, or the last one, or one that vouches for the last one.
        for trusted in [first, &chain[chain.len() - 1]] {
            // One that cannot be trusted is told below.
            let _ = roots.add(trusted.clone());
        }
        Ok(Self { parsed, others: &chain[1..], roots })
    }

    fn refusal_at(&self, time: UnixTime) -> Option<Error> {
        let all = default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&self.parsed, &self.roots, self.others, time, all)
            .err()
    }

    /// Returns what is told of it at the time `now`, of the refusals that `told` has a text for, or of its end soon.
    fn notice(
        &self,
        whose: &str,
        now: UnixTime,
        told: impl Fn(&Error) -> Option<String>,
    ) -> Option<ServerNotice> {
        let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + TOLD_BEFORE);
        if let Some(text) = self.refusal_at(now).as_ref().and_then(told) {
            return Some(ServerNotice { kind: ServerNoticeKind::Certificate, text });
        }
        let end = self.refusal_at(soon);
        let text = end.as_ref().and_then(|error| of_end(whose, error))?;
        Some(ServerNotice { kind: ServerNoticeKind::CertificateExpires, text })
    }
}

/// Returns why clients refuse `chain` at the time `now` or soon after, each with what to do; nothing if they do not. `names` are
/// those by which clients may know the server: one that is in the certificate is enough.
pub(crate) fn doubts(
    chain: &[CertificateDer<'static>],
    names: &[String],
    now: UnixTime,
) -> Vec<ServerNotice> {
    let Some(first) = chain.first() else { return Vec::new() };
    let seen = match Seen::new(first, chain) {
        Ok(seen) => seen,
        Err(error) => {
            let text = format!("{OF_API} is none that clients can read ({error}): {ANOTHER}");
            return vec![ServerNotice { kind: ServerNoticeKind::Certificate, text }];
        }
    };
    let mut all: Vec<_> = seen.notice(OF_API, now, of_chain).into_iter().collect();
    let fits = |name: &String| {
        ServerName::try_from(name.as_str())
            .is_ok_and(|name| verify_server_name(&seen.parsed, &name).is_ok())
    };
    if !names.is_empty() && !names.iter().any(fits) {
        let text = format!(
            "{OF_API} is for none of the names of this server ({}), so that clients have to be given another name, which is in \
             the certificate's subjectAltName: {ANOTHER}",
            names.join(", ")
        );
        all.push(ServerNotice { kind: ServerNoticeKind::CertificateNames, text });
    }
    all
}

/// Returns what is wrong with the times of the certificate that clients of NBD are shown. What else they refuse depends on their
/// library.
#[must_use]
pub fn doubts_of_nbd(chain: &[CertificateDer<'static>], now: UnixTime) -> Vec<ServerNotice> {
    let seen = chain.first().and_then(|first| Seen::new(first, chain).ok());
    let of_time = |error: &Error| match error {
        Error::InvalidCertificate(why) => of_time(OF_NBD, why),
        _ => None,
    };
    seen.and_then(|seen| seen.notice(OF_NBD, now, of_time)).into_iter().collect()
}

/// Returns what to say if `error` is that of a later time, to which a certificate is not valid.
fn of_end(whose: &str, error: &Error) -> Option<String> {
    match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            Some(format!(
                "{whose} expires on {}: put a new one there and send SIGHUP",
                utc(not_after.as_secs())
            ))
        }
        _ => None,
    }
}

/// Returns what to say of a certificate that is not valid now.
fn of_time(whose: &str, why: &CertificateError) -> Option<String> {
    match why {
        CertificateError::ExpiredContext { not_after, .. } => Some(format!(
            "{whose} has expired on {}: put a new one there and send SIGHUP",
            utc(not_after.as_secs())
        )),
        CertificateError::NotValidYetContext { not_before, .. } => Some(format!(
            "{whose} is valid from {} on: wait, or see that the clock of this machine is right",
            utc(not_before.as_secs())
        )),
        _ => None,
    }
}

fn of_chain(error: &Error) -> Option<String> {
    let Error::InvalidCertificate(why) = error else {
        return Some(format!("clients refuse {OF_API} ({error}): {ANOTHER}"));
    };
    of_time(OF_API, why).or_else(|| {
        Some(match why {
            // Its authority is the clients' matter.
            CertificateError::UnknownIssuer => return None,
            CertificateError::Expired => format!("{OF_API} ends before it begins: {ANOTHER}"),
            other if is_of_authority(other) => format!(
                "{OF_API} is one of an authority (CA:TRUE), as `openssl req -x509` makes it, and clients refuse it as a \
                 server's: make it with `-addext basicConstraints=critical,CA:FALSE`, or {ANOTHER}"
            ),
            _ => {
                let trouble = trouble_of_certificate(error).unwrap_or_default();
                format!("clients refuse {OF_API}: {trouble}: {ANOTHER}")
            }
        })
    })
}
