//! The HTTP server: connections, their bounds, and an orderly end.

use std::borrow::Borrow;
use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use strangers::source;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use crate::caller::Users;
use crate::crowd::{Activity, Place, Step, WAITING_MAX, next_step, who_makes_room};
use crate::gate::{Guard, Owner, Peer};
use crate::limits::Limits;
use crate::owner::Owners;
use crate::paced::Paced;
use crate::tls::ApiTls;
use crate::{VolumeService, plain, routes};

/// Pause after an `accept` that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Interval at which the server checks if a waiting connection can be served.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Serves the callers that `guard` admits on `listener` until `stop` completes; then finishes the requests
/// in flight, waiting for them no longer than the limits say.
pub async fn serve(
    listener: impl Borrow<TcpListener>,
    service: Arc<dyn VolumeService>,
    guard: Guard,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let (tls, users) = (guard.tls.clone(), guard.users.clone());
    let router = routes::router(service, guard, limits);
    let mut clients = Clients::new(router, (tls, users), limits);
    if let (true, Err(error)) = (clients.users.are_owners(), clients.owners.check()) {
        tracing::warn!(
            %error,
            "the kernel does not report the owners of connections, so that the API answers no caller: load inet_diag, or give --api-users"
        );
    }
    let mut stop = pin!(stop);
    let (fails, mut spare) = (AtomicBool::new(false), None);
    loop {
        tokio::select! {
            () = &mut stop => break,
            (stream, peer) = accept(listener.borrow(), &fails, &mut spare) => clients.arrive(stream, peer),
            Some(ended) = clients.connections.join_next_with_id(), if !clients.connections.is_empty() => {
                clients.forget(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            () = tokio::time::sleep(LOOK_EVERY), if !clients.waiting.is_empty() => {}
        }
        clients.settle();
    }
    drop(listener);
    clients.drain().await;
}

/// The connected clients: those that are served, and those that wait for a place.
struct Clients {
    router: Router,
    tls: Option<ApiTls>,
    users: Users,
    owners: Arc<Owners>,
    limits: Limits,
    /// Tells connections to end behind the request that they have begun.
    stopping: watch::Sender<bool>,
    /// True if all places are taken.
    crowded: Arc<AtomicBool>,
    connections: JoinSet<()>,
    served: Vec<Served>,
    /// Oldest first.
    waiting: Vec<(TcpStream, SocketAddr)>,
}

/// A connection that is served.
struct Served {
    source: IpAddr,
    activity: Activity,
    task: AbortHandle,
}

impl Clients {
    fn new(router: Router, (tls, users): (Option<ApiTls>, Users), limits: Limits) -> Self {
        Self {
            router,
            tls,
            users,
            owners: Arc::default(),
            limits,
            stopping: watch::Sender::new(false),
            crowded: Arc::default(),
            connections: JoinSet::new(),
            served: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// A client has connected: it waits, perhaps for no time, or is sent away (API-CROWD-4).
    fn arrive(&mut self, stream: TcpStream, peer: SocketAddr) {
        if self.waiting.len() >= WAITING_MAX {
            let now = Instant::now();
            let place = |(_, peer): &(TcpStream, SocketAddr)| Place {
                source: source(peer.ip()),
                idle_since: Some(now),
            };
            let places: Vec<Place> = self.waiting.iter().map(place).collect();
            let Some(index) = who_makes_room(&places, source(peer.ip())) else { return };
            self.waiting.remove(index);
        }
        self.waiting.push((stream, peer));
    }

    /// Serves each waiting connection for which there is a place, and ends connections that make room.
    fn settle(&mut self) {
        loop {
            let place = |served: &Served| Place {
                source: served.source,
                idle_since: served.activity.idle_since(),
            };
            let places: Vec<Place> = self.served.iter().map(place).collect();
            let waiting: Vec<IpAddr> =
                self.waiting.iter().map(|(_, peer)| source(peer.ip())).collect();
            let max = self.limits.connections_max;
            match next_step(&places, &waiting, max, Instant::now()) {
                Some(Step::Serve(index)) => {
                    let (stream, peer) = self.waiting.remove(index);
                    self.begin(stream, peer);
                }
                Some(Step::End(index)) => {
                    let ended = self.served.swap_remove(index);
                    ended.task.abort();
                    tracing::debug!(source = %ended.source, "an idle API connection makes room");
                }
                None => break,
            }
        }
        self.crowded.store(self.served.len() >= self.limits.connections_max, Ordering::Relaxed);
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        // Answers are small and whole; waiting for more to send gains nothing.
        let _ = stream.set_nodelay(true);
        let (activity, limits) = (Activity::new(), self.limits);
        let router =
            self.router.clone().layer(Extension(Peer(peer))).layer(Extension(activity.clone()));
        let own = stream.local_addr().ok().filter(|_| self.users.are_owners());
        let stream = Paced::new(stream, limits.write_timeout, self.crowded.clone());
        let (tls, stopping) = (self.tls.clone(), self.stopping.subscribe());
        let owners = self.owners.clone();
        let task = self.connections.spawn(async move {
            let router = match own {
                None => router,
                Some(own) => with_owner(router, &owners, peer, own),
            };
            match tls {
                None => serve_connection(stream, router, limits, stopping).await,
                Some(tls) => serve_encrypted(&tls, stream, router, limits, stopping).await,
            }
        });
        self.served.push(Served { source: source(peer.ip()), activity, task });
    }

    /// A connection has ended.
    fn forget(&mut self, id: tokio::task::Id) {
        self.served.retain(|served| served.task.id() != id);
    }

    async fn drain(mut self) {
        drop(self.waiting);
        self.stopping.send_replace(true);
        let drained = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(self.limits.drain_timeout, drained).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "API requests were cut off");
            self.connections.shutdown().await;
        }
    }
}

/// Finds out whose connection that from `peer` to `own` is, for `router` to know.
fn with_owner(router: Router, owners: &Owners, peer: SocketAddr, own: SocketAddr) -> Router {
    match owners.owner_of(peer, own) {
        Ok(Some(uid)) => router.layer(Extension(Owner(uid))),
        Ok(None) => router,
        Err(error) => {
            tracing::debug!(%peer, %error, "it is not known whose API connection it is");
            router
        }
    }
}

/// The next connection. Says that none can be accepted, and that they can again, but not at each try. A process without
/// descriptors accepts one by closing `spare`, so that it can be asked what is wrong.
async fn accept(
    listener: &TcpListener,
    fails: &AtomicBool,
    spare: &mut Option<File>,
) -> (TcpStream, SocketAddr) {
    if spare.is_none() {
        *spare = File::open("/dev/null").ok();
    }
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                if fails.swap(false, Ordering::Relaxed) {
                    tracing::info!("the API accepts connections again");
                }
                return accepted;
            }
            Err(error) if is_out_of_descriptors(&error) && spare.take().is_some() => {}
            Err(error) => {
                if !fails.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        "the API cannot accept connections; if files are lacking, raise their limit (ulimit -n)"
                    );
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The way in which a connection to an encrypted API begins.
enum Opening {
    Encrypted(Box<TlsStream<Paced<TcpStream>>>),
    Plain(Paced<TcpStream>),
}

/// Serves a connection that begins with a TLS handshake, for which it has the time of a request's head.
async fn serve_encrypted(
    tls: &ApiTls,
    stream: Paced<TcpStream>,
    router: Router,
    limits: Limits,
    stopping: watch::Receiver<bool>,
) {
    match tokio::time::timeout(limits.head_timeout, opening(tls, stream)).await {
        Ok(Ok(Opening::Encrypted(stream))) => {
            serve_connection(stream, router, limits, stopping).await;
        }
        Ok(Ok(Opening::Plain(stream))) => {
            tracing::debug!("an API connection without TLS");
            serve_connection(stream, plain::router(limits), limits, stopping).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "an API connection without a TLS handshake"),
        Err(_) => tracing::debug!("an API connection took too long for its TLS handshake"),
    }
}

async fn opening(tls: &ApiTls, stream: Paced<TcpStream>) -> io::Result<Opening> {
    let mut first = [0];
    let len = stream.get_ref().peek(&mut first).await?;
    if first[..len].iter().any(|byte| plain::is_http(*byte)) {
        return Ok(Opening::Plain(stream));
    }
    Ok(Opening::Encrypted(Box::new(tls.acceptor().accept(stream).await?)))
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    router: Router,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(limits.head_bytes_max)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return log_end(result),
        // An error means that the sender is gone, which also says: stop.
        _ = stopping.wait_for(|stopping| *stopping) => {}
        () = tokio::time::sleep(limits.connection_time) => {}
    }
    connection.as_mut().graceful_shutdown();
    match tokio::time::timeout(limits.connection_time, connection).await {
        Ok(result) => log_end(result),
        Err(_) => tracing::debug!("an API connection took too long to end"),
    }
}

fn log_end(result: Result<(), hyper::Error>) {
    if let Err(error) = result {
        tracing::debug!(%error, "an API connection ended early");
    }
}
