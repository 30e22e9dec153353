//! TCP over the ring.
//!
//! - N1: a receive that is in flight belongs to the stream, not to the future that waits for it. A
//!   dropped future loses no bytes: the next one picks the receive up. The same holds for sends,
//!   which therefore never interleave, and for accepted connections.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use io_traits::{Clock, Listener, NetworkError, SendBatch, Stream, StreamError};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, bind, getpeername,
    getsockname, listen, shutdown, socket_with, sockopt,
};
use uring::{Accept, Chunk, Errno, Fd, Recv, Ring};

use crate::handle::Handle;

/// Connections that wait to be accepted; the kernel refuses more.
const BACKLOG: i32 = 1024;
/// How long a listener waits when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Socket {
    ring: Ring,
    fd: Fd,
    peer: SocketAddr,
    local: SocketAddr,
    /// N1.
    receiving: RefCell<Option<Recv>>,
    sending: RefCell<Option<uring::Send>>,
    /// More bytes were waiting when the last receive was done.
    more: Cell<bool>,
    shut: Cell<bool>,
}

/// A connected TCP stream. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub struct TcpStream {
    socket: Rc<Socket>,
}

impl TcpStream {
    fn new(ring: &Ring, fd: Fd) -> Result<Self, Errno> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        let local = socket_addr(&getsockname(&fd)?);
        // A connection that was reset before it was looked at has no peer any more.
        let peer = getpeername(&fd)?.ok_or(Errno::NOTCONN)?;
        let socket = Socket {
            ring: ring.clone(),
            peer: socket_addr(&peer),
            local,
            fd,
            receiving: RefCell::default(),
            sending: RefCell::default(),
            more: Cell::new(false),
            shut: Cell::new(false),
        };
        Ok(Self { socket: Rc::new(socket) })
    }

    pub(crate) fn connect(
        handle: &Handle,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Self, NetworkError>> + use<> {
        let ring = handle.core.ring.clone();
        async move {
            let connected = async {
                let fd = new_socket(address)?;
                ring.connect(&fd, address).await?;
                Self::new(&ring, fd)
            };
            connected.await.map_err(|errno| network_error(address, errno))
        }
    }
}

impl Socket {
    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Chunk, StreamError>> {
        if self.shut.get() {
            return Poll::Ready(Err(StreamError::Reset));
        }
        let mut receiving = self.receiving.borrow_mut();
        let recv = receiving.get_or_insert_with(|| self.ring.recv(&self.fd, !self.more.get()));
        let received = ready!(Pin::new(recv).poll(context));
        *receiving = None;
        drop(receiving);
        Poll::Ready(match received {
            Ok((Some(chunk), more)) => {
                self.more.set(more);
                Ok(chunk)
            }
            Ok((None, _)) if self.shut.get() => Err(StreamError::Reset),
            Ok((None, _)) => Err(StreamError::Closed),
            Err(errno) => Err(stream_error(errno)),
        })
    }

    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<Result<SendBatch, Errno>> {
        let mut sending = self.sending.borrow_mut();
        let Some(send) = sending.as_mut() else { return Poll::Ready(Ok(SendBatch::new())) };
        let sent = ready!(Pin::new(send).poll(context));
        *sending = None;
        Poll::Ready(sent)
    }

    fn start_send(&self, batch: SendBatch) {
        *self.sending.borrow_mut() = Some(self.ring.send(&self.fd, batch));
    }

    fn shutdown(&self) {
        if !self.shut.replace(true) {
            // It fails only on a connection that has ended already.
            let _ = shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A send that is stuck would keep the connection open for as long as the peer pleases.
        if self.sending.borrow().is_some() {
            self.shutdown();
        }
    }
}

impl Stream for TcpStream {
    type Chunk = Chunk;

    fn recv(&self) -> impl Future<Output = Result<Chunk, StreamError>> + 'static {
        let socket = self.socket.clone();
        poll_fn(move |context| socket.poll_recv(context))
    }

