//! Refusals as clients see them: `application/problem+json` with a code that never changes.

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

use crate::ServiceError;
use crate::shell::shell_word;

/// The media type of a refusal.
const CONTENT_TYPE: &str = "application/problem+json";

/// The kind of a problem, for programs. A code keeps its meaning for good.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The body is no JSON.
    InvalidJson,
    /// The body is JSON, but a field is unknown, missing, or of the wrong type or range.
    InvalidField,
    /// The body is not declared as JSON.
    UnsupportedMediaType,
    /// The body is longer than allowed.
    BodyTooLarge,
    /// The path or its encoding makes no sense.
    InvalidPath,
    /// This resource takes no query parameters.
    UnknownParameter,
    /// There is no such path.
    UnknownPath,
    /// The path does not take this method.
    MethodNotAllowed,
    /// The API is encrypted, and this came without TLS.
    EncryptionRequired,
    /// The API does not know the caller.
    Unauthenticated,
    /// Only an operator may do this.
    Forbidden,
    /// The caller asks for too much at a time, or too much of what is refused.
    TooManyRequests,
    /// The tenant has as much as it may have.
    QuotaExceeded,
    /// No volume has this name or id.
    VolumeNotFound,
    /// The volume holds data or is open, and it was not said that this may be lost.
    VolumeInUse,
    /// The volume has another size than the change was made for.
    SizeChanged,
    /// A recording of the volume runs, or too many do.
    RecordingRuns,
    /// The recording has ended, and is forgotten.
    RecordingNotFound,
    /// Another volume has this name.
    NameTaken,
    /// The server does not run on this core.
    UnknownCore,
    /// The device has no space for this.
    OutOfSpace,
    /// The server holds as many volumes as it can.
    TooManyVolumes,
    /// The device cannot do what would be promised.
    PromiseTooLarge,
    /// The device has no ceiling, so no rate can be promised.
    NoCeiling,
    /// The server has no such device.
    DeviceNotFound,
    /// The device failed.
    DeviceFailed,
    /// A device of the server is away, and what was asked needs it.
    DeviceAway,
    /// The device is not gone: a host serves it, or may.
    DeviceInUse,
    /// No host has this name or label.
    UnknownHost,
    /// The host that has the volume is gone or does not answer.
    HostUnreachable,
    /// The directory of the service cannot be asked, so nothing may change.
    DirectoryUnavailable,
    /// Another host has taken the device over.
    DeviceLost,
    /// The server is starting or stopping.
    Unavailable,
    /// The request took too long.
    Timeout,
    /// The server broke a promise to itself.
    Internal,
}

/// A refusal, after RFC 9457.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The kind of the problem, for programs.
    pub code: ProblemCode,
    /// A description of the problem, for people.
    pub detail: String,
    /// Advice on how to solve it.
    pub hint: String,
}

impl Problem {
    /// A refusal with `code`; it decides the HTTP status.
    #[must_use]
    pub fn new(code: ProblemCode, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        let status = status_of(code);
        Self {
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            hint: hint.into(),
        }
    }
}

fn status_of(code: ProblemCode) -> StatusCode {
    match code {
        ProblemCode::InvalidJson
        | ProblemCode::InvalidPath
        | ProblemCode::UnknownParameter
        | ProblemCode::EncryptionRequired => StatusCode::BAD_REQUEST,
        ProblemCode::InvalidField | ProblemCode::UnknownCore | ProblemCode::UnknownHost => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        ProblemCode::Unauthenticated => StatusCode::UNAUTHORIZED,
        ProblemCode::Forbidden => StatusCode::FORBIDDEN,
        ProblemCode::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
        ProblemCode::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ProblemCode::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ProblemCode::UnknownPath
        | ProblemCode::VolumeNotFound
        | ProblemCode::RecordingNotFound
        | ProblemCode::DeviceNotFound => StatusCode::NOT_FOUND,
        ProblemCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ProblemCode::NameTaken
        | ProblemCode::VolumeInUse
        | ProblemCode::SizeChanged
        | ProblemCode::RecordingRuns
        | ProblemCode::TooManyVolumes
        | ProblemCode::QuotaExceeded
        | ProblemCode::PromiseTooLarge
        | ProblemCode::NoCeiling
        | ProblemCode::DeviceInUse => StatusCode::CONFLICT,
        ProblemCode::OutOfSpace => StatusCode::INSUFFICIENT_STORAGE,
        ProblemCode::DeviceFailed | ProblemCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        ProblemCode::Unavailable
        | ProblemCode::DeviceAway
        | ProblemCode::HostUnreachable
        | ProblemCode::DirectoryUnavailable
        | ProblemCode::DeviceLost => StatusCode::SERVICE_UNAVAILABLE,
        ProblemCode::Timeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = status_of(self.code);
        // A document of numbers and strings always encodes.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = HeaderValue::from_static(CONTENT_TYPE);
        let mut response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Whatever may be refused may also fail.
impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        [("4XX", "Refused"), ("5XX", "Failed")]
            .map(|(statuses, description)| {
                let schema = Ref::from_schema_name(Self::name());
                let content = ContentBuilder::new().schema(Some(schema)).build();
                let response = ResponseBuilder::new().description(description);
                (statuses.to_owned(), response.content(CONTENT_TYPE, content).build().into())
            })
            .into()
    }
}

