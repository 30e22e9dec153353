//! Paths, and what each does.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
use axum::{Extension, Json, Router};

use crate::audit::Audit;
use crate::caller::{Caller, Observer, Operator};
use crate::compress;
use crate::gate::{self, Counts, Guard};
use crate::limits::Limits;
use crate::metrics;
use crate::problem::{Problem, ProblemCode};
use crate::quota;
use crate::relay::{self, Encrypts, Origin};
use crate::request::{DeviceId, DeviceName, DeviceOf, JsonBody, LoseData, RecordingOf};
use crate::scrub::SCRUB_RATE_MIN;
use crate::{
    ChangeAuth, ChangeDevice, ChangeRestrictions, ChangeVolume, CreateVolume, CreatedVolume,
    Device, DeviceList, GrownDevice, HostList, Location, Recording, RecordingRequest, Resizing,
    Scrub, ScrubRequest, Server, ServiceError, Serving, StartRecording, StartScrub, Stats, Tokens,
    Users, Volume, VolumeKey, VolumeList, VolumeService, openapi,
};

type Service = State<Arc<dyn VolumeService>>;

/// The audit log, if there is one.
#[derive(Clone)]
struct Audited(Option<Audit>);

pub(crate) fn router(service: Arc<dyn VolumeService>, guard: Guard, limits: Limits) -> Router {
    let (users, counts) = (guard.users.clone(), Arc::new(Counts::default()));
    let audited = Audited(guard.audit.clone());
    let (guard, counting) = (Arc::new(guard), counts.clone());
    let (relaying, encrypts) = (service.clone(), Encrypts(guard.tls.is_some()));
    Router::new()
        .route("/v1/volumes", get(list_volumes).post(create_volume))
        .route("/v1/volumes/{volume}", get(show_volume).patch(change_volume).delete(delete_volume))
        .route("/v1/volumes/{volume}/tokens", post(change_auth))
        .route("/v1/volumes/{volume}/restrictions", patch(restrict_volume))
        .route("/v1/volumes/{volume}/recordings", post(start_recording))
        .route("/v1/volumes/{volume}/recordings/{recording}", delete(end_recording))
        .route("/v1/volumes/{volume}/recordings/{recording}/requests/{first}", get(fetch_recorded))
        .route("/v1/hosts", get(list_hosts))
        .route("/v1/devices", get(list_devices))
        .route("/v1/devices/{device}", patch(change_device))
        .route("/v1/devices/{device}/grow", post(grow_device))
        .route("/v1/devices/{device}/scrub", get(show_scrub).post(start_scrub).delete(stop_scrub))
        .route("/v1/lost-devices/{device}", delete(forget_device))
        .route("/v1/lost-devices/{device}/down/{host}", delete(forget_device_of))
        .route("/v1/quota", get(quota::show_quota))
        .route("/v1/serving/{device}", get(show_serving))
        .route("/v1/stats", get(show_stats))
        .route("/v1/server", get(show_server))
        .route("/v1/openapi.json", get(show_openapi))
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_path)
        .layer(middleware::from_fn(move |request, next| {
            relay::pass_on(relaying.clone(), request, next)
        }))
        .layer(middleware::from_fn(gate::admit))
        .layer(middleware::from_fn(move |request, next| {
            gate::pass(guard.clone(), counting.clone(), request, next)
        }))
        .layer(Extension(users))
        .layer(Extension(counts))
        .layer(Extension(audited))
        .layer(middleware::from_fn(move |request, next| {
            bounded(limits.request_timeout, request, next)
        }))
        .layer(DefaultBodyLimit::max(limits.body_bytes_max))
        .layer(Extension(encrypts))
        .with_state(service)
}

/// Bounds a request's time, and refuses what no resource knows. No answer may be cached.
async fn bounded(timeout: Duration, request: Request, next: Next) -> Response {
    let query = request.uri().query().filter(|query| !query.is_empty());
    let mut response = if query.is_some() && !takes_parameters(&request) {
        let detail = "this resource takes no query parameters";
        Problem::new(ProblemCode::UnknownParameter, detail, "leave out what follows the `?`")
            .into_response()
    } else {
        tokio::time::timeout(timeout, next.run(request)).await.unwrap_or_else(|_| {
            Problem::new(
                ProblemCode::Timeout,
                format!("the request took longer than {} s", timeout.as_secs_f32()),
                "it may still take effect: look before you ask again",
            )
            .into_response()
        })
    };
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(header::CACHE_CONTROL, no_store);
    response
}

