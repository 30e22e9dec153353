//! Access to a volume: converts between documents of the API and the record that the volume keeps.

use access::{Access, AccessError, HostName, NbdAccess, Restrictions, Token, UnixSeconds};
use auth::{Hash, KEY_LEN_MAX, Policy, Secret};
use control::{ChangeRestrictions, NbdClients, ServiceError, Tokens};
use rustix::rand::{GetRandomFlags, getrandom};

/// The reason why no host can open a volume whose record of access cannot be decoded.
pub(super) const UNREADABLE: &str =
    "it cannot be read who may open the volume; a newer version may have written it";

/// Rules for tokens of volumes.
pub(super) struct TokenRules {
    pub(super) are_required: bool,
    /// The hash function of new ones: they have as many random bits as its digest, and what proves them follows from them and
    /// the host's name by it.
    pub(super) hash: Hash,
}

impl TokenRules {
    /// Returns those of a server with this authentication.
    pub(super) fn of(policy: Option<&Policy>) -> Self {
        let hash = policy.and_then(|policy| policy.hashes.first().copied());
        Self { are_required: policy.is_some(), hash: hash.unwrap_or(Hash::Sha256) }
    }
}

/// The time of day, which never goes back: a grace that is over is not opened again by a clock.
pub(super) fn now() -> UnixSeconds {
    UnixSeconds(reactor::unix_time().as_secs())
}

/// The time for which a replaced token still opens a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Grace {
    pub(super) seconds_left: u64,
    /// In seconds since 1970 UTC, by the clock of the machine as it is set now.
    pub(super) until: u64,
}

/// The grace that runs, if one does.
pub(super) fn grace(access: &Access) -> Option<Grace> {
    grace_at(access, now(), reactor::clock_behind().as_secs())
}

/// The same at a time, which is ahead of the machine's clock by so many seconds.
fn grace_at(access: &Access, now: UnixSeconds, ahead: u64) -> Option<Grace> {
    let until = access.tokens_at(now).filter_map(|token| token.until).max()?;
    Some(Grace {
        seconds_left: until.0.saturating_sub(now.0),
        until: until.0.saturating_sub(ahead),
    })
}

/// Access to a new volume, and the tokens that give it.
pub(super) fn create(
    restrictions: Option<control::Restrictions>,
    owner: Option<String>,
    hash: Hash,
) -> Result<(Access, Tokens), ServiceError> {
    let control::Restrictions { hosts, networks, interfaces } = restrictions.unwrap_or_default();
    let change = ChangeRestrictions {
        hosts: Some(hosts),
        networks: Some(networks),
        interfaces: Some(interfaces),
        nbd: None,
    };
    let mut access = restricted(Access::default(), change)?;
    let (token, tokens) = draw_token(hash)?;
    access.tokens = vec![token];
    access.owner = owner;
    Ok((access, tokens))
}

/// The same access through new tokens; the one before stays of use for a while if that is wanted.
pub(super) fn rotated(
    mut access: Access,
    grace_seconds: Option<u32>,
    hash: Hash,
) -> Result<(Access, Tokens), ServiceError> {
    if grace_seconds.is_some_and(|seconds| seconds > control::GRACE_SECONDS_MAX) {
        let detail = "`grace_seconds` must be at most 2592000 (30 days)".to_owned();
        return Err(ServiceError::Setting { detail });
    }
    let now = now();
    let grace = grace_seconds.map(|seconds| UnixSeconds(now.0 + u64::from(seconds)));
    let (token, tokens) = draw_token(hash)?;
    access.rotate(token, now, grace);
    Ok((access, tokens))
}

