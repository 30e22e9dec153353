//! Any host answers for all: requests about what is elsewhere are passed on.
//!
//! - RELAY-1: a request is passed on with the caller's own credentials, and the host that it is passed on to
//!   decides by itself whether to answer. A host lends its own rights to no caller.
//! - RELAY-2: a request that was passed on is answered where it arrives, and never passed on again.
//! - RELAY-3: a host that does not answer costs no request more than [`ANSWER_TIMEOUT`]. Of its volumes is told what is known; a
//!   change is not sent there, so that its outcome is known. One that answers has [`CHANGE_TIMEOUT`] for a change.
//! - RELAY-4: what came encrypted goes on encrypted, or not at all. A host with TLS asks none without: that is to its callers
//!   as one that does not answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use directory::{HttpAnswer, HttpError, HttpRequest};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::gate::AUDIT;
use crate::request::{unreadable, volume_key};
use crate::tls;
use crate::{
    Caller, Location, OtherHost, Problem, ProblemCode, ServiceError, Volume, VolumeList,
    VolumeService,
};

/// Says that a request was passed on (RELAY-2).
const PASSED_ON: HeaderName = HeaderName::from_static("farflash-passed-on");
/// Below the other host's own limit, lest an answer be lost that says more.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(25);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer that is passed back: a list of some hundred thousand volumes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// True if connections to this API are encrypted.
#[derive(Clone, Copy)]
pub(crate) struct Encrypts(pub(crate) bool);

/// The sender of a request, the way in which it came, and if another host passed it on.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    authorization: Option<HeaderValue>,
    /// The declared type of its body: the host that answers refuses a wrong one (RELAY-1).
    content_type: Option<HeaderValue>,
    was_encrypted: bool,
    was_passed_on: bool,
}

impl Origin {
    fn of(headers: &HeaderMap, extensions: &Extensions) -> Self {
        Self {
            authorization: headers.get(header::AUTHORIZATION).cloned(),
            content_type: headers.get(header::CONTENT_TYPE).cloned(),
            was_encrypted: extensions.get::<Encrypts>().is_some_and(|encrypts| encrypts.0),
            was_passed_on: headers.contains_key(PASSED_ON),
        }
    }
}

/// Why another host gave no answer.
#[derive(Debug, thiserror::Error)]
enum Silence {
    /// RELAY-4.
    #[error("its API is not encrypted, as this one is: it is told nothing")]
    Plain,
    /// RELAY-3: it was asked for nothing.
    #[error("{0}")]
    Hung(HttpError),
    #[error(transparent)]
    Http(#[from] HttpError),
}

impl<S: Send + Sync> FromRequestParts<S> for Origin {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.headers, &parts.extensions))
    }
}

/// Passes a request about a volume elsewhere on to its host.
pub(crate) async fn pass_on(
    service: Arc<dyn VolumeService>,
    request: Request,
    next: Next,
) -> Response {
    let origin = Origin::of(request.headers(), request.extensions());
    let of_volume = request.uri().path().strip_prefix("/v1/volumes/").unwrap_or_default();
    let (name, rest) = of_volume.split_once('/').unwrap_or((of_volume, ""));
    let key = volume_key(name);
    let caller = request.extensions().get::<Caller>();
    let (Some(key), Some(caller), false) = (key, caller, origin.was_passed_on) else {
        return next.run(request).await;
    };
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    // What is known of a volume answers only for the volume itself.
    let shows = reads && rest.is_empty();
    match service.locate(caller, &key) {
        Location::Here => next.run(request).await,
        Location::Lost(volume) if shows => axum::Json(*volume).into_response(),
        Location::Lost(volume) => unreachable_host(&volume.host),
        Location::There { host, known } => {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
            let whole = Request::from_parts(parts.clone(), body);
            let body = match Bytes::from_request(whole, &()).await {
                Ok(body) => body,
                Err(error) => return unreadable(&error).into_response(),
            };
            let answer = match reads {
                true => ask(&host, parts.method, path, origin, body, ANSWER_TIMEOUT).await,
                false => change(&host, parts.method, path, origin, body).await,
            };
            match answer {
                Ok(answer) => passed_back(answer),
                Err(error) => match known.filter(|_| shows) {
                    Some(volume) => axum::Json(*volume).into_response(),
                    None => no_answer(&host, &error, reads),
                },
            }
        }
    }
}

/// Asks another host to make a volume.
pub(crate) async fn create_there(host: &OtherHost, origin: Origin, body: Bytes) -> Response {
    let path = "/v1/volumes".to_owned();
    match change(host, Method::POST, path, origin, body).await {
        Ok(answer) => passed_back(answer),
        Err(error) => no_answer(host, &error, false),
    }
}

