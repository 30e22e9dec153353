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

#[cfg(test)]
mod tests {
    use units::{Lba, LbaRange, Pba, PbaRange};
    use uuid::Uuid;

    use super::*;

    /// Every error of the engine, and what clients of reads and of writes are answered.
    #[test]
    fn each_error_of_the_engine_has_its_number() {
        let (lba, pba) = (Lba(9), Pba(3));
        let range = PbaRange::new(pba, 1);
        let device = VolumeError::Device;
        for (error, of_read, of_write) in [
            (
                VolumeError::OutOfRange { range: LbaRange::new(lba, 4), blocks: 9 },
                Errno::EINVAL,
                Errno::ENOSPC,
            ),
            (VolumeError::Length { len_bytes: 5 }, Errno::EINVAL, Errno::EINVAL),
            (VolumeError::Metadata { len_bytes: 5, wanted_bytes: 8 }, Errno::EINVAL, Errno::EINVAL),
            (VolumeError::PoolFull, Errno::ENOSPC, Errno::ENOSPC),
            (VolumeError::AllowanceSpent, Errno::ENOSPC, Errno::ENOSPC),
            (VolumeError::Corrupt { lba, pba, stored: 1, computed: 2 }, Errno::EIO, Errno::EIO),
            (VolumeError::CorruptMap { lba, pba }, Errno::EIO, Errno::EIO),
            (VolumeError::Exists(Uuid::nil()), Errno::EIO, Errno::EIO),
            (VolumeError::Spec, Errno::EIO, Errno::EIO),
            (VolumeError::Deleted, Errno::ESHUTDOWN, Errno::ESHUTDOWN),
            (device(DeviceError::Io { range, errno: 5 }), Errno::EIO, Errno::EIO),
            (device(DeviceError::NoSpace { range }), Errno::ENOSPC, Errno::ENOSPC),
            (device(DeviceError::OutOfRange { range }), Errno::EIO, Errno::EIO),
            (device(DeviceError::Pinned { range }), Errno::EIO, Errno::EIO),
            (device(DeviceError::Gone), Errno::EIO, Errno::EIO),
            (VolumeError::JournalLost, Errno::EIO, Errno::EIO),
            (VolumeError::ShutDown, Errno::ESHUTDOWN, Errno::ESHUTDOWN),
        ] {
            for (changes, expected) in [(false, of_read), (true, of_write)] {
                let found = errno_of(&error.clone().into(), changes);
                assert_eq!(found, expected, "{error:?} {changes}");
                assert_eq!(errno_of(&IoError::Write(error.clone()), changes), expected);
                assert!(EXPECTED.contains(&found), "{error:?}");
            }
        }
        for (error, expected) in [
            (IoError::Miscompare { offset_bytes: 7 }, Errno::EIO),
            (IoError::ReservationConflict, Errno::EPERM),
            (IoError::Aborted, Errno::EPERM),
        ] {
            for changes in [false, true] {
                assert_eq!(errno_of(&error, changes), expected, "{error:?} {changes}");
            }
            assert!(EXPECTED.contains(&expected), "{error:?}");
        }
    }
}
