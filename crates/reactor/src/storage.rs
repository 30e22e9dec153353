//! A file or block device as one core sees it.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Pba, PbaRange};
use uring::{Errno, Fd, ReadWindow, Ring};

use crate::space_below::SpaceBelow;

/// A file or block device. Made by [`crate::OwnedDevice::attach`]; cheap to clone.
///
/// Requests go to the kernel when they are made, with the core's next turn, and are not cancelled by dropping their
/// futures. From a drive that serves all that it has before it says so, some reads are held ([`ReadWindow`]).
#[derive(Clone)]
pub struct FileDevice {
    ring: Ring,
    file: Rc<File>,
}

pub(crate) struct File {
    pub(crate) fd: Fd,
    pub(crate) limits: DeviceLimits,
    pub(crate) window: ReadWindow,
    /// Space below, as all cores know it.
    pub(crate) space: Arc<SpaceBelow>,
}

impl FileDevice {
    pub(crate) fn new(ring: Ring, file: File) -> Self {
        Self { ring, file: Rc::new(file) }
    }

    /// The byte offset of `range`, if it lies on the device.
    fn offset(&self, range: PbaRange) -> Result<u64, DeviceError> {
        let inside = range.checked_end().is_some_and(|end| end.0 <= self.file.limits.blocks);
        match range.start.byte_offset() {
            Some(offset) if inside => Ok(offset),
            _ => Err(DeviceError::OutOfRange { range }),
        }
    }
}

fn device_error(range: PbaRange, errno: Errno) -> DeviceError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => DeviceError::NoSpace { range },
        Errno::NODEV | Errno::NXIO | Errno::SHUTDOWN | Errno::STALE => DeviceError::Gone,
        errno => DeviceError::Io { range, errno: errno.raw_os_error() },
    }
}

impl Device for FileDevice {
    fn limits(&self) -> DeviceLimits {
        self.file.limits
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let range = PbaRange::new(pba, buffer.len_blocks() as u64);
        let read = match self.offset(range) {
            Err(error) => Err(Err(error)),
            Ok(_) if range.blocks == 0 => Err(Ok(buffer)),
            Ok(offset) => Ok(self.ring.read(&self.file.fd, &self.file.window, offset, buffer)),
        };
        async move {
            match read {
                Ok(read) => read.await.map_err(|errno| device_error(range, errno)),
                Err(decided) => decided,
            }
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let len_bytes = data.len_bytes();
        assert!(len_bytes.is_multiple_of(BLOCK_SIZE), "a write is a whole number of blocks");
        let range = PbaRange::new(pba, (len_bytes / BLOCK_SIZE) as u64);
        let write = match self.offset(range) {
            Err(error) => Err(Err(error)),
            Ok(_) if range.blocks == 0 => Err(Ok(())),
            Ok(offset) => Ok((self.ring.write(&self.file.fd, offset, data), self.file.clone())),
        };
        async move {
            match write {
                Ok((write, file)) => write.await.map_err(|errno| {
                    let error = device_error(range, errno);
                    if let DeviceError::NoSpace { .. } = error {
                        file.space.note_full();
                    }
                    error
                }),
                Err(decided) => decided,
            }
        }
    }

    /// Without a volatile cache there is nothing to do.
    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let limits = self.file.limits;
        let sync = limits.volatile_cache.then(|| self.ring.sync_data(&self.file.fd));
        async move {
            let Some(sync) = sync else { return Ok(()) };
            let all = PbaRange::new(Pba(0), limits.blocks);
            sync.await.map_err(|errno| device_error(all, errno))
        }
    }

    /// A device that cannot give space back keeps it.
    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let len = range.blocks.saturating_mul(BLOCK_SIZE as u64);
        let punch = match self.offset(range) {
            Err(error) => Err(Err(error)),
            Ok(_) if range.blocks == 0 || !self.file.limits.discards => Err(Ok(())),
            Ok(offset) => Ok(self.ring.punch_hole(&self.file.fd, offset, len)),
        };
        async move {
            match punch {
                Err(decided) => decided,
                Ok(punch) => match punch.await {
                    Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
                    Err(errno) => Err(device_error(range, errno)),
                },
            }
        }
    }

    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        let len = range.blocks.saturating_mul(BLOCK_SIZE as u64);
        let offset = self.offset(range).ok().filter(|_| len > 0 && self.file.space.is_file());
        let request = offset.map(|offset| self.ring.allocate(&self.file.fd, offset, len));
        async move {
            if let Some(request) = request {
                // A file system that cannot do it says so at each write.
                let _ = request.await;
            }
        }
    }

    fn is_full_below(&self) -> bool {
        self.file.space.is_full()
    }

    fn needs_space_below(&self) {
        self.file.space.note_needed();
    }
}