    fn send(
        &self,
        batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static {
        let socket = self.socket.clone();
        async move {
            if batch.is_empty() {
                return Ok(batch);
            }
            // What a dropped future left behind goes first (N1).
            if socket.sending.borrow().is_some() {
                poll_fn(|context| socket.poll_sent(context)).await.map_err(stream_error)?;
            }
            if socket.shut.get() {
                return Err(StreamError::Reset);
            }
            socket.start_send(batch);
            poll_fn(|context| socket.poll_sent(context)).await.map_err(stream_error)
        }
    }

    fn shutdown(&self) {
        self.socket.shutdown();
    }

    fn peer(&self) -> SocketAddr {
        self.socket.peer
    }

    fn local(&self) -> SocketAddr {
        self.socket.local
    }
}

/// A listening TCP socket.
pub struct TcpListener {
    handle: Handle,
    fd: Fd,
    local: SocketAddr,
    /// N1.
    accepting: RefCell<Option<Accept>>,
}

impl TcpListener {
    pub(crate) fn bind(handle: &Handle, address: SocketAddr) -> Result<Self, NetworkError> {
        let bound = || {
            let fd = new_socket(address)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            bind(&fd, &address)?;
            listen(&fd, BACKLOG)?;
            let local = socket_addr(&getsockname(&fd)?);
            Ok((fd, local))
        };
        let (fd, local) = bound().map_err(|errno| network_error(address, errno))?;
        Ok(Self { handle: handle.clone(), fd, local, accepting: RefCell::default() })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<TcpStream, Errno>> {
        let ring = &self.handle.core.ring;
        let mut accepting = self.accepting.borrow_mut();
        let accept = accepting.get_or_insert_with(|| ring.accept(&self.fd));
        let accepted = ready!(Pin::new(accept).poll(context));
        *accepting = None;
        Poll::Ready(accepted.and_then(|socket| TcpStream::new(ring, Fd::new(socket))))
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    /// A connection that broke before it was accepted is passed over. When the process has no
    /// descriptors or memory left, connections wait until it has.
    async fn accept(&self) -> Result<TcpStream, NetworkError> {
        loop {
            match poll_fn(|context| self.poll_accept(context)).await {
                Ok(stream) => return Ok(stream),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    let pause = self.handle.now() + ACCEPT_PAUSE;
                    self.handle.sleep_until(pause).await;
                }
                Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::CANCELED)) => {
                    return Err(network_error(self.local, errno));
                }
                Err(_) => {}
            }
        }
    }

    fn local(&self) -> SocketAddr {
        self.local
    }
}

fn new_socket(address: SocketAddr) -> Result<Fd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Blocking in name only: the ring waits, never the thread. A nonblocking socket would make the
    // ring return EAGAIN instead of waiting.
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok(Fd::new(socket))
}

/// IPv4 is shown as IPv4 even if it came in through an IPv6 socket.
fn socket_addr(address: &SocketAddrAny) -> SocketAddr {
    let address = SocketAddr::try_from(address.clone()).expect("a TCP socket has an IP address");
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn stream_error(errno: Errno) -> StreamError {
    match errno {
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::NOTCONN => StreamError::Reset,
        errno => StreamError::Io { errno: errno.raw_os_error() },
    }
}

fn network_error(address: SocketAddr, errno: Errno) -> NetworkError {
    let number = errno.raw_os_error();
    match errno {
        Errno::ADDRINUSE => NetworkError::AddressInUse { address },
        Errno::ADDRNOTAVAIL => NetworkError::AddressNotAvailable { address },
        Errno::CONNREFUSED => NetworkError::Refused { address },
        Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::HOSTDOWN
        | Errno::NETDOWN => NetworkError::Unreachable { address, errno: number },
        _ => NetworkError::Io { address, errno: number },
    }
}
