//! Starts the server, accepts connections, and stops in order.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datastore::{Budget, Class, Serve};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Failure;
use super::accepting::Accepting;
use super::connection::{Connection, End};
use super::lines::Refusals;
use super::memory_group::MemoryGroup;
use super::observe::{self, Observed};
use super::pool::Pool;
use super::session::settings;
use super::stats::{Connected, Stats};
use super::store::Store;
use super::tls::Tls;
use super::{http, tasks, threads, tls, version};

/// Connections have this long to end with the requests that are being served.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Space without which RocksDB is not opened: it writes a manifest, and what its log holds.
const SPACE_MIN: u64 = 8 << 20;

/// Parts that all connections share.
pub(crate) struct Server {
    pub(crate) serve: Serve,
    pub(crate) store: Arc<Store>,
    pub(crate) readers: Pool,
    pub(crate) writers: Pool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) budget: Budget,
    pub(crate) password: Option<Vec<u8>>,
    pub(crate) tls: Option<Tls>,
    pub(crate) settings: Vec<(&'static str, String)>,
    pub(crate) library: String,
    pub(crate) started: Instant,
    pub(crate) observed: Observed,
    pub(crate) memory_group: Option<MemoryGroup>,
    pub(crate) refusals: Refusals,
    next_id: AtomicU64,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(mut serve: Serve) -> Result<(), Failure> {
    let plan = serve
        .plan()
        .map_err(|error| Failure::usage(&error, "see `farflash datastore serve --help`"))?;
    let library = version::check().map_err(|error| {
        Failure::runtime(&error, "install the package librocksdb7.8 of Debian 12, or build for the version that is there")
    })?;
    let password = serve.password_file.as_deref().map(read_password).transpose()?;
    let tls = Tls::open(&serve)?;
    check_space(&serve.data)?;
    threads::check(&serve)?;
    // Before threads and memory, which are then the group's.
    let memory_group = bound_memory(&mut serve);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(serve.io_threads as usize)
        .enable_all()
        .build()
        .map_err(|error| threads::none(&error))?;
    runtime.block_on(outlive_large_files())?;
    let store = Store::open(&serve, plan).map_err(|error| {
        let what = format!("{} cannot be opened: {error}", serve.data.display());
        Failure::runtime(
            &what,
            "if another server has it, stop that one; else see what RocksDB says, and --rocksdb-log",
        )
    })?;
    threads::start_pools(&serve).map_err(|error| threads::none(&error))?;
    let (store, stats) = (Arc::new(store), Arc::new(Stats::default()));
    let pool = |class, threads| {
        Pool::start(class, threads, &store, &stats).map_err(|error| threads::none(&error))
    };
    let server = Server {
        readers: pool(Class::Read, serve.readers)?,
        writers: pool(Class::Write, serve.writers)?,
        budget: Budget::new(usize::try_from(serve.request_memory.0).unwrap_or(usize::MAX)),
        settings: settings(&serve),
        observed: Observed::new(&serve.data),
        memory_group,
        refusals: Refusals::new(),
        started: Instant::now(),
        next_id: AtomicU64::new(1),
        password,
        tls,
        library,
        store,
        stats,
        serve,
    };
    let server = runtime.block_on(serve_until_stopped(Arc::new(server)))?;
    drop(runtime);
    finish(server)
}

/// Bounds all memory, by a control group or by past the page cache.
fn bound_memory(serve: &mut Serve) -> Option<MemoryGroup> {
    let total = serve.memory_total?;
    match MemoryGroup::enter(total.0) {
        Ok(group) => {
            tracing::info!("all memory is bounded to {total} by {}", group.path().display());
            Some(group)
        }
        Err(error) => {
            serve.tuning.direct_io = true;
            tracing::info!(
                "no control group can be made ({error}), so data is read and written past the page cache, as by --direct-io"
            );
            None
        }
    }
}

/// A database cannot be opened without some space, and RocksDB does not always say so in an orderly way.
fn check_space(data: &Path) -> Result<(), Failure> {
    let made = std::fs::create_dir_all(data).and_then(|()| Ok(rustix::fs::statvfs(data)?));
    let space = made.map_err(|error| {
        let what = format!("{} cannot be opened: {error}", data.display());
        Failure::runtime(&what, "name a directory that can be made and written with --data")
    })?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < SPACE_MIN {
        let what = format!(
            "the file system of {} has {free} bytes left, and {SPACE_MIN} are needed",
            data.display()
        );
        return Err(Failure::runtime(&what, "free some space"));
    }
    Ok(())
}

/// From now on a write beyond the limit on the size of files fails. Without a handler its signal ends the process, without a word; the
/// handler stays when nothing waits for the signal any more.
async fn outlive_large_files() -> Result<(), Failure> {
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    signal(kind).map(drop).map_err(|error| {
        let what = format!("signals cannot be waited for: {error}");
        Failure::runtime(&what, "raise the limit on open files (ulimit -n)")
    })
}

fn read_password(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(&format!("{}: {error}", path.display()), "name a file that can be read")
    })?;
    // Some editors begin a file with a byte-order mark.
    let password = text.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
    if password.is_empty() {
        let what = format!("{} has no password in its first line", path.display());
        return Err(Failure::usage(&what, "write one there, or leave --password-file out"));
    }
    Ok(password.as_bytes().to_vec())
}