/// Code and text for an error that only a service of several hosts has.
fn of_other_hosts(error: &ServiceError) -> (ProblemCode, String) {
    match error {
        ServiceError::UnknownHost { hosts, labels, .. } => {
            let hosts = hosts.join(", ");
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            let hint = match labels[..] {
                [] => format!("name one of {hosts}, of which none has a label"),
                _ => format!("name one of {hosts}, or one of their labels {}", labels.join(", ")),
            };
            (ProblemCode::UnknownHost, hint)
        }
        ServiceError::DirectoryUnavailable { .. } => (
            ProblemCode::DirectoryUnavailable,
            "ask again when etcd is back; volumes are served meanwhile, and what was asked may have \
             been done: look before you ask again"
                .to_owned(),
        ),
        ServiceError::DeviceInUse { .. } => (
            ProblemCode::DeviceInUse,
            "nothing was forgotten; where a host still has the device in its settings, leave it out there, start that \
             host again, and ask that host"
                .to_owned(),
        ),
        ServiceError::HolderMayServe { holder, .. } => (
            ProblemCode::DeviceInUse,
            format!(
                "see that {holder} is down: powered off, or cut off from all who use its volumes; then ask by \
                 DELETE /v1/lost-devices/ID/down/{holder} (`farflash device forget ID --confirm-down {}`), by which you \
                 assert that",
                shell_word(holder)
            ),
        ),
        ServiceError::DeviceLost { .. } => (
            ProblemCode::DeviceLost,
            "ask again: requests are passed on to that host".to_owned(),
        ),
        _ => (
            ProblemCode::HostUnreachable,
            "start the host again, or mend its network; `farflash host list` (GET /v1/hosts) shows \
             who is there"
                .to_owned(),
        ),
    }
}

/// Code and text for an error that only tenants meet.
fn of_tenants(error: &ServiceError) -> (ProblemCode, String) {
    match error {
        ServiceError::TooManyChanges { .. } => {
            (ProblemCode::TooManyRequests, "ask again when one of them was answered".to_owned())
        }
        _ => (
            ProblemCode::QuotaExceeded,
            "ask for less, delete or shrink volumes, or have an operator give more; `farflash quota` (GET /v1/quota) shows it"
                .to_owned(),
        ),
    }
}

/// Advice about a volume that is not there, or not in the state that a request is for.
fn of_volumes(error: &ServiceError) -> (ProblemCode, String) {
    match error {
        ServiceError::NotFound { .. } => (
            ProblemCode::VolumeNotFound,
            "list the volumes with `farflash volume list` (GET /v1/volumes)".to_owned(),
        ),
        ServiceError::RecordingRuns { .. }
        | ServiceError::TooManyRecordings { .. }
        | ServiceError::RecordingNotFound { .. } => of_recordings(error),
        ServiceError::SizeChanged { .. } => {
            (ProblemCode::SizeChanged, "look at its size, and decide again".to_owned())
        }
        ServiceError::NameTaken { .. } => (
            ProblemCode::NameTaken,
            "choose another name, or delete the volume that has it".to_owned(),
        ),
        _ => (
            ProblemCode::VolumeInUse,
            "if that may be lost: --lose-data (DELETE /v1/volumes/NAME?lose_data=true; `lose_data` for a smaller size)"
                .to_owned(),
        ),
    }
}

