//! The engine's errors as errors of NBD: the engine knows no protocol, the protocol no engine.

use dataplane::IoError;
use io_traits::DeviceError;
use nbd_wire::Errno;
use volume::VolumeError;

/// All errors that clients are answered as a rule.
pub(crate) const EXPECTED: [Errno; 7] = [
    Errno::EPERM,
    Errno::EIO,
    Errno::EINVAL,
    Errno::ENOSPC,
    Errno::EOVERFLOW,
    Errno::ENOTSUP,
    Errno::ESHUTDOWN,
];

/// The error for a request that the engine refused or failed; `changes` says that it was to change bytes. Every variant is
/// named, so that a new one does not compile until its error is chosen.
pub(crate) fn errno_of(error: &IoError, changes: bool) -> Errno {
    let error = match error {
        IoError::Volume(error) | IoError::Write(error) => error,
        IoError::Miscompare { .. } => return Errno::EIO,
        // No client of NBD is registered, so none is preempted.
        IoError::ReservationConflict | IoError::Aborted => return Errno::EPERM,
    };
    match error {
        // The volume became smaller since the request was checked.
        VolumeError::OutOfRange { .. } if changes => Errno::ENOSPC,
        VolumeError::OutOfRange { .. }
        | VolumeError::Length { .. }
        | VolumeError::Metadata { .. } => Errno::EINVAL,
        VolumeError::PoolFull
        | VolumeError::AllowanceSpent
        | VolumeError::Device(DeviceError::NoSpace { .. }) => Errno::ENOSPC,
        VolumeError::Corrupt { .. }
        | VolumeError::CorruptMap { .. }
        | VolumeError::Device(_)
        | VolumeError::JournalLost
        | VolumeError::Exists(_)
        | VolumeError::Spec => Errno::EIO,
        VolumeError::Deleted | VolumeError::ShutDown => Errno::ESHUTDOWN,
    }
}
