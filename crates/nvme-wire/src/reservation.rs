//! Reservation commands (Base, clauses 7.5 to 7.8) and the log page about them (Base, clause 5.1.12.1.32).

use core::mem::size_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{IoOpcode, SglDescriptor, Sqe};

/// Reservation Register Action: register a key.
pub const RREGA_REGISTER: u8 = 0;
/// Reservation Register Action: end the registration.
pub const RREGA_UNREGISTER: u8 = 1;
/// Reservation Register Action: replace the key.
pub const RREGA_REPLACE: u8 = 2;
/// Reservation Acquire Action: acquire.
pub const RACQA_ACQUIRE: u8 = 0;
/// Reservation Acquire Action: preempt.
pub const RACQA_PREEMPT: u8 = 1;
/// Reservation Acquire Action: preempt and abort.
pub const RACQA_PREEMPT_AND_ABORT: u8 = 2;
/// Reservation Release Action: release.
pub const RRELA_RELEASE: u8 = 0;
/// Reservation Release Action: clear.
pub const RRELA_CLEAR: u8 = 1;
/// Change Persist Through Power Loss State: no change.
pub const CPTPL_KEEP: u8 = 0;
/// Change Persist Through Power Loss State: reservations end with a power loss.
pub const CPTPL_CLEAR: u8 = 2;
/// Change Persist Through Power Loss State: reservations outlive a power loss.
pub const CPTPL_SET: u8 = 3;

/// RESCAP: all six types, persistence through a power loss, and IEKEY as in revision 1.3 and later.
pub const RESCAP_ALL: u8 = 0xFF;

/// The fields of a Reservation Register, Acquire or Release command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReservationCommand {
    /// Action, bits 2:0.
    pub action: u8,
    /// Ignore Existing Key, bit 3.
    pub ignore_key: bool,
    /// Reservation Type, bits 15:8. None of a Register command.
    pub rtype: u8,
    /// Change Persist Through Power Loss State, bits 31:30. Only of a Register command.
    pub cptpl: u8,
}

/// Bytes of the data of a Register or an Acquire command: two keys.
pub const TWO_KEYS_LEN: u32 = 16;
/// Bytes of the data of a Release command: one key.
pub const ONE_KEY_LEN: u32 = 8;

impl ReservationCommand {
    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [low, rtype, _, high] = sqe.cdw10.to_bytes();
        Self { action: low & 0x7, ignore_key: low & 1 << 3 != 0, rtype, cptpl: high >> 6 }
    }

    /// The command `opcode` on `nsid`, whose data are its keys.
    #[must_use]
    pub fn encode(&self, opcode: IoOpcode, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(opcode.0, nsid);
        let len = Self::data_len(opcode);
        sqe.dptr = SglDescriptor::transport(len);
        let low = self.action & 0x7 | u8::from(self.ignore_key) << 3;
        sqe.cdw10 = u32::from_le_bytes([low, self.rtype, 0, self.cptpl << 6]).into();
        sqe
    }

    /// Bytes of the data of the command `opcode`.
    #[must_use]
    pub fn data_len(opcode: IoOpcode) -> u32 {
        if opcode == IoOpcode::RESERVATION_RELEASE { ONE_KEY_LEN } else { TWO_KEYS_LEN }
    }
}

/// The fields of a Reservation Report command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReservationReport {
    /// Bytes to return, converted from the 0's based NUMD.
    pub len_bytes: u64,
    /// Extended Data Structure: host identifiers have 16 bytes.
    pub extended: bool,
}

impl ReservationReport {
    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let len_bytes = (u64::from(sqe.cdw10.get()) + 1) * 4;
        Self { len_bytes, extended: sqe.cdw11.get() & 1 != 0 }
    }

    /// The command on `nsid`; `len_bytes` is a positive multiple of four.
    #[must_use]
    pub fn encode(&self, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(IoOpcode::RESERVATION_REPORT.0, nsid);
        sqe.dptr = SglDescriptor::transport(u32::try_from(self.len_bytes).unwrap_or(u32::MAX));
        let dwords = (self.len_bytes / 4).saturating_sub(1);
        sqe.cdw10 = u32::try_from(dwords).unwrap_or(u32::MAX).into();
        sqe.cdw11 = u32::from(self.extended).into();
        sqe
    }
}

