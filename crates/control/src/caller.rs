//! The caller of a request, and the requests that it may make.
//!
//! - CALLER-1: a token is kept as its SHA-256 only. Tokens have 256 random bits: they cannot be found by trying,
//!   and need no slow hash.
//! - CALLER-2: to a tenant, a volume of another owner is one that does not exist.

use std::fmt;
use std::mem::discriminant;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use toml_mistake::TomlMistake;
use units::ByteLen;

use crate::hex::{hex, unhex};
use crate::name::VolumeName;
use crate::problem::{Problem, ProblemCode};

/// The first characters of each token, by which it is recognised where it should not be.
const TOKEN_PREFIX: &str = "ffk_";
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// May do everything on its host anyway.
const ROOT: u32 = 0;

/// Paths that a reader may ask for, besides the open ones.
const READER_PATHS: [&str; 2] = ["/metrics", "/v1/stats"];

/// Limits of a tenant. A limit that is not given is unbounded, but for rates: a tenant without a figure can
/// be promised none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Quota {
    /// Volumes.
    pub volumes: Option<u64>,
    /// Their sizes, as hosts see them, all together.
    pub provisioned_bytes: Option<u64>,
    /// Bytes allocated on devices, all together, on all hosts.
    pub allocated_bytes: Option<u64>,
    /// Weights of their shares, all together.
    pub share: Option<u32>,
    /// Blocks read a second that they are promised, all together.
    pub reads_per_second: u64,
    /// Blocks written a second that they are promised, all together.
    pub writes_per_second: u64,
}

/// An owner of volumes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tenant {
    /// The name, of the same form as a volume's.
    pub name: String,
    /// The limits of the tenant.
    pub quota: Quota,
}

/// The sender of a request, as far as it is authenticated.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Caller {
    /// May do everything.
    Operator(Arc<str>),
    /// May read figures, such as Prometheus: `/metrics` and `/v1/stats`, and record the requests that hosts send to a volume.
    Reader(Arc<str>),
    /// May do what it likes with its own volumes.
    Tenant(Arc<Tenant>),
}

impl Caller {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Operator(name) | Self::Reader(name) => name,
            Self::Tenant(tenant) => &tenant.name,
        }
    }

    /// Returns true if this caller may send such a request at all. A reader gets figures and may record volumes:
    /// a path that is not named here is refused, also if it is added later.
    pub(crate) fn may_ask(&self, method: &Method, path: &str) -> bool {
        match self {
            Self::Operator(_) | Self::Tenant(_) => true,
            Self::Reader(_) => {
                let reads = [Method::GET, Method::HEAD].contains(method);
                (reads && READER_PATHS.contains(&path)) || is_of_a_recording(path)
            }
        }
    }

    /// Returns true if a volume of `owner` exists for this caller (CALLER-2).
    #[must_use]
    pub fn may_use(&self, owner: Option<&str>) -> bool {
        match self {
            Self::Operator(_) => true,
            Self::Reader(_) => false,
            Self::Tenant(tenant) => owner == Some(&tenant.name),
        }
    }
}

/// Returns true for the paths of recordings of a volume's requests, which are figures of its activity.
fn is_of_a_recording(path: &str) -> bool {
    let volume = path.strip_prefix("/v1/volumes/");
    let parts = volume.map(|volume| volume.split('/').collect::<Vec<_>>()).unwrap_or_default();
    matches!(
        parts[..],
        [_, "recordings"] | [_, "recordings", _] | [_, "recordings", _, "requests", _]
    )
}

/// Why a list of users is none.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It is no TOML, or not of the form.
    #[error(transparent)]
    Toml(#[from] TomlMistake),
    /// The list has no users.
    #[error("it names no user, so that the API would answer no caller")]
    NoUsers,
    /// A user whose hash or name makes no sense.
    #[error("user `{name}`: {what}")]
    User {
        /// The user.
        name: String,
        /// The fault.
        what: String,
    },
}

struct User {
    token_sha256: [u8; 32],
    caller: Caller,
}

/// The users of the API. Clones share the list, also after it was replaced.
#[derive(Clone)]
pub struct Users(Arc<RwLock<Known>>);

/// The way in which callers are authenticated.
enum Known {
    /// Callers are not authenticated, and every caller may ask everything.
    Anybody,
    /// By the kernel, on this host: root and this user may ask everything.
    Owner { uid: u32 },
    /// By their tokens.
    Listed(Vec<User>),
}

impl Known {
    fn listed(&self) -> &[User] {
        match self {
            Self::Anybody | Self::Owner { .. } => &[],
            Self::Listed(users) => users,
        }
    }
}