async fn serve_until_stopped(server: Arc<Server>) -> Result<Arc<Server>, Failure> {
    let bind = async |address| {
        TcpListener::bind(address).await.map_err(|error| {
            Failure::runtime(
                &format!("{address} cannot be listened on: {error}"),
                "choose another address",
            )
        })
    };
    let listener = bind(server.serve.listen).await?;
    let (stop, stopping) = watch::channel(false);
    if let Some(address) = server.serve.metrics {
        let accepting = Accepting::new(bind(address).await?, "--metrics");
        tokio::spawn(http::serve(accepting, Arc::clone(&server), stopping.clone()));
    }
    // Before it is said that the server serves: from then on it ends in order.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    let [mut term, mut int] = kinds.map(|kind| signal(kind).expect("signals can be waited for"));
    let address = listener.local_addr().map_or(server.serve.listen, |address| address);
    announce(&server, address);
    spawn_kept("what SIGHUP asks for", &server, &stopping, reload_on_sighup);
    let observer = spawn_kept("the log of stalls", &server, &stopping, observe::watch);
    let mut accepting = Accepting::new(listener, "--listen");
    let signals = async {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    tokio::select! {
        () = accept(&mut accepting, &server, &stopping) => {}
        () = signals => tracing::info!("stopping"),
    }
    drop(accepting);
    stop.send_replace(true);
    let _ = observer.await;
    // Each task holds a receiver; the last one that ends closes the channel.
    drop(stopping);
    if timeout(STOP_PATIENCE, stop.closed()).await.is_err() {
        tracing::warn!("some connections did not end in time, and are cut off");
    }
    Ok(server)
}

/// Runs a task until the server stops, whatever happens in it.
fn spawn_kept<F>(
    name: &'static str,
    server: &Arc<Server>,
    stopping: &watch::Receiver<bool>,
    task: fn(Arc<Server>, watch::Receiver<bool>) -> F,
) -> JoinHandle<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (server, stopping) = (Arc::clone(server), stopping.clone());
    tokio::spawn(async move {
        tasks::keep(name, &server.stats, || task(Arc::clone(&server), stopping.clone())).await;
    })
}

/// Reads certificates again at SIGHUP, which without TLS ends the process as it ends any.
async fn reload_on_sighup(server: Arc<Server>, mut stopping: watch::Receiver<bool>) {
    let Some(tls) = &server.tls else { return };
    let mut hangup = signal(SignalKind::hangup()).expect("signals can be waited for");
    loop {
        tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            _ = hangup.recv() => tls.reload(),
        }
    }
}

fn announce(server: &Server, address: std::net::SocketAddr) {
    let plan = server.store.plan();
    tracing::info!(
        "serving {} on {address}: RocksDB {}, {} readers, {} writers, block cache {} bytes, {} memtables of {} bytes",
        server.store.path().display(),
        server.library,
        server.serve.readers,
        server.serve.writers,
        plan.block_cache,
        plan.memtables,
        plan.memtable,
    );
    let tls = server.tls.as_ref();
    let is_open = server.password.is_none() && !tls.is_some_and(Tls::asks_clients);
    if !address.ip().is_loopback() && is_open {
        tracing::warn!(
            "{address} is open to the network without a password; see --password-file, and clients.pem of --tls"
        );
    }
    if !address.ip().is_loopback() && tls.is_none() {
        tracing::warn!("{address} is not encrypted; see --tls");
    }
}

async fn accept(accepting: &mut Accepting, server: &Arc<Server>, stopping: &watch::Receiver<bool>) {
    loop {
        let stream = accepting.next().await;
        server.stats.accepted.add(1);
        if server.stats.connected.get() >= u64::from(server.serve.connections) {
            server.stats.refused.add(1);
            refuse(server, stream);
            continue;
        }
        let connected = Connected::new(&server.stats);
        tokio::spawn(serve_client(Arc::clone(server), stream, connected, stopping.clone()));
    }
}

/// Tells a client why it is refused, if that takes no waiting.
fn refuse(server: &Server, mut stream: TcpStream) {
    // In TLS that would take a handshake.
    if server.tls.is_some() {
        return;
    }
    const REFUSAL: &[u8] = b"-ERR max number of clients reached (--connections)\r\n";
    tokio::spawn(async move {
        let _ = timeout(Duration::from_secs(1), stream.write_all(REFUSAL)).await;
    });
}

async fn serve_client(
    server: Arc<Server>,
    stream: TcpStream,
    _connected: Connected,
    stopping: watch::Receiver<bool>,
) {
    // Replies are to leave at once.
    let _ = stream.set_nodelay(true);
    let id = server.next_id.fetch_add(1, Ordering::Relaxed);
    // A client that has gone is not told of.
    let Ok(peer) = stream.peer_addr() else { return };
    let ended = match &server.tls {
        None => Connection::new(Arc::clone(&server), stream, (id, peer)).run(stopping).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => {
                Connection::new(Arc::clone(&server), stream, (id, peer)).run(stopping).await
            }
            // A supervisor that looks if the port is open.
            Err(error) if tls::is_end(&error) => End::Io(error),
            Err(error) => {
                server.refusals.note(peer, &format!("no TLS was begun: {}", tls::trouble(&error)));
                End::Closed
            }
        },
    };
    if let End::Io(error) = ended {
        tracing::debug!("connection {id}: {error}");
    }
}

/// Ends the threads and makes all durable.
fn finish(server: Arc<Server>) -> Result<(), Failure> {
    let store = Arc::clone(&server.store);
    // A connection that was cut off may still hold the server; its threads then end with the process.
    if let Some(server) = Arc::into_inner(server) {
        server.readers.stop();
        server.writers.stop();
    }
    store.finish().map_err(|error| {
        let what = format!("the last writes cannot be made durable: {error}");
        Failure::runtime(
            &what,
            "see whether the file system of the data has space and can be written",
        )
    })?;
    tracing::info!("stopped; all writes are durable");
    Ok(())
}
