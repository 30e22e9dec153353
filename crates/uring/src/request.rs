//! The requests to the kernel, and the meaning of its answers.

use std::net::SocketAddr;
use std::ptr;

use io_traits::{Buffer, BufferSlice};
use io_uring::{cqueue, opcode, squeue, types};
use rustix::io::Errno;

use crate::fd::Fd;
use crate::send::SendState;
use crate::watch::WATCHED;
use crate::window::ReadWindow;

/// A request, with all memory that the kernel touches for it (URING-1).
pub(crate) enum Request {
    /// Completes with the events since the last request, as the flags of `poll`; see `watch.rs`.
    Watch {
        events: u32,
    },
    Send(Box<SendState>),
    Connect(Box<SockAddr>),
    Read {
        buffer: Buffer,
        offset: u64,
        done: usize,
        window: ReadWindow,
    },
    Write {
        data: BufferSlice,
        offset: u64,
        done: usize,
    },
    Sync,
    Punch {
        offset: u64,
        len: u64,
    },
    Allocate {
        offset: u64,
        len: u64,
    },
    Wake(Box<[u8; 8]>),
}

/// A socket address as the kernel reads it.
pub(crate) enum SockAddr {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

/// The meaning of a completion for its request.
pub(crate) enum Step {
    /// Ask again, for the rest or because of an interruption.
    Again,
    /// Something has come. The watch goes on by itself unless it `is_over`.
    Event {
        is_over: bool,
    },
    Finished(Result<(), Errno>),
}

impl Request {
    /// Returns true if it ends when no task waits for it any more (URING-4).
    pub(crate) fn is_cancelled_by_drop(&self) -> bool {
        matches!(self, Self::Watch { .. } | Self::Connect(_) | Self::Wake(_))
    }

    /// Returns true if the content of a file, or its durable content, may differ when it is done.
    pub(crate) fn changes_file(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Sync | Self::Punch { .. } | Self::Allocate { .. })
    }

    /// Returns true if a kernel thread may do it: one that has this thread's CPU and has to get hold of it. Flushes
    /// and holes always; writes for which a file system has to find room. Reads hardly ever have to wait.
    pub(crate) fn may_need_kernel_thread(&self) -> bool {
        self.changes_file()
    }

    /// The window that decides when a read goes to its drive.
    pub(crate) fn window(&self) -> Option<&ReadWindow> {
        match self {
            Self::Read { window, .. } => Some(window),
            _ => None,
        }
    }

    /// The submission for what is left to do. It points into `self`, which stays where it is until
    /// the completion.
    pub(crate) fn entry(&mut self, fd: &Fd) -> squeue::Entry {
        let fd = types::Fd(fd.raw());
        match self {
            Self::Watch { .. } => opcode::PollAdd::new(fd, WATCHED).multi(true).build(),
            Self::Send(state) => state.entry(fd),
            Self::Connect(address) => {
                let (address, len) = address.as_raw();
                opcode::Connect::new(fd, address, len).build()
            }
            Self::Read { buffer, offset, done, .. } => {
                let rest = &mut buffer.as_mut_bytes()[*done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset + *done as u64)
                    .build()
            }
            Self::Write { data, offset, done } => {
                let rest = &data.as_bytes()[*done..];
                opcode::Write::new(fd, rest.as_ptr(), rest.len() as u32)
                    .offset(*offset + *done as u64)
                    .build()
            }
            Self::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Self::Punch { offset, len } => opcode::Fallocate::new(fd, *len)
                .offset(*offset)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Self::Allocate { offset, len } => opcode::Fallocate::new(fd, *len)
                .offset(*offset)
                .mode(libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Self::Wake(counter) => opcode::Read::new(fd, counter.as_mut_ptr(), 8).build(),
        }
    }

    /// Takes in a completion of this request.
    pub(crate) fn on_completion(&mut self, result: i32, flags: u32) -> Step {
        let count = match usize::try_from(result) {
            Ok(count) => count,
            Err(_) => {
                return match Errno::from_raw_os_error(-result) {
                    Errno::INTR | Errno::AGAIN => Step::Again,
                    errno => Step::Finished(Err(errno)),
                };
            }
        };
        let finished = match self {
            Self::Send(state) => state.advance(count),
            Self::Read { buffer, done, .. } => {
                *done += count;
                // Nothing came although something was left: the file is shorter than it was.
                if count == 0 && *done < buffer.len_bytes() {
                    return Step::Finished(Err(Errno::IO));
                }
                *done >= buffer.len_bytes()
            }
            Self::Write { data, done, .. } => {
                *done += count;
                if count == 0 && *done < data.len_bytes() {
                    return Step::Finished(Err(Errno::IO));
                }
                *done >= data.len_bytes()
            }
            Self::Watch { events } => {
                *events |= count as u32;
                return Step::Event { is_over: !cqueue::more(flags) };
            }
            _ => true,
        };
        if finished { Step::Finished(Ok(())) } else { Step::Again }
    }
}

impl SockAddr {
    pub(crate) fn new(address: SocketAddr) -> Box<Self> {
        Box::new(match address {
            SocketAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            }),
        })
    }

    fn as_raw(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        match self {
            Self::V4(address) => (ptr::from_ref(address).cast(), size_of_val(address) as u32),
            Self::V6(address) => (ptr::from_ref(address).cast(), size_of_val(address) as u32),
        }
    }
}
