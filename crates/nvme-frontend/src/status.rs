//! Maps the engine's errors to NVMe status: the engine knows no protocol, the protocol no engine.

use io_traits::DeviceError;
use nvme_wire::io::BlockCommand;
use nvme_wire::{IoOpcode, Sqe, Status};
use units::{Lba, SectorSize};
use volume::VolumeError;

use crate::sectors::first_sector_of;

/// The status for a command that the engine refused or failed. Every variant is named, so that a new
/// error does not compile until someone has chosen its status.
pub(crate) fn nvme_status(error: &VolumeError, opcode: u8) -> Status {
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
        VolumeError::Device(error) => device_status(*error, opcode),
        VolumeError::JournalLost => Status::WRITE_FAULT.with_dnr(),
        // The host tries again, and finds the volume after the restart.
        VolumeError::ShutDown => Status::NAMESPACE_NOT_READY,
        VolumeError::Exists(_) | VolumeError::Spec => Status::INTERNAL_ERROR.with_dnr(),
    }
}

/// None with DNR. A drive may read at last what it could not read at first; a write that is sent again gets
/// other blocks; and a device that does not answer may do so again.
fn device_status(error: DeviceError, opcode: u8) -> Status {
    match error {
        DeviceError::Io { .. } if changes(opcode) => Status::WRITE_FAULT,
        DeviceError::Io { .. } => Status::UNRECOVERED_READ_ERROR,
        DeviceError::NoSpace { .. } => Status::CAPACITY_EXCEEDED,
        // No media error: nothing is known to be lost. No path error either: a host with multipath would send
        // the command again and again, and there is no other path.
        DeviceError::OutOfRange { .. } | DeviceError::Pinned { .. } | DeviceError::Gone => {
            Status::INTERNAL_ERROR
        }
    }
}

/// All that [`nvme_status`] gives, and what comparisons and reservations end commands with.
pub(crate) const ENGINE_STATUSES: [Status; 10] = [
    Status::LBA_OUT_OF_RANGE,
    Status::INVALID_FIELD,
    Status::CAPACITY_EXCEEDED,
    Status::UNRECOVERED_READ_ERROR,
    Status::WRITE_FAULT,
    Status::INVALID_NAMESPACE_OR_FORMAT,
    Status::NAMESPACE_NOT_READY,
    Status::INTERNAL_ERROR,
    Status::COMPARE_FAILURE,
    Status::RESERVATION_CONFLICT,
];

/// Usual statuses of commands other than I/O commands.
pub(crate) const ADMIN_STATUSES: [Status; 5] = [
    Status::INVALID_OPCODE,
    Status::INVALID_FIELD,
    Status::INVALID_LOG_PAGE,
    Status::CONNECT_INVALID_PARAMETERS,
    Status::AUTHENTICATION_REQUIRED,
];

/// Returns true if a command changes blocks. Compare and Write reads first, and is failed as a read until it
/// writes.
fn changes(opcode: u8) -> bool {
    let opcode = IoOpcode(opcode);
    matches!(opcode, IoOpcode::WRITE | IoOpcode::WRITE_ZEROES | IoOpcode::DATASET_MANAGEMENT)
}

/// The logical block that the error log names with an error, if that is one of what lies below: the first one that
/// is known to be concerned, else the command's first.
pub(crate) fn logged_block(error: &VolumeError, sqe: &Sqe, sector: SectorSize) -> Option<Lba> {
    match error {
        VolumeError::Corrupt { lba, .. } | VolumeError::CorruptMap { lba, .. } => {
            Some(first_sector_of(*lba, sector, sqe))
        }
        VolumeError::Device(DeviceError::NoSpace { .. }) => None,
        // Its ranges are not in the command.
        VolumeError::Device(_) | VolumeError::JournalLost
            if sqe.opcode == IoOpcode::DATASET_MANAGEMENT.0 =>
        {
            Some(Lba(0))
        }
        VolumeError::Device(_) | VolumeError::JournalLost => {
            Some(Lba(BlockCommand::decode(sqe).slba))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nvme_wire::IoOpcode as Op;
    use units::{Pba, PbaRange};

    use super::*;

    #[test]
    fn what_the_device_fails_is_a_media_error_of_the_commands_kind() {
        let failed =
            VolumeError::Device(DeviceError::Io { range: PbaRange::new(Pba(7), 1), errno: 5 });
        for opcode in [Op::READ, Op::COMPARE, Op::VERIFY, Op::COMPARE_AND_WRITE] {
            assert_eq!(nvme_status(&failed, opcode.0), Status::UNRECOVERED_READ_ERROR);
        }
        for opcode in [Op::WRITE, Op::WRITE_ZEROES, Op::DATASET_MANAGEMENT] {
            assert_eq!(nvme_status(&failed, opcode.0), Status::WRITE_FAULT);
        }
        let gone = VolumeError::Device(DeviceError::Gone);
        assert_eq!(nvme_status(&gone, Op::READ.0), Status::INTERNAL_ERROR, "nothing is lost");
        let lost = Status::WRITE_FAULT.with_dnr();
        assert_eq!(nvme_status(&VolumeError::JournalLost, Op::WRITE.0), lost);
    }
}
