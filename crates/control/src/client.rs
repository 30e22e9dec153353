//! The API from the other side, for command lines.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};
use uuid::Uuid;

use crate::api_url::{ApiUrl, BadApiUrl};
use crate::awaited::Awaited;
use crate::connecting::{Connecting, before_the_request};
use crate::gate::AUDIT;
use crate::resolving::Resolving;
use crate::{
    ChangeAuth, ChangeDevice, ChangeRestrictions, ChangeVolume, CreateVolume, CreatedVolume,
    Device, DeviceList, GrownDevice, HostList, Problem, ProblemCode, QuotaList, Recording, Scrub,
    Server, StartRecording, StartScrub, Stats, TlsError, Tokens, Volume, VolumeList, tls,
};

/// Longest answer that is read if it is about one thing.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The same of a list: of some hundred thousand volumes.
const LIST_BYTES_MAX: u64 = 256 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Above the server's own limit, so that its answer about a timeout arrives.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a server says how it is, if it answers at all; behind that another one is asked, where there is one.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Why a request to the API failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address is none.
    #[error(transparent)]
    BadUrl(#[from] BadApiUrl),
    /// The TLS trust roots could not be loaded.
    #[error("the certificates to trust cannot be read: {0}")]
    Trust(TlsError),
    /// No server answers there.
    #[error("the API at {url} cannot be reached: {reason}")]
    Unreachable {
        /// The API's address.
        url: String,
        /// The system's error text.
        reason: String,
        /// True if the request may have got there, and have had its effect.
        sent: bool,
    },
    /// The server that answers there has no certificate that this client trusts. No request was sent.
    #[error("the API at {url} is not trusted by its certificate: {reason}")]
    Untrusted {
        /// The API's address.
        url: String,
        /// The fault of the certificate, or of those that vouch for it.
        reason: String,
    },
    /// The answer is about another volume than the question.
    #[error("the API at {url} answers about the volume `{volume}`, which was not asked for")]
    OtherVolume {
        /// The API's address.
        url: String,
        /// The volume that the answer is about.
        volume: String,
    },
    /// A server answers that is no farflash server.
    #[error("what answers at {url} is no farflash API (HTTP status {status})")]
    NotAnApi {
        /// The API's address.
        url: String,
        /// Its answer.
        status: u16,
    },
    /// The server refused.
    #[error("{}", .0.detail)]
    Refused(Problem),
}

impl ApiError {
    /// Returns true if a change that failed like this may have been made all the same. Check before you ask
    /// for it again.
    #[must_use]
    pub fn may_have_been_done(&self) -> bool {
        match self {
            Self::Unreachable { sent, .. } => *sent,
            // A success that cannot be read, or a gateway that did not see the answer.
            Self::NotAnApi { status, .. } => matches!(status, 200..300 | 500..),
            Self::Refused(problem) => problem.code == ProblemCode::Timeout,
            Self::OtherVolume { .. } => true,
            Self::BadUrl(_) | Self::Trust(_) | Self::Untrusted { .. } => false,
        }
    }

    /// Returns whether this error says nothing about the cluster, so that another of its servers may be asked.
    #[must_use]
    pub fn is_no_answer(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::NotAnApi { .. }
            | Self::OtherVolume { .. } => true,
            Self::Refused(problem) => {
                matches!(problem.code, ProblemCode::Unavailable | ProblemCode::EncryptionRequired)
            }
            Self::BadUrl(_) | Self::Trust(_) => false,
        }
    }

    /// Advice for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::BadUrl(_) => {
                "give --api (or FARFLASH_API) as http://IP:PORT or https://HOST:PORT, such as \
                 http://127.0.0.1:7420; several are separated by commas"
                    .to_owned()
            }
            Self::Trust(_) => {
                "name a file of certificates in PEM with --api-ca (or FARFLASH_API_CA)".to_owned()
            }
            Self::Untrusted { .. } => {
                "name the server's certificate (or that of its authority) with --api-ca (or \
                 FARFLASH_API_CA), and the server as the certificate does; one that is wrong itself is \
                 replaced where the server runs"
                    .to_owned()
            }
            Self::Unreachable { sent: true, .. } => {
                "see the server's log for what keeps it; what was asked may have been done: look before you ask again"
                    .to_owned()
            }
            Self::Unreachable { url, .. } if url.starts_with("https:") => {
                "see that a server answers there with `--api-tls`, and name its certificate (or \
                 that of its authority) with --api-ca; one without is asked by http://…"
                    .to_owned()
            }
            Self::Unreachable { .. } => {
                "start a server with `farflash serve`, or name its address with --api (https://… if \
                 it has --api-tls)"
                    .to_owned()
            }
            Self::OtherVolume { .. } => {
                "see what stands between this host and the server, such as an HTTP proxy".to_owned()
            }
            Self::NotAnApi { .. } => {
                "give the address that the server was started with (`farflash serve --api`)"
                    .to_owned()
            }
            Self::Refused(problem) => problem.hint.clone(),
        }
    }
}

