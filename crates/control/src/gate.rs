//! Checks that each request passes before it is handled: its caller is authenticated, and changes are
//! recorded.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use crate::audit::{self, Audit, Line};
use crate::caller::{self, Caller, Users};
use crate::crowd::Activity;
use crate::problem::{Problem, ProblemCode};
use crate::request::unreadable;
use crate::stranger_lines::StrangerLines;
use crate::tls::ApiTls;

/// Paths that answer everybody: they tell nothing about volumes.
const OPEN_PATHS: [&str; 3] = ["/healthz", "/readyz", "/v1/openapi.json"];
/// The same, with a device's id behind it: another host asks, which has no token, and has that id.
const SERVING_PATH: &str = "/v1/serving/";

/// Says [`INCOMPLETE`] of an answer that could not be recorded (AUDIT-1).
pub(crate) const AUDIT: HeaderName = HeaderName::from_static("farflash-audit");
/// The same name, for people.
pub(crate) const AUDIT_SHOWN: &str = "Farflash-Audit";
/// The one value of [`AUDIT`].
pub(crate) const INCOMPLETE: &str = "incomplete";

/// Returns true if a path is answered for every caller.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN_PATHS.contains(&path) || path.starts_with(SERVING_PATH)
}

/// The users, the audit log and the encryption of an API. Each can be replaced while it is in use, by a
/// clone.
#[derive(Clone)]
pub struct Guard {
    /// The users of the API.
    pub users: Users,
    /// The log in which changes are recorded, if there is one.
    pub audit: Option<Audit>,
    /// The certificate for encrypted connections, if they are encrypted.
    pub tls: Option<ApiTls>,
}

impl Default for Guard {
    /// Everybody may ask, nothing is recorded, and nothing encrypted.
    fn default() -> Self {
        Self { users: Users::open(), audit: None, tls: None }
    }
}

/// The other end of an API connection.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The user that owns a connection's other end, where that has been found out (`owner.rs`).
#[derive(Clone, Copy)]
pub(crate) struct Owner(pub(crate) u32);

/// Counters of the API, and the log lines about unauthenticated requests.
#[derive(Default)]
pub(crate) struct Counts {
    unauthenticated: AtomicU64,
    put_off: AtomicU64,
    strangers: Arc<StrangerLines>,
}

impl Counts {
    /// Number of unauthenticated requests.
    pub(crate) fn unauthenticated(&self) -> u64 {
        self.unauthenticated.load(Ordering::Relaxed)
    }

    pub(crate) fn note_unauthenticated(&self) {
        self.unauthenticated.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that were answered 429.
    pub(crate) fn put_off(&self) -> u64 {
        self.put_off.load(Ordering::Relaxed)
    }

    pub(crate) fn note_put_off(&self) {
        self.put_off.fetch_add(1, Ordering::Relaxed);
    }
}

/// Authenticates the sender of a request, and records the request if it is a change. Until all of it has
/// come it may be cut off (API-CROWD-1).
pub(crate) async fn pass(
    guard: Arc<Guard>,
    counts: Arc<Counts>,
    mut request: Request,
    next: Next,
) -> Response {
    if is_open(request.uri().path()) {
        return next.run(request).await;
    }
    let owner = request.extensions().get::<Owner>().map(|owner| owner.0);
    let caller = match identify(&guard.users, request.headers(), owner) {
        Ok(caller) => caller,
        Err(problem) => {
            counts.note_unauthenticated();
            if let Some(Peer(peer)) = request.extensions().get::<Peer>() {
                counts.strangers.note(*peer, request.uri().path());
            }
            return problem.into_response();
        }
    };
    request.extensions_mut().insert(caller.clone());
    let activity = request.extensions().get::<Activity>().cloned();
    // Where every caller may ask, none is authenticated.
    let activity = activity.filter(|_| !guard.users.is_open());
    if let Some(activity) = &activity {
        activity.renew();
    }
    let (parts, body) = match whole(request).await {
        Ok(whole) => whole,
        Err(problem) => return problem.into_response(),
    };
    let _under_way = activity.as_ref().map(Activity::begin);
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(&parts.method);
    let response = match &guard.audit {
        Some(audit) if !reads => record(audit, &caller, (parts, body), next).await,
        _ => next.run(Request::from_parts(parts, Body::from(body))).await,
    };
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        counts.note_put_off();
    }
    response
}

