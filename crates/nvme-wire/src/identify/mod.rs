//! Identify: what a controller and its namespaces are (Base, clause 5.1.13; NVM, clause 4.1.5).
//!
//! Every Identify data structure is [`IDENTIFY_LEN`] bytes.

mod command_set;
mod controller;
mod lists;
mod namespace;

pub use command_set::{
    CommandSetIndependentNamespace, NSTAT_READY, NvmCommandSetController, NvmCommandSetNamespace,
    command_set_vectors,
};
pub use controller::{
    CMIC_MULTIPLE_CONTROLLERS, CMIC_MULTIPLE_PORTS, CNTRLTYPE_DISCOVERY, CNTRLTYPE_IO,
    CTRATT_HOST_ID_EXTENDED, CTRATT_LIMITS_EXCLUDE_METADATA, CTRATT_TRAFFIC_KEEP_ALIVE,
    FUSES_COMPARE_AND_WRITE, IdentifyController, LPA_COMMAND_EFFECTS, LPA_EXTENDED_DATA,
    LPA_SMART_PER_NAMESPACE, OAES_ANA_CHANGE, OAES_DISCOVERY_CHANGE, OAES_NAMESPACE_ATTRIBUTE,
    ONCS_COMPARE, ONCS_COPY, ONCS_DATASET_MANAGEMENT, ONCS_RESERVATIONS, ONCS_SAVE_FIELD,
    ONCS_TIMESTAMP, ONCS_VERIFY, ONCS_WRITE_UNCORRECTABLE, ONCS_WRITE_ZEROES, SGLS_BYTE_ALIGNED,
    SGLS_IN_CAPSULE_OFFSET, SGLS_KEYED, SGLS_TRANSPORT, VENDOR_COMPARE_AND_WRITE, VENDOR_MAGIC,
    VWC_FLUSH_ALL_NAMESPACES, VWC_FLUSH_NOT_ALL_NAMESPACES, VWC_PRESENT, vendor_field,
};
pub use lists::{NamespaceDescriptor, NamespaceIdList, descriptors, encode_descriptors};
pub use namespace::{
    DLFEAT_DEALLOCATE_WRITE_ZEROES, DLFEAT_READS_ZEROES, FLBAS_EXTENDED_LBA, IdentifyNamespace,
    LbaFormat, MC_EXTENDED_LBA, NMIC_SHARED, NSFEAT_ATOMICS, NSFEAT_DEALLOCATED_ERROR,
    NSFEAT_OPTIMAL_PERFORMANCE, NSFEAT_THIN, NSFEAT_UID_REUSE,
};

use crate::{AdminOpcode, SglDescriptor, Sqe};

/// Length of each Identify data structure.
pub const IDENTIFY_LEN: usize = 4096;

/// Controller or Namespace Structure: which data structure Identify returns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cns(pub u8);

impl Cns {
    /// Identify Namespace of the NVM command set.
    pub const NAMESPACE: Self = Self(0x00);
    /// Identify Controller.
    pub const CONTROLLER: Self = Self(0x01);
    /// Active Namespace ID list.
    pub const ACTIVE_NAMESPACES: Self = Self(0x02);
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: Self = Self(0x03);
    /// NVM Set list.
    pub const NVM_SETS: Self = Self(0x04);
    /// I/O Command Set specific Identify Namespace.
    pub const CSI_NAMESPACE: Self = Self(0x05);
    /// I/O Command Set specific Identify Controller.
    pub const CSI_CONTROLLER: Self = Self(0x06);
    /// Active Namespace ID list of one I/O command set.
    pub const CSI_ACTIVE_NAMESPACES: Self = Self(0x07);
    /// I/O Command Set Independent Identify Namespace.
    pub const INDEPENDENT_NAMESPACE: Self = Self(0x08);
    /// Identify Namespace for a user data format.
    pub const FORMAT_NAMESPACE: Self = Self(0x09);
    /// I/O Command Set specific Identify Namespace for a user data format.
    pub const CSI_FORMAT_NAMESPACE: Self = Self(0x0A);
    /// Allocated Namespace ID list.
    pub const ALLOCATED_NAMESPACES: Self = Self(0x10);
    /// Identify Namespace of an allocated namespace.
    pub const ALLOCATED_NAMESPACE: Self = Self(0x11);
    /// Controllers attached to a namespace.
    pub const NAMESPACE_CONTROLLERS: Self = Self(0x12);
    /// Controllers of the subsystem.
    pub const CONTROLLERS: Self = Self(0x13);
    /// I/O Command Set list.
    pub const COMMAND_SETS: Self = Self(0x1C);
}

/// Command Set Identifier of the NVM command set.
pub const CSI_NVM: u8 = 0x00;

/// An Identify command's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identify {
    /// The data structure.
    pub cns: Cns,
    /// Controller Identifier, for the structures that need one.
    pub cntid: u16,
    /// CNS Specific Identifier.
    pub cnssid: u16,
    /// Command Set Identifier.
    pub csi: u8,
    /// UUID Index.
    pub uidx: u8,
    /// Namespace, for the structures that need one.
    pub nsid: u32,
}

impl Identify {
    /// The structure `cns` of `nsid` (0 where none is meant) for the NVM command set.
    #[must_use]
    pub const fn new(cns: Cns, nsid: u32) -> Self {
        Self { cns, cntid: 0, cnssid: 0, csi: CSI_NVM, uidx: 0, nsid }
    }

    /// The fields of `sqe`.
    #[must_use]
    pub fn decode(sqe: &Sqe) -> Self {
        let [cns, _, cntid0, cntid1] = sqe.cdw10.to_bytes();
        let [cnssid0, cnssid1, _, csi] = sqe.cdw11.to_bytes();
        let [uidx, ..] = sqe.cdw14.to_bytes();
        Self {
            cns: Cns(cns),
            cntid: u16::from_le_bytes([cntid0, cntid1]),
            cnssid: u16::from_le_bytes([cnssid0, cnssid1]),
            csi,
            uidx: uidx & 0x7F,
            nsid: sqe.nsid.get(),
        }
    }

    /// The command, which returns [`IDENTIFY_LEN`] bytes.
    #[must_use]
    pub fn encode(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0, self.nsid);
        sqe.dptr = SglDescriptor::transport(4096);
        sqe.cdw10 = (u32::from(self.cns.0) | u32::from(self.cntid) << 16).into();
        sqe.cdw11 = (u32::from(self.cnssid) | u32::from(self.csi) << 24).into();
        sqe.cdw14 = u32::from(self.uidx).into();
        sqe
    }
}

/// Writes `text` into a field of ASCII that is padded with spaces; what is too long is cut, what
/// is not printable becomes a question mark.
pub fn set_ascii(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (byte, c) in field.iter_mut().zip(text.chars()) {
        *byte = u8::try_from(c).ok().filter(|b| (0x20..0x7F).contains(b)).unwrap_or(b'?');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identify_makes_the_round_trip() {
        let identify = Identify {
            cntid: 0x0102,
            cnssid: 0x0304,
            csi: 2,
            uidx: 5,
            ..Identify::new(Cns::CSI_NAMESPACE, 9)
        };
        let sqe = identify.encode();
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (0x0102_0005, 0x0200_0304));
        assert_eq!(Identify::decode(&sqe), identify);
    }

    #[test]
    fn text_fields_are_padded_and_printable() {
        let mut field = [0; 6];
        set_ascii(&mut field, "a\u{e9}b");
        assert_eq!(field, *b"a?b   ");
        set_ascii(&mut field, "longer than it");
        assert_eq!(field, *b"longer");
    }
}
