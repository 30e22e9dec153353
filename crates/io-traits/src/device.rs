//! Blocks at rest.

use std::fmt;
use std::future::Future;

use units::{Pba, PbaRange};

use crate::{Buffer, BufferSlice};

/// Size and abilities of a device, as far as the engine depends on them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceLimits {
    /// Number of 4 KiB blocks.
    pub blocks: u64,
    /// True if a completed write can still be lost with the power until [`Device::flush`].
    pub volatile_cache: bool,
    /// True if [`Device::discard`] gives space back.
    pub discards: bool,
    /// True if it lies in memory, and blocks can be pinned. If not, [`Device::pin`] always returns `None`.
    pub pins: bool,
}

/// Why a device did not do as asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// The blocks could not be read or written; others may still be.
    #[error("{}", Failed { range: *range, errno: *errno })]
    Io {
        /// The blocks concerned.
        range: PbaRange,
        /// The operating system's error number.
        errno: i32,
    },
    /// The device has no space left for blocks it had promised (a sparse file on a full disk).
    #[error("no space left on the device below for {range}")]
    NoSpace {
        /// The blocks concerned.
        range: PbaRange,
    },
    /// The request ends beyond the device. A broken promise of the caller, or a damaged map.
    #[error("{range} ends beyond the device")]
    OutOfRange {
        /// The blocks concerned.
        range: PbaRange,
    },
    /// A write to blocks that have a reader: see [`Device::pin`].
    #[error("{range} is pinned by a reader")]
    Pinned {
        /// The blocks concerned.
        range: PbaRange,
    },
    /// The device no longer answers.
    #[error("the device no longer answers")]
    Gone,
}

/// Error numbers of a device or file system that was made read-only: `EPERM` of a block device, `EROFS` of
/// a file system.
pub const ERRNOS_READ_ONLY: [i32; 2] = [1, 30];

/// The error number of a write beyond a limit on the size of files: of the process, or of the file system (`EFBIG`).
pub const ERRNO_FILE_SIZE: i32 = 27;

/// A failed request, in words.
struct Failed {
    range: PbaRange,
    errno: i32,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, errno } = self;
        if ERRNOS_READ_ONLY.contains(errno) {
            return write!(f, "the device is read-only (errno {errno} on {range})");
        }
        match *errno {
            ERRNO_FILE_SIZE => {
                write!(f, "beyond the limit on the size of files (errno {errno} on {range})")
            }
            _ => write!(f, "I/O error on {range} (errno {errno})"),
        }
    }
}

/// A block device as one core sees it. Cheap to clone; all clones are the same device.
///
/// - Requests run concurrently and complete in any order. Writes and discards that overlap are the caller's fault.
/// - A read may overlap them. What it returns of the blocks that they share is unspecified, that of others is not.
/// - A completed write is seen by every later read. It survives a crash once a flush that began
///   after its completion has completed, or at once if the limits say so.
/// - Dropping a future does not cancel its request; the buffer stays alive until it is done.
pub trait Device: Clone + 'static {
    /// Size and properties; constant.
    fn limits(&self) -> DeviceLimits;

    /// Says that `range` will be read soon. If it lies in memory, `fetch` is shown where, to have it brought
    /// into the processor's caches: not to be looked at. A hint: it has no effect on what is read.
    fn will_read(&self, range: PbaRange, fetch: impl FnMut(*const [u8])) {
        let _ = (range, fetch);
    }

    /// Pins the blocks in `range` and returns them in place, if the device lies in memory. Until
    /// the last slice is dropped, a write to them fails with [`DeviceError::Pinned`].
    ///
    /// A device may always return `None`, also one that [pins](DeviceLimits::pins); then the blocks are
    /// to be [read](Device::read).
    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        let _ = range;
        None
    }

    /// Returns whether so little is under way that a background request may begin: it would start
    /// at once and delay no other.
    fn has_room(&self) -> bool {
        true
    }

    /// Fills `buffer` from the blocks at `pba`.
    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static;

    /// Writes `data`, a whole number of blocks, aligned, to the blocks at `pba`.
    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static;

    /// Writes as [`Device::write`] does, if that takes no waiting, as on a device in memory: it is complete on return. The data
    /// need not be aligned. If the CRC-32C of each block is wanted, a device that can take it on the way tells `crc`, for all
    /// blocks in order. `None`: nothing was done, and the write is to be asked for. A device may always return that; one in a
    /// simulation whose power goes meanwhile does, too, and completes nothing any more.
    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        let _ = (pba, data, crc);
        None
    }

    /// Makes every write that had completed before this call durable.
    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static;

    /// Says that the contents of `range` are no longer needed. They are unspecified afterwards.
    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static;

    /// Takes the space of `range` from what lies below, if that hands it out as it is written, so that
    /// later writes there do not fail for want of it. Contents stay. A hint: failures are ignored.
    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        let _ = range;
        std::future::ready(())
    }

    /// Returns whether what lies below has no space for new blocks: data is refused until it has.
    fn is_full_below(&self) -> bool {
        false
    }

    /// Says that a write that gives space back in the end failed for want of space below. The owner of
    /// the device gives up space that was held back for that.
    fn needs_space_below(&self) {}
}
