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
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use io_traits::{Clock, Listener, NetworkError, SendBatch, Stream, StreamError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, bind, getpeername,
    getsockname, listen, netdevice::index_to_name_inlined, shutdown, socket_with, sockopt,
};
use uring::{Accept, Chunk, Errno, Fd, Recv};

use crate::handle::{CoreState, Handle};
use crate::hot::Asked;

/// Connections that wait to be accepted; the kernel refuses more.
const BACKLOG: i32 = 1024;
/// How long a listener waits when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Silence after which the kernel asks whether the peer is still there, the pause between
/// questions, and how many unanswered ones end the connection.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;

/// Where a stream's receive is (N1).
enum Receive {
    /// Nobody asks.
    None,
    /// Among the sockets that are asked directly, in vain so far this often.
    Hot {
        misses: u32,
        waker: Option<Waker>,
    },
    /// Done, to be fetched.
    Done(Result<Option<Chunk>, Errno>),
    Ring(Recv),
}

pub(crate) struct Socket {
    core: Rc<CoreState>,
    fd: Fd,
    peer: SocketAddr,
    local: SocketAddr,
    receive: RefCell<Receive>,
    sending: RefCell<Option<uring::Send>>,
    /// Receives that brought bytes, since asking it was last in vain for long.
    receives: Cell<u32>,
    /// More bytes were waiting when the last receive was done.
    more: Cell<bool>,
    /// The peer will say no more, and neither shall we.
    peer_finished: Cell<bool>,
    finished: Cell<bool>,
    shut: Cell<bool>,
}

/// A connected TCP stream. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub struct TcpStream {
    socket: Rc<Socket>,
}

impl TcpStream {
    /// The stream of `fd`, whose options are set already.
    fn new(core: &Rc<CoreState>, fd: Fd) -> Result<Self, Errno> {
        let local = socket_addr(&getsockname(&fd)?);
        // A connection that was reset before it was looked at has no peer any more.
        let peer = getpeername(&fd)?.ok_or(Errno::NOTCONN)?;
        let socket = Socket {
            core: core.clone(),
            peer: socket_addr(&peer),
            local,
            fd,
            receive: RefCell::new(Receive::None),
            sending: RefCell::default(),
            receives: Cell::new(0),
            more: Cell::new(false),
            peer_finished: Cell::new(false),
            finished: Cell::new(false),
            shut: Cell::new(false),
        };
        Ok(Self { socket: Rc::new(socket) })
    }

    pub(crate) fn connect(
        handle: &Handle,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Self, NetworkError>> + use<> {
        let core = handle.core.clone();
        async move {
            let connected = async {
                let fd = new_socket(address)?;
                set_options(&fd)?;
                core.ring.connect(&fd, address).await?;
                Self::new(&core, fd)
            };
            connected.await.map_err(|errno| network_error(address, errno))
        }
    }
}

#[cfg(test)]
impl TcpStream {
    /// Idle time, interval and number of the kernel's probes, if it makes any.
    pub(crate) fn keep_alive(&self) -> Option<(Duration, Duration, u32)> {
        let fd = &self.socket.fd;
        let idle = sockopt::tcp_keepidle(fd).ok()?;
        let interval = sockopt::tcp_keepintvl(fd).ok()?;
        let probes = sockopt::tcp_keepcnt(fd).ok()?;
        sockopt::socket_keepalive(fd).ok()?.then_some((idle, interval, probes))
    }

    pub(crate) fn receives(&self) -> u32 {
        self.socket.receives()
    }

    pub(crate) fn sends_at_once(&self) -> bool {
        sockopt::tcp_nodelay(&self.socket.fd).is_ok_and(|nodelay| nodelay)
    }
}

impl Socket {
    /// Asks for bytes, unless that was done already (N1). Called when the future is made, so that a
    /// receive leaves with the send that is made after it, in one system call.
    fn start_receive(self: &Rc<Self>) {
        let mut receive = self.receive.borrow_mut();
        if !self.shut.get() && matches!(*receive, Receive::None) {
            *receive = if self.core.hot.admit(self) {
                Receive::Hot { misses: 0, waker: None }
            } else {
                Receive::Ring(self.core.ring.recv(&self.fd, !self.more.get()))
            };
        }
    }

    /// Looks whether bytes have come for a hot receive.
    pub(crate) fn ask(&self) -> Asked {
        let mut receive = self.receive.borrow_mut();
        let Receive::Hot { waker, .. } = &mut *receive else { return Asked::Done };
        let received = match self.core.ring.try_recv(&self.fd) {
            Err(Errno::AGAIN | Errno::INTR) => return Asked::Nothing,
            received => received,
        };
        let waker = waker.take();
        *receive = Receive::Done(received);
        drop(receive);
        if let Some(waker) = waker {
            waker.wake();
        }
        Asked::Done
    }

    /// Counts a hot receive's misses; returns how many there were.
    pub(crate) fn count_misses(&self, more: u32) -> u32 {
        match &mut *self.receive.borrow_mut() {
            Receive::Hot { misses, .. } => {
                *misses += more;
                *misses
            }
            _ => 0,
        }
    }