/// The same access under other restrictions, without tokens that open nothing any more.
pub(super) fn restricted(
    mut access: Access,
    change: ChangeRestrictions,
) -> Result<Access, ServiceError> {
    let ChangeRestrictions { hosts, networks, interfaces, nbd } = change;
    access.forget_expired(now());
    let restrictions = &mut access.restrictions;
    if let Some(hosts) = hosts {
        let parse = |text: &str| text.parse::<HostName>().map_err(|error| error.to_string());
        restrictions.hosts = parsed("hosts", &hosts, parse)?;
    }
    if let Some(networks) = networks {
        let parse = |text: &str| text.parse().map_err(|e: access::NetworkError| e.to_string());
        restrictions.networks = parsed("networks", &networks, parse)?;
    }
    if let Some(interfaces) = interfaces {
        let parse =
            |text: &str| text.parse().map_err(|e: access::InterfaceNameError| e.to_string());
        restrictions.interfaces = parsed("interfaces", &interfaces, parse)?;
    }
    if let Some(nbd) = nbd {
        access.nbd = nbd_access(&nbd)?;
    }
    access.encode().map_err(|error: AccessError| ServiceError::Setting {
        detail: format!("{error}: name networks instead of single hosts"),
    })?;
    Ok(access)
}

fn nbd_access(clients: &NbdClients) -> Result<NbdAccess, ServiceError> {
    let network = |text: &str| text.parse().map_err(|e: access::NetworkError| e.to_string());
    let name = |text: &str| text.parse().map_err(|e: access::CertificateNameError| e.to_string());
    Ok(NbdAccess {
        networks: parsed("nbd.networks", &clients.networks, network)?,
        certificates: parsed("nbd.certificates", &clients.certificates, name)?,
        unix: clients.unix,
    })
}

/// The clients of NBD as the API has them.
pub(super) fn nbd_document(nbd: &NbdAccess) -> NbdClients {
    NbdClients {
        networks: nbd.networks.iter().map(ToString::to_string).collect(),
        certificates: nbd.certificates.iter().map(ToString::to_string).collect(),
        unix: nbd.unix,
    }
}

fn parsed<T: PartialEq>(
    field: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, ServiceError> {
    let mut all = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let element = parse(text).map_err(|error| {
            let shown: String = text.chars().take(64).collect();
            let detail = format!("`{field}[{index}]`: `{}`: {error}", shown.escape_debug());
            ServiceError::Setting { detail }
        })?;
        if !all.contains(&element) {
            all.push(element);
        }
    }
    Ok(all)
}

/// The restrictions as the API has them.
pub(super) fn document(restrictions: &Restrictions) -> control::Restrictions {
    control::Restrictions {
        hosts: restrictions.hosts.iter().map(ToString::to_string).collect(),
        networks: restrictions.networks.iter().map(ToString::to_string).collect(),
        interfaces: restrictions.interfaces.iter().map(ToString::to_string).collect(),
    }
}

/// The restrictions of a volume; or what keeps everybody out, where they cannot be read.
pub(super) fn shown(access: Option<&Access>) -> (control::Restrictions, Option<String>) {
    match access {
        Some(access) => (document(&access.restrictions), None),
        None => (control::Restrictions::default(), Some(UNREADABLE.to_owned())),
    }
}

fn draw_secret(hash: Hash) -> Result<Secret, ServiceError> {
    let mut random = [0; KEY_LEN_MAX];
    // Up to 256 bytes come whole, or not at all.
    match getrandom(&mut random, GetRandomFlags::empty()) {
        Ok(KEY_LEN_MAX) => Ok(Secret::new(hash, &random)),
        _ => Err(ServiceError::Unavailable),
    }
}

