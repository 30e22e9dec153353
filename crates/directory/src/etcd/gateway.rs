//! etcd's own words, as JSON over HTTP (its gRPC gateway, `/v3/…`).
//!
//! Keys and values are Base64 and 64-bit integers are strings, as protobuf's JSON form has them.

#[cfg(feature = "fuzzing")]
mod fuzzing;
mod store;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use cluster::{Compare, Compared, KeyValue, Op, TxnReply};
use hyper::{HeaderMap, Method, StatusCode, header};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::access::Access;
use crate::http::{HttpAnswer, HttpError, HttpRequest};
#[cfg(feature = "fuzzing")]
pub use fuzzing::take_answer;
pub(super) use watch::Watch;

/// Longest answer that is taken, and longest event.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Characters of etcd's message that are repeated when it refuses access.
const SAID_CHARS_MAX: usize = 200;
/// Keys of a page of a range.
const PAGE_KEYS: u64 = 500;

/// The codes of gRPC by which it says that it did not do what was asked, and will not: invalid argument, not found, permission
/// denied, resource exhausted. By others, such as unavailable, it does not know.
const DENIALS: [u64; 4] = [3, 5, 7, 8];
/// etcd's message for a token that is older than the last change of its users.
const OLD_REVISION: &str = "revision of auth store is old";

/// Why etcd did not do as asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatewayError {
    #[error(transparent)]
    Http(#[from] HttpError),
    /// It answered with an error: it has no quorum, the lease is gone, or the like.
    #[error("etcd at {authority}: {message}")]
    Refused { authority: String, message: String },
    /// etcd processed the request and refuses it: it has no space left, the user lacks the permission, or the like.
    #[error("etcd at {authority}: {message}")]
    Denied { authority: String, message: String },
    /// It does not take the token (any more). What was asked was not done.
    #[error("etcd at {authority}: {message}")]
    Stale { authority: String, message: String },
    /// Something else than etcd answers for it, such as what stands between: etcd is not there now.
    #[error("etcd at {authority} is not to be heard: {what}")]
    Unheard { authority: String, what: String },
    /// The server at this address does not speak etcd's protocol.
    #[error("what answers at {authority} is not etcd 3.4 or later: {what}")]
    Foreign { authority: String, what: String },
}

/// One member of etcd.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    pub(super) authority: String,
    pub(super) timeout: Duration,
    access: Access,
    /// The token that etcd issued for a user's password. It expires; another is requested then.
    token: Arc<Mutex<Option<String>>>,
}

/// [`KeyValue`] as etcd's gateway writes it.
#[derive(Deserialize)]
#[serde(remote = "KeyValue")]
pub(super) struct WireKeyValue {
    #[serde(deserialize_with = "base64_text")]
    key: String,
    #[serde(default, deserialize_with = "base64")]
    value: Vec<u8>,
    #[serde(default, deserialize_with = "int")]
    create_revision: i64,
    #[serde(default, deserialize_with = "int")]
    mod_revision: i64,
    #[serde(default, deserialize_with = "int")]
    lease: i64,
}

