//! Opening files and block devices, for one server at a time.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use io_traits::{Buffer, DeviceLimits};
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatVfsMountFlags, flock, fstat,
    fstatvfs, fsync, ftruncate, ioctl_blksszget, major, minor, open, seek, stat,
};
use rustix::io::{pread, pwrite};
use units::{BLOCK_SIZE, Pba};
use uring::{Errno, Fd, ReadWindow};

use crate::handle::Handle;
use crate::space_below::SpaceBelow;
use crate::storage::{File, FileDevice};
use crate::sysfs::{self, BlockDevice};

/// Policy of flushing after writes, which decides whether they survive a power cut.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FlushPolicy {
    /// As the device reports it. Files are always flushed.
    #[default]
    Auto,
    /// Flushes: writes survive a power cut only after a flush.
    Always,
    /// Does not flush: the device's cache survives a power cut, or its data may be lost.
    Never,
}

/// Options to open a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenOptions {
    /// Policy of flushing after writes.
    pub flush: FlushPolicy,
    /// Only read, beside other readers. A server that has the device still excludes it.
    pub read_only: bool,
}

/// Something that an operator should know about a device that was opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeviceWarning {
    /// Data passes through the page cache.
    #[error("the file system does not support O_DIRECT: data takes an extra copy, in page cache")]
    Buffered,
    /// The file ends in the middle of a block.
    #[error("the last {bytes} bytes are no whole block and stay unused")]
    PartialBlock {
        /// Bytes behind the last whole block.
        bytes: u64,
    },
}

/// Why a device was not opened or created. Each says what to do.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// Not there.
    #[error("{path} does not exist; give a size to create it")]
    Missing {
        /// The device.
        path: PathBuf,
    },
    /// There already.
    #[error("{path} exists already; remove it, or use it without creating it")]
    Exists {
        /// The device.
        path: PathBuf,
    },
    /// Not allowed.
    #[error("{path}: permission denied; run as its owner or change its mode")]
    Permission {
        /// The device.
        path: PathBuf,
    },
    /// A mount, a file system, another server.
    #[error("{path} is in use: mounted, or served by another process; stop that first")]
    InUse {
        /// The device.
        path: PathBuf,
    },
    /// The medium or its mount allows no writes.
    #[error("{path} is read-only; make it writable, or open it read-only")]
    ReadOnly {
        /// The device.
        path: PathBuf,
    },
    /// A directory, a socket, a terminal.
    #[error("{path} is neither a regular file nor a block device")]
    WrongKind {
        /// The device.
        path: PathBuf,
    },
    /// Not one whole block.
    #[error("{path} holds {bytes} bytes, less than one block of {BLOCK_SIZE}; make it larger")]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The sectors are larger than our blocks.
    #[error("{path} has sectors of {bytes} bytes, more than {BLOCK_SIZE}; reformat the drive")]
    SectorSize {
        /// The device.
        path: PathBuf,
        /// Its sector size.
        bytes: u32,
    },
    /// A size to create that is no whole number of blocks, or none.
    #[error("{bytes} bytes is no size for {path}: it takes a multiple of {BLOCK_SIZE}, not zero")]
    BadSize {
        /// The device.
        path: PathBuf,
        /// The size asked for.
        bytes: u64,
    },
    /// Something else.
    #[error("{path}: {errno}")]
    System {
        /// The device.
        path: PathBuf,
        /// The operating system's error.
        errno: Errno,
    },
}

/// The file at a path, compared with the one that was opened by it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PathState {
    /// The same file.
    Same,
    /// Nothing.
    Missing,
    /// Another file.
    Other,
}

/// A file that is open, and its path.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The file at the path.
    pub state: PathState,
    /// The number of paths that lead to the file that is open.
    pub links: u64,
    /// Its number in its file system.
    pub inode: u64,
    /// A path that leads to it, if it is not at its own and the kernel knows one.
    pub name: Option<PathBuf>,
    /// The number by which this process has it open.
    pub descriptor: i32,
}

/// A device that this process has opened, and no other server can. The lock goes with the last
/// [`FileDevice`] made of it.
#[derive(Clone, Debug)]
pub struct OwnedDevice {
    fd: Arc<OwnedFd>,
    limits: DeviceLimits,
    warnings: Vec<DeviceWarning>,
    space: Arc<SpaceBelow>,
}

