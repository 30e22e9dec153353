//! A connection to the server, for a thread that must not block.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use random::mix;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tls_files::TlsError;

use resp::{Answer, AnswerDecoder, AnswerError, AnswerKind, encode_request};

use crate::keys::write_key;
use crate::tls::handshake;
use crate::workload::{Kind, VALUE_LEN_MAX, Workload, WriteCommand};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Values begin at different places of the same random bytes.
const OFFSETS: u64 = 4096;
pub(crate) const RECEIVE_LEN: usize = 64 << 10;

/// A run that could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No connection.
    #[error("{address} cannot be connected to: {error}")]
    Connect {
        /// The server.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// A connection broke.
    #[error("the connection to {address} broke: {error}")]
    Broken {
        /// The server.
        address: SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// The server takes a connection and does not answer.
    #[error("{address} accepts connections, and does not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent {
        /// The server.
        address: SocketAddr,
    },
    /// The server closed a connection.
    #[error("{address} closed a connection; too many, or it stopped")]
    Closed {
        /// The server.
        address: SocketAddr,
    },
    /// The server sent bytes that are no reply, or a reply too many.
    #[error("{address} does not speak RESP: {error}")]
    Protocol {
        /// The server.
        address: SocketAddr,
        /// The mistake.
        error: String,
    },
    /// The server refused the password, or wants one.
    #[error("{address} refuses: {reply}")]
    Refused {
        /// The server.
        address: SocketAddr,
        /// Its reply.
        reply: String,
    },
    /// TLS cannot be had on this side.
    #[error("TLS cannot be used: {0}")]
    NoTls(TlsError),
    /// A name that no certificate has.
    #[error("`{name}` is no name that a certificate can have")]
    BadName {
        /// The name.
        name: String,
    },
    /// The handshake failed.
    #[error("no TLS with {address}: {trouble}")]
    Handshake {
        /// The server.
        address: SocketAddr,
        /// The cause.
        trouble: String,
    },
    /// A thread cannot be started, or the clock of readiness fails.
    #[error("the operating system refuses: {0}")]
    System(std::io::Error),
}

