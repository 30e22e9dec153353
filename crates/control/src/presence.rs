//! Asks a host that the directory has lost whether it is there and serves a device.
//!
//! - PRESENCE-1: only an answer counts as one: the id of the host that answers tells whether it is the one that
//!   was there.
//! - PRESENCE-2: a peer that accepts a connection and sends nothing may be a host that hangs or has too many
//!   connections. A peer that sends another answer is another program, which has the address now.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode};
use directory::{HttpAnswer, HttpRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use uuid::Uuid;

use crate::{OtherHost, Serving, tls};

/// Longest answer that is taken: an id and a word, with room for more words.
const ANSWER_BYTES_MAX: usize = 4096;

/// The result of a probe at an address of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Presence {
    /// No process accepts connections there.
    Absent,
    /// Connections are taken, and nothing is said.
    Silent,
    /// Something else.
    Another,
    /// The host, which does not serve the device.
    Idle,
    /// The host, which serves the device.
    Serving,
}

/// Asks `host` whether it serves `device`. It has `patience` for the answer.
pub async fn ask_serving(host: &OtherHost, device: Uuid, patience: Duration) -> Presence {
    let request = HttpRequest {
        authority: host.api.to_string(),
        method: Method::GET,
        path: format!("/v1/serving/{device}"),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    // The whole of it is bounded below, where it is known what was heard until then.
    let bound = patience * 2;
    let (connected, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let asked = async {
        match &host.api_certificate {
            None => {
                let note = async |stream| {
                    connected.store(true, Ordering::Relaxed);
                    Ok(Noting { stream, heard: heard.clone() })
                };
                request.send_by(bound, ANSWER_BYTES_MAX, note).await
            }
            Some(certificate) => {
                let encrypt = async |stream| {
                    connected.store(true, Ordering::Relaxed);
                    let stream = tls::connect_to(certificate, stream).await;
                    // It spoke no TLS, or showed another certificate. After that it is the host, whatever it says.
                    let is_other = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
                    heard.store(stream.as_ref().is_err_and(is_other), Ordering::Relaxed);
                    stream
                };
                request.send_by(bound, ANSWER_BYTES_MAX, encrypt).await
            }
        }
    };
    // One that began to answer and did not end in time is as good as silent (PRESENCE-2).
    let asked = tokio::time::timeout(patience, asked).await;
    match asked {
        Ok(Ok(answer)) => said(&answer, host.id),
        Ok(Err(_)) if heard.load(Ordering::Relaxed) => Presence::Another,
        _ if connected.load(Ordering::Relaxed) => Presence::Silent,
        _ => Presence::Absent,
    }
}

/// Judges an answer at the address of the host `id` (PRESENCE-1).
fn said(answer: &HttpAnswer, id: Uuid) -> Presence {
    let serving = Some(&answer.body).filter(|_| answer.status == StatusCode::OK);
    let serving = serving.and_then(|body| serde_json::from_slice::<Serving>(body).ok());
    match serving.filter(|serving| serving.host == id) {
        None => Presence::Another,
        Some(Serving { serves: true, .. }) => Presence::Serving,
        Some(Serving { serves: false, .. }) => Presence::Idle,
    }
}

/// A connection that notes whether anything came by it.
struct Noting<S> {
    stream: S,
    heard: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noting<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
