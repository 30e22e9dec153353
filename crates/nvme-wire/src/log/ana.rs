//! Asymmetric Namespace Access, LID 0Ch: a header, then a descriptor with its namespaces for each
//! group.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ANA Optimized.
pub const ANA_STATE_OPTIMIZED: u8 = 0x01;
/// ANA Non-Optimized.
pub const ANA_STATE_NON_OPTIMIZED: u8 = 0x02;
/// ANA Inaccessible.
pub const ANA_STATE_INACCESSIBLE: u8 = 0x03;
/// ANA Persistent Loss.
pub const ANA_STATE_PERSISTENT_LOSS: u8 = 0x04;
/// ANA Change.
pub const ANA_STATE_CHANGE: u8 = 0x0F;

/// Head of the log.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaLogHeader {
    /// 0..8: Change Count.
    pub chgcnt: U64,
    /// 8..10: Number of ANA Group Descriptors.
    pub nanagrpd: U16,
    /// 10..16: reserved.
    pub reserved10: [u8; 6],
}

const _: () = assert!(size_of::<AnaLogHeader>() == 16);

/// State of one group; `nnsid` namespace IDs of four bytes follow.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaGroupDescriptor {
    /// 0..4: ANA Group ID.
    pub agid: U32,
    /// 4..8: Number of NSID Values.
    pub nnsid: U32,
    /// 8..16: Change Count.
    pub chgcnt: U64,
    /// 16: Asymmetric Namespace Access State, bits 3:0.
    pub state: u8,
    /// 17..32: reserved.
    pub reserved17: [u8; 15],
}

const _: () = {
    assert!(size_of::<AnaGroupDescriptor>() == 32);
    assert!(offset_of!(AnaGroupDescriptor, state) == 16);
};
