//! The memory that a send system call needs beside the batch: I/O vectors and a message header.

use std::io::IoSlice;
use std::ptr;

use io_traits::SendBatch;
use io_uring::{opcode, squeue, types};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use smallvec::SmallVec;

use crate::fd::Fd;

/// I/O vectors in one call, the kernel's limit.
const IOVECS_MAX: usize = 1024;

/// Parts of a batch without memory of their own for the call.
const PARTS: usize = 48;

/// Sends what the socket takes without waiting, in a system call of its own; how many bytes that were.
pub(crate) fn send_at_once(fd: &Fd, batch: &SendBatch) -> Result<usize, Errno> {
    let parts: SmallVec<[IoSlice<'_>; PARTS]> =
        batch.slices().take(IOVECS_MAX).map(IoSlice::new).collect();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match sendmsg(fd, &parts, &mut SendAncillaryBuffer::default(), flags) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}

/// A batch on its way. Boxed: the kernel keeps the address of the header.
pub(crate) struct SendState {
    batch: SendBatch,
    sent: usize,
    iovecs: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl SendState {
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: a message header is integers and pointers, for which all zeroes is a value: an
        // empty message.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self { batch: SendBatch::new(), sent: 0, iovecs: Vec::new(), header })
    }

    /// Takes a batch of which `sent` bytes are on their way.
    pub(crate) fn begin(&mut self, batch: SendBatch, sent: usize) {
        self.batch = batch;
        self.sent = sent;
    }

    /// Takes the batch back, empty.
    pub(crate) fn take_batch(&mut self) -> SendBatch {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch
    }

    /// Notes that `len` more bytes are on their way; whether that was all.
    pub(crate) fn advance(&mut self, len: usize) -> bool {
        self.sent += len;
        self.sent >= self.batch.len_bytes()
    }

    /// The call that sends what is left, or as much of it as one call takes. Valid as long as
    /// `self` is neither dropped nor changed (URING-1).
    pub(crate) fn entry(&mut self, fd: types::Fd) -> squeue::Entry {
        self.iovecs.clear();
        let mut skip = self.sent;
        for part in self.batch.slices() {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let part = &part[std::mem::take(&mut skip)..];
            let base = part.as_ptr().cast_mut().cast();
            self.iovecs.push(libc::iovec { iov_base: base, iov_len: part.len() });
            if self.iovecs.len() == IOVECS_MAX {
                break;
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        if let [only] = self.iovecs[..] {
            let len = u32::try_from(only.iov_len).unwrap_or(u32::MAX);
            return opcode::Send::new(fd, only.iov_base.cast(), len).flags(flags).build();
        }
        self.header.msg_iov =
            if self.iovecs.is_empty() { ptr::null_mut() } else { self.iovecs.as_mut_ptr() };
        self.header.msg_iovlen = self.iovecs.len() as _;
        opcode::SendMsg::new(fd, &raw const self.header).flags(flags as u32).build()
    }
}
