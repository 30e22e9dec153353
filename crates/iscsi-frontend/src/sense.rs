//! Sense data of what the engine refused or failed.

use dataplane::IoError;
use io_traits::DeviceError;
use iscsi_target::Completion;
use iscsi_target::scsi::Operation;
use iscsi_wire::Sense;
use iscsi_wire::sense::ScsiStatus;
use units::{Lba, SectorSize};
use volume::VolumeError;

/// The end of a command whose request was not carried out. Every variant is named, so that a new error does not compile until
/// its sense is chosen.
pub(crate) fn completion_of(
    error: &IoError,
    operation: &Operation,
    sector: SectorSize,
) -> Completion {
    let changes = operation.changes();
    // The first logical block of the block, or of the command.
    let lba_of = |block: Lba| (block.0 * sector.per_block()).max(operation.lba().unwrap_or(0));
    let sense = match error {
        IoError::Miscompare { offset_bytes } => Sense::MISCOMPARE.with_information(*offset_bytes),
        IoError::Write(error) => volume_sense(error, true, lba_of),
        IoError::Volume(error) => volume_sense(error, changes, lba_of),
        IoError::ReservationConflict => {
            return Completion::refused(ScsiStatus::ReservationConflict);
        }
        IoError::Aborted => return Completion::refused(ScsiStatus::TaskAborted),
    };
    Completion::failed(sense)
}

/// The end of a command that changes something else than blocks.
pub(crate) fn refused_change(error: &VolumeError) -> Completion {
    Completion::failed(volume_sense(error, true, |block| block.0))
}

fn volume_sense(error: &VolumeError, changes: bool, lba_of: impl Fn(Lba) -> u64) -> Sense {
    match error {
        VolumeError::OutOfRange { range, .. } => {
            Sense::LBA_OUT_OF_RANGE.with_information(lba_of(range.start))
        }
        VolumeError::Length { .. } | VolumeError::Metadata { .. } => Sense::INVALID_FIELD_IN_CDB,
        // The same write succeeds once something was deallocated.
        VolumeError::PoolFull | VolumeError::AllowanceSpent => Sense::NO_SPACE,
        VolumeError::Corrupt { lba, .. } | VolumeError::CorruptMap { lba, .. } => {
            Sense::READ_ERROR.with_information(lba_of(*lba))
        }
        VolumeError::Deleted => Sense::NO_SUCH_UNIT,
        VolumeError::Device(error) => device_sense(*error, changes),
        VolumeError::JournalLost => Sense::WRITE_ERROR,
        // The initiator tries again, and finds the volume after the restart.
        VolumeError::ShutDown => Sense::BECOMING_READY,
        VolumeError::Exists(_) | VolumeError::Spec => Sense::INTERNAL_FAILURE,
    }
}

fn device_sense(error: DeviceError, changes: bool) -> Sense {
    match error {
        DeviceError::Io { .. } if changes => Sense::WRITE_ERROR,
        DeviceError::Io { .. } => Sense::READ_ERROR,
        DeviceError::NoSpace { .. } => Sense::NO_SPACE,
        // Nothing is known to be lost.
        DeviceError::OutOfRange { .. } | DeviceError::Pinned { .. } | DeviceError::Gone => {
            Sense::INTERNAL_FAILURE
        }
    }
}

/// The name under which a failure is counted.
pub(crate) fn name_of(sense: &Sense) -> &'static str {
    NAMES.iter().find(|(known, _)| known.code == sense.code).map_or("Other", |(_, name)| name)
}

/// All that [`completion_of`] gives, by names for counters.
pub(crate) const NAMES: [(Sense, &str); 9] = [
    (Sense::LBA_OUT_OF_RANGE, "SCSI LBA Out of Range"),
    (Sense::INVALID_FIELD_IN_CDB, "SCSI Invalid Field in CDB"),
    (Sense::NO_SPACE, "SCSI Space Allocation Failed"),
    (Sense::READ_ERROR, "SCSI Unrecovered Read Error"),
    (Sense::WRITE_ERROR, "SCSI Write Error"),
    (Sense::NO_SUCH_UNIT, "SCSI Logical Unit Not Supported"),
    (Sense::BECOMING_READY, "SCSI Becoming Ready"),
    (Sense::INTERNAL_FAILURE, "SCSI Internal Target Failure"),
    (Sense::MISCOMPARE, "SCSI Miscompare"),
];