#[derive(Debug, Default, Deserialize)]
struct Header {
    #[serde(default, deserialize_with = "int")]
    revision: i64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct RangeAnswer {
    #[serde(default)]
    header: Header,
    #[serde(default, deserialize_with = "key_values")]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default)]
    more: bool,
    /// Keys in the range, also those that were not asked for.
    #[serde(default, deserialize_with = "int")]
    count: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct TxnAnswer {
    #[serde(default)]
    header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<OpAnswer>,
}

#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

#[derive(Debug, Deserialize)]
struct OpAnswer {
    response_range: Option<RangeAnswer>,
}

#[derive(Debug, Deserialize)]
struct LeaseAnswer {
    #[serde(default, rename = "ID", deserialize_with = "int")]
    id: i64,
    #[serde(default, rename = "TTL", deserialize_with = "int")]
    ttl: i64,
}

#[derive(Debug, Deserialize)]
struct Streamed<T> {
    result: Option<T>,
    error: Option<Value>,
}

fn encode_compare(compare: &Compare) -> Value {
    match compare {
        Compare::ModRevision(key, revision) => json!({
            "key": encode(key.as_bytes()), "target": "MOD", "result": "EQUAL",
            "mod_revision": revision.to_string(),
        }),
        Compare::Value(key, value) => json!({
            "key": encode(key.as_bytes()), "target": "VALUE", "result": "EQUAL",
            "value": encode(value),
        }),
        Compare::Lease(key, lease) => json!({
            "key": encode(key.as_bytes()), "target": "LEASE", "result": "EQUAL",
            "lease": lease.to_string(),
        }),
    }
}

fn encode_op(op: &Op) -> Value {
    match op {
        Op::Put { key, value, lease } => json!({"request_put": {
            "key": encode(key.as_bytes()), "value": encode(value),
            "lease": lease.unwrap_or(0).to_string(),
        }}),
        Op::Delete(key) => json!({"request_delete_range": {"key": encode(key.as_bytes())}}),
        Op::Get(key) => json!({"request_range": {"key": encode(key.as_bytes())}}),
    }
}

impl GatewayError {
    /// Returns true if the request may have been carried out, or may be carried out later, although
    /// it failed here.
    pub(super) fn may_be_done(&self) -> bool {
        match self {
            Self::Http(HttpError::Unreachable { .. })
            | Self::Denied { .. }
            | Self::Stale { .. } => false,
            Self::Http(HttpError::NoAnswer { .. })
            | Self::Refused { .. }
            | Self::Unheard { .. }
            | Self::Foreign { .. } => true,
        }
    }
}

impl TxnAnswer {
    /// Returns the answer as decisions take it in.
    pub(super) fn reply(self) -> TxnReply {
        let (succeeded, revision) = (self.succeeded, self.header.revision);
        let ranges = self.responses.into_iter().filter_map(|op| op.response_range);
        let read = ranges.map(|range| range.kvs.into_iter().next()).collect();
        TxnReply { succeeded, revision, read }
    }
}

impl Gateway {
    /// The member at `authority`.
    pub(super) fn new(authority: String, timeout: Duration, access: Access) -> Self {
        Self { authority, timeout, access, token: Arc::default() }
    }

    fn token(&self) -> MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has etcd give a token for the user's password, if there is a user.
    async fn authenticate(&self) -> Result<(), GatewayError> {
        let Some((name, password)) = &self.access.user else { return Ok(()) };
        self.token().take();
        let question = json!({"name": name, "password": password});
        let answer = self.send(self.request("/v3/auth/authenticate", &question)).await?;
        let authority = self.authority.clone();
        if !answer.status.is_success() {
            let said = String::from_utf8_lossy(&answer.body);
            let mut message = format!("it does not let the user `{name}` in");
            // ETCD-ACCESS-2: it could repeat what it was told.
            if !said.contains(password.as_str()) {
                message.push_str(": ");
                message.extend(said.trim().chars().take(SAID_CHARS_MAX));
            }
            return Err(GatewayError::Refused { authority, message });
        }
        let answer: Authenticated = self.decode(&answer.body)?;
        *self.token() = Some(answer.token);
        Ok(())
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpAnswer, HttpError> {
        let Self { access, authority, timeout, .. } = self.clone();
        let secured = async move |stream| access.secured(&authority, stream).await;
        request.send_by(timeout, ANSWER_BYTES_MAX, secured).await
    }

    /// All keys with a prefix, as of one revision, and that revision.
    pub(super) async fn range(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), GatewayError> {
        let end = after_prefix(prefix);
        let (mut all, mut revision, mut from) = (Vec::new(), 0_i64, prefix.as_bytes().to_vec());
        loop {
            let question = json!({
                "key": encode(&from), "range_end": encode(&end),
                "limit": PAGE_KEYS.to_string(), "revision": revision.to_string(),
            });
            let page: RangeAnswer = self.ask("/v3/kv/range", &question).await?;
            if revision == 0 {
                revision = page.header.revision;
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            all.extend(page.kvs);
            match last {
                Some(last) if page.more => {
                    from = last.into_bytes();
                    from.push(0);
                }
                _ => return Ok((all, revision)),
            }
        }
    }

    /// Compares the keys with a prefix with what was known at `revision`. If no key is new or changed, and there are as many as there
    /// were, none is gone.
    pub(super) async fn compare(
        &self,
        prefix: &str,
        revision: i64,
    ) -> Result<Compared, GatewayError> {
        let question = json!({
            "key": encode(prefix.as_bytes()), "range_end": encode(&after_prefix(prefix)),
            "min_mod_revision": revision.saturating_add(1).to_string(),
            "limit": "1", "keys_only": true,
        });
        let answer: RangeAnswer = self.ask("/v3/kv/range", &question).await?;
        let keys = u64::try_from(answer.count).unwrap_or(0);
        Ok(Compared { keys, is_changed: !answer.kvs.is_empty() })
    }

    /// Does `then` if all of `compare` holds, else `or_else`: at once.
    pub(super) async fn txn(
        &self,
        compare: &[Compare],
        then: &[Op],
        or_else: &[Op],
    ) -> Result<TxnAnswer, GatewayError> {
        let question = json!({
            "compare": compare.iter().map(encode_compare).collect::<Vec<_>>(),
            "success": then.iter().map(encode_op).collect::<Vec<_>>(),
            "failure": or_else.iter().map(encode_op).collect::<Vec<_>>(),
        });
        self.ask("/v3/kv/txn", &question).await
    }

    pub(super) async fn grant_lease(&self, ttl: Duration) -> Result<i64, GatewayError> {
        let question = json!({"TTL": ttl.as_secs().max(1).to_string()});
        let lease: LeaseAnswer = self.ask("/v3/lease/grant", &question).await?;
        Ok(lease.id)
    }

    /// Keeps a lease. `false`: it has ended.
    pub(super) async fn keep_lease(&self, id: i64) -> Result<bool, GatewayError> {
        let question = json!({"ID": id.to_string()});
        let answer: Streamed<LeaseAnswer> = self.ask("/v3/lease/keepalive", &question).await?;
        let lease = self.streamed(answer)?;
        Ok(lease.ttl > 0)
    }

    pub(super) async fn revoke_lease(&self, id: i64) -> Result<(), GatewayError> {
        let question = json!({"ID": id.to_string()});
        self.ask::<Value>("/v3/lease/revoke", &question).await.map(drop)
    }

    fn request(&self, path: &str, question: &Value) -> HttpRequest {
        let mut headers = HeaderMap::new();
        let json = header::HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let token = self.token().as_deref().map(header::HeaderValue::from_str);
        if let Some(Ok(mut token)) = token {
            token.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, token);
        }
        HttpRequest {
            authority: self.authority.clone(),
            method: Method::POST,
            path: path.to_owned(),
            headers,
            body: question.to_string().into(),
        }
    }

    /// Makes sure that there is a token, if one is needed.
    async fn have_token(&self) -> Result<(), GatewayError> {
        let lacks = self.access.user.is_some() && self.token().is_none();
        if lacks { self.authenticate().await } else { Ok(()) }
    }

    /// Returns true if the request may succeed with a new token.
    fn wants_token<T>(&self, answer: &Result<T, GatewayError>) -> bool {
        self.access.user.is_some() && matches!(answer, Err(GatewayError::Stale { .. }))
    }

    /// Asks; once more if the token is no longer good.
    async fn ask<T: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        question: &Value,
    ) -> Result<T, GatewayError> {
        self.have_token().await?;
        let answer = self.ask_once(path, question).await;
        if !self.wants_token(&answer) {
            return answer;
        }
        self.authenticate().await?;
        self.ask_once(path, question).await
    }

    async fn ask_once<T: for<'de> Deserialize<'de>>(
        &self,
        path: &str,
        question: &Value,
    ) -> Result<T, GatewayError> {
        let answer = self.send(self.request(path, question)).await?;
        if !answer.status.is_success() {
            return Err(self.refusal(path, answer.status, &answer.body));
        }
        self.decode(&answer.body)
    }

    /// The error for an answer without success.
    fn refusal(&self, path: &str, status: StatusCode, body: &[u8]) -> GatewayError {
        let authority = self.authority.clone();
        let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let message = body.get("message").or_else(|| body.get("error"));
        let code = body.get("code").and_then(Value::as_u64);
        let what = format!("{path} answers with status {status}");
        match message.and_then(Value::as_str).map(str::to_owned) {
            Some(message)
                if status == StatusCode::UNAUTHORIZED || message.contains(OLD_REVISION) =>
            {
                GatewayError::Stale { authority, message }
            }
            Some(message) if code.is_some_and(|code| DENIALS.contains(&code)) => {
                GatewayError::Denied { authority, message }
            }
            Some(message) => GatewayError::Refused { authority, message },
            None if status.is_server_error() => GatewayError::Unheard { authority, what },
            None => GatewayError::Foreign { authority, what },
        }
    }

    fn decode<T: for<'de> Deserialize<'de>>(&self, body: &[u8]) -> Result<T, GatewayError> {
        serde_json::from_slice(body).map_err(|error| {
            let (authority, what) = (self.authority.clone(), error.to_string());
            // JSON of another form is another's. What is no JSON at all comes of what lies between.
            match error.is_data() {
                true => GatewayError::Foreign { authority, what },
                false => GatewayError::Unheard { authority, what },
            }
        })
    }

    fn streamed<T>(&self, answer: Streamed<T>) -> Result<T, GatewayError> {
        answer.result.ok_or_else(|| GatewayError::Refused {
            authority: self.authority.clone(),
            message: answer.error.unwrap_or_default().to_string(),
        })
    }
}

fn encode(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

/// The first key that is behind all with this prefix.
fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // Prefixes end with `/`, which has a successor.
    *end.last_mut().expect("a prefix is not empty") += 1;
    end
}

fn key_values<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<KeyValue>, D::Error> {
    #[derive(Deserialize)]
    struct Wire(#[serde(with = "WireKeyValue")] KeyValue);
    let all = Vec::<Wire>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|kv| kv.0).collect())
}

fn base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Base64::decode_vec(&text).map_err(serde::de::Error::custom)
}

fn base64_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    // A key that is not UTF-8 was not written by farflash.
    base64(deserializer).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn int<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Int {
        Text(String),
        Number(i64),
    }
    match Int::deserialize(deserializer)? {
        Int::Text(text) => text.parse().map_err(serde::de::Error::custom),
        Int::Number(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests;
