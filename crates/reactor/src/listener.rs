//! Connections that come in.
//!
//! - L1: one is accepted in a turn of the core: however fast they come, others have theirs.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use io_traits::{Clock, Listener, NetworkError};
use rustix::net::{SocketFlags, acceptfrom_with, bind, getsockname, listen, sockopt};
use uring::{Errno, Fd, Watch};

use crate::handle::Handle;
use crate::net::{TcpStream, network_error, new_socket, set_options, socket_addr};

/// Connections that wait to be accepted; the kernel refuses more.
const BACKLOG: i32 = 1024;
/// How long a listener waits when the process has no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening TCP socket.
pub struct TcpListener {
    handle: Handle,
    fd: Fd,
    local: SocketAddr,
    incoming: RefCell<Incoming>,
}

/// What is known of connections that wait.
struct Incoming {
    watch: Watch,
    /// The kernel has told of some, and not all of them may have been accepted.
    may_be_left: bool,
    /// L1.
    waits_for_turn: bool,
}

impl Incoming {
    fn new(handle: &Handle, fd: &Fd) -> Self {
        Self { watch: handle.core.ring.watch(fd), may_be_left: false, waits_for_turn: false }
    }
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
        let incoming = RefCell::new(Incoming::new(handle, &fd));
        Ok(Self { handle: handle.clone(), fd, local, incoming })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<TcpStream, Errno>> {
        let mut incoming = self.incoming.borrow_mut();
        if std::mem::take(&mut incoming.waits_for_turn) {
            self.handle.core.wake_next_turn(context);
            return Poll::Pending;
        }
        loop {
            if !incoming.may_be_left {
                if let Err(errno) = ready!(incoming.watch.poll(context)) {
                    *incoming = Incoming::new(&self.handle, &self.fd);
                    return Poll::Ready(Err(errno));
                }
                incoming.may_be_left = true;
            }
            match acceptfrom_with(&self.fd, SocketFlags::CLOEXEC) {
                Err(Errno::AGAIN) => incoming.may_be_left = false,
                Err(errno) => return Poll::Ready(Err(errno)),
                Ok((socket, peer)) => {
                    incoming.waits_for_turn = true;
                    // A connection that was reset before it was accepted has no peer any more.
                    let peer = peer.ok_or(Errno::NOTCONN)?;
                    return Poll::Ready(Ok(TcpStream::new(
                        &self.handle.core,
                        Fd::new(socket),
                        &peer,
                    )));
                }
            }
        }
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
