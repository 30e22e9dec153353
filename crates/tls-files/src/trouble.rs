//! Faults of a certificate, in words. The library has many of its errors in the form that Rust prints for debugging.

use std::io;

use rustls::{CertificateError, Error};

use crate::utc::utc;

/// Returns what is wrong with the certificate of the peer, if `error` is about that: a sentence without its subject.
#[must_use]
pub fn trouble_of_certificate(error: &Error) -> Option<String> {
    let Error::InvalidCertificate(error) = error else { return None };
    Some(in_words(error))
}

/// The same of a connection that was not made.
#[must_use]
pub fn connection_trouble(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match of_tls.and_then(trouble_of_certificate) {
        Some(trouble) => format!("its certificate is not trusted: {trouble}"),
        None => error.to_string(),
    }
}

/// Returns true if the certificate is one of an authority, and used as that of a server. The library has no variant of its own for it.
pub(crate) fn is_of_authority(error: &CertificateError) -> bool {
    match error {
        CertificateError::Other(other) => other.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}

fn in_words(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "it is not among those that are trusted, and none of these vouches for it".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            match presented[..] {
                [] => format!("it is for no name, and so not for {}", expected.to_str()),
                _ => {
                    format!("it is for {}, and not for {}", presented.join(", "), expected.to_str())
                }
            }
        }
        CertificateError::NotValidForName => "it is for other names".to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("it has expired on {}", utc(not_after.as_secs()))
        }
        CertificateError::Expired => "it has expired".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is valid from {} on", utc(not_before.as_secs()))
        }
        CertificateError::NotValidYet => "it is not valid yet".to_owned(),
        CertificateError::Revoked => "it was revoked".to_owned(),
        CertificateError::BadEncoding => "it cannot be read".to_owned(),
        CertificateError::BadSignature => {
            "it does not fit those that are trusted: a signature is wrong".to_owned()
        }
        CertificateError::UnhandledCriticalExtension => {
            "it has a critical extension that is not known here".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it may be used for other purposes only (extendedKeyUsage)".to_owned()
        }
        other if is_of_authority(other) => {
            "it is one of an authority (CA:TRUE), which no server may show as its own".to_owned()
        }
        _ => "it breaks a rule for certificates, or is of an algorithm that is not known here"
            .to_owned(),
    }
}

/// A name as people write it: the library has `DnsName("flash-1")` and `IpAddress(192.0.2.1)`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    #[test]
    fn no_trouble_is_told_in_the_form_for_debugging() {
        let time = UnixTime::since_unix_epoch(Duration::from_secs(1_795_873_361));
        let expected = ServerName::try_from("flash-1").expect("a name");
        let presented = vec!["DnsName(\"flash-2\")".to_owned(), "IpAddress(192.0.2.1)".to_owned()];
        for (error, told) in [
            (
                CertificateError::NotValidForNameContext { expected, presented },
                "it is for flash-2, 192.0.2.1, and not for flash-1",
            ),
            (
                CertificateError::ExpiredContext { time, not_after: time },
                "it has expired on 2026-11-28T13:42:41Z",
            ),
            (CertificateError::UnknownIssuer, "it is not among those that are trusted"),
        ] {
            let found = trouble_of_certificate(&Error::InvalidCertificate(error)).expect("one");
            assert!(found.starts_with(told), "{found}");
        }
        assert_eq!(trouble_of_certificate(&Error::DecryptError), None);
        let wrapped = io::Error::other(Error::InvalidCertificate(CertificateError::BadSignature));
        assert_eq!(
            connection_trouble(&wrapped),
            "its certificate is not trusted: it does not fit those that are trusted: a signature is wrong"
        );
        assert_eq!(connection_trouble(&io::Error::other("gone")), "gone");
    }
}