/// Returns whether the handler looks at the query ([`LoseData`]).
fn takes_parameters(request: &Request) -> bool {
    let volume = request.uri().path().strip_prefix("/v1/volumes/");
    request.method() == Method::DELETE && volume.is_some_and(|volume| !volume.contains('/'))
}

/// Makes a volume. It is thin: only what is written takes space.
#[utoipa::path(
    post, path = "/v1/volumes", tag = "volumes", operation_id = "createVolume",
    request_body = CreateVolume,
    responses(
        (status = 201, body = CreatedVolume, description = "It exists, durably",
            headers(("Location" = String, description = "Its path"))),
        Problem,
    )
)]
async fn create_volume(
    State(service): Service,
    caller: Caller,
    origin: Origin,
    JsonBody(request): JsonBody<CreateVolume>,
) -> Result<Response, Problem> {
    if let Some(on) = &request.on
        && let Location::There { host, .. } = service.locate_new(on)?
    {
        // The other host is asked for itself, and need not agree on which one is best.
        let request = CreateVolume { on: None, ..request };
        let body = serde_json::to_vec(&request).unwrap_or_default();
        return Ok(relay::create_there(&host, origin, body.into()).await);
    }
    let created = service.create(caller, request).await?;
    let location = format!("/v1/volumes/{}", created.volume.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(created)).into_response())
}

/// All volumes, by name.
#[utoipa::path(
    get, path = "/v1/volumes", tag = "volumes", operation_id = "listVolumes",
    responses(
        (status = 200, body = VolumeList, description = "The volumes"),
        Problem,
    )
)]
async fn list_volumes(
    State(service): Service,
    caller: Caller,
    origin: Origin,
) -> Result<Json<VolumeList>, Problem> {
    Ok(Json(VolumeList { volumes: relay::list_all(&service, &caller, &origin).await? }))
}

/// One volume.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}", tag = "volumes", operation_id = "showVolume",
    params(("volume" = String, Path, description = "Its name or id")),
    responses(
        (status = 200, body = Volume, description = "The volume"),
        Problem,
    )
)]
async fn show_volume(
    State(service): Service,
    caller: Caller,
    key: VolumeKey,
) -> Result<Json<Volume>, Problem> {
    Ok(Json(service.show(caller, key).await?))
}

/// Changes a volume's size, or what it is promised. Connected hosts see a new size at once; what a
/// smaller one cuts off is lost, which has to be said if there is anything to lose (`lose_data`). A new promise holds for the next request.
#[utoipa::path(
    patch, path = "/v1/volumes/{volume}", tag = "volumes", operation_id = "changeVolume",
    params(("volume" = String, Path, description = "Its name or id")),
    request_body = ChangeVolume,
    responses(
        (status = 200, body = Volume, description = "It is changed, durably"),
        Problem,
    )
)]
async fn change_volume(
    State(service): Service,
    caller: Caller,
    key: VolumeKey,
    JsonBody(request): JsonBody<ChangeVolume>,
) -> Result<Json<Volume>, Problem> {
    match (request.size_bytes, request.slo) {
        (Some(size), None) => {
            let ChangeVolume { lose_data, if_size_bytes, .. } = request;
            let resizing = Resizing { size, lose_data, if_size_bytes };
            Ok(Json(service.resize(caller, key, resizing).await?))
        }
        (None, Some(_)) if request.lose_data || request.if_size_bytes.is_some() => {
            Err(Problem::new(
                ProblemCode::InvalidField,
                "`lose_data` and `if_size_bytes` belong to `size_bytes`, and there is none",
                "leave them out for `slo`",
            ))
        }
        (None, Some(slo)) => Ok(Json(service.set_slo(caller, key, slo).await?)),
        _ => Err(Problem::new(
            ProblemCode::InvalidField,
            "missing field `size_bytes` or `slo`, or both are given",
            "send `size_bytes` or `slo`; two changes are two requests",
        )),
    }
}

