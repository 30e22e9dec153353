//! The server put together: data cores, the API, and what they say to each other.
//!
//! The order of the start makes each refusal come before anything is touched: cores and settings
//! are checked, all ports taken, the device opened and looked at, and only then formatted (if that
//! was asked for) and recovered. Shards are started when all are recovered.

mod access;
mod core_main;
mod core_thread;
mod devices;
mod directory;
mod message;
mod preflight;
mod quota;
mod scrub_plan;
mod scrubber;
mod service;
mod sharing;
mod stats;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use control::{Audit, Guard, Limits, Users};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use units::ByteLen;

use crate::device_spec::DeviceSpec;
use crate::failure::Failure;
use crate::sharing_spec::SharedSpec;
use core_thread::CoreThreads;
use service::Volumes;

/// Longest wait for the data cores to finish what is in flight and to write their checkpoints. What
/// was acknowledged is safe without; the next start then has more to recover.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of a server, complete.
#[derive(Clone, Debug)]
pub(crate) struct ServeConfig {
    pub(crate) device: SharedSpec,
    /// CPUs, in the order of their portals.
    pub(crate) cores: Vec<u32>,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) api: SocketAddr,
    pub(crate) discovery: Option<SocketAddr>,
    pub(crate) format_if_blank: bool,
    /// Whether hosts have to know a volume's token.
    pub(crate) authenticates: bool,
    /// Who may ask the API; everybody, if there is no list.
    pub(crate) api_users: Option<PathBuf>,
    /// Where changes made by the API are recorded.
    pub(crate) audit_log: Option<PathBuf>,
    /// Host connections, on each core.
    pub(crate) connections_max: u32,
    /// Memory for the data of requests, on each core.
    pub(crate) core_memory: ByteLen,
    /// Memory for the maps of volumes, on each core.
    pub(crate) map_memory: ByteLen,
    /// How long a request to a file or drive may take.
    pub(crate) device_timeout: std::time::Duration,
    /// How often everything is read and checked, if it is by itself.
    pub(crate) scrub_every: Option<std::time::Duration>,
}

/// The thread that looks after the data cores: its runtime, and the signals that end the server.
pub(crate) struct Host {
    runtime: Runtime,
    signals: Signals,
}

impl Host {
    /// From now on a signal no longer ends the process by itself.
    pub(crate) fn new() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| no_runtime(&error))?;
        let signals = runtime.block_on(async { Signals::new() })?;
        Ok(Self { runtime, signals })
    }

    /// Serves until a signal ends it.
    pub(crate) fn run(self, config: &ServeConfig) -> Result<(), Failure> {
        let Self { runtime, mut signals } = self;
        runtime.block_on(async {
            let starting = config.clone();
            let started = tokio::task::spawn_blocking(move || start(&starting));
            let (api, guard, cores) = tokio::select! {
                started = started => match started {
                    Ok(started) => started?,
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                },
                name = signals.next() => {
                    // Nobody was told that anything is there: to end here is to have lost nothing.
                    tracing::info!(signal = name, "ended before it was ready");
                    std::process::exit(0);
                }
            };
            serve(config, guard, api, cores, signals).await
        })
    }
}

/// Takes all that the server needs, in an order in which each refusal comes before anything is
/// touched.
fn start(config: &ServeConfig) -> Result<(std::net::TcpListener, Guard, CoreThreads), Failure> {
    let guard = guard(config)?;
    preflight::check_cores(&config.cores)?;
    let portals = preflight::portals(config)?;
    preflight::raise_file_limit(u64::from(config.connections_max) * portals.len() as u64);
    let api = preflight::bind_api(config.api)?;
    let mut cores = CoreThreads::start(config, &portals)?;
    cores.open(config)?;
    Ok((api, guard, cores))
}

