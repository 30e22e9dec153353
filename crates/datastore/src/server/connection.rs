//! A client's connection: requests are served in the order in which they came, one group of a class at a time.
//!
//! A connection has [`BUFFER_LEN`] bytes anyway. What it holds beyond, for a long request or for replies, is
//! taken from the memory that all connections share.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use datastore::{Class, Reserved, classify};
use resp::{Reply, Request, RequestDecoder};
use strangers::protocol_of;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::listen::Server;
use super::pool::Group;
use super::session::{Identity, limits};

/// Bytes received at a time; also what a connection may hold that does not count.
const BUFFER_LEN: usize = 16 << 10;
/// Requests of a pipeline that are decoded before they are served.
const PIPELINE_MAX: usize = 1024;
/// Replies beyond this length are sent before more requests are served.
const OUT_LEN: usize = 64 << 10;
/// A client has this long to go on with a request that it began, and to take [`PACE_LEN`] bytes of replies.
const PATIENCE: Duration = Duration::from_secs(60);
/// Such a part of the replies shows that a client goes on: one that takes fewer bytes in its time holds memory for nothing.
const PACE_LEN: usize = 64 << 10;
/// The end of a connection waits this long at most for a client that takes nothing.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// A connection's end that is no error of the server.
pub(crate) enum End {
    /// The client left or asked for it, or the server stops.
    Closed,
    /// The client was refused, for this reason.
    Refused(String),
    /// The socket failed.
    Io(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A connection over a socket, or over TLS.
pub(crate) struct Connection<S> {
    server: Arc<Server>,
    stream: S,
    peer: SocketAddr,
    pub(super) identity: Identity,
    decoder: RequestDecoder,
    waiting: VecDeque<Request>,
    waiting_len: usize,
    out: Vec<u8>,
    /// Taken out while a thread serves a group.
    share: Option<Reserved>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(server: Arc<Server>, stream: S, (id, peer): (u64, SocketAddr)) -> Self {
        let identity = Identity::new(id, server.password.is_none());
        let decoder = RequestDecoder::new(limits(&server.serve, identity.authenticated));
        let share = Some(server.budget.share());
        Self {
            server,
            stream,
            peer,
            identity,
            decoder,
            waiting: VecDeque::new(),
            waiting_len: 0,
            out: Vec::new(),
            share,
        }
    }

    /// Serves the client until it leaves or the server stops.
    pub(crate) async fn run(mut self, mut stopping: watch::Receiver<bool>) -> End {
        let end = self.serve(&mut stopping).await;
        if let End::Refused(reason) = &end {
            self.note_refused(reason);
        }
        // TLS tells a client that the end is meant, and no attack.
        let _ = timeout(CLOSE_TIME, self.stream.shutdown()).await;
        end
    }

    async fn serve(&mut self, stopping: &mut watch::Receiver<bool>) -> End {
        let mut buffer = vec![0; BUFFER_LEN];
        let mut is_first = self.server.tls.is_none();
        loop {
            let received = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return End::Closed,
                received = receive(&mut self.stream, &mut buffer, self.decoder.held_len() > BUFFER_LEN) => received,
            };
            match received {
                Ok(0) => return End::Closed,
                Ok(len) if std::mem::take(&mut is_first) && is_tls(&buffer[..len]) => {
                    return End::Refused("it speaks TLS, and this server has no --tls".to_owned());
                }
                Ok(len) => {
                    self.server.stats.bytes_in.add(len as u64);
                    if let Err(end) = self.on_bytes(&buffer[..len]).await {
                        return end;
                    }
                }
                Err(error) => return End::Io(error),
            }
        }
    }

    async fn on_bytes(&mut self, mut input: &[u8]) -> Result<(), End> {
        loop {
            match self.decoder.decode(&mut input) {
                Ok(Some(request)) => {
                    self.waiting_len += request.byte_len();
                    self.waiting.push_back(request);
                    // A command that changes what the connection may send has to take effect first.
                    let is_full =
                        self.waiting.len() >= PIPELINE_MAX || !self.identity.authenticated;
                    if is_full {
                        self.serve_waiting().await?;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    self.serve_waiting().await?;
                    return self.refuse(&format!("ERR {error}")).await;
                }
            }
        }
        self.serve_waiting().await?;
        if !self.reserve() {
            return self.refuse("NOMEMORY the server has no memory for a request of this length now (--request-memory)").await;
        }
        Ok(())
    }

    /// Has the share match what is held; false: there is no memory left.
    fn reserve(&mut self) -> bool {
        let held = self.held_len() + self.out.len();
        self.share.as_mut().is_none_or(|share| share.resize(held.saturating_sub(BUFFER_LEN)))
    }

    fn held_len(&self) -> usize {
        self.decoder.held_len() + self.waiting_len
    }

    /// Sends an error and ends the connection.
    async fn refuse(&mut self, error: &str) -> Result<(), End> {
        self.server.stats.errors.add(1);
        Reply::new(&mut self.out, self.identity.protocol).error(error);
        self.send().await?;
        Err(End::Refused(error.to_owned()))
    }

    fn note_refused(&self, reason: &str) {
        self.server.refusals.note(self.peer, reason);
    }

    /// Serves all requests that wait, and sends the replies.
    async fn serve_waiting(&mut self) -> Result<(), End> {
        while let Some(request) = self.waiting.front() {
            match classify(request) {
                _ if !self.identity.authenticated => self.serve_session()?,
                Ok(Class::Session) => self.serve_session()?,
                Ok(class) => self.serve_group(class).await?,
                Err(error) => {
                    self.server.stats.errors.add(1);
                    Reply::new(&mut self.out, self.identity.protocol).error(&error.to_string());
                    self.waiting.pop_front();
                }
            }
            if self.out.len() >= OUT_LEN || self.identity.quits {
                self.send().await?;
            }
            if self.identity.quits {
                return Err(End::Closed);
            }
            if let Some(delay) = self.identity.penalty.take() {
                self.note_refused("its password is wrong");
                tokio::time::sleep(delay).await;
            }
        }
        self.waiting_len = 0;
        self.send().await
    }

    fn serve_session(&mut self) -> Result<(), End> {
        let Some(request) = self.waiting.pop_front() else { return Ok(()) };
        let was_authenticated = self.identity.authenticated;
        self.server.stats.session.requests.add(1);
        self.identity.serve(&self.server, &request, &mut self.out);
        if self.identity.authenticated && !was_authenticated {
            self.decoder.set_limits(limits(&self.server.serve, true));
        }
        Ok(())
    }

    /// Has a thread serve the requests of one class at the head of the queue.
    async fn serve_group(&mut self, class: Class) -> Result<(), End> {
        let is_same = |request: &Request| classify(request) == Ok(class);
        let len = self.waiting.iter().take_while(|request| is_same(request)).count();
        let mut requests: VecDeque<Request> = self.waiting.drain(..len).collect();
        while !requests.is_empty() {
            let share = self.share.take().unwrap_or_else(|| self.server.budget.share());
            let (protocol, out) = (self.identity.protocol, std::mem::take(&mut self.out));
            let group = Group { requests, protocol, out, share, held: self.held_len() };
            let pool =
                if class == Class::Read { &self.server.readers } else { &self.server.writers };
            // The pool ends when the server does.
            let group = pool.serve(group).await.ok_or(End::Closed)?;
            self.out = group.out;
            self.share = Some(group.share);
            requests = group.requests;
            if !requests.is_empty() {
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        send_all(&mut self.stream, &self.out, PATIENCE).await?;
        self.server.stats.bytes_out.add(self.out.len() as u64);
        self.out.clear();
        // Long replies are rare; their memory is not kept.
        self.out.shrink_to(BUFFER_LEN);
        self.reserve();
        Ok(())
    }
}

/// Returns whether a client begins TLS. No request begins so.
fn is_tls(bytes: &[u8]) -> bool {
    protocol_of(bytes) == Some("TLS")
}

/// A step that takes longer than `patience` fails with `TimedOut`.
async fn in_time<T>(
    patience: Duration,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    timeout(patience, step).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Sends bytes, however long that takes, to a client that takes [`PACE_LEN`] of them within `patience`.
async fn send_all(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    patience: Duration,
) -> io::Result<()> {
    for part in bytes.chunks(PACE_LEN) {
        in_time(patience, stream.write_all(part)).await?;
    }
    in_time(patience, stream.flush()).await
}

/// Receives bytes. A client that began a long request must go on with it.
async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut [u8],
    hurry: bool,
) -> io::Result<usize> {
    if !hurry {
        return stream.read(buffer).await;
    }
    in_time(PATIENCE, stream.read(buffer)).await
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(3);

    /// Method: a client takes a part of a reply each second, for longer than the server would wait for one; beside it another one
    /// takes nothing.
    #[tokio::test]
    async fn a_slow_reader_is_waited_for_and_a_deaf_one_is_not() {
        let reply = vec![7; 5 * PACE_LEN];
        let ((mut to_slow, mut slow), (mut to_deaf, _deaf)) = (duplex(1024), duplex(1024));
        let reading = async {
            let mut part = vec![0; PACE_LEN];
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                slow.read_exact(&mut part).await.expect("it goes on");
                assert!(part.iter().all(|byte| *byte == 7));
            }
        };
        let (sent, (), refused) = tokio::join!(
            send_all(&mut to_slow, &reply, PATIENCE),
            reading,
            send_all(&mut to_deaf, &reply, PATIENCE)
        );
        sent.expect("each part is taken in time");
        assert_eq!(refused.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }
}
