//! A file system that is one file, its root.
//!
//! - FS-1: the file is as long as the volume. No request makes it longer or shorter.
//! - FS-2: it is opened past the page cache of the kernel. So a write has reached the server when it returns, and
//!   what other hosts write is seen.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farflash_client::ErrorKind;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::backing::{Backing, Clearing};
use crate::engine::{Engine, Failed};

/// The kernel asks again for attributes after this; of another size it is told. Short, so that `ls` tells when the
/// process that serves the file is gone.
const TTL: Duration = Duration::from_secs(1);
/// The longest request: as much as the kernel sends at once unless its limits were raised, and as much as a farflash
/// server writes atomically.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Readable and writable for the user that attached it.
const MODE: u16 = 0o600;

/// Modes of fallocate(2).
mod mode {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

pub(crate) struct VolumeFs<B> {
    pub(crate) engine: Arc<Engine<B>>,
    /// User and group that own the file.
    pub(crate) owner: (u32, u32),
    /// The time of the file: when it was attached.
    pub(crate) time: SystemTime,
    /// Requests that the kernel has under way without a thread that waits for each.
    pub(crate) background: u16,
}

impl<B: Backing> VolumeFs<B> {
    fn attributes(&self) -> FileAttr {
        let (size, time, (uid, gid)) = (self.engine.size(), self.time, self.owner);
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
            blksize: 4096,
            flags: 0,
        }
    }
}

/// The error number by which a program is told of a failure.
fn errno(failed: &Failed) -> Errno {
    match failed {
        Failed::Beyond => Errno::ENOSPC,
        Failed::Volume(error) => match error.kind() {
            ErrorKind::NoSpace => Errno::ENOSPC,
            ErrorKind::PermissionDenied => Errno::EACCES,
            _ => Errno::EIO,
        },
    }
}

fn answer(reply: ReplyEmpty) -> impl FnOnce(Result<(), Failed>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(failed) => reply.error(errno(&failed)),
    }
}

/// Returns what a call of fallocate(2) asks for, if it is something that is done here.
fn clearing(mode: i32) -> Option<Clearing> {
    const HOLE: i32 = mode::PUNCH_HOLE | mode::KEEP_SIZE;
    const ZEROES: i32 = mode::ZERO_RANGE | mode::KEEP_SIZE;
    match mode {
        HOLE => Some(Clearing::Deallocate),
        ZEROES | mode::ZERO_RANGE => Some(Clearing::WriteZeroes),
        _ => None,
    }
}

impl<B: Backing> Filesystem for VolumeFs<B> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Kernels without it send requests one by one.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(self.background.max(1));
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes());
    }

    /// Takes times, which mean nothing here, and the truncation on opening, which as with a block device has no
    /// effect; refuses another size, owner or mode.
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
        let is_on_opening = size == Some(0) && handle.is_none();
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        // FS-1
        if !is_on_opening && size.is_some_and(|size| size != self.engine.size()) {
            return reply.error(Errno::EINVAL);
        }
        reply.attr(&TTL, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // FS-2
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
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
        self.engine.read(offset, len as usize, move |result| match result {
            Ok(bytes) => reply.data(bytes),
            Err(failed) => reply.error(errno(&failed)),
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
        self.engine.write(offset, data, move |result| match result {
            Ok(len) => reply.written(u32::try_from(len).expect("a request is shorter")),
            Err(failed) => reply.error(errno(&failed)),
        });
    }

    /// Closing a file has nothing to make durable: FS-2.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.engine.flush(answer(reply));
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
        let Some(how) = clearing(mode) else {
            // A thin volume reserves nothing.
            return reply.error(Errno::EOPNOTSUPP);
        };
        let grows = offset.checked_add(len).is_none_or(|end| end > self.engine.size());
        if grows && mode & mode::KEEP_SIZE == 0 {
            return reply.error(Errno::ENOSPC);
        }
        self.engine.clear(offset, len, how, answer(reply));
    }
}

#[cfg(test)]
mod tests {
    use farflash_client::Error;

    use super::*;

    #[test]
    fn holes_and_zeroes_are_made_and_nothing_is_reserved() {
        assert_eq!(clearing(3), Some(Clearing::Deallocate));
        assert_eq!(clearing(17), Some(Clearing::WriteZeroes));
        assert_eq!(clearing(16), Some(Clearing::WriteZeroes));
        for mode in [0, 1, 2, 8, 32, 64] {
            assert_eq!(clearing(mode), None, "{mode}");
        }
    }

    #[test]
    fn programs_are_told_of_full_volumes_and_missing_rights() {
        let code = |failed: Failed| errno(&failed).code();
        assert_eq!(code(Failed::Beyond), Errno::ENOSPC.code());
        assert_eq!(code(Failed::Volume(Error::Closed)), Errno::EIO.code());
    }
}
