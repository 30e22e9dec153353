//! The server put together: data cores, the API, and what they say to each other.
//!
//! The order of the start makes each refusal come before anything is touched: cores and settings
//! are checked, all ports taken, all devices opened and looked at, and only then formatted (if that
//! was asked for) and recovered. Shards are started when all are recovered. A device that is absent is no refusal, but
//! left out until it is there (`absent.rs`).

mod absent;
mod access;
mod allowance;
mod api;
mod aside;
mod changes;
mod cluster;
mod conditions;
mod core_thread;
mod cores;
mod device_set;
mod devices;
mod directory;
mod division;
mod documents;
mod follow;
mod granting;
mod grants;
mod growing;
mod guard;
mod in_flight;
mod interfaces;
mod lines;
pub mod logging;
mod membership;
mod mounts;
mod nbd_address;
mod nbd_tls;
mod notify;
mod offers;
mod own_conditions;
mod placement;
mod preflight;
mod quota;
pub mod recorded;
mod recording;
mod reload;
mod replug;
mod returns;
mod scrub_plan;
mod seek;
mod served_device;
mod service;
mod sharing;
mod state;
mod stats;
mod taking;
mod tasks;
mod tenure;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use auth::Policy;
use control::{Deed, Guard};
use data_core::Place;
use local_devices::sharing_spec::{SharedSpec, device_names};
use local_devices::storage;
use process_limits::threads;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use typed_index_collections::{TiSlice, TiVec};
use units::{ByteLen, CoreIndex, DeviceIndex};
use user_messages::Failure;

use aside::Aside;
use core_thread::CoreThreads;
use cores::CoreLink;
pub use data_core::{
    Advertised, Discovery, NbdAddress, ParseAdvertisedError, ParseNbdAddressError,
};
pub use membership::ClusterConfig;
use membership::Membership;
use recorded::recorded;
use service::Volumes;

/// Longest wait for the data cores to finish what is in flight and to write their checkpoints. What
/// was acknowledged is safe without; the next start then has more to recover.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Settings of a server, complete.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// At least one.
    pub devices: TiVec<DeviceIndex, SharedSpec>,
    /// CPUs, in the order of their portals.
    pub cores: Vec<u32>,
    /// The first core's NVMe/TCP portal.
    pub listen: SocketAddr,
    /// The first core's iSCSI portal, if iSCSI is served.
    pub iscsi: Option<SocketAddr>,
    /// The addresses that hosts are told, if they differ from those that portals listen on.
    pub advertise: Option<Advertised>,
    /// The address of the API.
    pub api: SocketAddr,
    /// Discovery apart from the portals.
    pub discovery: Discovery,
    /// The places for clients of NBD, as the first core has them.
    pub nbd: Vec<NbdAddress>,
    /// The directory of certificate and key for NBD, and of the authorities of clients.
    pub nbd_tls: Option<PathBuf>,
    /// The membership of the server in a service of several hosts.
    pub cluster: ClusterConfig,
    /// Devices that hold nothing are formatted.
    pub format_if_blank: bool,
    /// Files of devices may be made.
    pub create: bool,
    /// By what hosts prove that they know a volume's token, if they have to.
    pub authentication: Option<Policy>,
    /// The file of users that may ask the API; without it, root and the server's own user may.
    pub api_users: Option<PathBuf>,
    /// Without users, every caller that reaches the API may do everything.
    pub api_open: bool,
    /// The directory with certificate and key of the API; without it, the API is plain HTTP.
    pub api_tls: Option<PathBuf>,
    /// The file in which changes made by the API are recorded.
    pub audit_log: Option<PathBuf>,
    /// Host connections, on each core.
    pub connections_max: u32,
    /// Memory for the data of requests, on each core.
    pub core_memory: ByteLen,
    /// Memory for the maps of volumes, on each core; its devices have equal parts of it.
    pub map_memory: ByteLen,
    /// Time that a request to a file or drive may take.
    pub device_timeout: std::time::Duration,
    /// Longest time that the start waits for devices that are absent.
    pub device_wait: std::time::Duration,
    /// Interval of scheduled scrubs, if there are any.
    pub scrub_every: Option<std::time::Duration>,
}

