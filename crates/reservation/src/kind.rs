//! Types of reservations, and commands that conflict with them.

/// A type of reservation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registrants write; one holds the reservation.
    WriteExclusiveRegistrants,
    /// Only registrants read and write; one holds the reservation.
    ExclusiveAccessRegistrants,
    /// Only registrants write; all hold the reservation.
    WriteExclusiveAll,
    /// Only registrants read and write; all hold the reservation.
    ExclusiveAccessAll,
}

/// A command, as far as reservations tell commands apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// It returns data, or something about data.
    Read,
    /// It may change data, or makes changes durable.
    Write,
    /// It does neither: only a lock excludes it.
    Other,
}

impl Kind {
    /// All types, in the order of their NVMe codes.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];
    /// The SCSI codes, in the same order.
    const SCSI_CODES: [u8; 6] = [1, 3, 5, 6, 7, 8];

    /// Returns its code in NVMe (RTYPE).
    #[must_use]
    pub fn nvme_code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the type with this code in NVMe.
    #[must_use]
    pub fn from_nvme_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.nvme_code() == code)
    }

    /// Returns its code in SCSI (TYPE).
    #[must_use]
    pub fn scsi_code(self) -> u8 {
        Self::SCSI_CODES[self as usize]
    }

    /// Returns the type with this code in SCSI.
    #[must_use]
    pub fn from_scsi_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.scsi_code() == code)
    }

    /// Returns whether every registrant holds the reservation.
    #[must_use]
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Returns whether registrants that do not hold the reservation are not excluded.
    #[must_use]
    pub fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns whether every host may read.
    pub(crate) fn allows_reads(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll
        )
    }
}
