//! Firmware Slot Information, LID 03h, and Changed Attached Namespace List, LID 04h.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The firmware in each slot.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlots {
    /// 0: Active Firmware Info: running slot in bits 2:0, slot after a reset in bits 6:4.
    pub afi: u8,
    /// 1..8: reserved.
    pub reserved1: [u8; 7],
    /// 8..64: Firmware Revision of slots 1 to 7, ASCII padded with spaces.
    pub frs: [[u8; 8]; 7],
    /// 64..512: reserved.
    pub reserved64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlots>() == 512 && offset_of!(FirmwareSlots, frs) == 8);

impl FirmwareSlots {
    /// Slot 1 alone, running `revision`.
    #[must_use]
    pub fn single(revision: [u8; 8]) -> Self {
        let mut slots = Self { afi: 1, ..Self::new_zeroed() };
        slots.frs[0] = revision;
        slots
    }
}

/// Namespaces whose attributes changed since this log was last read, in rising order; the first
/// zero ends the list.
#[derive(Clone, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// The namespace IDs. FFFFFFFFh alone: too many to list.
    pub nsids: [U32; 1024],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);

impl ChangedNamespaces {
    /// The list of `nsids`, which rise; "too many to list" if they are more than 1024.
    #[must_use]
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::new_zeroed();
        for (index, nsid) in nsids.into_iter().enumerate() {
            let Some(slot) = list.nsids.get_mut(index) else {
                list = Self::new_zeroed();
                list.nsids[0] = u32::MAX.into();
                break;
            };
            *slot = nsid.into();
        }
        list
    }

    /// The namespace IDs up to the end of the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_match_the_golden_bytes() {
        assert_eq!(
            FirmwareSlots::single(*b"0.1.0   ").as_bytes()[..17],
            *b"\x01\0\0\0\0\0\0\x000.1.0   \0"
        );
        assert_eq!(ChangedNamespaces::new([3, 7]).as_bytes()[..9], [3, 0, 0, 0, 7, 0, 0, 0, 0]);
    }

    #[test]
    fn too_many_changes_are_said_to_be_too_many() {
        assert_eq!(ChangedNamespaces::new(1..=1024).iter().count(), 1024);
        assert!(ChangedNamespaces::new(1..=1025).iter().eq([u32::MAX]));
    }
}
