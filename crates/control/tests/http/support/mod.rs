//! A live API over volumes in memory, and requests to it byte by byte.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::{
    ApiError, ApiToken, Caller, ChangeAuth, ChangeDevice, ChangeRestrictions, CreateVolume,
    CreatedVolume, Device, DeviceHealth, DirectoryStatus, GrownDevice, Guard, HostList, Limits,
    Location, OtherHost, Portal, ProblemCode, RecordedKind, RecordedRequest, Recording,
    RecordingRequest, Reply, Resizing, Scrub, ScrubRequest, ScrubState, Server, ServiceError,
    Serving, Sharing, Slo, StartRecording, Stats, Tokens, Volume, VolumeKey, VolumeService,
    VolumeState, connect_line, nqn, serve,
};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use uuid::Uuid;

/// The host that answers, and the device that it serves.
pub const HOST: Uuid = Uuid::from_u128(0xa);
pub const DEVICE: Uuid = Uuid::from_u128(0xd);
/// The recording that any volume has.
pub const RECORDING: Uuid = Uuid::from_u128(0xe);
const CORES: [u32; 2] = [0, 3];

fn tokens(number: u32) -> Tokens {
    Tokens {
        token: format!("token {number}"),
        controller_token: "other".to_owned(),
        chap_secret: None,
        chap_target_secret: None,
    }
}

/// Why the API refused.
pub fn code(error: &ApiError) -> ProblemCode {
    match error {
        ApiError::Refused(problem) => problem.code,
        other => panic!("{other}"),
    }
}

/// An entry of a list of users: an `operator`, `reader` or `tenant` that has `token`.
pub fn user(role: &str, name: &str, token: &ApiToken) -> String {
    format!("[[{role}]]\nname = \"{name}\"\ntoken_sha256 = \"{}\"\n", token.token_sha256)
}

/// Volumes that hold nothing, on portals without a listener.
pub struct MemoryService {
    volumes: Mutex<BTreeMap<Uuid, Volume>>,
    ready: AtomicBool,
    /// Delay of each listing, to test bounds on time.
    list_delay: Duration,
    /// The host that has all volumes, if that is another.
    elsewhere: Mutex<Option<OtherHost>>,
    /// The known state of a volume that is elsewhere.
    known: Mutex<Option<Volume>>,
    /// A closure that runs while tokens are changed.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Deletions for which data may be lost.
    lost_data: AtomicUsize,
}

impl MemoryService {
    pub fn new(list_delay: Duration) -> Self {
        Self {
            volumes: Mutex::default(),
            ready: AtomicBool::new(true),
            list_delay,
            elsewhere: Mutex::default(),
            known: Mutex::default(),
            meanwhile: Mutex::default(),
            lost_data: AtomicUsize::default(),
        }
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    pub fn lost_data(&self) -> usize {
        self.lost_data.load(Ordering::Relaxed)
    }

    /// From now on `host` has all volumes.
    pub fn have_elsewhere(&self, host: OtherHost) {
        *self.elsewhere.lock().unwrap() = Some(host);
    }

    /// The same, where `known` is known of the volume that is asked about.
    pub fn have_known_elsewhere(&self, host: OtherHost, known: Volume) {
        *self.known.lock().unwrap() = Some(known);
        self.have_elsewhere(host);
    }

    /// Has `what` happen when tokens are changed next, before that is answered.
    pub fn meanwhile(&self, what: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(what));
    }

    fn with_volume<T>(
        &self,
        key: &VolumeKey,
        change: impl FnOnce(&mut BTreeMap<Uuid, Volume>, Uuid) -> T,
    ) -> Result<T, ServiceError> {
        let mut volumes = self.volumes.lock().unwrap();
        let id = volumes.values().find(|volume| match key {
            VolumeKey::Id(id) => volume.id == *id,
            VolumeKey::Name(name) => volume.name == name.as_str(),
        });
        let id = id.map(|volume| volume.id);
        let id = id.ok_or_else(|| ServiceError::NotFound { volume: key.to_string() })?;
        Ok(change(&mut volumes, id))
    }
}

