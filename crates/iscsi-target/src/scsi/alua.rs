//! Asymmetric logical unit access (SPC-4, clauses 5.16 and 6.30).
//!
//! All portals of a server form one target port group. States are changed by the server alone (implicit ALUA): an initiator that
//! sends SET TARGET PORT GROUPS is refused.

use alloc::vec;
use alloc::vec::Vec;

use iscsi_wire::cdb::{maintenance_in, opcode};
use iscsi_wire::{Cdb, Sense};

/// The target port group of all portals of a server.
pub(super) const GROUP: [u8; 2] = [0, 1];
/// The target port by which a session reaches its unit.
pub(super) const PORT: [u8; 2] = [0, 1];
/// TPGS of standard INQUIRY data: implicit changes only.
pub(super) const IMPLICIT: u8 = 0x10;
/// States that a group can have: transitioning, unavailable, standby, active/optimized.
const SUPPORTED_STATES: u8 = 0x80 | 0x08 | 0x04 | 0x01;
/// PARAMETER DATA FORMAT, in the CDB and in the extended header.
const EXTENDED: u8 = 1;

/// Access to a unit by the ports of a group.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AccessState {
    /// All commands are carried out.
    #[default]
    ActiveOptimized,
    /// The unit is served elsewhere; what it is can still be asked, and reservations can be changed.
    Standby,
    /// The unit is served elsewhere.
    Unavailable,
    /// The unit is on its way from one server to another.
    Transitioning,
}

impl AccessState {
    /// Returns its code (ASYMMETRIC ACCESS STATE).
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::ActiveOptimized => 0x0,
            Self::Standby => 0x2,
            Self::Unavailable => 0x3,
            Self::Transitioning => 0xF,
        }
    }

    /// Returns the reason for which `cdb` is refused in this state, if it is.
    pub(super) fn refusal(self, cdb: &Cdb) -> Option<Sense> {
        let sense = match self {
            Self::ActiveOptimized => return None,
            Self::Standby => Sense::IN_STANDBY,
            Self::Unavailable => Sense::UNAVAILABLE,
            Self::Transitioning => Sense::IN_TRANSITION,
        };
        let is_allowed = match cdb.opcode() {
            opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE => true,
            opcode::MAINTENANCE_IN => {
                cdb.byte(1) & 0x1F == maintenance_in::REPORT_TARGET_PORT_GROUPS
            }
            opcode::MODE_SENSE_6
            | opcode::MODE_SENSE_10
            | opcode::MODE_SELECT_6
            | opcode::MODE_SELECT_10
            | opcode::PERSISTENT_RESERVE_IN
            | opcode::PERSISTENT_RESERVE_OUT => self == Self::Standby,
            _ => false,
        };
        (!is_allowed).then_some(sense)
    }
}

/// Answers REPORT TARGET PORT GROUPS.
pub(super) fn report(cdb: &Cdb, access: AccessState) -> Result<Vec<u8>, Sense> {
    let mut bytes = vec![0; 4];
    match cdb.byte(1) >> 5 {
        0 => {}
        // No time is promised for a transition.
        EXTENDED => bytes.extend([EXTENDED << 4, 0, 0, 0]),
        _ => return Err(Sense::invalid_cdb(1)),
    }
    // Status code 0: no change was made; one target port.
    bytes.extend([access.code(), SUPPORTED_STATES, GROUP[0], GROUP[1], 0, 0, 0, 1]);
    bytes.extend([0, 0, PORT[0], PORT[1]]);
    bytes[3] = u8::try_from(bytes.len() - 4).expect("one group");
    Ok(bytes)
}
