//! The HTTP server: connections, their bounds, and an orderly end.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::gate::{Guard, Peer};
use crate::limits::Limits;
use crate::paced::Paced;
use crate::tls::ApiTls;
use crate::{VolumeService, routes};

/// Pause after an `accept` that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers those whom `guard` lets pass on `listener` until `stop` completes; then finishes the requests in flight,
/// waiting for them no longer than the limits say.
pub async fn serve(
    listener: TcpListener,
    service: Arc<dyn VolumeService>,
    guard: Guard,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let tls = guard.tls.clone();
    let router = routes::router(service, guard, limits);
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let crowded = Arc::new(AtomicBool::new(false));
    let (stopping, watcher) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let next = async {
            crowded.store(places.available_permits() == 0, Ordering::Relaxed);
            let place =
                places.clone().acquire_owned().await.expect("the semaphore is never closed");
            crowded.store(false, Ordering::Relaxed);
            (place, accept(&listener).await)
        };
        tokio::select! {
            () = &mut stop => break,
            (place, (stream, peer)) = next => {
                // Answers are small and whole; waiting for more to send gains nothing.
                let _ = stream.set_nodelay(true);
                let router = router.clone().layer(Extension(Peer(peer)));
                let stream = Paced::new(stream, limits.write_timeout, crowded.clone());
                let (tls, watcher) = (tls.clone(), watcher.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve_connection(stream, router, limits, watcher).await,
                        Some(tls) => serve_encrypted(&tls, stream, router, limits, watcher).await,
                    }
                    drop(place);
                });
            }
            // Forgets connections that have ended.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain_timeout, drained).await.is_err() {
        tracing::warn!(connections = connections.len(), "API requests were cut off");
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "the API cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves a connection that begins with a TLS handshake, for which it has the time of a request's head.
async fn serve_encrypted(
    tls: &ApiTls,
    stream: Paced<TcpStream>,
    router: Router,
    limits: Limits,
    stopping: watch::Receiver<bool>,
) {
    match tokio::time::timeout(limits.head_timeout, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, router, limits, stopping).await,
        Ok(Err(error)) => tracing::debug!(%error, "an API connection without a TLS handshake"),
        Err(_) => tracing::debug!("an API connection took too long for its TLS handshake"),
    }
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