/// Differences between two lists of users, by the users' names.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct UserChanges {
    /// Users that were not there.
    pub added: Vec<String>,
    /// Users that are there no more.
    pub removed: Vec<String>,
    /// Those with another token.
    pub new_token: Vec<String>,
    /// Those that are something else, such as an operator instead of a tenant.
    pub new_role: Vec<String>,
    /// Tenants that may have more, or less.
    pub new_quota: Vec<String>,
}

impl UserChanges {
    /// Returns true if there is no difference.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersFile {
    #[serde(default)]
    operator: Vec<PlainEntry>,
    #[serde(default)]
    reader: Vec<PlainEntry>,
    #[serde(default)]
    tenant: Vec<TenantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainEntry {
    name: String,
    token_sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantEntry {
    name: String,
    token_sha256: String,
    volumes: Option<u64>,
    provisioned: Option<String>,
    allocated: Option<String>,
    share: Option<u32>,
    #[serde(default)]
    reads_per_second: u64,
    #[serde(default)]
    writes_per_second: u64,
}

impl Users {
    /// Everybody, for everything.
    #[must_use]
    pub fn open() -> Self {
        Self::new(Known::Anybody)
    }

    /// Root and the user `uid`, for everything, from this host.
    #[must_use]
    pub fn owner(uid: u32) -> Self {
        Self::new(Known::Owner { uid })
    }

    fn new(known: Known) -> Self {
        Self(Arc::new(RwLock::new(known)))
    }

    /// Replaces the list: from now on the users of `others` may ask, and no other caller. `others` becomes
    /// the former list.
    pub fn replace(&self, others: &Self) {
        std::mem::swap(&mut *self.known_mut(), &mut *others.known_mut());
    }

    // A panic elsewhere leaves it whole: it is replaced at once.
    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of a TOML text: `[[operator]]` and `[[reader]]` with `name` and `token_sha256`, `[[tenant]]`
    /// with its quota besides.
    ///
    /// # Errors
    /// The text is no such list or an empty one, or two users have one name or token.
    pub fn from_toml(text: &str) -> Result<Self, UsersError> {
        let UsersFile { operator, reader, tenant } =
            toml::from_str(text).map_err(|error| TomlMistake::new(text, &error))?;
        let mut users = Vec::new();
        for PlainEntry { name, token_sha256 } in operator {
            let caller = Caller::Operator(name.as_str().into());
            add(&mut users, &name, &token_sha256, caller)?;
        }
        for PlainEntry { name, token_sha256 } in reader {
            let caller = Caller::Reader(name.as_str().into());
            add(&mut users, &name, &token_sha256, caller)?;
        }
        for entry in tenant {
            let wrong = |what: String| UsersError::User { name: entry.name.clone(), what };
            let bytes = |what: &str, text: &Option<String>| {
                let len = text.as_deref().map(str::parse::<ByteLen>).transpose();
                len.map(|len| len.map(|len| len.0)).map_err(|e| wrong(format!("`{what}`: {e}")))
            };
            let provisioned_bytes = bytes("provisioned", &entry.provisioned)?;
            let allocated_bytes = bytes("allocated", &entry.allocated)?;
            let quota = Quota {
                volumes: entry.volumes,
                provisioned_bytes,
                allocated_bytes,
                share: entry.share,
                reads_per_second: entry.reads_per_second,
                writes_per_second: entry.writes_per_second,
            };
            let caller = Caller::Tenant(Arc::new(Tenant { name: entry.name.clone(), quota }));
            add(&mut users, &entry.name, &entry.token_sha256, caller)?;
        }
        if users.is_empty() {
            return Err(UsersError::NoUsers);
        }
        Ok(Self::new(Known::Listed(users)))
    }

    /// Returns the differences from this list to `others`.
    #[must_use]
    pub fn changes_to(&self, others: &Self) -> UserChanges {
        let (old, new) = (self.known(), others.known());
        let (old, new) = (old.listed(), new.listed());
        let mut changes = UserChanges::default();
        for user in new {
            let name = || user.caller.name().to_owned();
            let Some(before) = by_name(old, user.caller.name()) else {
                changes.added.push(name());
                continue;
            };
            if before.token_sha256 != user.token_sha256 {
                changes.new_token.push(name());
            }
            if discriminant(&before.caller) != discriminant(&user.caller) {
                changes.new_role.push(name());
            } else if before.caller != user.caller {
                changes.new_quota.push(name());
            }
        }
        let gone = old.iter().map(|user| user.caller.name());
        let gone = gone.filter(|name| by_name(new, name).is_none());
        changes.removed = gone.map(str::to_owned).collect();
        changes
    }

    /// All tenants.
    #[must_use]
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let tenant = |user: &User| match &user.caller {
            Caller::Tenant(tenant) => Some(tenant.clone()),
            Caller::Operator(_) | Caller::Reader(_) => None,
        };
        self.known().listed().iter().filter_map(tenant).collect()
    }

    /// Returns true if every caller may ask everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(*self.known(), Known::Anybody)
    }