/// Makes new tokens for a volume: from now on hosts need these to connect. They are shown once.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/tokens", tag = "volumes", operation_id = "changeAuth",
    params(("volume" = String, Path, description = "Its name or id")),
    request_body = ChangeAuth,
    responses(
        (status = 201, body = Tokens, description = "They open the volume, durably"),
        Problem,
    )
)]
async fn change_auth(
    State(service): Service,
    caller: Caller,
    key: VolumeKey,
    JsonBody(request): JsonBody<ChangeAuth>,
) -> Result<(StatusCode, Json<Tokens>), Problem> {
    Ok((StatusCode::CREATED, Json(service.change_auth(caller, key, request).await?)))
}

/// Changes the hosts that may open a volume. Hosts that no longer qualify are disconnected at once.
#[utoipa::path(
    patch, path = "/v1/volumes/{volume}/restrictions", tag = "volumes",
    operation_id = "restrictVolume",
    params(("volume" = String, Path, description = "Its name or id")),
    request_body = ChangeRestrictions,
    responses(
        (status = 200, body = Volume, description = "It is restricted so, durably"),
        Problem,
    )
)]
async fn restrict_volume(
    State(service): Service,
    caller: Caller,
    key: VolumeKey,
    JsonBody(request): JsonBody<ChangeRestrictions>,
) -> Result<Json<Volume>, Problem> {
    Ok(Json(service.restrict(caller, key, request).await?))
}

/// Begins to record the requests that hosts send to a volume, over any protocol: time, kind and place of each, and no data.
/// Readers may, too. A volume has one recording at a time, and its core four.
#[utoipa::path(
    post, path = "/v1/volumes/{volume}/recordings", tag = "volumes", operation_id = "startRecording",
    params(("volume" = String, Path, description = "Its name or id")),
    request_body = StartRecording,
    responses(
        (status = 201, body = Recording, description = "It runs"),
        Problem,
    )
)]
async fn start_recording(
    _: Observer,
    State(service): Service,
    key: VolumeKey,
    JsonBody(request): JsonBody<StartRecording>,
) -> Result<(StatusCode, Json<Recording>), Problem> {
    if let Some(detail) = request.fault() {
        return Err(ServiceError::Setting { detail }.into());
    }
    let recording = service.recording(key, RecordingRequest::Start(request)).await?;
    Ok((StatusCode::CREATED, Json(recording)))
}

/// Fetches recorded requests: from the number `first` on, in the order in which they came. Those before `first` are forgotten, and
/// make room for others.
#[utoipa::path(
    get, path = "/v1/volumes/{volume}/recordings/{recording}/requests/{first}", tag = "volumes",
    operation_id = "fetchRecorded",
    params(
        ("volume" = String, Path, description = "Its name or id"),
        ("recording" = Uuid, Path, description = "The id of the recording"),
        ("first" = u64, Path, description = "The number of requests that the client has"),
    ),
    responses(
        (status = 200, body = Recording, description = "The requests, and how far it is"),
        Problem,
    )
)]
async fn fetch_recorded(
    _: Observer,
    State(service): Service,
    RecordingOf { volume, id, first }: RecordingOf,
) -> Result<Json<Recording>, Problem> {
    let first = first.unwrap_or_default();
    Ok(Json(service.recording(volume, RecordingRequest::Fetch { id, first }).await?))
}

/// Ends a recording. Requests that were not fetched are forgotten.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}/recordings/{recording}", tag = "volumes",
    operation_id = "endRecording",
    params(
        ("volume" = String, Path, description = "Its name or id"),
        ("recording" = Uuid, Path, description = "The id of the recording"),
    ),
    responses(
        (status = 200, body = Recording, description = "It has ended"),
        Problem,
    )
)]
async fn end_recording(
    _: Observer,
    State(service): Service,
    RecordingOf { volume, id, .. }: RecordingOf,
) -> Result<Json<Recording>, Problem> {
    Ok(Json(service.recording(volume, RecordingRequest::End { id }).await?))
}

