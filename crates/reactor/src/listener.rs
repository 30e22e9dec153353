//! Connections that come in.
//!
//! - LISTENER-1: one is accepted in a turn of the core: however fast they come, others have theirs (ARRIVAL-2).
//! - LISTENER-2: a listener is polled before a connection is accepted. An accept without a connection costs as much as
//!   one with: the kernel makes a socket and a file before it looks.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use io_traits::{Clock, Listener, NetworkError};
use rustix::event::PollFlags;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, getsockname,
    listen, socket_with, sockopt,
};
use uring::{Errno, Fd};

use crate::arrivals::{Arrivals, Part};
use crate::handle::Handle;
use crate::net::{
    OF_UNIX_SOCKET, TcpStream, network_error, new_socket, poll_at_once, set_options, socket_addr,
};

/// Connections that wait to be accepted; the kernel refuses more.
const BACKLOG: i32 = 1024;
/// Time that a listener waits when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening TCP socket, or a unix one.
pub struct TcpListener {
    handle: Handle,
    fd: Fd,
    local: SocketAddr,
    /// Connections that wait.
    incoming: RefCell<Arrivals>,
    /// LISTENER-1.
    part: Part,
}

impl TcpListener {
    pub(crate) fn bind(handle: &Handle, address: SocketAddr) -> Result<Self, NetworkError> {
        let bound = || {
            let fd = new_socket(address, SocketFlags::NONBLOCK)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            // Linux: what is accepted has the options of the listener.
            set_options(&fd)?;
            bind(&fd, &address)?;
            listen(&fd, BACKLOG)?;
            let local = socket_addr(&getsockname(&fd)?);
            Ok((fd, local))
        };
        let (fd, local) = bound().map_err(|errno| network_error(address, errno))?;
        let incoming = RefCell::new(Arrivals::new(&handle.core.ring, &fd));
        Ok(Self { handle: handle.clone(), fd, local, incoming, part: Part::default() })
    }

    /// Listens on a unix socket at `path`, which nothing is at.
    pub(crate) fn bind_unix(handle: &Handle, path: &Path) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = Fd::new(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?);
        bind(&fd, &SocketAddrUnix::new(path)?)?;
        listen(&fd, BACKLOG)?;
        let incoming = RefCell::new(Arrivals::new(&handle.core.ring, &fd));
        let (handle, local) = (handle.clone(), OF_UNIX_SOCKET);
        Ok(Self { handle, fd, local, incoming, part: Part::default() })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<TcpStream, Errno>> {
        let core = &self.handle.core;
        ready!(self.part.poll(core, context));
        let mut incoming = self.incoming.borrow_mut();
        loop {
            if let Err(errno) = ready!(incoming.poll(context)) {
                *incoming = Arrivals::new(&core.ring, &self.fd);
                return Poll::Ready(Err(errno));
            }
            match acceptfrom_with(&self.fd, SocketFlags::CLOEXEC) {
                Err(Errno::AGAIN) => incoming.all_fetched(),
                Err(errno) => return Poll::Ready(Err(errno)),
                Ok((socket, peer)) => {
                    self.part.set_had(true);
                    if !is_another_waiting(&self.fd) {
                        incoming.all_fetched();
                    }
                    // A connection that was reset before it was accepted has no peer any more.
                    let peer = peer.ok_or(Errno::NOTCONN)?;
                    return Poll::Ready(Ok(TcpStream::new(core, Fd::new(socket), &peer)));
                }
            }
        }
    }
}

/// Returns true if a connection can be accepted (LISTENER-2), or if that cannot be determined.
fn is_another_waiting(fd: &Fd) -> bool {
    poll_at_once(fd, PollFlags::IN) != Ok(PollFlags::empty())
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
