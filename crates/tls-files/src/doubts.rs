//! Doubts about a certificate: what clients refuse of it, found by the server that shows it.

use std::time::Duration;

use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error, RootCertStore};

use crate::trouble::{is_of_authority, trouble_of_certificate};
use crate::utc::utc;

/// The time before its end at which a certificate is told of. Renewals leave more.
const TOLD_BEFORE: Duration = Duration::from_secs(7 * 86_400);

/// A reason for which clients refuse a certificate, and what to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Doubt {
    /// They do so now.
    Refused(String),
    /// They will soon, as it expires.
    Expires(String),
}

impl Doubt {
    /// The reason, and what to do.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Refused(text) | Self::Expires(text) => text,
        }
    }
}

/// The words in which messages speak of a certificate that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Its name, such as "the API's certificate".
    pub name: &'static str,
    /// The way to have another one used that lies in its place.
    pub renewal: &'static str,
    /// The remedy for most of its faults.
    pub another: &'static str,
}

/// A certificate that is shown, with those that vouch for it.
#[derive(Clone, Copy, Debug)]
pub struct ShownCertificate<'a> {
    /// Its words.
    pub words: Words,
    /// The certificate first.
    pub chain: &'a [CertificateDer<'static>],
}

impl ShownCertificate<'_> {
    /// Returns why clients refuse it at the time `now` or soon after; nothing if they do not. Its names are not judged.
    #[must_use]
    pub fn doubt(&self, now: UnixTime) -> Option<Doubt> {
        self.judged(now, |error| self.refusal(error))
    }

    /// The same of the times of its validity alone.
    #[must_use]
    pub fn doubt_of_time(&self, now: UnixTime) -> Option<Doubt> {
        self.judged(now, |error| match error {
            Error::InvalidCertificate(why) => self.out_of_time(why),
            _ => None,
        })
    }

    /// Returns whether it is for one of these names, or cannot be read.
    #[must_use]
    pub fn is_for_one_of(&self, names: &[String]) -> bool {
        let Some(Ok(parsed)) = self.chain.first().map(ParsedCertificate::try_from) else {
            return true;
        };
        names.iter().any(|name| {
            ServerName::try_from(name.as_str())
                .is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        })
    }

    /// Returns the doubt about it, of the refusals that `told` has a text for.
    fn judged(&self, now: UnixTime, told: impl Fn(&Error) -> Option<String>) -> Option<Doubt> {
        let later = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + TOLD_BEFORE);
        match self.refusal_at(now).as_ref().and_then(told) {
            Some(text) => Some(Doubt::Refused(text)),
            None => self.ending(&self.refusal_at(later)?).map(Doubt::Expires),
        }
    }

    /// Returns the error of a client that trusts what it is likely to be given.
    fn refusal_at(&self, time: UnixTime) -> Option<Error> {
        let (first, others) = self.chain.split_first()?;
        let parsed = match ParsedCertificate::try_from(first) {
            Ok(parsed) => parsed,
            Err(error) => return Some(error),
        };
        let mut roots = RootCertStore::empty();
        // Clients are given it, or the last one, or one that vouches for the last one.
        for trusted in [first, others.last().unwrap_or(first)] {
            // One that cannot be trusted is told by the verification.
            let _ = roots.add(trusted.clone());
        }
        let all = default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, others, time, all).err()
    }

    /// Returns what to say if `error` is that of a later time, to which it is not valid.
    fn ending(&self, error: &Error) -> Option<String> {
        let Words { name, renewal, .. } = self.words;
        match error {
            Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
                Some(format!("{name} expires on {}: {renewal}", utc(not_after.as_secs())))
            }
            _ => None,
        }
    }

    /// Returns what to say if it is not valid now.
    fn out_of_time(&self, why: &CertificateError) -> Option<String> {
        let Words { name, renewal, .. } = self.words;
        match why {
            CertificateError::ExpiredContext { not_after, .. } => {
                Some(format!("{name} has expired on {}: {renewal}", utc(not_after.as_secs())))
            }
            CertificateError::NotValidYetContext { not_before, .. } => Some(format!(
                "{name} is valid from {} on: wait, or see that the clock of this machine is right",
                utc(not_before.as_secs())
            )),
            _ => None,
        }
    }

    fn refusal(&self, error: &Error) -> Option<String> {
        let Words { name, another, .. } = self.words;
        let Error::InvalidCertificate(why) = error else {
            return Some(format!("clients refuse {name} ({error}): {another}"));
        };
        self.out_of_time(why).or_else(|| {
            Some(match why {
                // Its authority is the clients' matter.
                CertificateError::UnknownIssuer => return None,
                CertificateError::Expired => format!("{name} ends before it begins: {another}"),
                CertificateError::BadEncoding => {
                    format!("{name} is none that clients can read ({error}): {another}")
                }
                other if is_of_authority(other) => format!(
                    "{name} is one of an authority (CA:TRUE), as `openssl req -x509` makes it, and clients refuse it as a \
                     server's: make it with `-addext basicConstraints=critical,CA:FALSE`, or {another}"
                ),
                _ => {
                    let trouble = trouble_of_certificate(error).unwrap_or_default();
                    format!("clients refuse {name}: {trouble}: {another}")
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    const WORDS: Words =
        Words { name: "the certificate of t", renewal: "renew it", another: "make another" };
    const DAY: u64 = 86_400;

    /// A certificate that is valid in 2020.
    fn of_2020(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["flash-1".to_owned()]).expect("a name");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().clone()
    }

    fn at(days_of_2020: i64) -> UnixTime {
        const BEGIN: u64 = 1_577_836_800;
        let seconds = BEGIN.saturating_add_signed(days_of_2020 * DAY as i64);
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    #[test]
    fn a_certificate_is_told_of_a_week_before_its_end_and_ever_after() {
        let chain = [of_2020(|_| {})];
        let shown = ShownCertificate { words: WORDS, chain: &chain };
        for (day, told) in [
            (-1, Some("the certificate of t is valid from 2020-01-01T00:00:00Z on: wait")),
            (10, None),
            (358, None),
            (360, Some("the certificate of t expires on 2021-01-01T00:00:00Z: renew it")),
            (365, Some("the certificate of t expires on 2021-01-01T00:00:00Z: renew it")),
            (367, Some("the certificate of t has expired on 2021-01-01T00:00:00Z: renew it")),
        ] {
            for doubt in [shown.doubt(at(day)), shown.doubt_of_time(at(day))] {
                let text = doubt.as_ref().map(Doubt::text);
                assert!(
                    text.is_some() == told.is_some()
                        && text.unwrap_or("").starts_with(told.unwrap_or("")),
                    "{day}: {text:?}"
                );
                let expires = matches!(doubt, Some(Doubt::Expires(_)));
                assert_eq!(expires, day == 360 || day == 365, "{day}");
            }
        }
    }

    #[test]
    fn other_faults_are_told_with_their_remedy() {
        let authority =
            [of_2020(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))];
        let shown = ShownCertificate { words: WORDS, chain: &authority };
        let doubt = shown.doubt(at(10)).expect("it is refused");
        for part in ["CA:TRUE", "basicConstraints=critical,CA:FALSE", "or make another"] {
            assert!(doubt.text().contains(part), "{doubt:?}");
        }
        assert_eq!(shown.doubt_of_time(at(10)), None);
        assert!(shown.is_for_one_of(&["localhost".to_owned(), "flash-1".to_owned()]));
        assert!(!shown.is_for_one_of(&["localhost".to_owned()]));
        let none = [CertificateDer::from(b"none".to_vec())];
        let none = ShownCertificate { words: WORDS, chain: &none };
        let doubt = none.doubt(at(10)).expect("it is refused");
        assert!(doubt.text().contains("none that clients can read"), "{doubt:?}");
        assert_eq!(ShownCertificate { words: WORDS, chain: &[] }.doubt(at(10)), None);
    }
}
