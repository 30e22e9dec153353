//! Bytes in flight.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::{Deref, Range};

use crate::{Buffer, SendBatch};

/// Why a stream ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StreamError {
    /// The peer closed its side in an orderly way.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer or the network tore the connection down, or this side shut it down.
    #[error("the connection was reset")]
    Reset,
    /// The operating system reports something else.
    #[error("socket error (errno {errno})")]
    Io {
        /// The operating system's error number.
        errno: i32,
    },
}

/// Why an address could not be connected to or listened on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NetworkError {
    /// Someone else listens there.
    #[error("{address} is in use by another program")]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The address belongs to no interface of this host.
    #[error("{address} is no address of this host")]
    AddressNotAvailable {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The connection was refused: no process listens there.
    #[error("no process listens on {address}")]
    Refused {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The peer does not answer, or cannot be reached.
    #[error("{address} cannot be reached (errno {errno})")]
    Unreachable {
        /// The address asked for.
        address: SocketAddr,
        /// The operating system's error number.
        errno: i32,
    },
    /// The operating system reports something else, such as missing permission.
    #[error("{address}: socket error (errno {errno})")]
    Io {
        /// The address asked for.
        address: SocketAddr,
        /// The operating system's error number.
        errno: i32,
    },
}

/// Bytes that a buffer received from a stream.
pub struct Landed<C> {
    /// The buffer that was lent.
    pub buffer: Buffer,
    /// Bytes at the start of its part that came.
    pub len_bytes: usize,
    /// The bytes from `behind_from` on came behind them. There are none unless the part is full.
    pub chunk: C,
    /// See `chunk`.
    pub behind_from: usize,
}

/// A connected byte stream. One task receives, one sends; cheap to clone so that they can be two.
pub trait Stream: Clone + 'static {
    /// Received bytes, in memory that goes back to where it came from when dropped.
    type Chunk: Deref<Target = [u8]> + 'static;

    /// Waits for bytes; a chunk is never empty. At most one receive is outstanding at a time.
    ///
    /// An idle stream holds no receive memory: chunks come from a pool that the core's streams share,
    /// so a chunk is to be used up and dropped before the next wait.
    fn recv(&self) -> impl Future<Output = Result<Self::Chunk, StreamError>> + 'static;

    /// The same, where it is known that the next bytes belong into `part` of `buffer`: they are received there without a
    /// copy where the stream can do that. It completes with the first bytes, at least one. What it has received is lost with
    /// the future: one that is dropped is the last of its stream, but for receives that drop all that comes.
    fn recv_into(
        &self,
        mut buffer: Buffer,
        part: Range<usize>,
    ) -> impl Future<Output = Result<Landed<Self::Chunk>, StreamError>> + 'static {
        let receiving = self.recv();
        async move {
            let chunk = receiving.await?;
            let len_bytes = chunk.len().min(part.len());
            let target = &mut buffer.as_mut_bytes()[part.start..part.start + len_bytes];
            target.copy_from_slice(&chunk[..len_bytes]);
            Ok(Landed { buffer, len_bytes, chunk, behind_from: len_bytes })
        }
    }

    /// Sends all of `batch`, and gives it back empty. At most one send is outstanding at a time. What has to wait
    /// for the peer is not pinned while it does (`BufferSlice::unpinned`).
    fn send(
        &self,
        batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static;

    /// Says that nothing more will be sent: the peer sees the end behind the last byte. Receiving
    /// goes on. Not to be called while a send is under way.
    fn shutdown_write(&self);

    /// Ends the stream both ways. What has come and was not received can make this a reset, which
    /// costs the peer what it has not read yet; see [`Stream::shutdown_write`] for an end without. A waiting receive or send returns an error.
    fn shutdown(&self);

    /// Returns the way the peer has ended the stream, if it has: it will send nothing more, though
    /// some of what it sent may wait to be received. `Closed` if it closed its side, `Reset` if it,
    /// or the network, tore the connection down.
    fn end_by_peer(&self) -> Option<StreamError>;

    /// Returns how many of the bytes that were sent the other end's system has taken so far, if that is known. Bytes of a send
    /// under way count as they are taken.
    fn taken_bytes(&self) -> Option<u64>;

    /// The address of the other end.
    fn peer(&self) -> SocketAddr;

    /// The address of this end.
    fn local(&self) -> SocketAddr;

    /// The name of the interface that received the connection, if the system tells.
    fn interface(&self) -> Option<String>;
}

/// A source of connections.
pub trait Listener: 'static {
    /// The streams it accepts.
    type Stream: Stream;

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = Result<Self::Stream, NetworkError>>;

    /// The address it listens on, with the port that was assigned if 0 was asked for.
    fn local(&self) -> SocketAddr;
}

/// A host's network.
pub trait Network {
    /// Connected streams.
    type Stream: Stream;
    /// Listening sockets.
    type Listener: Listener<Stream = Self::Stream>;

    /// Listens on `address`.
    fn listen(&self, address: SocketAddr) -> Result<Self::Listener, NetworkError>;

    /// Connects to `address`. The caller bounds the wait.
    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Self::Stream, NetworkError>> + 'static;
}