/// The signal for a write beyond the limit on the size of files. A handler stays when nothing waits for the signal any more.
const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// The thread that looks after the data cores: its runtime, the signals that end the server, and the one by which it
/// reads again what it can.
pub struct Host {
    runtime: Runtime,
    signals: Signals,
    hangup: Signal,
}

impl Host {
    /// From now on a signal no longer ends the process by itself.
    pub fn new() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("blocking")
            .thread_keep_alive(KEPT_FOR)
            .build()
            .map_err(|error| no_runtime(&error))?;
        let (signals, hangup) = runtime.block_on(async {
            let hangup = signal(SignalKind::hangup()).map_err(|error| no_runtime(&error))?;
            // A write beyond the limit on the size of files is to fail, and not to end the server.
            let _ = signal(SignalKind::from_raw(SIGXFSZ)).map_err(|error| no_runtime(&error))?;
            Ok::<_, Failure>((Signals::new()?, hangup))
        })?;
        Ok(Self { runtime, signals, hangup })
    }

    /// Serves until a signal ends it.
    pub fn run(self, config: &ServeConfig) -> Result<(), Failure> {
        let Self { runtime, mut signals, hangup } = self;
        reserve_threads(config, &runtime)?;
        runtime.block_on(async {
            let starting = config.clone();
            let started = tokio::task::spawn_blocking(move || start(&starting));
            let started = tokio::select! {
                started = started => match started {
                    Ok(started) => started?,
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                },
                name = signals.next() => {
                    // No client was told that the server is ready: to end here loses nothing.
                    tracing::info!(signal = name, "ended before it was ready");
                    end_at_once(0);
                }
            };
            serve(config, started, (signals, hangup)).await
        })
    }
}

/// Threads of the runtime for what blocks: lines of the audit log, and the start itself. The runtime panics where it has none and
/// cannot make one, but lets work wait for one that it has. So these are made at the start, and stay.
const BLOCKING_THREADS: usize = 4;
/// Keeps idle threads longer than a server runs.
const KEPT_FOR: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Threads of cores: their own, and the kernel's for their flushes.
const THREADS_PER_CORE: usize = 2;
/// Threads of which there is one: for lines of connections, for long computations, for what SIGHUP asks for, to look at a
/// device at the start, and to record what happens to the lease.
const SINGLE_THREADS: usize = 5;
/// The thread of the directory, and its own for what blocks.
const DIRECTORY_THREADS: usize = 2;

/// Sees that all threads can be had that the server needs, and makes those of the runtime.
fn reserve_threads(config: &ServeConfig, runtime: &Runtime) -> Result<(), Failure> {
    let in_cluster = config.cluster.directory.is_some();
    threads::check(
        BLOCKING_THREADS
            + SINGLE_THREADS
            + THREADS_PER_CORE * config.cores.len()
            + config.devices.len()
            + usize::from(in_cluster) * DIRECTORY_THREADS,
    )?;
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..BLOCKING_THREADS {
        let gate = gate.clone();
        runtime.spawn_blocking(move || drop(gate.read()));
    }
    drop(closed);
    Ok(())
}

/// A server that has all it needs.
struct Started {
    /// Threads for what may wait for a device, by number.
    asides: Vec<Option<Aside>>,
    /// Reads what SIGHUP asks for.
    reading: Aside,
    api: std::net::TcpListener,
    guard: Guard,
    cores: CoreThreads,
    membership: Membership,
}