/// Who may ask the API, and where changes are recorded.
fn guard(config: &ServeConfig) -> Result<Guard, Failure> {
    let users = match &config.api_users {
        None => Users::open(),
        Some(path) => {
            let shown = path.display();
            let text = std::fs::read_to_string(path).map_err(|error| {
                let what = format!("the list of API users {shown} cannot be read: {error}");
                Failure::runtime(what, "name a readable file with --api-users")
            })?;
            Users::from_toml(&text).map_err(|error| {
                let what = format!("the list of API users {shown} is wrong: {error}");
                Failure::usage(what, "`farflash api-token --help` shows how an entry looks")
            })?
        }
    };
    let audit = config.audit_log.as_deref().map(|path| {
        Audit::open(path).map_err(|error| {
            let what = format!("the audit log {} cannot be opened: {error}", path.display());
            Failure::runtime(what, "name a file that can be appended to with --audit-log")
        })
    });
    Ok(Guard { users, audit: audit.transpose()? })
}

async fn serve(
    config: &ServeConfig,
    guard: Guard,
    api: std::net::TcpListener,
    mut cores: CoreThreads,
    mut signals: Signals,
) -> Result<(), Failure> {
    let api = tokio::net::TcpListener::from_std(api).map_err(|error| no_runtime(&error))?;
    let api_address = api.local_addr().map_err(|error| no_runtime(&error))?;
    let volumes = Volumes::load(config, cores.links().to_vec()).await.map_err(|_| core_ended())?;
    for link in cores.links() {
        tracing::info!(core = link.cpu, portal = %link.portal, "portal open");
    }
    if !config.authenticates {
        tracing::warn!("authentication is off: any host that reaches a portal can open any volume");
    }
    if guard.users.is_open() && !api_address.ip().is_loopback() {
        tracing::warn!(
            "the API is open to everybody who reaches it: name its users with --api-users"
        );
    }
    tracing::info!(api = %format_args!("http://{api_address}"), device = %config.device,
        volumes = volumes.count(), "ready");
    if config.device_is_volatile() {
        tracing::warn!("the device is memory: its volumes are gone when this server ends");
    }
    if let Some(every) = config.scrub_every {
        tokio::spawn(scrub_plan::keep(volumes.clone(), every));
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let service = Arc::new(volumes.clone());
    let api = tokio::spawn(control::serve(api, service, guard, Limits::default(), async {
        drop(stopped.await);
    }));
    let lost = tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, "draining; a second signal ends at once");
            false
        }
        () = cores.ended() => {
            tracing::error!("a data core has ended; the server stops");
            true
        }
    };
    let drain = async {
        volumes.close();
        drop(stop);
        let _ = api.await;
        tokio::time::timeout(DRAIN_TIMEOUT, cores.shut_down()).await
    };
    tokio::select! {
        drained = drain => match drained {
            Ok(Ok(())) => tracing::info!("drained"),
            _ if lost => {}
            Ok(Err(what)) => return Err(not_drained(&what)),
            Err(_) => return Err(not_drained(&format!("it took longer than {DRAIN_TIMEOUT:?}"))),
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "ended at once; the next start recovers from the journal");
            std::process::exit(1);
        }
    }
    if lost { Err(core_ended()) } else { Ok(()) }
}

impl ServeConfig {
    fn device_is_volatile(&self) -> bool {
        !matches!(self.device.device, DeviceSpec::File(_))
    }
}

/// The signals that end a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let new = || {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            })
        };
        new().map_err(|error| no_runtime(&error))
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

fn no_runtime(error: &std::io::Error) -> Failure {
    let what = format!("the API cannot be started: {error}");
    Failure::runtime(what, "raise the limit on open files (ulimit -n)")
}

fn not_drained(what: &str) -> Failure {
    Failure::runtime(
        format!("the server did not end in good order: {what}"),
        "start it again: it recovers what was acknowledged from the journal; the log says more",
    )
}

fn core_ended() -> Failure {
    Failure::runtime(
        "a data core has ended unexpectedly",
        "start the server again: it recovers what was acknowledged; the log above says more",
    )
}
