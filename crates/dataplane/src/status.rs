//! Where the engine's errors become NVMe status: the engine knows no protocol, the protocol no engine.

use io_traits::DeviceError;
use nvme_wire::Status;
use volume::VolumeError;

/// The status for a request that the engine refused or failed. Every variant is named, so that a new
/// error does not compile until someone has chosen its status.
pub(crate) fn nvme_status(error: &VolumeError) -> Status {
    match error {
        VolumeError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.with_dnr(),
        VolumeError::Length { .. } | VolumeError::Metadata { .. } => {
            Status::INVALID_FIELD.with_dnr()
        }
        // Not DNR: the same write succeeds once something was deallocated.
        VolumeError::PoolFull | VolumeError::AllowanceSpent => Status::CAPACITY_EXCEEDED,
        // DNR: the block is lost, and a host that asks again only waits longer for that answer.
        VolumeError::Corrupt { .. } | VolumeError::CorruptMap { .. } => {
            Status::UNRECOVERED_READ_ERROR.with_dnr()
        }
        VolumeError::Deleted => Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr(),
        VolumeError::Device(error) => device_status(*error),
        VolumeError::JournalLost => Status::WRITE_FAULT.with_dnr(),
        // The host tries again, and finds the volume after the restart.
        VolumeError::ShutDown => Status::NAMESPACE_NOT_READY,
        VolumeError::Exists(_) | VolumeError::Spec => Status::INTERNAL_ERROR.with_dnr(),
    }
}

fn device_status(error: DeviceError) -> Status {
    match error {
        DeviceError::Io { .. } => Status::DATA_TRANSFER_ERROR,
        DeviceError::NoSpace { .. } => Status::CAPACITY_EXCEEDED,
        DeviceError::OutOfRange { .. } | DeviceError::Gone => Status::INTERNAL_ERROR,
    }
}