/// All hosts of the service: whether they are there, what they have, with what they may fail.
#[utoipa::path(
    get, path = "/v1/hosts", tag = "hosts", operation_id = "listHosts",
    responses(
        (status = 200, body = HostList, description = "The hosts"),
        Problem,
    )
)]
async fn list_hosts(_: Operator, State(service): Service) -> Result<Json<HostList>, Problem> {
    Ok(Json(service.hosts().await?))
}

/// All devices: space, health, and how they are shared.
#[utoipa::path(
    get, path = "/v1/devices", tag = "devices", operation_id = "listDevices",
    responses(
        (status = 200, body = DeviceList, description = "The devices"),
        Problem,
    )
)]
async fn list_devices(_: Operator, State(service): Service) -> Result<Json<DeviceList>, Problem> {
    Ok(Json(DeviceList { devices: service.server().await?.devices }))
}

/// Changes how a device is shared, without a pause. Holds until the server ends.
#[utoipa::path(
    patch, path = "/v1/devices/{device}", tag = "devices", operation_id = "changeDevice",
    params(("device" = String, Path, description = "Its name, as GET /v1/devices has it")),
    request_body = ChangeDevice,
    responses(
        (status = 200, body = Device, description = "It is shared so from now on"),
        Problem,
    )
)]
async fn change_device(
    _: Operator,
    State(service): Service,
    DeviceName(name): DeviceName,
    JsonBody(request): JsonBody<ChangeDevice>,
) -> Result<Json<Device>, Problem> {
    Ok(Json(service.change_device(name, request).await?))
}

/// Has a device take up all that its file or drive has, which was made larger. Requests of hosts wait meanwhile, usually for less
/// than a second.
#[utoipa::path(
    post, path = "/v1/devices/{device}/grow", tag = "devices", operation_id = "growDevice",
    params(("device" = String, Path, description = "Its name, as GET /v1/devices has it")),
    responses(
        (status = 200, body = GrownDevice, description = "It uses all that it has"),
        Problem,
    )
)]
async fn grow_device(
    _: Operator,
    State(service): Service,
    DeviceName(name): DeviceName,
) -> Result<Json<GrownDevice>, Problem> {
    Ok(Json(service.grow_device(name).await?))
}

/// Shows the progress of a device's last scrub.
#[utoipa::path(
    get, path = "/v1/devices/{device}/scrub", tag = "devices", operation_id = "showScrub",
    params(("device" = String, Path, description = "Its name, as GET /v1/devices has it")),
    responses(
        (status = 200, body = Scrub, description = "How far it is"),
        Problem,
    )
)]
async fn show_scrub(
    _: Operator,
    State(service): Service,
    DeviceName(name): DeviceName,
) -> Result<Json<Scrub>, Problem> {
    Ok(Json(service.scrub(name, ScrubRequest::Show).await?))
}

/// Reads all that lies on a device and compares it with its checksums, while hosts go on. A scrub that runs
/// is restarted.
#[utoipa::path(
    post, path = "/v1/devices/{device}/scrub", tag = "devices", operation_id = "startScrub",
    params(("device" = String, Path, description = "Its name, as GET /v1/devices has it")),
    request_body = StartScrub,
    responses(
        (status = 202, body = Scrub, description = "It runs"),
        Problem,
    )
)]
async fn start_scrub(
    _: Operator,
    State(service): Service,
    DeviceName(name): DeviceName,
    JsonBody(request): JsonBody<StartScrub>,
) -> Result<(StatusCode, Json<Scrub>), Problem> {
    if request.bytes_per_second.is_some_and(|rate| rate < SCRUB_RATE_MIN) {
        let detail = "`bytes_per_second`: a scrub reads whole blocks, of 4096 bytes";
        let hint = "ask for 4096 bytes a second or more, or leave it out";
        return Err(Problem::new(ProblemCode::InvalidField, detail, hint));
    }
    let scrub = service.scrub(name, ScrubRequest::Start(request)).await?;
    Ok((StatusCode::ACCEPTED, Json(scrub)))
}