/// Takes all that the server needs, in an order in which each refusal comes before anything is
/// touched.
fn start(config: &ServeConfig) -> Result<Started, Failure> {
    let guard = guard::open(config)?;
    preflight::check_cores(&config.cores)?;
    reactor::start_offload().map_err(|error| storage::no_core(&error))?;
    let reading = Aside::start("reload")?;
    let asides = config
        .devices
        .iter()
        .map(|shared| shared.device.file().map(|_| Aside::start("replug")).transpose());
    let asides = asides.collect::<Result<Vec<_>, Failure>>()?;
    device_set::check_distinct(config)?;
    let portals = preflight::portals(config)?;
    let connections_max = preflight::raise_file_limit(config.connections_max, portals.len());
    let config = &ServeConfig { connections_max, ..config.clone() };
    let api = preflight::bind_api(config.api)?;
    let mut cores = CoreThreads::start(config, &portals)?;
    let api_address = api.local_addr().map_err(|error| no_runtime(&error))?;
    let certificate = guard.tls.as_ref().map(control::ApiTls::certificate);
    let (discovery, links) = (cores.discovery(), cores.links());
    let mut membership = Membership::join(config, api_address, certificate, discovery, links)?;
    let by_word = config.cluster.take_over.as_ref().map(|word| Deed {
        by: "serve",
        what: "TAKE-OVER",
        to: config.cluster.directory.as_ref().map(ToString::to_string).unwrap_or_default(),
        change: json!({
            "host": config.cluster.host_name,
            "devices": config.device_names(),
            "confirmed_down": word.down,
        }),
    });
    let opened = match by_word {
        Some(deed) => recorded(guard.audit.as_ref(), deed, || cores.open(config, &mut membership)),
        None => cores.open(config, &mut membership),
    };
    if let Err(failure) = opened {
        tokio::runtime::Handle::current().block_on(stop(cores, &membership));
        return Err(failure);
    }
    Ok(Started { asides, reading, api, guard, cores, membership })
}

/// Gives back what was claimed and is not going to be served, if no request to it is under way any more.
async fn stop(cores: CoreThreads, membership: &Membership) {
    if let Ok(Ok(())) = tokio::time::timeout(DRAIN_TIMEOUT, cores.shut_down()).await {
        membership.leave().await;
    }
}

async fn serve(
    config: &ServeConfig,
    started: Started,
    (mut signals, hangup): (Signals, Signal),
) -> Result<(), Failure> {
    let Started { asides, reading, api, guard, mut cores, membership } = started;
    let api = tokio::net::TcpListener::from_std(api).map_err(|error| no_runtime(&error))?;
    let api_address = api.local_addr().map_err(|error| no_runtime(&error))?;
    let (links, quotas) = (cores.links().to_owned(), guard::quotas(&guard.users));
    let absent = cores.absent();
    let beside = (&absent, asides);
    let volumes = Volumes::load(config, links, membership.clone(), quotas, beside).await;
    let volumes = volumes.map_err(|_| core_ended())?;
    say_ready(config, cores.links(), &guard, (api_address, volumes.count()));
    follow::start(volumes.state());
    let recording = tenure::start(volumes.state(), guard.audit.clone());
    if let Some(returns) = cores.returns() {
        let follow = returns::follow(volumes.clone(), returns);
        volumes.state().tasks.keep_once("devices that come back", follow);
    }
    own_conditions::start(volumes.state(), config, guard.tls.clone());
    replug::start(volumes.state(), cores.drives());
    absent::start(volumes.state(), config, absent.into_keys());
    scrub_plan::start(&volumes, config);
    reload::start(volumes.state(), config, (guard.clone(), reading), hangup);
    let (stop, stopped) = tokio::sync::watch::channel(());
    let api = api::serve(api, volumes.clone(), guard, stopped);
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
        notify::notify(notify::State::Stopping);
        drop(stop);
        let _ = api.await;
        let shut_down = tokio::time::timeout(DRAIN_TIMEOUT, cores.shut_down()).await;
        tenure::end(volumes.state(), recording).await;
        shut_down
    };
    tokio::select! {
        drained = drain => match drained {
            Ok(Ok(())) => {
                // Nothing of this host touches the devices from now on.
                membership.leave().await;
                if let Some(lost) = volumes.state().lost_at_the_end() {
                    return Err(file_lost(&lost));
                }
                tracing::info!("drained");
            }
            _ if lost => {}
            Ok(Err(what)) => return Err(not_drained(&what)),
            Err(_) => return Err(not_drained(&format!("it took longer than {} s", DRAIN_TIMEOUT.as_secs()))),
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "ended at once; the next start recovers from the journal");
            end_at_once(1);
        }
    }
    if lost { Err(core_ended()) } else { Ok(()) }
}

