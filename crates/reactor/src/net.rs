//! TCP over the ring.
//!
//! - STREAM-1: what was received, or sent in part, belongs to the stream, not to the future that waits for it. A dropped
//!   future loses no bytes, and sends never interleave.
//! - STREAM-2: a socket is asked for bytes when the ring has told that some have come, or, while it is busy, again and again
//!   (`hot.rs`).
//! - STREAM-3: a socket that has more than it was asked for, and gave as much as fits into a chunk, has had its part of the
//!   core's turn (ARRIVAL-2).
//! - STREAM-4: a buffer that is lent for what comes next belongs to the stream until its receive is over. If the future that
//!   waits for it is dropped, STREAM-1 does not go for what came into it.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use io_traits::{Buffer, Landed, NetworkError, SendBatch, Stream, StreamError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, getpeername, getsockname,
    netdevice::index_to_name_inlined, shutdown, socket_with, sockopt,
};
use uring::{Arrival, CHUNK_LEN, Chunk, Errno, Fd, Received};

use crate::arrivals::{Arrivals, Part};
use crate::handle::{CoreState, Handle};
use crate::hot::Asked;

/// Silence after which the kernel asks whether the peer is still there, the pause between
/// questions, and how many unanswered ones end the connection.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 3;

/// The way in which a socket learns that bytes have come (STREAM-2).
enum Receive {
    /// No task has asked for any.
    None,
    /// The socket is polled; `misses` are the polls so far that found nothing, by weight.
    Hot { misses: u32, waker: Option<Waker> },
    /// A receive has completed; its result is to be fetched (STREAM-1).
    Done(Result<Received, Errno>),
    /// The ring reports arrivals.
    Watched(Arrivals),
    /// All has come that ever will.
    Ended,
}

/// A buffer that is lent to a stream.
struct Lent {
    buffer: Buffer,
    part: Range<usize>,
}

pub(crate) struct Socket {
    core: Rc<CoreState>,
    fd: Fd,
    peer: SocketAddr,
    receive: RefCell<Receive>,
    /// STREAM-4.
    lent: RefCell<Option<Lent>>,
    sending: RefCell<Option<uring::Send>>,
    /// Receives that brought bytes, since polling last gave up.
    receives: Cell<u32>,
    /// STREAM-3.
    part: Part,
    /// The peer will say no more, and neither shall we.
    peer_finished: Cell<bool>,
    finished: Cell<bool>,
    shut: Cell<bool>,
}

/// A connected TCP stream, or one over a unix socket. Cheap to clone; closed with the last clone.
#[derive(Clone)]
pub struct TcpStream {
    socket: Rc<Socket>,
}

impl TcpStream {
    /// The stream of `fd`, whose options are set already, to `peer`.
    pub(crate) fn new(core: &Rc<CoreState>, fd: Fd, peer: &SocketAddrAny) -> Self {
        let socket = Socket {
            core: core.clone(),
            peer: socket_addr(peer),
            fd,
            receive: RefCell::new(Receive::None),
            lent: RefCell::default(),
            sending: RefCell::default(),
            receives: Cell::new(0),
            part: Part::default(),
            peer_finished: Cell::new(false),
            finished: Cell::new(false),
            shut: Cell::new(false),
        };
        Self { socket: Rc::new(socket) }
    }