/// The head of what a Reservation Report returns with 16-byte host identifiers.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReservationStatus {
    /// 0..4: Generation.
    pub generation: U32,
    /// 4: Reservation Type; 0 for none.
    pub rtype: u8,
    /// 5..7: Number of registrants.
    pub registrants: U16,
    /// 7..9: reserved.
    pub reserved7: [u8; 2],
    /// 9: Persist Through Power Loss State.
    pub ptpls: u8,
    /// 10..64: reserved.
    pub reserved10: [u8; 54],
}

/// One registrant of an extended Reservation Report.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RegisteredController {
    /// 0..2: Controller ID; FFFFh where controllers come and go.
    pub cntlid: U16,
    /// 2: Reservation Status: bit 0, it holds the reservation.
    pub rcsts: u8,
    /// 3..8: reserved.
    pub reserved3: [u8; 5],
    /// 8..16: Reservation Key.
    pub rkey: U64,
    /// 16..32: Host Identifier.
    pub host_id: [u8; 16],
    /// 32..64: reserved.
    pub reserved32: [u8; 32],
}

/// Length of the head of a report, and of each of its registrants.
pub const REPORT_PART_LEN: usize = 64;
const _: () = assert!(size_of::<ReservationStatus>() == REPORT_PART_LEN);
const _: () = assert!(size_of::<RegisteredController>() == REPORT_PART_LEN);

/// The Reservation Notification log page, LID 80h.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ReservationNotification {
    /// 0..8: Log Page Count: which notification it is, counted from 1; 0 for none.
    pub count: U64,
    /// 8: Reservation Notification Log Page Type.
    pub kind: u8,
    /// 9: Number of Available Log Pages, this one not counted; 255 for more.
    pub available: u8,
    /// 10..12: reserved.
    pub reserved10: [u8; 2],
    /// 12..16: Namespace ID.
    pub nsid: U32,
    /// 16..64: reserved.
    pub reserved16: [u8; 48],
}

const _: () = assert!(size_of::<ReservationNotification>() == 64);

impl ReservationNotification {
    /// Type: the host's registration was preempted.
    pub const REGISTRATION_PREEMPTED: u8 = 1;
    /// Type: a reservation was released.
    pub const RESERVATION_RELEASED: u8 = 2;
    /// Type: the reservation was preempted.
    pub const RESERVATION_PREEMPTED: u8 = 3;
    /// The bits of the Reservation Notification Mask: each is that of the type with its number.
    pub const MASK_BITS: u32 = 0b1110;
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn commands_make_the_round_trip() {
        let register = ReservationCommand {
            action: RREGA_REPLACE,
            ignore_key: true,
            rtype: 0,
            cptpl: CPTPL_SET,
        };
        let sqe = register.encode(IoOpcode::RESERVATION_REGISTER, 1);
        assert_eq!((sqe.cdw10.get(), sqe.dptr.length.get()), (0xC000_000A, 16));
        assert_eq!(ReservationCommand::decode(&sqe), register);
        let release = ReservationCommand { action: RRELA_CLEAR, rtype: 6, ..register };
        let sqe = release.encode(IoOpcode::RESERVATION_RELEASE, 1);
        assert_eq!((sqe.cdw10.get(), sqe.dptr.length.get()), (0xC000_0609, 8));
        let report = ReservationReport { len_bytes: 4096, extended: true };
        let sqe = report.encode(1);
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (1023, 1));
        assert_eq!(ReservationReport::decode(&sqe), report);
    }

    #[test]
    fn structures_match_the_golden_bytes() {
        let status = ReservationStatus {
            generation: 0x0102_0304.into(),
            rtype: 5,
            registrants: 2.into(),
            ptpls: 1,
            ..FromZeros::new_zeroed()
        };
        assert_eq!(status.as_bytes()[..11], [4, 3, 2, 1, 5, 2, 0, 0, 0, 1, 0]);
        let registrant = RegisteredController {
            cntlid: 0xFFFF.into(),
            rcsts: 1,
            rkey: 9.into(),
            host_id: [7; 16],
            ..FromZeros::new_zeroed()
        };
        let bytes = registrant.as_bytes();
        assert_eq!(bytes[..9], [0xFF, 0xFF, 1, 0, 0, 0, 0, 0, 9]);
        assert_eq!((&bytes[16..32], bytes[32]), (&[7; 16][..], 0));
        let notification = ReservationNotification {
            count: 3.into(),
            kind: ReservationNotification::RESERVATION_PREEMPTED,
            available: 1,
            nsid: 1.into(),
            ..FromZeros::new_zeroed()
        };
        let expected = [3, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(notification.as_bytes()[..17], expected);
    }
}