/// Ends the scrub that runs.
#[utoipa::path(
    delete, path = "/v1/devices/{device}/scrub", tag = "devices", operation_id = "stopScrub",
    params(("device" = String, Path, description = "Its name, as GET /v1/devices has it")),
    responses(
        (status = 200, body = Scrub, description = "It does not run"),
        Problem,
    )
)]
async fn stop_scrub(
    _: Operator,
    State(service): Service,
    DeviceName(name): DeviceName,
) -> Result<Json<Scrub>, Problem> {
    Ok(Json(service.scrub(name, ScrubRequest::Stop).await?))
}

/// Tells which host this is, and whether it serves a device. Every caller is answered: a host sends this
/// request before it takes a device over, which it must not do while another host serves the device.
#[utoipa::path(
    get, path = "/v1/serving/{device}", tag = "hosts", operation_id = "showServing",
    params(("device" = Uuid, Path, description = "Its id, as GET /v1/hosts has it")),
    responses(
        (status = 200, body = Serving, description = "The host, and whether it serves the device"),
        (status = "4XX", body = Problem, content_type = "application/problem+json", description = "Refused"),
    )
)]
async fn show_serving(State(service): Service, DeviceId(device): DeviceId) -> Json<Serving> {
    Json(service.serving(device))
}

/// Removes what is known of the volumes of a device that is gone for good: by this you assert that it is. Their names are free
/// then, and they count in no quota. Nothing is done to the device: should it come back, its volumes are there again.
#[utoipa::path(
    delete, path = "/v1/lost-devices/{device}", tag = "hosts", operation_id = "forgetDevice",
    params(("device" = Uuid, Path, description = "Its id, as GET /v1/hosts or a volume's `drive` has it")),
    responses(
        (status = 204, description = "It is forgotten"),
        Problem,
    )
)]
async fn forget_device(
    _: Operator,
    State(service): Service,
    DeviceId(device): DeviceId,
) -> Result<StatusCode, Problem> {
    service.forget_device(device, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a lost device whose host is gone and does not stop by itself, so that it may still serve the
/// device unseen: you also assert that this host is down. Refused if the host is seen, or if another host
/// has the device.
#[utoipa::path(
    delete, path = "/v1/lost-devices/{device}/down/{host}", tag = "hosts", operation_id = "forgetDeviceOf",
    params(
        ("device" = Uuid, Path, description = "Its id, as GET /v1/hosts or a volume's `drive` has it"),
        ("host" = String, Path, description = "The name of its host: powered off, or cut off from all who use its volumes"),
    ),
    responses(
        (status = 204, description = "It is forgotten"),
        Problem,
    )
)]
async fn forget_device_of(
    _: Operator,
    State(service): Service,
    DeviceOf { device, host }: DeviceOf,
) -> Result<StatusCode, Problem> {
    service.forget_device(device, Some(host)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the activity of volumes and devices: queues, counters, promises, windows.
#[utoipa::path(
    get, path = "/v1/stats", tag = "server", operation_id = "showStats",
    responses(
        (status = 200, body = Stats, description = "Counters since the start, and queues as of now"),
        Problem,
    )
)]
async fn show_stats(_: Observer, State(service): Service) -> Result<Json<Stats>, Problem> {
    Ok(Json(service.stats().await?))
}

/// Deletes a volume. One that holds data, or that a host has open, is refused (`volume_in_use`) without `lose_data=true`; with
/// it all that is on the volume is gone, and hosts that have it connected lose it at once.
#[utoipa::path(
    delete, path = "/v1/volumes/{volume}", tag = "volumes", operation_id = "deleteVolume",
    params(
        ("volume" = String, Path, description = "Its name or id"),
        ("lose_data" = Option<bool>, Query, description = "Data may be lost, and hosts may have it open"),
    ),
    responses(
        (status = 204, description = "It is gone, durably"),
        Problem,
    )
)]
async fn delete_volume(
    State(service): Service,
    caller: Caller,
    key: VolumeKey,
    LoseData(lose_data): LoseData,
) -> Result<StatusCode, Problem> {
    service.delete(caller, key, lose_data).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The server: version, cores with their portals, devices with their space and health.
#[utoipa::path(
    get, path = "/v1/server", tag = "server", operation_id = "showServer",
    responses(
        (status = 200, body = Server, description = "Its state"),
        Problem,
    )
)]
async fn show_server(
    _: Operator,
    State(service): Service,
    Extension(audit): Extension<Audited>,
) -> Result<Json<Server>, Problem> {
    Ok(Json(state_of(&service, &audit).await?))
}