impl VolumeService for MemoryService {
    fn create(&self, _: Caller, request: CreateVolume) -> Reply<'_, CreatedVolume> {
        Box::pin(async move {
            let mut volumes = self.volumes.lock().unwrap();
            if volumes.values().any(|volume| volume.name == request.name.as_str()) {
                return Err(ServiceError::NameTaken { name: request.name });
            }
            let core = request.core.unwrap_or(CORES[0]);
            if !CORES.contains(&core) {
                return Err(ServiceError::UnknownCore { core, cores: CORES.to_vec() });
            }
            let id = Uuid::from_u128(volumes.len() as u128 + 1);
            let address = SocketAddr::from(([127, 0, 0, 1], 4420));
            let volume = Volume {
                id,
                name: request.name.to_string(),
                nqn: nqn(id),
                size_bytes: request.size_bytes.bytes(),
                metadata_bytes: 0,
                sector_bytes: control::SectorBytes::default(),
                allocated_bytes: 0,
                address,
                portal: Portal { address, core },
                device: "mem:1GiB".to_owned(),
                drive: control::Drive::default(),
                slo: request.slo.unwrap_or_default(),
                restrictions: request.restrictions.unwrap_or_default(),
                nbd: control::NbdClients::default(),
                nbd_uris: Vec::new(),
                nbd_connect: Vec::new(),
                iscsi_connect: None,
                absent_interfaces: Vec::new(),
                grace_until: None,
                grace_seconds_left: None,
                owner: request.owner,
                connect: connect_line(&nqn(id), address, false),
                state: VolumeState::Online,
                trouble: None,
                host: "here".to_owned(),
                labels: BTreeMap::new(),
                cut_off: None,
            };
            volumes.insert(id, volume.clone());
            Ok(CreatedVolume { volume, tokens: tokens(0) })
        })
    }

    fn locate(&self, _: &Caller, _: &VolumeKey) -> Location {
        match self.elsewhere.lock().unwrap().clone() {
            Some(host) => {
                let known = self.known.lock().unwrap().clone().map(Box::new);
                Location::There { host, known }
            }
            None => Location::Here,
        }
    }

    fn locate_new(&self, on: &str) -> Result<Location, ServiceError> {
        let (wanted, hosts) = (on.to_owned(), vec!["here".to_owned()]);
        if on == "here" {
            Ok(Location::Here)
        } else {
            let labels = ["rack=r1", "row=7"].map(str::to_owned).into();
            Err(ServiceError::UnknownHost { wanted, hosts, labels })
        }
    }

    fn others(&self) -> Vec<OtherHost> {
        self.elsewhere.lock().unwrap().clone().into_iter().collect()
    }

    fn known_elsewhere(&self, _: &Caller, _: &BTreeSet<Uuid>) -> Vec<Volume> {
        Vec::new()
    }

    fn hosts(&self) -> Reply<'_, HostList> {
        let directory = DirectoryStatus::default();
        Box::pin(async { Ok(HostList { hosts: Vec::new(), directory }) })
    }

    fn serving(&self, device: Uuid) -> Serving {
        Serving { host: HOST, serves: device == DEVICE }
    }

    fn forget_device(&self, device: Uuid, down: Option<String>) -> Reply<'_, ()> {
        Box::pin(async move {
            let (detail, holder) = ("it may be served".to_owned(), "a b".to_owned());
            match down {
                _ if device != DEVICE => {
                    Err(ServiceError::DeviceInUse { detail: "it is served".to_owned() })
                }
                Some(down) if down == holder => Ok(()),
                _ => Err(ServiceError::HolderMayServe { detail, holder }),
            }
        })
    }

    fn list(&self, _: Caller) -> Reply<'_, Vec<Volume>> {
        Box::pin(async {
            tokio::time::sleep(self.list_delay).await;
            Ok(self.volumes.lock().unwrap().values().cloned().collect())
        })
    }

    fn show(&self, _: Caller, key: VolumeKey) -> Reply<'_, Volume> {
        Box::pin(async move { self.with_volume(&key, |volumes, id| volumes[&id].clone()) })
    }

    fn resize(&self, _: Caller, key: VolumeKey, resizing: Resizing) -> Reply<'_, Volume> {
        Box::pin(async move {
            self.with_volume(&key, |volumes, id| {
                let volume = volumes.get_mut(&id).unwrap();
                volume.size_bytes = resizing.size.bytes();
                volume.clone()
            })
        })
    }

    fn set_slo(&self, _: Caller, key: VolumeKey, slo: Slo) -> Reply<'_, Volume> {
        Box::pin(async move {
            if slo == Slo::Share(0) {
                return Err(ServiceError::Promise { detail: "too much; 7 are left".to_owned() });
            }
            self.with_volume(&key, |volumes, id| {
                let volume = volumes.get_mut(&id).unwrap();
                volume.slo = slo;
                volume.clone()
            })
        })
    }

    fn change_auth(&self, _: Caller, key: VolumeKey, change: ChangeAuth) -> Reply<'_, Tokens> {
        Box::pin(async move {
            let changed = self.with_volume(&key, |_, _| tokens(change.grace_seconds.unwrap_or(1)));
            if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
                meanwhile();
            }
            changed
        })
    }

    fn restrict(&self, _: Caller, key: VolumeKey, change: ChangeRestrictions) -> Reply<'_, Volume> {
        Box::pin(async move {
            self.with_volume(&key, |volumes, id| {
                let volume = volumes.get_mut(&id).unwrap();
                volume.restrictions.hosts = change.hosts.unwrap_or_default();
                volume.clone()
            })
        })
    }

    fn change_device(&self, name: String, change: ChangeDevice) -> Reply<'_, Device> {
        Box::pin(async move {
            if name != "file:/a b/c.img" {
                let devices = vec!["file:/a b/c.img".to_owned()];
                return Err(ServiceError::UnknownDevice { device: name, devices });
            }
            let sharing = Sharing {
                policy: change.policy.unwrap_or_default(),
                ceiling: None,
                write_cost_per_mille: None,
                unpromised_reads_per_second: None,
                unpromised_writes_per_second: None,
            };
            let health = DeviceHealth::Good;
            let (capacity_bytes, free_bytes, volatile_write_cache) = (1, 1, true);
            let (trouble, failure) = (None, None);
            Ok(Device {
                name,
                capacity_bytes,
                free_bytes,
                health,
                trouble,
                is_abandoned: false,
                failure,
                notices: Vec::new(),
                volatile_write_cache,
                sharing,
            })
        })
    }

    fn stats(&self) -> Reply<'_, Stats> {
        Box::pin(async { Ok(Stats { time_ns: 5, ..Stats::default() }) })
    }

    fn grow_device(&self, name: String) -> Reply<'_, GrownDevice> {
        Box::pin(async move {
            if name != "file:/a b/c.img" {
                let devices = vec!["file:/a b/c.img".to_owned()];
                return Err(ServiceError::UnknownDevice { device: name, devices });
            }
            Ok(GrownDevice { name, before_bytes: 1, after_bytes: 2 })
        })
    }

    fn recording(&self, key: VolumeKey, request: RecordingRequest) -> Reply<'_, Recording> {
        Box::pin(async move {
            let volume = self.with_volume(&key, |_, id| id)?;
            let mut recording = Recording {
                id: RECORDING,
                volume,
                seconds: 60,
                is_over: false,
                recorded: 7,
                left_out: 3,
                others: 2,
                first: 0,
                requests: Vec::new(),
            };
            match request {
                RecordingRequest::Start(StartRecording { seconds: 1, .. }) => {
                    let volume = key.to_string();
                    return Err(ServiceError::RecordingRuns { volume, id: RECORDING });
                }
                RecordingRequest::Start(start) => recording.seconds = start.seconds,
                RecordingRequest::Fetch { id, .. } | RecordingRequest::End { id }
                    if id != RECORDING =>
                {
                    return Err(ServiceError::RecordingNotFound { volume: key.to_string() });
                }
                RecordingRequest::Fetch { first, .. } => {
                    recording.first = first;
                    let kind = RecordedKind::Write;
                    let (offset_bytes, length_bytes) = (8192, 4096);
                    let request = RecordedRequest { at_ns: 5, kind, offset_bytes, length_bytes };
                    recording.requests = vec![request];
                }
                RecordingRequest::End { .. } => recording.is_over = true,
            }
            Ok(recording)
        })
    }

    fn scrub(&self, device: String, request: ScrubRequest) -> Reply<'_, Scrub> {
        Box::pin(async move {
            if device != "file:/a b/c.img" {
                let devices = vec!["file:/a b/c.img".to_owned()];
                return Err(ServiceError::UnknownDevice { device, devices });
            }
            let (state, total_bytes) = match request {
                ScrubRequest::Show => (ScrubState::Done, 1),
                ScrubRequest::Start(start) => {
                    (ScrubState::Running, start.bytes_per_second.unwrap_or(2))
                }
                ScrubRequest::Stop => (ScrubState::Stopped, 3),
            };
            let places = Vec::new();
            Ok(Scrub {
                state,
                checked_bytes: 0,
                total_bytes,
                damaged: 0,
                places,
                every_seconds: None,
                next_in_seconds: None,
            })
        })
    }

    fn delete(&self, _: Caller, key: VolumeKey, lose_data: bool) -> Reply<'_, ()> {
        self.lost_data.fetch_add(usize::from(lose_data), Ordering::Relaxed);
        Box::pin(async move { self.with_volume(&key, |volumes, id| drop(volumes.remove(&id))) })
    }

    fn server(&self) -> Reply<'_, Server> {
        Box::pin(async {
            let version = "1.2.3".to_owned();
            let (cores, devices) = (Vec::new(), Vec::new());
            Ok(Server {
                version,
                uptime_seconds: 7,
                authentication: true,
                log_lines_left_out: 0,
                notices: Vec::new(),
                task_failures: 0,
                directory: DirectoryStatus::default(),
                cores,
                devices,
            })
        })
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// A live API. Stops when dropped.
pub struct Api {
    pub address: SocketAddr,
    pub service: Arc<MemoryService>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Api {
    pub fn start() -> Self {
        Self::with(Limits::default(), Duration::ZERO)
    }

    pub fn with(limits: Limits, list_delay: Duration) -> Self {
        Self::guarded(Guard::default(), limits, list_delay)
    }

    pub fn guarded(guard: Guard, limits: Limits, list_delay: Duration) -> Self {
        let service = Arc::new(MemoryService::new(list_delay));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let backend = service.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let stopped = async { drop(stopped.await) };
                serve(listener, backend, guard, limits, stopped).await;
            });
        });
        Self { address, service, stop: Some(stop), thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends the server and waits for it.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Sends `method path` with `body` as JSON, and reads the answer.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        self.request_as("application/json", method, path, body)
    }

    pub fn request_as(&self, kind: &str, method: &str, path: &str, body: &str) -> Answer {
        self.raw(
            format!(
                "{method} {path} HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\
                 content-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )
    }

    /// Sends these bytes and reads all that comes back.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut text = Vec::new();
        // A reset after the answer is fine: the server may not have read all of a bad request.
        let _ = stream.read_to_end(&mut text);
        Answer::parse(&String::from_utf8(text).unwrap())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that this is a refusal in due form, and gives its code and detail.
    pub fn problem(&self) -> (u16, String, String) {
        assert!(self.head.contains("content-type: application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status, "{self:?}");
        assert!(json["hint"].as_str().is_some_and(|hint| !hint.is_empty()), "{self:?}");
        let text = |field: &str| json[field].as_str().unwrap().to_owned();
        (self.status, text("code"), text("detail"))
    }
}