/// An answer that has not come yet.
#[derive(Clone, Debug)]
pub struct Awaiting {
    /// The API that was asked.
    pub url: String,
    /// Time limit from the beginning of the request.
    pub limit: Duration,
    /// True for a change, which may be made even if the client stops waiting.
    pub is_change: bool,
}

/// A connection to one server's API. Blocking.
pub struct ApiClient {
    agent: Agent,
    url: String,
    /// The value of `Authorization`.
    authorization: Option<String>,
    incomplete_records: AtomicU64,
}

impl ApiClient {
    /// A client for the API at `url`, such as `http://127.0.0.1:7420` or `https://flash-1:7420`. It trusts
    /// the certificates that this machine trusts. Nothing is sent yet.
    pub fn new(url: &str) -> Result<Self, ApiError> {
        Self::trusting(url, None)
    }

    /// The same, with a file of the only certificates that are trusted, in PEM.
    pub fn trusting(url: &str, authorities: Option<&Path>) -> Result<Self, ApiError> {
        Self::waiting(&url.parse()?, authorities, |_| ())
    }

    /// The same; `say` is called once if an answer takes longer than two seconds, with what is known of it then.
    pub fn waiting(
        url: &ApiUrl,
        authorities: Option<&Path>,
        say: impl Fn(&Awaiting) + Send + Sync + 'static,
    ) -> Result<Self, ApiError> {
        let mut config = Agent::config_builder();
        if url.is_encrypted() || authorities.is_some() {
            config = config.tls_config(tls::client_config(authorities).map_err(ApiError::Trust)?);
        }
        let url = url.to_string();
        let place = url.clone();
        let awaited = Awaited::new(move |is_change| {
            say(&Awaiting { url: place.clone(), limit: REQUEST_TIMEOUT, is_change });
        });
        let config = config
            .middleware(awaited)
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            // A process may fork at any time. Were a connection kept, parent and child would write to the
            // same one, and take each other's answers.
            .max_idle_connections(0)
            .build();
        let incomplete_records = AtomicU64::new(0);
        let agent = Agent::with_parts(config, Connecting::default(), Resolving);
        Ok(Self { agent, url, authorization: None, incomplete_records })
    }

