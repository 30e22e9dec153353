//! The file: what is told of it, and what changes it, whichever way requests come.
//!
//! - FILE-1: the file is as long as the volume. No request makes it longer or shorter.
//! - FILE-2: it is opened past the page cache of the kernel. So a write has reached the server when it returns, and
//!   what other hosts write is seen.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use farflash_client::ErrorKind;
use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo};

use crate::backing::{Backing, Clearing};
use crate::engine::{Engine, Failed};

/// The kernel asks again for attributes after this; of another size it is told. Short, so that `ls` tells when the
/// process that serves the file is gone.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// Readable and writable for the user that attached it.
const MODE: u16 = 0o600;
/// Bytes that programs are advised to read and write at a time.
const IO_BYTES: u32 = 4096;

/// Modes of fallocate(2).
mod mode {
    pub(super) const KEEP_SIZE: i32 = 1;
    pub(super) const PUNCH_HOLE: i32 = 2;
    pub(super) const ZERO_RANGE: i32 = 16;
}

/// The file of a volume.
pub(crate) struct File<B> {
    pub(crate) engine: Arc<Engine<B>>,
    /// User and group that own the file.
    pub(crate) owner: (u32, u32),
    /// The time of the file: when it was attached.
    pub(crate) time: SystemTime,
}

/// The attributes of the file that a request changes. Times mean nothing here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Changes {
    /// The mode or an owner.
    pub(crate) rights: bool,
    pub(crate) size: Option<u64>,
    /// It comes from a program that has the file open.
    pub(crate) is_open: bool,
}

impl<B: Backing> File<B> {
    /// Its attributes; it is the root of its file system.
    pub(crate) fn attributes(&self) -> FileAttr {
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
            blksize: IO_BYTES,
            flags: 0,
        }
    }

    /// Refuses another size, owner or mode. The truncation on opening has no effect, as with a block device.
    pub(crate) fn change(&self, changes: Changes) -> Result<(), Errno> {
        let Changes { rights, size, is_open } = changes;
        let is_on_opening = size == Some(0) && !is_open;
        if rights {
            return Err(Errno::EPERM);
        }
        // FILE-1
        match size {
            Some(size) if !is_on_opening && size != self.engine.size() => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Carries out fallocate(2).
    pub(crate) fn allocate(
        &self,
        offset: u64,
        len: u64,
        mode: i32,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let Some(how) = clearing(mode) else {
            // A thin volume reserves nothing.
            return done(Err(Errno::EOPNOTSUPP));
        };
        let grows = offset.checked_add(len).is_none_or(|end| end > self.engine.size());
        if grows && mode & mode::KEEP_SIZE == 0 {
            return done(Err(Errno::ENOSPC));
        }
        self.engine.clear(offset, len, how, move |result| done(result.map_err(errno)));
    }
}

/// FILE-2
pub(crate) fn flags_of_opening() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO
        | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        | FopenFlags::FOPEN_NOFLUSH
}

/// The error number by which a program is told of a failure.
#[expect(clippy::needless_pass_by_value, reason = "it is what failures become")]
pub(crate) fn errno(failed: Failed) -> Errno {
    match &failed {
        Failed::Beyond => Errno::ENOSPC,
        Failed::Volume(error) => match error.kind() {
            ErrorKind::NoSpace => Errno::ENOSPC,
            ErrorKind::PermissionDenied => Errno::EACCES,
            _ => Errno::EIO,
        },
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
        let code = |failed: Failed| errno(failed).code();
        assert_eq!(code(Failed::Beyond), Errno::ENOSPC.code());
        assert_eq!(code(Failed::Volume(Error::Closed)), Errno::EIO.code());
    }
}