/// The volumes of all hosts that `caller` may know of, by name.
pub(crate) async fn list_all(
    service: &Arc<dyn VolumeService>,
    caller: &Caller,
    origin: &Origin,
) -> Result<Vec<Volume>, ServiceError> {
    let own = service.list(caller.clone());
    if origin.was_passed_on {
        return own.await;
    }
    let mut asked = JoinSet::new();
    for host in service.others() {
        let origin = origin.clone();
        asked.spawn(async move {
            let path = "/v1/volumes".to_owned();
            let answer = ask(&host, Method::GET, path, origin, Bytes::new(), ANSWER_TIMEOUT).await;
            if let Err(error @ Silence::Plain) = &answer {
                tracing::warn!(host = host.name, %error, "its volumes are listed as unreachable");
            }
            let answer = answer.ok().filter(|answer| answer.status == StatusCode::OK)?;
            let list: VolumeList = serde_json::from_slice(&answer.body).ok()?;
            Some((host.id, list.volumes))
        });
    }
    let mut volumes = own.await?;
    let mut answered = BTreeSet::new();
    while let Some(list) = asked.join_next().await {
        if let Ok(Some((host, theirs))) = list {
            answered.insert(host);
            volumes.extend(theirs);
        }
    }
    let listed: BTreeSet<Uuid> = volumes.iter().map(|volume| volume.id).collect();
    let others = service.known_elsewhere(caller, &answered).into_iter();
    volumes.extend(others.filter(|volume| !listed.contains(&volume.id)));
    volumes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    volumes.dedup_by_key(|volume| volume.id);
    Ok(volumes)
}

/// Asks for a change, if the host answers at all (RELAY-3).
async fn change(
    host: &OtherHost,
    method: Method,
    path: String,
    origin: Origin,
    body: Bytes,
) -> Result<HttpAnswer, Silence> {
    let lives = "/healthz".to_owned();
    ask(host, Method::GET, lives, origin.clone(), Bytes::new(), ANSWER_TIMEOUT).await.map_err(
        |error| match error {
            Silence::Http(error) => Silence::Hung(error),
            other => other,
        },
    )?;
    ask(host, method, path, origin, body, CHANGE_TIMEOUT).await
}

async fn ask(
    host: &OtherHost,
    method: Method,
    path: String,
    origin: Origin,
    body: Bytes,
    timeout: Duration,
) -> Result<HttpAnswer, Silence> {
    if origin.was_encrypted && host.api_certificate.is_none() {
        return Err(Silence::Plain);
    }
    let mut headers = HeaderMap::new();
    headers.insert(PASSED_ON, HeaderValue::from_static("1"));
    if let Some(authorization) = origin.authorization {
        headers.insert(header::AUTHORIZATION, authorization);
    }
    if let Some(content_type) = origin.content_type.filter(|_| !body.is_empty()) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    let authority = host.api.to_string();
    let request = HttpRequest { authority, method, path, headers, body };
    let answer = match &host.api_certificate {
        None => request.send(timeout, ANSWER_BYTES_MAX).await,
        Some(certificate) => {
            let encrypt = async |stream| tls::connect_to(certificate, stream).await;
            request.send_by(timeout, ANSWER_BYTES_MAX, encrypt).await
        }
    };
    answer.map_err(Silence::Http)
}

fn passed_back(answer: HttpAnswer) -> Response {
    let mut response = (answer.status, Body::from(answer.body)).into_response();
    for name in [header::CONTENT_TYPE, header::LOCATION, header::WWW_AUTHENTICATE, AUDIT] {
        match answer.headers.get(&name) {
            Some(value) => drop(response.headers_mut().insert(name, value.clone())),
            None => drop(response.headers_mut().remove(&name)),
        }
    }
    response
}

/// A change that was sent may have been made.
fn no_answer(host: &OtherHost, error: &Silence, reads: bool) -> Response {
    tracing::warn!(host = host.name, %error, "a request could not be passed on");
    match error {
        Silence::Plain => Problem::new(
            ProblemCode::HostUnreachable,
            format!("nothing is passed on to the host {}: {error}", host.name),
            "give that host --api-tls, too, or ask it itself",
        )
        .into_response(),
        Silence::Http(HttpError::NoAnswer { .. }) if !reads => Problem::new(
            ProblemCode::Timeout,
            format!("the host {} took the request and did not answer it", host.name),
            "it may still take effect: look before you ask again",
        )
        .into_response(),
        _ => unreachable_host(&host.name),
    }
}

fn unreachable_host(host: &str) -> Response {
    Problem::from(ServiceError::HostUnreachable { host: host.to_owned() }).into_response()
}