    /// Receives that brought bytes, since [`Socket::forget_receives`].
    pub(crate) fn receives(&self) -> u32 {
        self.receives.get()
    }

    pub(crate) fn forget_receives(&self) {
        self.receives.set(0);
    }

    /// A hot receive goes on by the ring.
    pub(crate) fn receive_by_ring(&self) {
        let mut receive = self.receive.borrow_mut();
        let Receive::Hot { waker, .. } = &mut *receive else { return };
        let waker = waker.take();
        let mut recv = self.core.ring.recv(&self.fd, true);
        if let Some(waker) = waker {
            // Just handed over, so it cannot be done; this makes the waker known.
            let polled = Pin::new(&mut recv).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        *receive = Receive::Ring(recv);
    }

    fn poll_recv(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<Result<Chunk, StreamError>> {
        if self.shut.get() {
            return Poll::Ready(Err(StreamError::Reset));
        }
        self.start_receive();
        let mut receive = self.receive.borrow_mut();
        let received = match &mut *receive {
            Receive::Hot { waker, .. } => {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Receive::Ring(recv) => ready!(Pin::new(recv).poll(context)).map(|(chunk, more)| {
                self.more.set(more);
                chunk
            }),
            done => match std::mem::replace(done, Receive::None) {
                Receive::Done(received) => received,
                _ => unreachable!("a receive was started"),
            },
        };
        *receive = Receive::None;
        Poll::Ready(match received {
            Ok(Some(chunk)) => {
                self.receives.set(self.receives.get().saturating_add(1));
                Ok(chunk)
            }
            Ok(None) if self.shut.get() => Err(StreamError::Reset),
            Ok(None) => {
                self.peer_finished.set(true);
                Err(StreamError::Closed)
            }
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
        *self.sending.borrow_mut() = Some(self.core.ring.send(&self.fd, batch));
    }

    fn shutdown(&self) {
        let is_over =
            self.finished.get() && self.peer_finished.get() && self.sending.borrow().is_none();
        if !self.shut.replace(true) && !is_over {
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
        socket.start_receive();
        poll_fn(move |context| socket.poll_recv(context))
    }

    fn send(
        &self,
        mut batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static {
        let socket = self.socket.clone();
        async move {
            if batch.is_empty() {
                return Ok(batch);
            }
            // What a dropped future left behind goes first (N1).
            if socket.sending.borrow().is_some() {
                batch.unpin();
                poll_fn(|context| socket.poll_sent(context)).await.map_err(stream_error)?;
            }
            if socket.shut.get() {
                return Err(StreamError::Reset);
            }
            socket.start_send(batch);
            poll_fn(|context| socket.poll_sent(context)).await.map_err(stream_error)
        }
    }

    fn shutdown_write(&self) {
        if !self.socket.finished.replace(true) && !self.socket.shut.get() {
            // It fails only on a connection that has ended already.
            let _ = shutdown(&self.socket.fd, Shutdown::Write);
        }
    }

    fn shutdown(&self) {
        self.socket.shutdown();
    }

    fn end_by_peer(&self) -> Option<StreamError> {
        let is_known = self.socket.peer_finished.get().then_some(StreamError::Closed);
        is_known.or_else(|| end_of(&self.socket.fd))
    }

    fn peer(&self) -> SocketAddr {
        self.socket.peer
    }

    fn local(&self) -> SocketAddr {
        self.socket.local
    }

    fn interface(&self) -> Option<String> {
        let fd = &self.socket.fd;
        let name = index_to_name_inlined(fd, uring::receiving_interface(fd)?).ok()?;
        Some(name.as_str().to_owned())
    }
}

/// The end of a connection, or its reset, that has come in, be it behind bytes that nobody has received.
fn end_of(fd: &Fd) -> Option<StreamError> {
    let mut asked = [PollFd::new(fd, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    // A question that fails is not an answer.
    poll(&mut asked, Some(&at_once)).ok().filter(|answers| *answers > 0)?;
    let is_reset = asked[0].revents().contains(PollFlags::ERR);
    Some(if is_reset { StreamError::Reset } else { StreamError::Closed })
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
            // Linux: what is accepted has the options of the listener.
            set_options(&fd)?;
            bind(&fd, &address)?;
            listen(&fd, BACKLOG)?;
            let local = socket_addr(&getsockname(&fd)?);
            Ok((fd, local))
        };
        let (fd, local) = bound().map_err(|errno| network_error(address, errno))?;
        Ok(Self { handle: handle.clone(), fd, local, accepting: RefCell::default() })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<TcpStream, Errno>> {
        let core = &self.handle.core;
        let mut accepting = self.accepting.borrow_mut();
        let accept = accepting.get_or_insert_with(|| core.ring.accept(&self.fd));
        let accepted = ready!(Pin::new(accept).poll(context));
        *accepting = None;
        Poll::Ready(accepted.and_then(|socket| TcpStream::new(core, Fd::new(socket))))
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

/// Sends what there is at once, and lets the kernel find out within a minute that a peer has vanished without a
/// word.
fn set_options(fd: &Fd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(fd, KEEP_ALIVE_PROBES)?;
    sockopt::set_socket_keepalive(fd, true)
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