    pub(crate) fn connect(
        handle: &Handle,
        address: SocketAddr,
    ) -> impl Future<Output = Result<Self, NetworkError>> + use<> {
        let core = handle.core.clone();
        async move {
            let connected = async {
                let fd = new_socket(address, SocketFlags::empty())?;
                set_options(&fd)?;
                core.ring.connect(&fd, address).await?;
                // A connection that was reset before it was looked at has no peer any more.
                let peer = getpeername(&fd)?.ok_or(Errno::NOTCONN)?;
                Ok(Self::new(&core, fd, &peer))
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
    /// Sees to it that bytes are noticed. Called when the future is made, so that what the ring is asked for leaves
    /// together with what comes behind.
    fn start_receive(self: &Rc<Self>) {
        if self.shut.get() {
            return;
        }
        let mut receive = self.receive.borrow_mut();
        let is_new = matches!(*receive, Receive::None);
        let is_drained = matches!(&*receive, Receive::Watched(arrivals) if !arrivals.may_be_left());
        if (is_new || is_drained) && self.core.hot.admit(self) {
            *receive = Receive::Hot { misses: 0, waker: None };
        } else if is_new {
            *receive = self.watched();
        }
    }

    fn watched(&self) -> Receive {
        Receive::Watched(Arrivals::new(&self.core.ring, &self.fd))
    }

    /// Looks whether bytes have come for a hot receive.
    pub(crate) fn ask(&self) -> Asked {
        let mut receive = self.receive.borrow_mut();
        let Receive::Hot { waker, .. } = &mut *receive else { return Asked::Done };
        let received = match self.try_recv() {
            Ok(Received::Nothing | Received::NoChunk) => return Asked::Nothing,
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

    fn try_recv(&self) -> Result<Received, Errno> {
        let mut lent = self.lent.borrow_mut();
        let target = match &mut *lent {
            Some(Lent { buffer, part }) => &mut buffer.as_mut_bytes()[part.clone()],
            None => &mut [],
        };
        self.core.ring.try_recv(&self.fd, target)
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

    /// From now on the ring tells of bytes for a hot receive.
    pub(crate) fn wait_by_ring(&self) {
        let mut receive = self.receive.borrow_mut();
        let Receive::Hot { waker, .. } = &mut *receive else { return };
        let waker = waker.take();
        let mut arrivals = Arrivals::new(&self.core.ring, &self.fd);
        if let Some(waker) = waker {
            // Just handed over, so nothing was told yet; this makes the waker known.
            let told = arrivals.poll(&mut Context::from_waker(&waker));
            assert!(told.is_pending());
        }
        *receive = Receive::Watched(arrivals);
    }

    /// Waits for bytes: how many are in the buffer that was lent, and those behind them.
    fn poll_recv(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(usize, Chunk), StreamError>> {
        if self.shut.get() {
            return Poll::Ready(Err(StreamError::Reset));
        }
        self.start_receive();
        Poll::Ready(match ready!(self.poll_received(context)) {
            Ok(Received::Bytes { landed, chunk, .. }) => {
                self.receives.set(self.receives.get().saturating_add(1));
                Ok((landed, chunk))
            }
            Ok(_) => {
                self.peer_finished.set(true);
                Err(StreamError::Closed)
            }
            Err(errno) => Err(stream_error(errno)),
        })
    }

    /// Waits for bytes or the end.
    fn poll_received(&self, context: &mut Context<'_>) -> Poll<Result<Received, Errno>> {
        ready!(self.part.poll(&self.core, context));
        let mut receive = self.receive.borrow_mut();
        loop {
            match &mut *receive {
                Receive::None => {
                    *receive = self.watched();
                    continue;
                }
                Receive::Hot { waker, .. } => {
                    *waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Receive::Done(_) => {
                    let done = std::mem::replace(&mut *receive, Receive::None);
                    let Receive::Done(received) = done else { unreachable!("just looked at") };
                    return Poll::Ready(received);
                }
                Receive::Watched(arrivals) => match ready!(arrivals.poll(context)) {
                    Ok(Arrival::Some) => {}
                    Ok(Arrival::Last) => *receive = Receive::Ended,
                    Err(errno) => {
                        *receive = Receive::None;
                        return Poll::Ready(Err(errno));
                    }
                },
                Receive::Ended => {}
            }
            match self.try_recv() {
                Ok(Received::NoChunk) => ready!(self.core.ring.poll_chunk(context)),
                Ok(Received::Nothing) if matches!(*receive, Receive::Ended) => {
                    return Poll::Ready(Ok(Received::End));
                }
                Ok(Received::Nothing) => receive.set_drained(),
                received => {
                    self.note_rest(&mut receive, &received);
                    return Poll::Ready(received);
                }
            }
        }
    }

    /// Notes whether there is more after what was `received`. Room that is left says that there is not,
    /// except for urgent data: NVMe peers send none, and a peer that does has to send more to be received.
    fn note_rest(&self, receive: &mut Receive, received: &Result<Received, Errno>) {
        if let Ok(Received::Bytes { landed, chunk, is_full }) = received {
            self.part.set_had(*is_full && landed + chunk.len() >= CHUNK_LEN);
            if !is_full {
                receive.set_drained();
            }
        }
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

impl Receive {
    /// The bytes that the ring has reported were received.
    fn set_drained(&mut self) {
        if let Self::Watched(arrivals) = self {
            arrivals.all_fetched();
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
        // STREAM-4.
        drop(socket.lent.take());
        socket.start_receive();
        poll_fn(move |context| socket.poll_recv(context).map_ok(|(_, chunk)| chunk))
    }

    fn recv_into(
        &self,
        buffer: Buffer,
        part: Range<usize>,
    ) -> impl Future<Output = Result<Landed<Chunk>, StreamError>> + 'static {
        let socket = self.socket.clone();
        let before = socket.lent.replace(Some(Lent { buffer, part }));
        assert!(before.is_none(), "a receive into a buffer was dropped");
        socket.start_receive();
        poll_fn(move |context| {
            let received = ready!(socket.poll_recv(context));
            let lent = socket.lent.take().expect("lent before the receive began");
            Poll::Ready(received.map(|(len_bytes, chunk)| Landed {
                buffer: lent.buffer,
                len_bytes,
                chunk,
                behind_from: 0,
            }))
        })
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
            // What a dropped future left behind goes first (STREAM-1).
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

    fn taken_bytes(&self) -> Option<u64> {
        uring::acknowledged_bytes(&self.socket.fd)
    }

    fn peer(&self) -> SocketAddr {
        self.socket.peer
    }

    fn local(&self) -> SocketAddr {
        // It fails only for what is no socket.
        socket_addr(&getsockname(&self.socket.fd).expect("a socket has a name"))
    }

    fn interface(&self) -> Option<String> {
        let fd = &self.socket.fd;
        let name = index_to_name_inlined(fd, uring::receiving_interface(fd)?).ok()?;
        Some(name.as_str().to_owned())
    }
}

/// Returns the end of a connection, or its reset, that has come in, also if it is after bytes that were not
/// received.
fn end_of(fd: &Fd) -> Option<StreamError> {
    // A question that fails is not an answer.
    let found = poll_at_once(fd, PollFlags::RDHUP).ok().filter(|found| !found.is_empty())?;
    let is_reset = found.contains(PollFlags::ERR);
    Some(if is_reset { StreamError::Reset } else { StreamError::Closed })
}

/// Returns those of `events` that a socket has, without waiting; errors and hang-ups are always included.
pub(crate) fn poll_at_once(fd: &Fd, events: PollFlags) -> Result<PollFlags, Errno> {
    let mut asked = [PollFd::new(fd, events)];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(asked[0].revents())
}

/// Sends what there is at once, and lets the kernel find out within a minute that a peer has vanished without a
/// word.
pub(crate) fn set_options(fd: &Fd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(fd, KEEP_ALIVE_PROBES)?;
    sockopt::set_socket_keepalive(fd, true)
}

/// For waiting by the ring sockets are blocking in name only: a nonblocking one would make it return `EAGAIN` instead.
pub(crate) fn new_socket(address: SocketAddr, flags: SocketFlags) -> Result<Fd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)?;
    Ok(Fd::new(socket))
}

/// The address of each end of a unix socket, which has none: no host can have it.
pub(crate) const OF_UNIX_SOCKET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// IPv4 is shown as IPv4 even if it came in through an IPv6 socket.
pub(crate) fn socket_addr(address: &SocketAddrAny) -> SocketAddr {
    if address.address_family() == AddressFamily::UNIX {
        return OF_UNIX_SOCKET;
    }
    let address = SocketAddr::try_from(address.clone()).expect("a TCP socket has an IP address");
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn stream_error(errno: Errno) -> StreamError {
    match errno {
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED | Errno::NOTCONN => StreamError::Reset,
        errno => StreamError::Io { errno: errno.raw_os_error() },
    }
}

pub(crate) fn network_error(address: SocketAddr, errno: Errno) -> NetworkError {
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
