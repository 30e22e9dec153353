//! TLS on a connection, once its client has asked for it.
//!
//! - NBD-TLS-1: the handshake is the receiving task's alone: what was to be sent before it was sent, and nothing is put into the
//!   outbox before it is over.
//! - NBD-TLS-2: what is sent later goes through [`TlsStream::send`], alerts and tickets included.
//! - NBD-TLS-3: the handshake is computed on another thread, in the order of [`Computing`]: it takes longer than requests may
//!   wait.

use std::cell::RefCell;
use std::future::Future;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use access::CertificateName;
use dataplane::Computing;
use io_traits::{BufferSlice, SendBatch, Stream, StreamError, World};
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::{ServerConfig, ServerConnection};

/// A client breaks TLS: to the driver the connection has broken.
const BROKEN: StreamError = StreamError::Reset;

/// A stream that is encrypted from [`TlsStream::start`] on.
#[derive(Clone)]
pub(crate) struct TlsStream<S> {
    stream: S,
    tls: Rc<RefCell<Option<ServerConnection>>>,
}

/// Received bytes.
pub(crate) enum Received<C> {
    /// As they came.
    Plain(C),
    /// Decrypted.
    Decrypted(Vec<u8>),
}

impl<C: Deref<Target = [u8]>> Deref for Received<C> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(chunk) => chunk,
            Self::Decrypted(bytes) => bytes,
        }
    }
}

impl<S: Stream> TlsStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, tls: Rc::default() }
    }

    /// Goes through the handshake, of which `begun` has come. Returns what was sent behind it (NBD-TLS-3).
    pub(crate) async fn start<W: World>(
        &self,
        (world, computing): (&W, &Computing),
        config: Arc<ServerConfig>,
        begun: &[u8],
    ) -> Result<Vec<u8>, StreamError> {
        let mut tls = ServerConnection::new(config).map_err(|_| BROKEN)?;
        // The outbox bounds what is sent at a time.
        tls.set_buffer_limit(None);
        let (mut plain, mut bytes) = (Vec::new(), begun.to_vec());
        loop {
            let place = computing.place(self.stream.peer().ip()).await;
            let turn = computing.turn(place).await;
            let step = world.offload(move || {
                let taken = take(&mut tls, &bytes, &mut plain);
                let answer = written(&mut tls);
                (tls, plain, taken, answer)
            });
            let (stepped, said, taken, answer) = step.await;
            drop(turn);
            (tls, plain) = (stepped, said);
            // An alert goes out even if the handshake has failed.
            let mut batch = SendBatch::default();
            batch.push_bytes(&answer);
            self.stream.send(batch).await?;
            taken?;
            if !tls.is_handshaking() {
                *self.tls.borrow_mut() = Some(tls);
                return Ok(plain);
            }
            bytes = self.stream.recv().await?.to_vec();
        }
    }

    /// Returns whether the client has shown a certificate, which was verified, that has this name.
    pub(crate) fn has_certificate(&self, name: &CertificateName) -> bool {
        let tls = self.tls.borrow();
        let shown = tls.as_ref().and_then(|tls| tls.peer_certificates()).and_then(<[_]>::first);
        let Some(shown) = shown else { return false };
        let (Ok(shown), Ok(name)) =
            (ParsedCertificate::try_from(shown), ServerName::try_from(name.as_str()))
        else {
            return false;
        };
        verify_server_name(&shown, &name).is_ok()
    }
}

/// Takes in encrypted bytes, and appends what they say to `plain`.
fn take(
    tls: &mut ServerConnection,
    mut bytes: &[u8],
    plain: &mut Vec<u8>,
) -> Result<(), StreamError> {
    while !bytes.is_empty() {
        tls.read_tls(&mut bytes).map_err(|_| BROKEN)?;
        let state = tls.process_new_packets().map_err(|_| BROKEN)?;
        let at = plain.len();
        plain.resize(at + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut plain[at..]).map_err(|_| BROKEN)?;
        if state.peer_has_closed() {
            break;
        }
    }
    Ok(())
}

/// Takes out the bytes that TLS has to send.
fn written(tls: &mut ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).expect("memory takes all");
    }
    bytes
}

impl<S: Stream> Stream for TlsStream<S> {
    type Chunk = Received<S::Chunk>;

    fn recv(&self) -> impl Future<Output = Result<Self::Chunk, StreamError>> + 'static {
        // Asked for at once, as its receiver expects.
        let (mut receiving, stream) = (Some(self.stream.recv()), self.clone());
        async move {
            loop {
                let chunk = match receiving.take() {
                    Some(receiving) => receiving.await?,
                    None => stream.stream.recv().await?,
                };
                let mut tls = stream.tls.borrow_mut();
                let Some(tls) = &mut *tls else { return Ok(Received::Plain(chunk)) };
                let mut plain = Vec::new();
                take(tls, &chunk, &mut plain)?;
                if !plain.is_empty() {
                    return Ok(Received::Decrypted(plain));
                }
            }
        }
    }

    fn send(
        &self,
        mut batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static {
        let stream = self.clone();
        async move {
            let encrypted = match &mut *stream.tls.borrow_mut() {
                None => None,
                Some(tls) => {
                    for slice in batch.slices() {
                        tls.writer().write_all(slice).map_err(|_| BROKEN)?;
                    }
                    Some(written(tls))
                }
            };
            let Some(encrypted) = encrypted else { return stream.stream.send(batch).await };
            batch.clear();
            let mut sent = SendBatch::default();
            sent.push_data(BufferSlice::lent(Rc::new(encrypted)));
            stream.stream.send(sent).await?;
            Ok(batch)
        }
    }

    fn shutdown_write(&self) {
        self.stream.shutdown_write();
    }

    fn shutdown(&self) {
        self.stream.shutdown();
    }

    fn end_by_peer(&self) -> Option<StreamError> {
        self.stream.end_by_peer()
    }

    fn taken_bytes(&self) -> Option<u64> {
        self.stream.taken_bytes()
    }

    fn peer(&self) -> SocketAddr {
        self.stream.peer()
    }

    fn local(&self) -> SocketAddr {
        self.stream.local()
    }

    fn interface(&self) -> Option<String> {
        self.stream.interface()
    }
}
