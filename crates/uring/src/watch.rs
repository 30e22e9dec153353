//! Events of arrivals at a socket.
//!
//! A watch is handed to the kernel once and tells again and again, unless the kernel ends it for want of room for completions. To receive is then a system call of its own: one that
//! is handed over for each message costs a place in the kernel's tables, a wait-queue entry and two trips.
//!
//! - WATCH-1: data that was there when the watch began, and data that comes after it, is told. Several arrivals may be told as
//!   one.
//! - WATCH-2: so a receiver that was told receives until nothing is left. If it receives less than there was room for, nothing
//!   was left. The end is told together with bytes before it, and as what it is.
//! - WATCH-3: a watch that the kernel has ended is armed again when its owner asks for more than was told. At once would be too
//!   early: with the bytes still unread it would complete and be ended again, and keep a full queue full.

use std::task::{Context, Poll, ready};

use rustix::io::Errno;

use crate::fd::Fd;
use crate::request::Request;
use crate::ring::Ring;
use crate::table::Key;

/// An arrival at a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// Something to be received, or a connection to be accepted.
    Some,
    /// Nothing more will come. Bytes may be left, then the end or an error is received without waiting.
    Last,
}

/// Tells what comes to a socket, as long as it is not dropped.
pub struct Watch {
    ring: Ring,
    /// `None` once the watch has failed.
    key: Option<Key>,
}

impl Ring {
    /// Watches a socket.
    pub fn watch(&self, fd: &Fd) -> Watch {
        Watch { ring: self.clone(), key: Some(self.submit(fd, Request::Watch { events: 0 })) }
    }
}

impl Watch {
    /// Waits for the next arrival. Not to be asked again once it has failed.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Arrival, Errno>> {
        let key = self.key.expect("a watch that failed is not asked again");
        let events = ready!(self.ring.with_table(|table| table.poll_events(key, context)));
        Poll::Ready(match events {
            Ok(events) if events & LAST != 0 => Ok(Arrival::Last),
            Ok(_) => Ok(Arrival::Some),
            Err(errno) => {
                self.key = None;
                Err(errno)
            }
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ring.with_table(|table| table.abandon(key));
        }
    }
}

/// The events that are watched for; the kernel reports the other two anyway.
pub(crate) const WATCHED: u32 = (libc::POLLIN | libc::POLLRDHUP) as u32;
/// The events after which nothing more will come.
const LAST: u32 = (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) as u32;