    /// Returns true if callers are authenticated by their tokens.
    #[must_use]
    pub fn are_listed(&self) -> bool {
        matches!(*self.known(), Known::Listed(_))
    }

    /// Returns true if callers are authenticated by the owners of their sockets.
    pub(crate) fn are_owners(&self) -> bool {
        matches!(*self.known(), Known::Owner { .. })
    }

    /// Returns the sender of this value of the header `Authorization`, over a connection of the user
    /// `owner`, if that is on this host.
    pub(crate) fn identify(
        &self,
        authorization: Option<&str>,
        owner: Option<u32>,
    ) -> Result<Caller, Problem> {
        let known = self.known();
        let users = match &*known {
            Known::Anybody => return Ok(Caller::Operator("anybody".into())),
            Known::Owner { uid } => {
                let owner = owner.filter(|owner| *owner == ROOT || owner == uid);
                let owner = owner.ok_or_else(|| not_the_owner(*uid))?;
                return Ok(Caller::Operator(format!("uid {owner}").into()));
            }
            Known::Listed(users) => users,
        };
        let token = authorization.and_then(bearer);
        let token = token.ok_or_else(|| unauthenticated("this API answers to those it knows"))?;
        let hash = hash(token.trim());
        // All are looked at, so that the time tells nothing about which one it was.
        let known = users.iter().fold(None, |known, user| {
            if bool::from(user.token_sha256.ct_eq(&hash)) { Some(user) } else { known }
        });
        let known = known.ok_or_else(|| unauthenticated("no user has this token"))?;
        Ok(known.caller.clone())
    }
}

/// Returns the token of a header `Authorization` of the scheme Bearer. Schemes are compared without case (RFC 9110, 11.1).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

fn by_name<'a>(users: &'a [User], name: &str) -> Option<&'a User> {
    users.iter().find(|user| user.caller.name() == name)
}

/// Refuses a request where only the server's owner may ask.
fn not_the_owner(uid: u32) -> Problem {
    let detail = format!(
        "this API has no list of users: it answers root and the user {uid}, which the server runs as, from their own host alone"
    );
    let hint = "ask there as one of these, or give the server a list with --api-users, or --api-open \
                where everybody who reaches it may do everything";
    Problem::new(ProblemCode::Unauthenticated, &detail, hint)
}

/// Refuses a request that names its sender twice.
pub(crate) fn two_credentials() -> Problem {
    unauthenticated("the header `Authorization` is there more than once")
}

fn unauthenticated(detail: &str) -> Problem {
    let hint = "send `Authorization: Bearer TOKEN`; our tools take the token from \
                FARFLASH_API_TOKEN or --api-token-file";
    Problem::new(ProblemCode::Unauthenticated, detail, hint)
}

fn add(
    users: &mut Vec<User>,
    name: &str,
    token_sha256: &str,
    caller: Caller,
) -> Result<(), UsersError> {
    let wrong = |what: String| UsersError::User { name: name.to_owned(), what };
    if name.parse::<VolumeName>().is_err() {
        let what =
            "a name has 1 to 63 of a-z, 0-9, `.`, `_` and `-`, and begins with one of the former";
        return Err(wrong(what.to_owned()));
    }
    let token_sha256 = unhex(token_sha256)
        .ok_or_else(|| wrong("`token_sha256` has 64 hexadecimal digits".to_owned()))?;
    if users.iter().any(|user| user.caller.name() == name) {
        return Err(wrong("two users have this name".to_owned()));
    }
    if users.iter().any(|user| user.token_sha256 == token_sha256) {
        return Err(wrong("another user has the same token".to_owned()));
    }
    users.push(User { token_sha256, caller });
    Ok(())
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A token for the API, and what a list of users says of it.
pub struct ApiToken {
    /// The token itself, for the new user.
    pub token: String,
    /// For the list.
    pub token_sha256: String,
}

impl ApiToken {
    /// Makes one of random bytes.
    #[must_use]
    pub fn new(random: &[u8; TOKEN_BYTES]) -> Self {
        let token = format!("{TOKEN_PREFIX}{}", hex(random));
        let token_sha256 = hex(&hash(&token));
        Self { token, token_sha256 }
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiToken({})", self.token_sha256)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Put there before any handler runs.
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| unauthenticated("the request has no caller"))
    }
}

/// Refuses a request that is not its caller's to make.
pub(crate) fn forbidden() -> Problem {
    let hint =
        "ask an operator of the server; readers get /metrics, /v1/stats and recordings of volumes";
    Problem::new(ProblemCode::Forbidden, "this is not for readers", hint)
}

