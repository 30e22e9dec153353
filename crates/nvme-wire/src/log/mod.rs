//! Log pages (Base, clause 5.1.12; NVM, clause 4.1.4).

mod ana;
mod cross_controller_reset;
mod effects;
mod error;
mod failure_domain;
mod health;
mod lists;

pub use ana::{
    ANA_STATE_CHANGE, ANA_STATE_INACCESSIBLE, ANA_STATE_NON_OPTIMIZED, ANA_STATE_OPTIMIZED,
    ANA_STATE_PERSISTENT_LOSS, AnaGroupDescriptor, AnaLogHeader,
};
pub use cross_controller_reset::{CrossControllerResetEntry, CrossControllerResetLog, ResetStatus};
pub use effects::{
    CommandEffects, EFFECT_CSUPP, EFFECT_LBCC, EFFECT_NCC, EFFECT_NIC, EFFECT_SCOPE_CONTROLLER,
    EFFECT_SCOPE_NAMESPACE,
};
pub use error::ErrorLogEntry;
pub use failure_domain::{DeviceHealth, FailureDomain, FailureDomainLog};
pub use health::{
    CRITICAL_READ_ONLY, CRITICAL_RELIABILITY, CRITICAL_SPARE, CRITICAL_TEMPERATURE, SmartHealth,
    data_units,
};
pub use lists::{ChangedNamespaces, FirmwareSlots};

use crate::{AdminOpcode, SglDescriptor, Sqe};

/// Log Page Identifier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lid(pub u8);

impl Lid {
    /// Supported Log Pages.
    pub const SUPPORTED: Self = Self(0x00);
    /// Error Information.
    pub const ERROR: Self = Self(0x01);
    /// SMART / Health Information.
    pub const HEALTH: Self = Self(0x02);
    /// Firmware Slot Information.
    pub const FIRMWARE_SLOT: Self = Self(0x03);
    /// Changed Attached Namespace List.
    pub const CHANGED_NAMESPACES: Self = Self(0x04);
    /// Commands Supported and Effects.
    pub const COMMAND_EFFECTS: Self = Self(0x05);
    /// Device Self-test.
    pub const SELF_TEST: Self = Self(0x06);
    /// Telemetry, host-initiated.
    pub const TELEMETRY_HOST: Self = Self(0x07);
    /// Telemetry, controller-initiated.
    pub const TELEMETRY_CONTROLLER: Self = Self(0x08);
    /// Endurance Group Information.
    pub const ENDURANCE_GROUP: Self = Self(0x09);
    /// Asymmetric Namespace Access.
    pub const ANA: Self = Self(0x0C);
    /// Persistent Event.
    pub const PERSISTENT_EVENT: Self = Self(0x0D);
    /// Feature Identifiers Supported and Effects.
    pub const FEATURE_EFFECTS: Self = Self(0x12);
    /// Cross-Controller Reset (Base 2.3).
    pub const CROSS_CONTROLLER_RESET: Self = Self(0x1E);
    /// Discovery.
    pub const DISCOVERY: Self = Self(0x70);
    /// Reservation Notification.
    pub const RESERVATION_NOTIFICATION: Self = Self(0x80);
    /// Failure Domain, vendor specific.
    pub const FAILURE_DOMAIN: Self = Self(0xE0);
}

/// A Get Log Page command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GetLogPage {
    /// The log page.
    pub lid: Lid,
    /// Log Specific Parameter.
    pub lsp: u8,
    /// Retain Asynchronous Event: do not clear the event that this log belongs to.
    pub rae: bool,
    /// Bytes to return, converted from the 0's based NUMDL and NUMDU.
    pub len_bytes: u64,
    /// Log Page Offset in bytes, or an index if `offset_is_index`.
    pub offset: u64,
    /// Offset Type: the offset counts structures.
    pub offset_is_index: bool,
    /// Log Specific Identifier.
    pub lsi: u16,
    /// Command Set Identifier.
    pub csi: u8,
    /// UUID Index.
    pub uidx: u8,
    /// Namespace, or FFFFFFFFh for the controller.
    pub nsid: u32,
}

impl GetLogPage {
    /// `len_bytes` (a positive multiple of four) of log `lid` from byte `offset`.
    #[must_use]
    pub const fn new(lid: Lid, nsid: u32, offset: u64, len_bytes: u64) -> Self {
        Self {
            lid,
            lsp: 0,
            rae: false,
            len_bytes,
            offset,
            offset_is_index: false,
            lsi: 0,
            csi: 0,
            uidx: 0,
            nsid,
        }
    }

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [lid, lsp_rae, numdl0, numdl1] = sqe.cdw10.to_bytes();
        let [numdu0, numdu1, lsi0, lsi1] = sqe.cdw11.to_bytes();
        let [uidx, _, ot, csi] = sqe.cdw14.to_bytes();
        let numd = u32::from_le_bytes([numdl0, numdl1, numdu0, numdu1]);
        Self {
            lid: Lid(lid),
            lsp: lsp_rae & 0x7F,
            rae: lsp_rae & 0x80 != 0,
            len_bytes: (u64::from(numd) + 1) * 4,
            offset: u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32,
            offset_is_index: ot & 0x80 != 0,
            lsi: u16::from_le_bytes([lsi0, lsi1]),
            csi,
            uidx: uidx & 0x7F,
            nsid: sqe.nsid.get(),
        }
    }

    /// The command. A length beyond what the field holds is cut to it.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0, self.nsid);
        let numd = u32::try_from((self.len_bytes / 4).saturating_sub(1)).unwrap_or(u32::MAX);
        let [numdl0, numdl1, numdu0, numdu1] = numd.to_le_bytes();
        let [lsi0, lsi1] = self.lsi.to_le_bytes();
        let lsp_rae = self.lsp & 0x7F | u8::from(self.rae) << 7;
        sqe.dptr = SglDescriptor::transport(u32::try_from(self.len_bytes).unwrap_or(u32::MAX));
        sqe.cdw10 = [self.lid.0, lsp_rae, numdl0, numdl1].into();
        sqe.cdw11 = [numdu0, numdu1, lsi0, lsi1].into();
        let [low, high] = crate::sqe::split(self.offset);
        sqe.cdw12 = low;
        sqe.cdw13 = high;
        let ot = u8::from(self.offset_is_index) << 7;
        sqe.cdw14 = [self.uidx & 0x7F, 0, ot, self.csi].into();
        sqe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_log_page_keeps_both_halves_of_its_length() {
        let get = GetLogPage {
            lsp: 0x05,
            rae: true,
            lsi: 0x0708,
            csi: 2,
            ..GetLogPage::new(Lid::DISCOVERY, 0xFFFF_FFFF, 0x1_0000_0400, 0x0008_0004)
        };
        let sqe = get.encode();
        assert_eq!(sqe.cdw10.get(), 0x0000_8570, "NUMDL is the low half of 20000h");
        assert_eq!(sqe.cdw11.get(), 0x0708_0002);
        assert_eq!((sqe.cdw12.get(), sqe.cdw13.get()), (0x400, 1));
        assert_eq!(GetLogPage::decode(&sqe), get);
    }

    #[test]
    fn the_longest_log_page_does_not_overflow() {
        let mut sqe = GetLogPage::new(Lid::ERROR, 0, 0, 4).encode();
        sqe.cdw10 = u32::MAX.into();
        sqe.cdw11 = u32::MAX.into();
        assert_eq!(GetLogPage::decode(&sqe).len_bytes, 1 << 34);
    }
}