impl OwnedDevice {
    /// Opens a file or block device, and locks it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let to_error = |errno| open_error(path, errno);
        let named = stat(path).map_err(to_error)?;
        let kind = FileType::from_raw_mode(named.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(OpenError::WrongKind { path: path.to_owned() });
        }
        let (fd, direct) = open_direct(path, options, kind).map_err(to_error)?;
        let lock = if options.read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        flock(&fd, lock).map_err(to_error)?;
        // What was opened, should the name have changed hands since.
        let opened = fstat(&fd).map_err(to_error)?;
        let is_block_device = FileType::from_raw_mode(opened.st_mode) == FileType::BlockDevice;
        if !is_block_device && !options.read_only && sysfs::is_used_by_loop_device(&opened) {
            return Err(OpenError::InUse { path: path.to_owned() });
        }
        let bytes = if is_block_device {
            check_sectors(path, &fd)?;
            seek(&fd, SeekFrom::End(0)).map_err(to_error)?
        } else {
            opened.st_size.unsigned_abs()
        };
        let block_size = BLOCK_SIZE as u64;
        if bytes < block_size {
            return Err(OpenError::TooSmall { path: path.to_owned(), bytes });
        }
        let mut warnings = Vec::new();
        warnings.extend((!direct).then_some(DeviceWarning::Buffered));
        let rest = bytes % block_size;
        warnings.extend((rest > 0).then_some(DeviceWarning::PartialBlock { bytes: rest }));
        let kernels = is_block_device.then(|| kernels(&opened));
        if !options.read_only && kernels.as_ref().is_some_and(BlockDevice::is_read_only) {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        // A file needs flushes for its own metadata, whatever the drive below.
        let has_volatile_cache = kernels.is_none_or(|device| device.has_volatile_cache());
        let limits = DeviceLimits {
            blocks: bytes / block_size,
            volatile_cache: match options.flush {
                FlushPolicy::Always => true,
                FlushPolicy::Never => false,
                FlushPolicy::Auto => !direct || has_volatile_cache,
            },
            discards: !options.read_only && kernels.is_none_or(|device| device.discards()),
            pins: false,
        };
        let space = Arc::new(SpaceBelow::new(!is_block_device, limits.blocks));
        Ok(Self { fd: Arc::new(fd), limits, warnings, space })
    }

    /// The device for the core behind `handle`.
    #[must_use]
    pub fn attach(&self, handle: &Handle) -> FileDevice {
        let (fd, limits) = (Fd::shared(self.fd.clone()), self.limits);
        let space = self.space.clone();
        let file = File { fd, limits, window: ReadWindow::default(), space };
        FileDevice::new(handle.core.ring.clone(), file)
    }

