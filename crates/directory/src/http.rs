//! One HTTP/1.1 request to another server.
//!
//! A connection each: what is asked of etcd and of other hosts is rare, and a connection that is not
//! kept cannot be found dead when it is needed.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Silence after which a peer is asked whether it is there, and between the times it is asked.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Unanswered questions after which it is not.
const KEEPALIVE_PROBES: u32 = 3;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No server accepted the request.
    #[error("{authority} cannot be reached: {reason}")]
    Unreachable {
        /// The address of the server.
        authority: String,
        /// The system's error.
        reason: String,
    },
    /// The request may have been taken and may have had its effect.
    #[error("{authority} did not answer: {reason}")]
    NoAnswer {
        /// The address of the server.
        authority: String,
        /// The cause, as far as it is known.
        reason: String,
    },
}

impl HttpError {
    fn no_answer(authority: &str, reason: &impl ToString) -> Self {
        Self::NoAnswer { authority: authority.to_owned(), reason: reason.to_string() }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// `host:port` to connect to.
    pub authority: String,
    /// The method of the request.
    pub method: Method,
    /// The path, and the query if there is one.
    pub path: String,
    /// Headers besides those that every request has.
    pub headers: HeaderMap,
    /// The body; its length is sent along.
    pub body: Bytes,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status of the answer.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// An answer whose body is still coming.
pub(crate) struct HttpStream {
    pub(crate) status: StatusCode,
    authority: String,
    body: Incoming,
    _connection: Connection,
}

/// Ends the task that moves a connection's bytes when its user drops it.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HttpRequest {
    /// Sends it and waits for the whole answer, of up to `bytes_max`, for at most `timeout`.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn send(self, timeout: Duration, bytes_max: usize) -> Result<HttpAnswer, HttpError> {
        self.send_by(timeout, bytes_max, async |stream| Ok(stream)).await
    }

    /// The same, with the connection made into another by `wrap`, such as an encrypted one.
    ///
    /// # Errors
    /// See [`HttpError`].
    pub async fn send_by<S>(
        self,
        timeout: Duration,
        bytes_max: usize,
        wrap: impl AsyncFnOnce(TcpStream) -> std::io::Result<S>,
    ) -> Result<HttpAnswer, HttpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let authority = self.authority.clone();
        let whole = async {
            let stream = wrapped(&authority, wrap).await?;
            let (response, _connection) = self.begin(stream).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, bytes_max).collect().await;
            let body = body.map_err(|error| HttpError::no_answer(&authority, &error))?.to_bytes();
            Ok(HttpAnswer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(timeout, whole).await.unwrap_or_else(|_| {
            Err(HttpError::no_answer(
                &authority,
                &format!("nothing within {} s", timeout.as_secs_f32()),
            ))
        })
    }

    /// Sends it, and leaves the answer's body to be read as it comes.
    pub(crate) async fn stream_by<S>(
        self,
        timeout: Duration,
        wrap: impl AsyncFnOnce(TcpStream) -> std::io::Result<S>,
    ) -> Result<HttpStream, HttpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let authority = self.authority.clone();
        let begun = async { self.begin(wrapped(&authority, wrap).await?).await };
        let begun = tokio::time::timeout(timeout, begun).await.unwrap_or_else(|_| {
            Err(HttpError::no_answer(
                &authority,
                &format!("nothing within {} s", timeout.as_secs_f32()),
            ))
        });
        let (response, connection) = begun?;
        let status = response.status();
        Ok(HttpStream { status, authority, body: response.into_body(), _connection: connection })
    }

    async fn begin(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(Response<Incoming>, Connection), HttpError> {
        let Self { authority, method, path, headers, body } = self;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) =
            handshake.map_err(|error| HttpError::no_answer(&authority, &error))?;
        let connection = Connection(tokio::spawn(async move {
            // Why it ended is what the request says.
            let _ = connection.await;
        }));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        *request.uri_mut() =
            path.parse().map_err(|error| HttpError::no_answer(&authority, &error))?;
        let host = authority.parse().map_err(|error| HttpError::no_answer(&authority, &error))?;
        request.headers_mut().insert(hyper::header::HOST, host);
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| HttpError::no_answer(&authority, &error))?;
        Ok((response, connection))
    }
}

/// A connection made into another.
async fn wrapped<S>(
    authority: &str,
    wrap: impl AsyncFnOnce(TcpStream) -> std::io::Result<S>,
) -> Result<S, HttpError> {
    let stream = wrap(connect(authority).await?).await;
    stream.map_err(|error| HttpError::Unreachable {
        authority: authority.to_owned(),
        reason: tls_files::connection_trouble(&error),
    })
}

async fn connect(authority: &str) -> Result<TcpStream, HttpError> {
    let unreachable =
        |reason: String| HttpError::Unreachable { authority: authority.to_owned(), reason };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(authority)).await;
    let stream = stream
        .map_err(|_| unreachable(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())))?
        .map_err(|error| unreachable(error.to_string()))?;
    let kept = (|| {
        stream.set_nodelay(true)?;
        // An answer that comes in parts may rest for hours: a peer that is gone must show.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        std::io::Result::Ok(())
    })();
    kept.map_err(|error| unreachable(error.to_string()))?;
    Ok(stream)
}

impl HttpStream {
    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| HttpError::no_answer(&self.authority, &error))?;
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }
}