/// The state of the server, with what the API itself refuses changes for.
async fn state_of(
    service: &Arc<dyn VolumeService>,
    Audited(audit): &Audited,
) -> Result<Server, Problem> {
    let mut server = service.server().await?;
    if let Some(audit) = audit {
        server.notices.extend(audit.trouble().await);
    }
    Ok(server)
}

/// The same figures, and those of `/v1/server`, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", tag = "server", operation_id = "showMetrics",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "Metrics"),
        Problem,
    )
)]
async fn show_metrics(
    _: Observer,
    State(service): Service,
    Extension(users): Extension<Users>,
    Extension(counts): Extension<Arc<Counts>>,
    Extension(audit): Extension<Audited>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (server, stats) = (state_of(&service, &audit).await?, service.stats().await?);
    let tenants = users.tenants();
    let volumes = match tenants.is_empty() {
        true => Vec::new(),
        // This host's: others are asked for theirs.
        false => service.list(Caller::Operator("metrics".into())).await?,
    };
    let quotas = quota::of(&tenants, &volumes);
    let text = metrics::text(&server, &stats, &quotas, &counts);
    Ok(compress::answer(&headers, metrics::CONTENT_TYPE, text).await)
}

/// This description.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "server", operation_id = "showOpenapi",
    responses((status = 200, body = serde_json::Value, description = "An OpenAPI document"))
)]
async fn show_openapi() -> Response {
    // Made once: it never changes, and clients may ask for it as often as they like.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        // A document of numbers and strings always encodes.
        serde_json::to_vec(&openapi()).unwrap_or_default().into()
    });
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], DOCUMENT.clone()).into_response()
}

/// Succeeds if the process answers at all.
#[utoipa::path(
    get, path = "/healthz", tag = "server", operation_id = "healthz",
    responses((status = 200, body = String, content_type = "text/plain", description = "It does"))
)]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Succeeds if requests about volumes would be answered now.
#[utoipa::path(
    get, path = "/readyz", tag = "server", operation_id = "readyz",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "They would"),
        (status = 503, body = Problem, content_type = "application/problem+json",
            description = "The server is starting or stopping"),
    )
)]
async fn readyz(State(service): Service) -> Result<&'static str, Problem> {
    if service.is_ready() { Ok("ready\n") } else { Err(crate::ServiceError::Unavailable.into()) }
}

async fn unknown_path(request: Request) -> Problem {
    let detail = format!("there is nothing at {}", request.uri().path());
    Problem::new(ProblemCode::UnknownPath, detail, "the paths are listed by GET /v1/openapi.json")
}

async fn method_not_allowed(request: Request) -> Problem {
    let detail = format!("{} does not take {}", request.uri().path(), request.method());
    Problem::new(
        ProblemCode::MethodNotAllowed,
        detail,
        "the header `Allow` of this answer names the methods that it takes",
    )
}

pub(crate) mod paths {
    //! Code that `#[utoipa::path]` generates beside the handlers.
    pub(crate) use super::{
        __path_change_auth, __path_change_device, __path_change_volume, __path_create_volume,
        __path_delete_volume, __path_end_recording, __path_fetch_recorded, __path_forget_device,
        __path_forget_device_of, __path_grow_device, __path_healthz, __path_list_devices,
        __path_list_hosts, __path_list_volumes, __path_readyz, __path_restrict_volume,
        __path_show_metrics, __path_show_openapi, __path_show_scrub, __path_show_server,
        __path_show_serving, __path_show_stats, __path_show_volume, __path_start_recording,
        __path_start_scrub, __path_stop_scrub,
    };
}