    /// Returns true if `path` leads to the device that is open here. It does not if the file was replaced, or a
    /// drive plugged in again.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let identity = |found: Stat| (found.st_dev, found.st_ino, found.st_rdev);
        let (opened, named) = (fstat(&self.fd).map(identity), stat(path).map(identity));
        opened.is_ok() && opened == named
    }

    /// Returns true for a file, and false for a block device.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.space.is_file()
    }

    /// Looks after the space below, and returns whether there is none: for the server that has it, every second or
    /// so while the device is served, on a thread that may wait for the file system.
    #[must_use]
    pub fn look_after_space(&self) -> bool {
        match self.space.is_full() {
            true => self.space.look(self.fd.as_fd()),
            false => false,
        }
    }

    /// Holds space back for what gives space back when there is none (SPACE-BELOW-2). Returns whether there was
    /// enough; if not, the device counts as full.
    #[must_use]
    pub fn hold_space(&self) -> bool {
        let held = self.space.hold(self.fd.as_fd());
        if !held {
            self.space.note_full();
        }
        held
    }

    /// Compares what `path` leads to with the file that is open here. `None` for a block device, whose names come and
    /// go.
    #[must_use]
    pub fn path_state(&self, path: &Path) -> Option<OpenFile> {
        let opened = fstat(&self.fd).ok()?;
        if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile {
            return None;
        }
        let is_this = |found: &Stat| (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino);
        let state = match stat(path) {
            Ok(named) if is_this(&named) => PathState::Same,
            Ok(_) => PathState::Other,
            Err(Errno::NOENT | Errno::NOTDIR) => PathState::Missing,
            // It cannot be looked at now, which says nothing.
            Err(_) => PathState::Same,
        };
        let descriptor = self.fd.as_raw_fd();
        // The kernel follows the name by which it was opened when that is renamed.
        let name = match state {
            PathState::Same => None,
            _ => std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok(),
        };
        let name = name.filter(|name| stat(name).is_ok_and(|found| is_this(&found)));
        // The width differs between architectures.
        #[allow(clippy::useless_conversion)]
        let (links, inode) = (opened.st_nlink.into(), opened.st_ino.into());
        Some(OpenFile { state, links, inode, name, descriptor })
    }

    /// The bytes that the file or drive has now, which may be others than when it was opened.
    #[must_use]
    pub fn bytes_now(&self) -> Option<u64> {
        let opened = fstat(&self.fd).ok()?;
        match FileType::from_raw_mode(opened.st_mode) {
            FileType::BlockDevice => seek(&self.fd, SeekFrom::End(0)).ok(),
            _ => Some(opened.st_size.unsigned_abs()),
        }
    }

    /// The device with the size that it has now, if it is larger than when it was opened. File, lock and space below are the
    /// same; a [`FileDevice`] that was made before keeps the former size.
    #[must_use]
    pub fn at_size_now(&self) -> Self {
        let blocks = self.bytes_now().map_or(0, |bytes| bytes / BLOCK_SIZE as u64);
        let blocks = blocks.max(self.limits.blocks);
        Self { limits: DeviceLimits { blocks, ..self.limits }, ..self.clone() }
    }

    /// Returns true if the drive, or the file system of the file, takes no writes now, whatever it did when it was opened.
    #[must_use]
    pub fn is_read_only_now(&self) -> bool {
        let Ok(opened) = fstat(&self.fd) else { return false };
        match FileType::from_raw_mode(opened.st_mode) {
            FileType::BlockDevice => kernels(&opened).is_read_only(),
            _ => fstatvfs(&self.fd).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY)),
        }
    }

    /// Reads a block on this thread, which may wait for it.
    ///
    /// # Errors
    /// The device fails, or ends before.
    pub fn read_block(&self, pba: Pba) -> Result<Buffer, Errno> {
        let mut block = Buffer::new(1);
        let offset = pba.byte_offset().ok_or(Errno::INVAL)?;
        match pread(&self.fd, block.as_mut_bytes(), offset)? {
            BLOCK_SIZE => Ok(block),
            _ => Err(Errno::IO),
        }
    }

    /// Writes a block on this thread, which may wait for it.
    ///
    /// # Errors
    /// The device fails, or ends before.
    pub fn write_block(&self, pba: Pba, block: &Buffer) -> Result<(), Errno> {
        let offset = pba.byte_offset().ok_or(Errno::INVAL)?;
        match pwrite(&self.fd, block.as_bytes(), offset)? {
            BLOCK_SIZE => Ok(()),
            _ => Err(Errno::IO),
        }
    }

    /// Size and properties.
    #[must_use]
    pub fn limits(&self) -> DeviceLimits {
        self.limits
    }

    /// Returns warnings for the operator.
    #[must_use]
    pub fn warnings(&self) -> &[DeviceWarning] {
        &self.warnings
    }
}

/// The block device that is open, as the kernel describes it.
fn kernels(opened: &Stat) -> BlockDevice<'static> {
    BlockDevice::new((major(opened.st_rdev), minor(opened.st_rdev)))
}

/// Creates a file of `len_bytes` that takes no space yet. It must not exist; it and its name are
/// durable afterwards.
pub fn create_sparse(path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    if len_bytes == 0 || !len_bytes.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(OpenError::BadSize { path: path.to_owned(), bytes: len_bytes });
    }
    let create = || {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::RUSR | Mode::WUSR)?;
        let sized = ftruncate(&fd, len_bytes).and_then(|()| fsync(&fd));
        if sized.is_err() {
            // Leave nothing half done behind; the first error is the one to report.
            let _ = rustix::fs::unlink(path);
        }
        sized?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fsync(open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?)
    };
    create().map_err(|errno| open_error(path, errno))
}

/// Opens past the page cache if that can be; whether it could.
fn open_direct(
    path: &Path,
    options: OpenOptions,
    kind: FileType,
) -> Result<(OwnedFd, bool), Errno> {
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if kind == FileType::BlockDevice && !options.read_only {
        // For block devices: fails while mounted or opened like this by another.
        flags |= OFlags::EXCL;
    }
    match open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Ok(fd) => Ok((fd, true)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {
            open(path, flags, Mode::empty()).map(|fd| (fd, false))
        }
        Err(errno) => Err(errno),
    }
}

fn check_sectors(path: &Path, fd: &OwnedFd) -> Result<(), OpenError> {
    let bytes = ioctl_blksszget(fd).map_err(|errno| open_error(path, errno))?;
    if bytes as usize > BLOCK_SIZE {
        return Err(OpenError::SectorSize { path: path.to_owned(), bytes });
    }
    Ok(())
}

fn open_error(path: &Path, errno: Errno) -> OpenError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT => OpenError::Missing { path },
        Errno::EXIST => OpenError::Exists { path },
        Errno::ACCESS | Errno::PERM => OpenError::Permission { path },
        Errno::BUSY | Errno::AGAIN | Errno::TXTBSY => OpenError::InUse { path },
        Errno::ROFS => OpenError::ReadOnly { path },
        errno => OpenError::System { path, errno },
    }
}