/// A caller that may see figures of all volumes.
pub(crate) struct Observer;

impl<S: Send + Sync> FromRequestParts<S> for Observer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if let Caller::Reader(_) = Caller::from_request_parts(parts, state).await? {
            return Ok(Self);
        }
        Operator::from_request_parts(parts, state).await.map(|Operator| Self)
    }
}

/// A caller that may do everything.
pub(crate) struct Operator;

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Caller::from_request_parts(parts, state).await? {
            Caller::Operator(_) => Ok(Self),
            Caller::Tenant(_) | Caller::Reader(_) => Err(Problem::new(
                ProblemCode::Forbidden,
                "this is for operators",
                "ask an operator of the server; tenants manage their own volumes",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(byte: u8) -> ApiToken {
        ApiToken::new(&[byte; TOKEN_BYTES])
    }

    fn list() -> String {
        format!(
            "[[operator]]\nname = \"ops\"\ntoken_sha256 = \"{}\"\n\
             [[tenant]]\nname = \"acme\"\ntoken_sha256 = \"{}\"\nvolumes = 2\nprovisioned = \"1GiB\"\n",
            token(1).token_sha256,
            token(2).token_sha256
        )
    }

    #[test]
    fn callers_are_known_by_their_tokens() {
        let users = Users::from_toml(&list()).expect("a list");
        let who = |token: &str| users.identify(Some(&format!("Bearer {token}")), Some(ROOT));
        assert_eq!(who(&token(1).token), Ok(Caller::Operator("ops".into())));
        let acme = who(&token(2).token).expect("known");
        let quota =
            Quota { volumes: Some(2), provisioned_bytes: Some(1 << 30), ..Quota::default() };
        assert_eq!(acme, Caller::Tenant(Arc::new(Tenant { name: "acme".into(), quota })));
        for scheme in ["bearer", "BEARER"] {
            let named = users.identify(Some(&format!("{scheme} {}", token(1).token)), None);
            assert_eq!(named, Ok(Caller::Operator("ops".into())), "{scheme}");
        }
        assert!(acme.may_use(Some("acme")) && !acme.may_use(Some("other")) && !acme.may_use(None));
        for wrong in [Some("Bearer x"), Some(""), None, Some(token(1).token.as_str())] {
            let problem = users.identify(wrong, Some(ROOT)).expect_err("unknown");
            assert_eq!(problem.code, ProblemCode::Unauthenticated);
        }
        let anybody = Users::open().identify(None, None).expect("open");
        assert!(anybody.may_use(None));
    }

    #[test]
    fn without_a_list_root_and_the_owner_are_known() {
        let users = Users::owner(1000);
        for uid in [0, 1000] {
            let caller = users.identify(None, Some(uid));
            assert_eq!(caller, Ok(Caller::Operator(format!("uid {uid}").into())));
        }
        for stranger in [Some(1001), None] {
            let problem = users.identify(Some("Bearer x"), stranger).expect_err("unknown");
            assert_eq!(problem.code, ProblemCode::Unauthenticated);
        }
    }

    #[test]
    fn lists_with_mistakes_are_refused() {
        let with = |entry: &str| Users::from_toml(&format!("{}{entry}", list())).err();
        let hash = "0".repeat(64);
        for (entry, part) in [
            (format!("[[operator]]\nname = \"acme\"\ntoken_sha256 = \"{hash}\""), "this name"),
            (
                format!("[[operator]]\nname = \"x\"\ntoken_sha256 = \"{}\"", token(1).token_sha256),
                "same token",
            ),
            ("[[operator]]\nname = \"x\"\ntoken_sha256 = \"12\"".to_owned(), "64 hexadecimal"),
            (format!("[[operator]]\nname = \"A b\"\ntoken_sha256 = \"{hash}\""), "1 to 63 of a-z"),
            (format!("[[operator]]\nname = \"x\"\ntoken = \"{hash}\""), "unknown field"),
            (
                format!(
                    "[[tenant]]\nname = \"x\"\ntoken_sha256 = \"{hash}\"\nprovisioned = \"much\""
                ),
                "`provisioned`",
            ),
        ] {
            let error = with(&entry).map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{entry}: {error}");
            assert!(!error.contains('\n'), "a log has a line for it: {error}");
        }
        let negative = format!("[[tenant]]\nname = \"x\"\ntoken_sha256 = \"{hash}\"\nvolumes = -1");
        let error = with(&negative).map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("line 12: `volumes`: "), "{error}");
    }

    /// An editor that has emptied the file, and not written it yet, locks no user out.
    #[test]
    fn a_list_without_users_is_refused() {
        for text in ["", "# no user yet\n", "operator = []\n"] {
            assert!(matches!(Users::from_toml(text), Err(UsersError::NoUsers)), "{text}");
        }
    }
}
