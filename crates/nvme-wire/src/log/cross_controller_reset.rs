//! Outcome of Cross-Controller Resets that were not over when their command was completed (Base 2.3, clause
//! 5.2.12.3.1).

use core::mem::offset_of;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ControllerInstance;

/// Entries for which the page has room.
const ENTRIES: usize = 511;

/// The Cross-Controller Reset log page.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CrossControllerResetLog {
    /// 0..2: Number of Entries.
    pub ne: U16,
    /// 2..8: reserved.
    pub reserved2: [u8; 6],
    /// 8..4096: the entries, of which `ne` are valid.
    pub entries: [CrossControllerResetEntry; ENTRIES],
}

/// A reset.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CrossControllerResetEntry {
    /// 0..2: Impacted Controller ID.
    pub icid: U16,
    /// 2: its Controller Instance Uniquifier.
    pub ciu: u8,
    /// 3: reserved.
    pub reserved3: u8,
    /// 4..6: Alternate Controller ID, that of the controller which took the command.
    pub acid: U16,
    /// 6: Cross-Controller Reset Status.
    pub ccrs: u8,
    /// 7: Cross-Controller Reset Flags.
    pub ccrf: u8,
}

const _: () = assert!(size_of::<CrossControllerResetLog>() == 4096);
const _: () = assert!(offset_of!(CrossControllerResetEntry, ccrs) == 6);

/// The state of a reset.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResetStatus {
    /// It is under way.
    InProgress,
    /// The impacted controller was reset.
    Succeeded,
    /// It was not.
    Failed,
}

impl CrossControllerResetEntry {
    /// CCRS of a reset that is under way; of one that succeeded, of one that failed.
    pub const IN_PROGRESS: u8 = 0;
    /// See [`Self::IN_PROGRESS`].
    pub const SUCCEEDED: u8 = 1;
    /// See [`Self::IN_PROGRESS`].
    pub const FAILED: u8 = 2;

    /// Its status. A reserved value says nothing: it is not known to be over.
    #[must_use]
    pub const fn status(&self) -> ResetStatus {
        match self.ccrs {
            Self::SUCCEEDED => ResetStatus::Succeeded,
            Self::FAILED => ResetStatus::Failed,
            _ => ResetStatus::InProgress,
        }
    }
}

impl CrossControllerResetLog {
    /// Log Specific Parameter, Remove Completed (RMC): entries of resets that are over go once they were read. Without it
    /// they stay, and a page that is full refuses further resets.
    pub const LSP_REMOVE_COMPLETED: u8 = 1 << 0;

    /// The status of the reset of `impacted` in the page. Of several, one that has succeeded counts before one
    /// that is under way, and that before one that has failed.
    #[must_use]
    pub fn status_of(&self, impacted: ControllerInstance) -> Option<ResetStatus> {
        let count = usize::from(self.ne.get()).min(ENTRIES);
        let of_it = self.entries[..count]
            .iter()
            .filter(|entry| (entry.icid.get(), entry.ciu) == (impacted.cntlid, impacted.ciu));
        of_it.map(CrossControllerResetEntry::status).min_by_key(|status| match status {
            ResetStatus::Succeeded => 0,
            ResetStatus::InProgress => 1,
            ResetStatus::Failed => 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn the_page_says_how_far_a_reset_is() {
        let mut bytes = [0; 4096];
        bytes[0] = 3;
        bytes[8..16].copy_from_slice(&[0x02, 0x01, 9, 0, 7, 0, 2, 3]);
        bytes[16..24].copy_from_slice(&[0x02, 0x01, 8, 0, 7, 0, 1, 3]);
        bytes[24..32].copy_from_slice(&[0x02, 0x01, 9, 0, 7, 0, 0, 3]);
        let log = CrossControllerResetLog::ref_from_bytes(&bytes).expect("4096 bytes");
        let instance = |ciu| ControllerInstance { cntlid: 0x0102, ciu, cirn: 5 };
        assert_eq!(log.status_of(instance(8)), Some(ResetStatus::Succeeded));
        assert_eq!(log.status_of(instance(9)), Some(ResetStatus::InProgress));
        assert_eq!(log.status_of(instance(7)), None);
        assert_eq!(log.as_bytes(), bytes);
    }

    #[test]
    fn a_count_beyond_the_page_and_reserved_values_do_no_harm() {
        let mut log = CrossControllerResetLog::new_zeroed();
        log.ne = u16::MAX.into();
        log.entries[ENTRIES - 1].ccrs = 0xFF;
        log.entries[ENTRIES - 1].icid = 1.into();
        let last = ControllerInstance { cntlid: 1, ciu: 0, cirn: 0 };
        assert_eq!(log.status_of(last), Some(ResetStatus::InProgress));
    }
}