/// Refuses a request that its caller may not make. It comes behind [`pass`], which records the attempt.
pub(crate) async fn admit(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    // Open paths have no caller.
    match caller.is_none_or(|caller| caller.may_ask(request.method(), request.uri().path())) {
        true => next.run(request).await,
        false => caller::forbidden().into_response(),
    }
}

/// Authenticates the sender of a request with these headers over a connection of `owner`.
fn identify(users: &Users, headers: &HeaderMap, owner: Option<u32>) -> Result<Caller, Problem> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let authorization = sent.next().and_then(|value| value.to_str().ok());
    match sent.next() {
        // What stands between, such as a proxy, may have believed the other.
        Some(_) if users.are_listed() => Err(caller::two_credentials()),
        _ => users.identify(authorization, owner),
    }
}

/// A request with the whole of its body, which has the bound that handlers give it.
async fn whole(request: Request) -> Result<(Parts, Bytes), Problem> {
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let body = Bytes::from_request(request, &()).await.map_err(|error| unreadable(&error))?;
    Ok((parts, body))
}

async fn record(
    audit: &Audit,
    caller: &Caller,
    (parts, body): (Parts, Bytes),
    next: Next,
) -> Response {
    let Some(left_out) = audit.refusals.admit(caller.name(), Instant::now()) else {
        return put_off().into_response();
    };
    let change = Change {
        id: audit.new_id(),
        caller: caller.clone(),
        peer: parts.extensions.get::<Peer>().map(|peer| peer.0),
        method: audit::shown_text(parts.method.as_str()),
        path: audit::shown_text(parts.uri.path_and_query().map_or("", PathAndQuery::as_str)),
        request: audit::shown(&body),
        left_out,
    };
    // A change that has begun is recorded, even if its client has gone: the task runs to its end.
    let audit = audit.clone();
    let recorded = tokio::spawn(async move {
        let (asked, change) = change.record(audit.clone(), None).await;
        if asked.is_err() {
            return not_recorded().into_response();
        }
        let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
        if !response.status().is_success() {
            audit.refusals.note(change.caller.name(), Instant::now());
        }
        let (answered, _) = change.record(audit, Some(response.status().as_u16())).await;
        if answered.is_err() {
            response.headers_mut().insert(AUDIT, HeaderValue::from_static(INCOMPLETE));
        }
        response
    });
    recorded.await.unwrap_or_else(|_| interrupted().into_response())
}

/// The answer to a change that is not made because it would have no line in the audit log.
fn not_recorded() -> Problem {
    let detail = "the change cannot be recorded in the audit log, so it is not made";
    let hint = "give the audit log space, or another place with --audit-log, and ask again";
    Problem::new(ProblemCode::Unavailable, detail, hint)
}

/// The answer to a change whose task panicked.
fn interrupted() -> Problem {
    let detail = "a fault of the server ended the change; it may have been made, in part";
    let hint = "look at what there is, and at the server's log";
    Problem::new(ProblemCode::Internal, detail, hint)
}

/// The answer to a rate-limited caller: too many of its changes were refused.
fn put_off() -> Problem {
    let detail = "too many of your changes were refused; this one was not looked at";
    let hint = "ask again in a second, for what was not refused before";
    Problem::new(ProblemCode::TooManyRequests, detail, hint)
}

/// A change that is asked for.
struct Change {
    id: u64,
    caller: Caller,
    peer: Option<SocketAddr>,
    method: String,
    path: String,
    request: serde_json::Value,
    left_out: u64,
}

impl Change {
    /// Writes its line: what is asked for, and then the `status` that was answered.
    async fn record(self, audit: Audit, status: Option<u16>) -> (io::Result<()>, Self) {
        let write = move || {
            let role = match &self.caller {
                Caller::Operator(_) => "operator",
                Caller::Reader(_) => "reader",
                Caller::Tenant(_) => "tenant",
            };
            let written = audit.record(&Line {
                id: self.id,
                time_unix_ms: audit::now_unix_ms(),
                caller: self.caller.name(),
                role,
                peer: self.peer,
                method: &self.method,
                path: &self.path,
                request: status.is_none().then_some(&self.request),
                left_out: Some(self.left_out).filter(|count| status.is_none() && *count > 0),
                status,
                outcome: None,
            });
            (written, self)
        };
        tokio::task::spawn_blocking(write).await.expect("writing a line does not panic")
    }
}