/// Advice about recordings of a volume's requests.
fn of_recordings(error: &ServiceError) -> (ProblemCode, String) {
    match error {
        ServiceError::RecordingNotFound { .. } => (
            ProblemCode::RecordingNotFound,
            "it ends when nothing asks for it for 10 s; begin another one".to_owned(),
        ),
        ServiceError::RecordingRuns { volume, id } => (
            ProblemCode::RecordingRuns,
            format!(
                "wait for its end, or stop its client: then it ends within 10 s \
                 (DELETE /v1/volumes/{volume}/recordings/{id} ends it at once)"
            ),
        ),
        _ => (
            ProblemCode::RecordingRuns,
            "wait for the end of one, or stop its client: then it ends within 10 s".to_owned(),
        ),
    }
}

/// Advice for a request about a device that does not exist, with the names of the existing ones.
fn choice_of(devices: &[String]) -> String {
    match devices {
        [] => "there is none to choose: nothing has to be done".to_owned(),
        _ => format!("choose one of {}", devices.join(", ")),
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let detail = error.to_string();
        let (code, hint) = match error {
            error @ (ServiceError::NotFound { .. }
            | ServiceError::RecordingRuns { .. }
            | ServiceError::TooManyRecordings { .. }
            | ServiceError::RecordingNotFound { .. }
            | ServiceError::VolumeInUse { .. }
            | ServiceError::SizeChanged { .. }
            | ServiceError::NameTaken { .. }) => of_volumes(&error),
            ServiceError::UnknownCore { cores, .. } => {
                let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
                let hint = format!("leave `core` out, or choose one of {}", cores.join(", "));
                (ProblemCode::UnknownCore, hint)
            }
            ServiceError::OutOfSpace => (
                ProblemCode::OutOfSpace,
                "delete or trim volumes, or serve a larger device".to_owned(),
            ),
            ServiceError::TooManyVolumes { .. } => (
                ProblemCode::TooManyVolumes,
                "delete volumes that are no longer needed, or use another server".to_owned(),
            ),
            error @ (ServiceError::Quota { .. } | ServiceError::TooManyChanges { .. }) => {
                of_tenants(&error)
            }
            ServiceError::Promise { .. } => (
                ProblemCode::PromiseTooLarge,
                "ask for less, or lower what other volumes are promised (`farflash volume list` \
                 shows it), or raise the ceiling (`farflash device set`)"
                    .to_owned(),
            ),
            ServiceError::NoCeiling { device } => (
                ProblemCode::NoCeiling,
                format!(
                    "give it one with `farflash device set {} --reads-per-second N \
                     --writes-per-second M`; `farflash calibrate` proposes the numbers",
                    shell_word(&device)
                ),
            ),
            ServiceError::UnknownDevice { devices, .. } => {
                (ProblemCode::DeviceNotFound, choice_of(&devices))
            }
            ServiceError::Setting { .. } => (
                ProblemCode::InvalidField,
                "the fields and their meaning are described by GET /v1/openapi.json".to_owned(),
            ),
            error @ (ServiceError::UnknownHost { .. }
            | ServiceError::HostUnreachable { .. }
            | ServiceError::DirectoryUnavailable { .. }
            | ServiceError::DeviceInUse { .. }
            | ServiceError::HolderMayServe { .. }
            | ServiceError::DeviceLost { .. }) => of_other_hosts(&error),
            ServiceError::DeviceAway { .. } => (
                ProblemCode::DeviceAway,
                "bring the device back: it is served without a restart; or, if it is gone for good, start the \
                 server without it"
                    .to_owned(),
            ),
            ServiceError::Device { .. } => (
                ProblemCode::DeviceFailed,
                "look at the health of the devices (GET /v1/server) and at the server's log"
                    .to_owned(),
            ),
            ServiceError::Unavailable => {
                (ProblemCode::Unavailable, "ask again when the server is ready".to_owned())
            }
        };
        Self::new(code, detail, hint)
    }
}
