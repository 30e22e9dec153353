//! Reading requests: bodies and paths, refused with reasons.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;
use uuid::Uuid;

use crate::problem::{Problem, ProblemCode};
use crate::{VolumeKey, VolumeName};

/// A JSON body, and nothing else in the body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                ProblemCode::UnsupportedMediaType,
                "the body is not declared as JSON",
                "send the header `Content-Type: application/json`",
            ));
        }
        let body = Bytes::from_request(request, state).await.map_err(|error| unreadable(&error))?;
        decode(&body).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = declared.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

pub(crate) fn unreadable(error: &BytesRejection) -> Problem {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let hint = "send only the fields of this request; see GET /v1/openapi.json";
        return Problem::new(ProblemCode::BodyTooLarge, "the body is too long", hint);
    }
    let detail = "the body ended early or could not be read";
    Problem::new(ProblemCode::InvalidJson, detail, "send a whole JSON document")
}

/// Syntax first, and then meaning: what is no JSON is told from what is the wrong JSON.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // All of it is looked at: what is only skipped may hold texts that are none.
    serde_json::from_slice::<Value>(body).map_err(|error| {
        let detail = format!("the body is no JSON: {error}");
        Problem::new(ProblemCode::InvalidJson, detail, "mend the JSON at this line and column")
    })?;
    if body.trim_ascii_start().first() != Some(&b'{') {
        // Left to serde, an array would pass as the fields in their order.
        let hint = "send an object; its fields are described by GET /v1/openapi.json";
        return Err(Problem::new(ProblemCode::InvalidField, "the body is no JSON object", hint));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut json)
        .map_err(|error| undecodable(&error.path().to_string(), error.inner()))
}

/// JSON that is not what was asked for.
fn undecodable(path: &str, error: &serde_json::Error) -> Problem {
    let place = if path == "." { String::new() } else { format!("`{path}`: ") };
    let what = match error.classify() {
        Category::Data => error.to_string(),
        // The text is known to be JSON: it has more than one of several forms.
        Category::Syntax | Category::Eof | Category::Io => {
            "there is something besides the one form that was begun".to_owned()
        }
    };
    let hint = "the fields and their types are described by GET /v1/openapi.json";
    Problem::new(ProblemCode::InvalidField, format!("{place}{what}"), hint)
}

impl<S: Send + Sync> FromRequestParts<S> for VolumeKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(
            |e: PathRejection| Problem::new(ProblemCode::InvalidPath, e.body_text(), VOLUME_HINT),
        )?;
        key_of(&text)
    }
}

const VOLUME_HINT: &str = "name the volume by its name or UUID";

/// The volume of this name or id.
fn key_of(text: &str) -> Result<VolumeKey, Problem> {
    if let Ok(id) = Uuid::try_parse(text) {
        return Ok(VolumeKey::Id(id));
    }
    text.parse::<VolumeName>().map(VolumeKey::Name).map_err(|error| {
        let detail = format!("there is no such volume: {error}");
        Problem::new(ProblemCode::VolumeNotFound, detail, VOLUME_HINT)
    })
}

/// The volume that a part of a path names, if it may name one. Percent-encoded characters are what our
/// own client sends for some that names have.
pub(crate) fn volume_key(part: &str) -> Option<VolumeKey> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = behind;
    }
    let text = String::from_utf8(bytes).ok()?;
    match Uuid::try_parse(&text) {
        Ok(id) => Some(VolumeKey::Id(id)),
        Err(_) => text.parse().ok().map(VolumeKey::Name),
    }
}

/// The one query parameter that there is, `lose_data`.
pub(crate) struct LoseData(pub(crate) bool);

impl<S: Send + Sync> FromRequestParts<S> for LoseData {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match parts.uri.query().unwrap_or_default() {
            "" | "lose_data=false" => Ok(Self(false)),
            "lose_data=true" => Ok(Self(true)),
            _ => Err(Problem::new(
                ProblemCode::UnknownParameter,
                "the query is neither `lose_data=true` nor `lose_data=false`",
                "send one of them behind the `?`, or nothing",
            )),
        }
    }
}

/// A recording of a volume in a path, with the number of a request behind it in some.
pub(crate) struct RecordingOf {
    pub(crate) volume: VolumeKey,
    pub(crate) id: Uuid,
    pub(crate) first: Option<u64>,
}

impl<S: Send + Sync> FromRequestParts<S> for RecordingOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<RecordingPath>::from_request_parts(parts, state).await;
        let Path(path) = path.map_err(|e: PathRejection| {
            let hint = "name the volume, the recording by its id, and the request by its number";
            Problem::new(ProblemCode::InvalidPath, e.body_text(), hint)
        })?;
        let volume = key_of(&path.volume)?;
        Ok(Self { volume, id: path.recording, first: path.first })
    }
}

/// The parts of such a path.
#[derive(Deserialize)]
struct RecordingPath {
    volume: String,
    recording: Uuid,
    first: Option<u64>,
}

/// A device's name in a path.
pub(crate) struct DeviceName(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for DeviceName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        name.map(|Path(name)| Self(name)).map_err(|e: PathRejection| {
            let hint = "name the device as GET /v1/devices does, percent-encoded";
            Problem::new(ProblemCode::InvalidPath, e.body_text(), hint)
        })
    }
}

/// A device's id, and a host's name, in a path.
pub(crate) struct DeviceOf {
    pub(crate) device: Uuid,
    pub(crate) host: String,
}

impl<S: Send + Sync> FromRequestParts<S> for DeviceOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let both = Path::<(Uuid, String)>::from_request_parts(parts, state).await;
        both.map(|Path((device, host))| Self { device, host }).map_err(|e: PathRejection| {
            let hint =
                "name the device by its id, and its host by its name, as GET /v1/hosts has them";
            Problem::new(ProblemCode::InvalidPath, e.body_text(), hint)
        })
    }
}

/// A device's id in a path.
pub(crate) struct DeviceId(pub(crate) Uuid);

impl<S: Send + Sync> FromRequestParts<S> for DeviceId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        let id = text.ok().and_then(|Path(text)| Uuid::try_parse(&text).ok());
        id.map(Self).ok_or_else(|| {
            let hint = "name the device by its id, as GET /v1/hosts has it";
            Problem::new(ProblemCode::InvalidPath, "the path names no device's id", hint)
        })
    }
}
