//! Requests that come by `/dev/fuse`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

use crate::backing::Backing;
use crate::file::{Changes, File, TTL, errno, flags_of_opening};
use crate::ring::{NoRing, Prepared};
use crate::window::Limits;

/// The longest request by `/dev/fuse`: as much as the kernel sends at once unless its limits were raised, and as much
/// as a farflash server writes atomically.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// A file system that is one file, its root.
pub(crate) struct VolumeFs<B> {
    pub(crate) file: Arc<File<B>>,
    pub(crate) limits: Limits,
    /// Bytes of a block of the volume.
    pub(crate) block: usize,
    /// Set when it is mounted.
    pub(crate) ring: Arc<Mutex<Result<Prepared, NoRing>>>,
}

fn answer(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl<B: Backing> Filesystem for VolumeFs<B> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without it send requests one by one.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        // Requests that are under way without a thread of a program that waits for each.
        let background = u16::try_from(self.limits.requests).unwrap_or(u16::MAX);
        let _ = config.set_max_background(background.max(1));
        let by_ring = InitFlags::FUSE_OVER_IO_URING;
        let ring = if config.capabilities().contains(by_ring) {
            Prepared::new(self.limits, self.block)
        } else {
            Err(NoRing::NotOffered)
        };
        let bytes = match &ring {
            Ok(ring) => {
                config.add_capabilities(by_ring).expect("the kernel offers it");
                ring.request_bytes()
            }
            Err(_) => REQUEST_BYTES_MAX,
        };
        let _ = config.set_max_write(bytes);
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring;
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.file.attributes());
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let rights = mode.is_some() || uid.is_some() || gid.is_some();
        match self.file.change(Changes { rights, size, is_open: handle.is_some() }) {
            Ok(()) => reply.attr(&TTL, &self.file.attributes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), flags_of_opening());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.file.engine.read(offset, len as usize, move |result| match result {
            Ok(bytes) => reply.data(bytes),
            Err(failed) => reply.error(errno(failed)),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.file.engine.write(offset, data, move |result| match result {
            Ok(len) => reply.written(u32::try_from(len).expect("a request is shorter")),
            Err(failed) => reply.error(errno(failed)),
        });
    }

    /// Closing a file has nothing to make durable: FILE-2.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let done = answer(reply);
        self.file.engine.flush(|result| done(result.map_err(errno)));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.file.allocate(offset, len, mode, answer(reply));
    }
}
