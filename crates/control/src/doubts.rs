//! Doubts about the certificates that this server shows, as its conditions.

use rustls::pki_types::{CertificateDer, UnixTime};
use tls_files::{Doubt, ShownCertificate, Words};

use crate::{ServerNotice, ServerNoticeKind};

const RENEWAL: &str = "put a new one there and send SIGHUP";
const ANOTHER: &str =
    "have another one made, or remove certificate.pem and key.pem, and the server makes both";
const OF_API: Words = Words { name: "the API's certificate", renewal: RENEWAL, another: ANOTHER };
const OF_NBD: Words =
    Words { name: "the certificate of --nbd-tls", renewal: RENEWAL, another: ANOTHER };

fn notice(doubt: Doubt) -> ServerNotice {
    let (kind, text) = match doubt {
        Doubt::Refused(text) => (ServerNoticeKind::Certificate, text),
        Doubt::Expires(text) => (ServerNoticeKind::CertificateExpires, text),
    };
    ServerNotice { kind, text }
}

/// Returns why clients refuse `chain` at the time `now` or soon after, each with what to do; nothing if they do not. `names` are
/// those by which clients may know the server: one that is in the certificate is enough.
pub(crate) fn doubts(
    chain: &[CertificateDer<'static>],
    names: &[String],
    now: UnixTime,
) -> Vec<ServerNotice> {
    let shown = ShownCertificate { words: OF_API, chain };
    let mut all: Vec<_> = shown.doubt(now).map(notice).into_iter().collect();
    if !names.is_empty() && !shown.is_for_one_of(names) {
        let text = format!(
            "{} is for none of the names of this server ({}), so that clients have to be given another name, which is in \
             the certificate's subjectAltName: {ANOTHER}",
            OF_API.name,
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
    let shown = ShownCertificate { words: OF_NBD, chain };
    shown.doubt_of_time(now).map(notice).into_iter().collect()
}