/// A token, and what is shown of it.
fn draw_token(hash: Hash) -> Result<(Token, Tokens), ServiceError> {
    let (secret, controller) = (draw_secret(hash)?, draw_secret(hash)?);
    let tokens = Tokens {
        token: secret.reveal().to_string(),
        controller_token: controller.reveal().to_string(),
        chap_secret: None,
        chap_target_secret: None,
    };
    Ok((Token { secret, controller: Some(controller), until: None }, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_open_what_they_were_made_for() {
        let (access, tokens) = create(None, None, Hash::Sha384).expect("random numbers");
        let secret: Secret = tokens.token.parse().expect("of the form");
        assert!(access.tokens_at(now()).map(|token| &token.secret).eq([&secret]));
        assert_ne!(tokens.token, tokens.controller_token);
        let (access, newer) = rotated(access, Some(60), Hash::Sha256).expect("random numbers");
        assert_ne!(newer.token, tokens.token);
        assert_eq!(access.tokens_at(now()).count(), 2);
        let (access, _) = rotated(access, None, Hash::Sha256).expect("random numbers");
        assert_eq!(access.tokens_at(now()).count(), 1);
        assert!(rotated(access, Some(control::GRACE_SECONDS_MAX + 1), Hash::Sha256).is_err());
    }

    /// A grace is told as it runs, also on a machine whose clock was set back by an hour.
    #[test]
    fn a_grace_is_told_by_the_time_that_is_left() {
        let (access, _) = create(None, None, Hash::Sha256).expect("random numbers");
        let (mut access, _) = rotated(access, Some(60), Hash::Sha256).expect("random numbers");
        access.tokens[1].until = Some(UnixSeconds(100_060));
        let at = |now| grace_at(&access, UnixSeconds(now), 3600);
        assert_eq!(at(100_000), Some(Grace { seconds_left: 60, until: 96_460 }));
        assert_eq!(at(100_045), Some(Grace { seconds_left: 15, until: 96_460 }));
        assert_eq!(at(100_060), None);
    }

    /// An expired token does not stay on a device longer than necessary.
    #[test]
    fn an_expired_token_is_not_written_again() {
        let (access, _) = create(None, None, Hash::Sha256).expect("random numbers");
        let (mut access, _) = rotated(access, Some(60), Hash::Sha256).expect("random numbers");
        let restrict = |access: &Access| {
            restricted(access.clone(), ChangeRestrictions::default()).expect("nothing is wrong")
        };
        assert_eq!(restrict(&access).tokens.len(), 2);
        access.tokens[1].until = Some(UnixSeconds(now().0 - 1));
        assert_eq!(restrict(&access).tokens, access.tokens[..1]);
    }

    /// It must not look like a volume that is open to everybody.
    #[test]
    fn what_cannot_be_read_is_shown_as_such() {
        let (restrictions, trouble) = shown(None);
        assert_eq!(restrictions, control::Restrictions::default());
        assert!(trouble.is_some_and(|trouble| trouble.contains("cannot be read")));
        assert_eq!(shown(Some(&Access::default())).1, None);
    }

    #[test]
    fn what_is_no_restriction_is_refused_with_its_place() {
        let list = |text: &str| Some(vec!["10.0.0.0/8".to_owned(), text.to_owned()]);
        let hosts =
            |text: &str| Some(vec!["iqn.2026-01.com.example:a".to_owned(), text.to_owned()]);
        let change = ChangeRestrictions { networks: list("10.0.0.5/8"), ..Default::default() };
        let error = restricted(Access::default(), change).expect_err("host bits").to_string();
        assert!(error.contains("`networks[1]`") && error.contains("10.0.0.0/8"), "{error}");
        let change = ChangeRestrictions { hosts: hosts("x"), ..Default::default() };
        let error = restricted(Access::default(), change).expect_err("no name").to_string();
        assert!(error.contains("`hosts[1]`") && error.contains("iqn."), "{error}");
        let change = ChangeRestrictions { interfaces: list("a/b"), ..Default::default() };
        restricted(Access::default(), change).expect_err("no interface");
        let many = (0..400).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect();
        let change = ChangeRestrictions { networks: Some(many), ..Default::default() };
        let error = restricted(Access::default(), change).expect_err("too many").to_string();
        assert!(error.contains("at most 2048"), "{error}");
    }
}
