//! `/metrics` for Prometheus and `/healthz` for supervisors.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use datastore::prometheus_text;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};

use super::accepting::Accepting;
use super::listen::Server;
use super::observe;

/// Connections at a time: a few scrapers.
const CONNECTIONS_MAX: usize = 16;
/// A connection lasts so long, however slowly its reader takes an answer: it has one of few places.
const CONNECTION_TIME: Duration = Duration::from_secs(120);
/// A client has this long to send a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const HEAD_LEN_MAX: usize = 16 << 10;

/// Answers until the server stops.
pub(crate) async fn serve(
    mut accepting: Accepting,
    server: Arc<Server>,
    mut stopping: watch::Receiver<bool>,
) {
    let free = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = tokio::select! {
            _ = stopping.wait_for(|stopping| *stopping) => return,
            stream = accepting.next() => stream,
        };
        // One that is too many is closed at once.
        let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
        let (server, mut stopping) = (Arc::clone(&server), stopping.clone());
        tokio::spawn(async move {
            let serving = async {
                match &server.tls {
                    None => serve_reader(&server, stream).await,
                    // One that fails is closed.
                    Some(tls) => match tls.accept_metrics(stream).await {
                        Ok(stream) => serve_reader(&server, stream).await,
                        Err(error) => tracing::debug!("metrics: {error}"),
                    },
                }
            };
            tokio::select! {
                () = serving => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
                () = tokio::time::sleep(CONNECTION_TIME) => {}
            }
            drop(permit);
        });
    }
}

async fn serve_reader(server: &Server, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(|request| answer(server, request));
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(HEAD_LEN_MAX);
    // An error of the reader's is the reader's matter.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

#[expect(clippy::unused_async, reason = "hyper wants a future")]
async fn answer(
    server: &Server,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, prometheus_text(&observe::metrics(server))),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "there are /metrics and /healthz\n".to_owned()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}
