//! Requests that come by `/dev/fuse`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use crate::backing::Backing;
use crate::engine::Failed;
use crate::file::{Changes, File, IO_BYTES, MODE, TTL, errno, flags_of_opening};

/// A file system that is one file, its root.
pub(crate) struct VolumeFs<B> {
    pub(crate) file: Arc<File<B>>,
    /// Requests that the kernel has under way without a thread that waits for each.
    pub(crate) background: u16,
    /// Bytes of the longest request.
    pub(crate) request_bytes: u32,
    /// The same by io_uring, if requests may come by that.
    pub(crate) ring_request_bytes: Option<u32>,
    /// Set when it is mounted: the kernel offers io_uring.
    pub(crate) ring_is_offered: Arc<AtomicBool>,
}

impl<B: Backing> VolumeFs<B> {
    fn attributes(&self) -> FileAttr {
        let (size, time, (uid, gid)) = (self.file.engine.size(), self.file.time, self.file.owner);
        FileAttr {
            ino: INodeNo::ROOT,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::RegularFile,
            perm: MODE,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: IO_BYTES,
            flags: 0,
        }
    }
}

fn answer(reply: ReplyEmpty) -> impl FnOnce(Result<(), Failed>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(failed) => reply.error(errno(failed)),
    }
}

impl<B: Backing> Filesystem for VolumeFs<B> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without it send requests one by one.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(self.background.max(1));
        let by_ring = InitFlags::FUSE_OVER_IO_URING;
        let is_offered = config.capabilities().contains(by_ring);
        self.ring_is_offered.store(is_offered, Ordering::Relaxed);
        let bytes = match self.ring_request_bytes {
            Some(bytes) if config.add_capabilities(by_ring).is_ok() => bytes,
            _ => self.request_bytes,
        };
        let _ = config.set_max_write(bytes);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes());
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
            Ok(()) => reply.attr(&TTL, &self.attributes()),
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
        self.file.engine.flush(answer(reply));
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
        self.file.allocate(offset, len, mode, |result| match result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}