/// Warns of risks, and says where `volumes` are served, to people and to the service manager.
fn say_ready(
    config: &ServeConfig,
    links: &TiSlice<CoreIndex, CoreLink>,
    guard: &Guard,
    (api, volumes): (SocketAddr, usize),
) {
    warn_of_risks(config, guard, api);
    for link in links {
        tracing::info!(core = link.cpu, listens_on = %link.local, portal = %link.portal, "portal open");
        for place in &link.places {
            match place {
                Place::Nbd(address) => {
                    tracing::info!(core = link.cpu, listens_on = %address, "NBD open");
                }
                Place::Iscsi(address) => {
                    tracing::info!(core = link.cpu, listens_on = %address, "iSCSI portal open");
                }
            }
        }
    }
    let scheme = if guard.tls.is_some() { "https" } else { "http" };
    let device = config.device_names().join(" ");
    tracing::info!(api = %format_args!("{scheme}://{api}"), device, volumes, "ready");
    notify::notify(notify::State::Ready);
}

fn end_at_once(code: i32) -> ! {
    logging::finish();
    std::process::exit(code)
}

/// The congestion control of this host's TCP connections, unless they ask for another.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Says what this server's owner may not want: what is lost, and what others could do.
fn warn_of_risks(config: &ServeConfig, guard: &Guard, api: SocketAddr) {
    for (shared, device) in config.devices.iter().zip(config.device_names()) {
        if shared.device.file().is_none() {
            tracing::warn!(device, "is memory: its volumes are gone when this server ends");
        }
    }
    if config.authentication.is_none() {
        tracing::warn!("authentication is off: any host that reaches a portal can open any volume");
    }
    if guard.users.is_open() {
        tracing::warn!("the API is open: everybody who reaches it may do everything");
    } else if !guard.users.are_listed() && !api.ip().is_loopback() {
        tracing::warn!("the API answers no caller on other hosts: name its users with --api-users");
    }
    if guard.audit.is_none() && guard.users.are_listed() {
        tracing::warn!("what API users change is recorded nowhere: name a file with --audit-log");
    }
    if guard.tls.is_none() && guard.users.are_listed() && !api.ip().is_loopback() {
        tracing::warn!(
            "tokens of API users cross the network as they are: encrypt it with --api-tls"
        );
    }
    if std::fs::read_to_string(CONGESTION_CONTROL).is_ok_and(|name| name.trim() == "bbr") {
        tracing::warn!(
            "this host's congestion control is bbr, which sets a timer for each piece that it sends: \
             large reads are slower than with `sysctl net.ipv4.tcp_congestion_control=cubic`"
        );
    }
}

impl ServeConfig {
    /// Names of the devices, by number.
    fn device_names(&self) -> Vec<String> {
        device_names(&self.devices.raw)
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

/// The server ended in good order, and what it served is out of reach.
fn file_lost(what: &str) -> Failure {
    Failure::runtime(
        format!("drained into a file that its path does not reach: {what}"),
        "restore the device from a copy, or look for the file where it was moved to",
    )
}

fn core_ended() -> Failure {
    Failure::runtime(
        "a data core has ended unexpectedly",
        "start the server again: it recovers what was acknowledged; the log above says more",
    )
}