/// Returns true if a socket that blocks has waited as long as it may.
fn is_silence(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Turns requests into bytes.
#[derive(Debug)]
pub(crate) struct Encoder {
    workload: Workload,
    key: Vec<u8>,
    /// Random bytes, which compression does not shrink.
    values: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(workload: &Workload) -> Self {
        let longest = workload.value_sizes.max().unwrap_or(VALUE_LEN_MAX);
        let len = u64::from(longest) + OFFSETS;
        let values =
            (0..len.div_ceil(8)).flat_map(|n| mix(workload.seed ^ n).to_le_bytes()).collect();
        Self { workload: workload.clone(), key: Vec::new(), values }
    }

    pub(crate) fn encode(&mut self, key: u64, kind: Kind, out: &mut Vec<u8>) {
        write_key(key, &self.workload.key_sizes, &mut self.key);
        match kind {
            Kind::Read => encode_request(out, &[b"GET", &self.key]),
            Kind::Write { len } => {
                let command: &[u8] = match self.workload.write {
                    WriteCommand::Set => b"SET",
                    WriteCommand::Append => b"APPEND",
                };
                let start = (mix(key) % OFFSETS) as usize;
                encode_request(
                    out,
                    &[command, &self.key, &self.values[start..start + len as usize]],
                );
            }
        }
    }
}

/// A connection and the bytes that wait to be sent.
#[derive(Debug)]
pub(crate) struct Connection {
    address: SocketAddr,
    pub(crate) stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    decoder: AnswerDecoder,
    pub(crate) out: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// Connects, shows the password if there is one, and leaves the socket without blocking.
    pub(crate) fn open(
        address: SocketAddr,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
        password: Option<&str>,
    ) -> Result<Self, RunError> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
            Ok(stream)
        };
        let mut stream = connect().map_err(|error| RunError::Connect { address, error })?;
        let failed = |error: std::io::Error| {
            if is_silence(&error) {
                return RunError::Silent { address };
            }
            let trouble = tls_files::connection_trouble(&error);
            RunError::Handshake { address, trouble }
        };
        let tls = tls.map(|tls| handshake(tls, &mut stream)).transpose().map_err(failed)?;
        let (decoder, out) = (AnswerDecoder::default(), Vec::new());
        let mut connection = Self { address, stream, tls, decoder, out, sent: 0 };
        match password {
            Some(password) => connection.ask(&[b"AUTH", password.as_bytes()])?,
            None => connection.ask(&[b"PING"])?,
        };
        connection.stream.set_nonblocking(true).map_err(RunError::System)?;
        Ok(connection)
    }

    /// Sends a request and waits for its reply, on a socket that blocks.
    fn ask(&mut self, arguments: &[&[u8]]) -> Result<Answer, RunError> {
        let address = self.address;
        let broken = |error: std::io::Error| match is_silence(&error) {
            true => RunError::Silent { address },
            false => RunError::Broken { address, error },
        };
        encode_request(&mut self.out, arguments);
        self.send()?;
        let mut buffer = [0; 512];
        loop {
            let len = self.read(&mut buffer).map_err(broken)?;
            if len == 0 {
                return Err(RunError::Closed { address });
            }
            let mut input = &buffer[..len];
            if let Some(answer) = self.decode(&mut input)? {
                return if answer.kind == AnswerKind::Error {
                    let reply = String::from_utf8_lossy(&answer.text).into_owned();
                    Err(RunError::Refused { address, reply })
                } else {
                    Ok(answer)
                };
            }
        }
    }

    /// Asks for `INFO`, whose text is returned, and waits for it.
    pub(crate) fn info(&mut self) -> Result<String, RunError> {
        self.stream.set_nonblocking(false).map_err(RunError::System)?;
        let address = self.address;
        encode_request(&mut self.out, &[b"INFO"]);
        self.send()?;
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let len = self.read(&mut buffer).map_err(|error| match is_silence(&error) {
                true => RunError::Silent { address },
                false => RunError::Broken { address, error },
            })?;
            if len == 0 {
                return Err(RunError::Closed { address });
            }
            received.extend_from_slice(&buffer[..len]);
            let mut input = &buffer[..len];
            let Some(answer) = self.decode(&mut input)? else { continue };
            if answer.kind == AnswerKind::Error {
                let reply = String::from_utf8_lossy(&answer.text).into_owned();
                return Err(RunError::Refused { address, reply });
            }
            // A line with the kind and the length comes before the text.
            let text = String::from_utf8_lossy(&received).into_owned();
            return Ok(text.split_once("\r\n").map_or(String::new(), |(_, text)| text.to_owned()));
        }
    }

    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Answer>, RunError> {
        let decoded = self.decoder.decode(input);
        decoded.map_err(|error: AnswerError| self.protocol_error(error.to_string()))
    }

    pub(crate) fn protocol_error(&self, error: String) -> RunError {
        RunError::Protocol { address: self.address, error }
    }

    /// True if bytes wait that the socket did not take.
    pub(crate) fn wants_to_send(&self) -> bool {
        let tls_wants = self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        self.sent < self.out.len() || tls_wants
    }

    /// Reads what the socket has, decrypted.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(std::io::Error::other)?;
        }
    }

    /// Hands what is to be sent to TLS, and the socket what that made of it.
    fn write(&mut self) -> std::io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.write(&self.out[self.sent..]) };
        tls.writer().write_all(&self.out[self.sent..])?;
        self.sent = self.out.len();
        tls.write_tls(&mut self.stream).map(|_| 0)
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send(&mut self) -> Result<(), RunError> {
        while self.wants_to_send() {
            match self.write() {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(RunError::Broken { address: self.address, error }),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives what is there, and hands each reply to `on_reply`, which says if a request waits for it, with the
    /// time at which it was read.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        clock: impl Fn() -> Duration,
        mut on_reply: impl FnMut(&Answer, Duration) -> bool,
    ) -> Result<(), RunError> {
        loop {
            let len = match self.read(buffer) {
                Ok(0) => return Err(RunError::Closed { address: self.address }),
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(RunError::Broken { address: self.address, error }),
            };
            // All that was read came at one time.
            let now = clock();
            let mut input = &buffer[..len];
            while let Some(answer) = self.decode(&mut input)? {
                if !on_reply(&answer, now) {
                    let text = String::from_utf8_lossy(&answer.text);
                    return Err(
                        self.protocol_error(format!("a reply that no request asked for: {text}"))
                    );
                }
            }
            // TLS may hold more than it gave.
            if len < buffer.len() && self.tls.is_none() {
                return Ok(());
            }
        }
    }
}
