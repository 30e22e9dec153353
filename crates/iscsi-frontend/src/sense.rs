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
    // The comparison reads; what fails behind it is `IoError::Write`.
    let changes = operation.changes() && !matches!(operation, Operation::CompareAndWrite(_));
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

#[cfg(test)]
mod tests {
    use iscsi_target::scsi::Extent;
    use units::{LbaRange, Pba, PbaRange};
    use uuid::Uuid;

    use super::*;

    const AT: Extent = Extent { lba: 83, blocks: 4 };

    fn io() -> VolumeError {
        VolumeError::Device(DeviceError::Io { range: PbaRange::new(Pba(7), 1), errno: 5 })
    }

    fn corrupt(lba: u64) -> VolumeError {
        VolumeError::Corrupt { lba: Lba(lba), pba: Pba(3), stored: 1, computed: 2 }
    }

    /// Every error of the engine has its sense, in words of SBC-4 that initiators act on.
    #[test]
    fn each_error_of_the_engine_has_its_sense() {
        let range = LbaRange::new(Lba(90), 4);
        let device = VolumeError::Device;
        let (pba, lba) = (PbaRange::new(Pba(7), 1), Lba(90));
        for (error, sense) in [
            (
                VolumeError::OutOfRange { range, blocks: 9 },
                Sense::LBA_OUT_OF_RANGE.with_information(90),
            ),
            (VolumeError::Length { len_bytes: 5 }, Sense::INVALID_FIELD_IN_CDB),
            (VolumeError::Metadata { len_bytes: 5, wanted_bytes: 8 }, Sense::INVALID_FIELD_IN_CDB),
            (VolumeError::PoolFull, Sense::NO_SPACE),
            (VolumeError::AllowanceSpent, Sense::NO_SPACE),
            (corrupt(90), Sense::READ_ERROR.with_information(90)),
            (VolumeError::CorruptMap { lba, pba: Pba(3) }, Sense::READ_ERROR.with_information(90)),
            (VolumeError::Exists(Uuid::nil()), Sense::INTERNAL_FAILURE),
            (VolumeError::Spec, Sense::INTERNAL_FAILURE),
            (VolumeError::Deleted, Sense::NO_SUCH_UNIT),
            (io(), Sense::WRITE_ERROR),
            (device(DeviceError::NoSpace { range: pba }), Sense::NO_SPACE),
            (device(DeviceError::OutOfRange { range: pba }), Sense::INTERNAL_FAILURE),
            (device(DeviceError::Pinned { range: pba }), Sense::INTERNAL_FAILURE),
            (device(DeviceError::Gone), Sense::INTERNAL_FAILURE),
            (VolumeError::JournalLost, Sense::WRITE_ERROR),
            (VolumeError::ShutDown, Sense::BECOMING_READY),
        ] {
            let found =
                completion_of(&error.clone().into(), &Operation::Write(AT), SectorSize::Bytes4096);
            assert_eq!(found, Completion::failed(sense), "{error:?}");
            assert_ne!(name_of(&sense), "Other", "{error:?}");
        }
    }

    #[test]
    fn what_the_device_fails_is_an_error_of_the_commands_kind() {
        let four = SectorSize::Bytes4096;
        let verify = Operation::Verify { extent: AT, with: iscsi_target::scsi::Compare::Nothing };
        let swap = Operation::CompareAndWrite(AT);
        for operation in [&Operation::Read(AT), &verify, &swap] {
            let found = completion_of(&io().into(), operation, four);
            assert_eq!(found, Completion::failed(Sense::READ_ERROR), "{operation:?}");
        }
        let found = completion_of(&IoError::Write(io()), &swap, four);
        assert_eq!(found, Completion::failed(Sense::WRITE_ERROR));
        assert_eq!(refused_change(&io()), Completion::failed(Sense::WRITE_ERROR));
        for (error, status) in [
            (IoError::ReservationConflict, ScsiStatus::ReservationConflict),
            (IoError::Aborted, ScsiStatus::TaskAborted),
        ] {
            assert_eq!(completion_of(&error, &swap, four), Completion::refused(status));
        }
        let differs = completion_of(&IoError::Miscompare { offset_bytes: 77 }, &swap, four);
        assert_eq!(differs, Completion::failed(Sense::MISCOMPARE.with_information(77)));
    }

    /// INFORMATION is the first logical block that is lost and was asked for.
    #[test]
    fn blocks_are_named_as_the_initiator_counts_them() {
        for (lba, sector, information) in [
            (84, SectorSize::Bytes4096, 84),
            (10, SectorSize::Bytes512, 83),
            (11, SectorSize::Bytes512, 88),
        ] {
            let found = completion_of(&corrupt(lba).into(), &Operation::Read(AT), sector);
            let expected = Sense::READ_ERROR.with_information(information);
            assert_eq!(found, Completion::failed(expected), "{lba}");
        }
    }
}