    /// The same client, known by `token`.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.authorization = Some(format!("Bearer {}", token.trim()));
        self
    }

    /// Number of answers so far that are missing in the server's audit log, which has their requests: their
    /// header `Farflash-Audit` says `incomplete`. Their content is true all the same.
    #[must_use]
    pub fn incomplete_records(&self) -> u64 {
        self.incomplete_records.load(Ordering::Relaxed)
    }

    /// Adds what makes us known.
    fn known<B>(&self, call: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(value) => call.header("authorization", value),
            None => call,
        }
    }

    /// Makes a volume.
    pub fn create(&self, request: &CreateVolume) -> Result<CreatedVolume, ApiError> {
        let call =
            self.known(self.agent.post(self.path("/v1/volumes"))).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// All volumes, by name.
    pub fn list(&self) -> Result<VolumeList, ApiError> {
        self.all(self.known(self.agent.get(self.path("/v1/volumes"))).call())
    }

    /// The volume with this name or id.
    pub fn show(&self, volume: &str) -> Result<Volume, ApiError> {
        self.show_within(volume, REQUEST_TIMEOUT)
    }

    /// The same, if the answer comes within `limit`.
    pub fn show_within(&self, volume: &str, limit: Duration) -> Result<Volume, ApiError> {
        let call = self.known(self.agent.get(self.volume_path(volume)));
        let call = call.config().timeout_global(Some(limit)).build();
        let found: Volume = self.document(call.call())?;
        let is_it = found.name == volume || volume.parse::<Uuid>().is_ok_and(|id| id == found.id);
        if is_it {
            return Ok(found);
        }
        Err(ApiError::OtherVolume { url: self.url.clone(), volume: found.name })
    }

    /// Changes a volume's size, or what it is promised.
    pub fn change(&self, volume: &str, request: &ChangeVolume) -> Result<Volume, ApiError> {
        let call =
            self.known(self.agent.patch(self.volume_path(volume))).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// Makes new tokens for a volume.
    pub fn change_auth(&self, volume: &str, request: &ChangeAuth) -> Result<Tokens, ApiError> {
        let path = format!("{}/tokens", self.volume_path(volume));
        let call = self.known(self.agent.post(path)).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// Changes the hosts that may open a volume.
    pub fn restrict(&self, volume: &str, request: &ChangeRestrictions) -> Result<Volume, ApiError> {
        let path = format!("{}/restrictions", self.volume_path(volume));
        let call = self.known(self.agent.patch(path)).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// Deletes a volume with all that is on it, also if a host has it open.
    pub fn delete_with_data(&self, volume: &str) -> Result<(), ApiError> {
        let path = format!("{}?lose_data=true", self.volume_path(volume));
        self.answer(self.known(self.agent.delete(path)).call(), ANSWER_BYTES_MAX).map(drop)
    }

    /// Deletes a volume that holds nothing and that no host has open.
    pub fn delete(&self, volume: &str) -> Result<(), ApiError> {
        self.answer(
            self.known(self.agent.delete(self.volume_path(volume))).call(),
            ANSWER_BYTES_MAX,
        )
        .map(drop)
    }

    /// Begins to record the requests of a volume.
    pub fn start_recording(
        &self,
        volume: &str,
        request: &StartRecording,
    ) -> Result<Recording, ApiError> {
        let path = format!("{}/recordings", self.volume_path(volume));
        let call = self.known(self.agent.post(path)).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// The recorded requests from the number `first` on; those before are forgotten.
    pub fn recorded(&self, of: &Recording, first: u64) -> Result<Recording, ApiError> {
        let path = format!("{}/requests/{first}", self.recording_path(of));
        self.document(self.known(self.agent.get(path)).call())
    }

    /// Ends a recording, and forgets what was not fetched.
    pub fn end_recording(&self, of: &Recording) -> Result<Recording, ApiError> {
        self.document(self.known(self.agent.delete(self.recording_path(of))).call())
    }

    fn recording_path(&self, of: &Recording) -> String {
        let Recording { id, volume, .. } = of;
        self.path(&format!("/v1/volumes/{volume}/recordings/{id}"))
    }

    /// The state of the server.
    pub fn server(&self) -> Result<Server, ApiError> {
        self.server_within(REQUEST_TIMEOUT)
    }

    /// The same, if the answer comes within `limit`.
    pub fn server_within(&self, limit: Duration) -> Result<Server, ApiError> {
        let call = self.known(self.agent.get(self.path("/v1/server")));
        self.document(call.config().timeout_global(Some(limit)).build().call())
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> Result<HostList, ApiError> {
        self.all(self.known(self.agent.get(self.path("/v1/hosts"))).call())
    }

    /// Quotas: a tenant's own, or for operators those of all.
    pub fn quotas(&self) -> Result<QuotaList, ApiError> {
        self.all(self.known(self.agent.get(self.path("/v1/quota"))).call())
    }

    /// All devices.
    pub fn devices(&self) -> Result<DeviceList, ApiError> {
        self.all(self.known(self.agent.get(self.path("/v1/devices"))).call())
    }

    /// Changes how a device is shared.
    pub fn change_device(&self, name: &str, request: &ChangeDevice) -> Result<Device, ApiError> {
        let path = self.encoded("/v1/devices/", name);
        let call = self.known(self.agent.patch(path)).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// Has a device take up what its file or drive has now.
    pub fn grow_device(&self, name: &str) -> Result<GrownDevice, ApiError> {
        let path = format!("{}/grow", self.encoded("/v1/devices/", name));
        self.document(self.known(self.agent.post(path)).send_empty())
    }

    /// Has the service forget a device that is gone for good; `down` is its host, if that is asserted to be down.
    pub fn forget_device(&self, device: Uuid, down: Option<&str>) -> Result<(), ApiError> {
        let path = match down {
            None => self.encoded("/v1/lost-devices/", &device.to_string()),
            Some(host) => self.encoded(&format!("/v1/lost-devices/{device}/down/"), host),
        };
        self.answer(self.known(self.agent.delete(path)).call(), ANSWER_BYTES_MAX).map(drop)
    }

    /// Returns the progress of a device's last scrub.
    pub fn scrub(&self, device: &str) -> Result<Scrub, ApiError> {
        self.document(self.known(self.agent.get(self.scrub_path(device))).call())
    }

    /// Begins a scrub.
    pub fn start_scrub(&self, device: &str, request: &StartScrub) -> Result<Scrub, ApiError> {
        let call =
            self.known(self.agent.post(self.scrub_path(device))).header("content-type", JSON);
        self.document(call.send(encode(request)))
    }

    /// Ends a scrub.
    pub fn stop_scrub(&self, device: &str) -> Result<Scrub, ApiError> {
        self.document(self.known(self.agent.delete(self.scrub_path(device))).call())
    }

    fn scrub_path(&self, device: &str) -> String {
        format!("{}/scrub", self.encoded("/v1/devices/", device))
    }

    /// Returns the activity of volumes and devices.
    pub fn stats(&self) -> Result<Stats, ApiError> {
        self.all(self.known(self.agent.get(self.path("/v1/stats"))).call())
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn volume_path(&self, volume: &str) -> String {
        self.encoded("/v1/volumes/", volume)
    }

    fn encoded(&self, collection: &str, name: &str) -> String {
        let mut path = self.path(collection);
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => path.push(byte.into()),
                // `.` too, so that no name is a step up the path.
                _ => path.push_str(&format!("%{byte:02X}")),
            }
        }
        path
    }

    /// A document about one thing.
    fn document<T: DeserializeOwned>(
        &self,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<T, ApiError> {
        self.read(result, ANSWER_BYTES_MAX)
    }

    /// A list.
    fn all<T: DeserializeOwned>(
        &self,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<T, ApiError> {
        self.read(result, LIST_BYTES_MAX)
    }

    fn read<T: DeserializeOwned>(
        &self,
        result: Result<Response<Body>, ureq::Error>,
        bytes_max: u64,
    ) -> Result<T, ApiError> {
        let (status, body) = self.answer(result, bytes_max)?;
        serde_json::from_slice(&body)
            .map_err(|_| ApiError::NotAnApi { url: self.url.clone(), status })
    }

    /// The status and body of a success, which has at most so many bytes; a refusal as an error.
    fn answer(
        &self,
        result: Result<Response<Body>, ureq::Error>,
        bytes_max: u64,
    ) -> Result<(u16, Vec<u8>), ApiError> {
        let unreachable = |error: &ureq::Error, sent| ApiError::Unreachable {
            url: self.url.clone(),
            reason: reason(error),
            sent,
        };
        let mut response = result.map_err(|error| match before_the_request(error) {
            Ok(error) if is_untrusted(&error) => {
                ApiError::Untrusted { url: self.url.clone(), reason: reason(&error) }
            }
            Ok(error) => unreachable(&error, false),
            Err(error) => unreachable(&error, true),
        })?;
        if response.headers().contains_key(AUDIT) {
            self.incomplete_records.fetch_add(1, Ordering::Relaxed);
        }
        let status = response.status();
        let body =
            response.body_mut().with_config().limit(bytes_max).read_to_vec().map_err(|error| {
                match error {
                    // No server of ours has so much to say.
                    ureq::Error::BodyExceedsLimit(_) => {
                        ApiError::NotAnApi { url: self.url.clone(), status: status.as_u16() }
                    }
                    error => unreachable(&error, true),
                }
            })?;
        if status.is_success() {
            return Ok((status.as_u16(), body));
        }
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => ApiError::Refused(problem),
            Err(_) => ApiError::NotAnApi { url: self.url.clone(), status: status.as_u16() },
        })
    }
}

const JSON: &str = "application/json";

fn encode(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("documents of numbers and strings always encode")
}

/// Returns true if the server's certificate was not trusted.
fn is_untrusted(error: &ureq::Error) -> bool {
    matches!(of_tls(error), Some(rustls::Error::InvalidCertificate(_)))
}

/// The error of TLS that caused this one.
fn of_tls(error: &ureq::Error) -> Option<&rustls::Error> {
    let ureq::Error::Io(error) = error else { return None };
    error.get_ref().and_then(|error| error.downcast_ref())
}

fn reason(error: &ureq::Error) -> String {
    if let Some(rustls::Error::InvalidMessage(_)) = of_tls(error) {
        return "what answers there does not speak TLS".to_owned();
    }
    if let Some(trouble) = of_tls(error).and_then(tls_files::trouble_of_certificate) {
        return trouble;
    }
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::HostNotFound => "no such host".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::{RECORDING_FETCH_MAX, RecordedKind, RecordedRequest};

    /// A recording's answer fits into what is read of it, with numbers of twenty digits.
    #[test]
    fn the_longest_answer_of_a_recording_is_read() {
        let kind = RecordedKind::Write;
        let (at_ns, offset_bytes, length_bytes) = (u64::MAX, u64::MAX, u64::MAX);
        let request = RecordedRequest { at_ns, kind, offset_bytes, length_bytes };
        let recording = Recording {
            id: Uuid::max(),
            volume: Uuid::max(),
            seconds: u32::MAX,
            is_over: false,
            recorded: u64::MAX,
            left_out: u64::MAX,
            others: u64::MAX,
            first: u64::MAX,
            requests: vec![request; RECORDING_FETCH_MAX],
        };
        let answer = serde_json::to_vec(&recording).expect("plain data");
        assert!((answer.len() as u64) < ANSWER_BYTES_MAX, "{} bytes", answer.len());
    }
}
