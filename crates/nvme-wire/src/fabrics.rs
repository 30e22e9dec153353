//! Fabrics commands: Connect, Disconnect, Property Get and Set (Base, clause 6).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::NqnError;
use crate::{FabricsType, HostId, Nqn, SglDescriptor, Sqe};

/// Opcode of every Fabrics command.
pub const OPCODE: u8 = 0x7F;
/// CNTLID in a Connect that asks for any controller (dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// CATTR: this queue does without submission queue flow control.
pub const CATTR_DISABLE_SQ_FLOW: u8 = 1 << 2;
/// CATTR: the queue may be deleted by itself (Disconnect on an I/O queue).
pub const CATTR_QUEUE_DELETION: u8 = 1 << 3;
/// CATTR: it is a discovery controller that connects.
pub const CATTR_CONNECTING_ENTITY: u8 = 1 << 4;
/// CATTR: bits that are reserved. Those below them are the three above and the priority class.
const CATTR_RESERVED: u8 = 0xE0;
/// SQHD in every completion of a queue without flow control.
pub const SQHD_FLOW_DISABLED: u16 = 0xFFFF;
/// Authentication Send and Receive: SECP of DH-HMAC-CHAP.
pub const SECP_DH_HMAC_CHAP: u8 = 0xE9;
/// Authentication Send and Receive: SPSP0 and SPSP1.
pub const SPSP: u8 = 0x01;

/// Byte of FCTYPE in any Fabrics command.
#[must_use]
pub fn fctype(sqe: &Sqe) -> FabricsType {
    let [fctype, ..] = sqe.nsid.to_bytes();
    FabricsType(fctype)
}

/// Returns true if the command is a Connect.
#[must_use]
pub fn is_connect(sqe: &Sqe) -> bool {
    sqe.opcode == OPCODE && fctype(sqe) == FabricsType::CONNECT
}

/// Connect: makes this transport connection a queue of a controller.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Connect {
    /// 0: opcode, 7Fh.
    pub opcode: u8,
    /// 1: FUSE and PSDT.
    pub flags: u8,
    /// 2..4: Command Identifier.
    pub cid: U16,
    /// 4: FCTYPE, 01h.
    pub fctype: u8,
    /// 5..24: reserved.
    pub reserved: [u8; 19],
    /// 24..40: SGL1, describes the 1024 bytes of [`ConnectData`].
    pub dptr: SglDescriptor,
    /// 40..42: Record Format, 0.
    pub recfmt: U16,
    /// 42..44: Queue ID, 0 for the admin queue.
    pub qid: U16,
    /// 44..46: Submission Queue Size, 0's based.
    pub sqsize: U16,
    /// 46: Connect Attributes.
    pub cattr: u8,
    /// 47: reserved.
    pub reserved2: u8,
    /// 48..52: Keep Alive Timeout in milliseconds, 0 for none.
    pub kato: U32,
    /// 52..54: NVM Set Identifier, for controllers that have such sets.
    pub nvmsetid: U16,
    /// 54..64: reserved.
    pub reserved3: [u8; 10],
}

const _: () = {
    assert!(size_of::<Connect>() == 64);
    assert!(offset_of!(Connect, recfmt) == 40 && offset_of!(Connect, kato) == 48);
    assert!(offset_of!(Connect, reserved) == 5 && offset_of!(Connect, reserved2) == 47);
    assert!(offset_of!(Connect, reserved3) == 54 && offset_of!(ConnectData, reserved) == 18);
    assert!(offset_of!(ConnectData, reserved2) == 768);
};

impl Connect {
    /// Byte offset of FUSE and PSDT in the command.
    pub const OFFSET_FLAGS: u16 = 1;
    /// Byte offset of RECFMT in the command.
    pub const OFFSET_RECFMT: u16 = 40;
    /// Byte offset of QID in the command.
    pub const OFFSET_QID: u16 = 42;
    /// Byte offset of SQSIZE in the command.
    pub const OFFSET_SQSIZE: u16 = 44;
    /// Byte offset of CATTR in the command.
    pub const OFFSET_CATTR: u16 = 46;
    /// Byte offset of KATO in the command.
    pub const OFFSET_KATO: u16 = 48;

    /// Connects queue `qid` of `entries` entries (at least 2); its data goes in the capsule.
    #[must_use]
    pub fn new(qid: u16, entries: u16, kato_ms: u32) -> Self {
        Self {
            opcode: OPCODE,
            flags: Sqe::PSDT_SGL,
            fctype: FabricsType::CONNECT.0,
            dptr: SglDescriptor::in_capsule(CONNECT_DATA_LEN),
            qid: qid.into(),
            sqsize: entries.saturating_sub(1).into(),
            kato: kato_ms.into(),
            ..Self::new_zeroed()
        }
    }

    /// Byte offset of the first reserved field that is not zero.
    #[must_use]
    pub fn reserved_in_use(&self) -> Option<u16> {
        let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let fields = [
            (is_used(&self.reserved), 5),
            (self.cattr & CATTR_RESERVED != 0, Self::OFFSET_CATTR),
            (self.reserved2 != 0, 47),
            (is_used(&self.reserved3), 54),
        ];
        fields.into_iter().find_map(|(is_used, offset)| is_used.then_some(offset))
    }

    /// Entries of the submission queue, converted from 0's based; at least 1.
    #[must_use]
    pub fn entries(&self) -> u32 {
        u32::from(self.sqsize.get()) + 1
    }
}

/// Length of [`ConnectData`].
pub const CONNECT_DATA_LEN: u32 = 1024;

/// Data of a Connect: the host and the subsystem.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectData {
    /// 0..16: Host Identifier.
    pub hostid: [u8; 16],
    /// 16..18: Controller ID, or [`CNTLID_DYNAMIC`].
    pub cntlid: U16,
    /// 18..256: reserved.
    pub reserved: [u8; 238],
    /// 256..512: NVM Subsystem NQN.
    pub subnqn: [u8; 256],
    /// 512..768: Host NQN.
    pub hostnqn: [u8; 256],
    /// 768..1024: reserved.
    pub reserved2: [u8; 256],
}

const _: () = {
    assert!(size_of::<ConnectData>() == CONNECT_DATA_LEN as usize);
    assert!(offset_of!(ConnectData, subnqn) == 256 && offset_of!(ConnectData, hostnqn) == 512);
};

impl ConnectData {
    /// Byte offset of HOSTID.
    pub const OFFSET_HOSTID: u16 = 0;
    /// Byte offset of CNTLID.
    pub const OFFSET_CNTLID: u16 = 16;
    /// Byte offset of SUBNQN.
    pub const OFFSET_SUBNQN: u16 = 256;
    /// Byte offset of HOSTNQN.
    pub const OFFSET_HOSTNQN: u16 = 512;

    /// `host_nqn` with `host_id` connects to controller `cntlid` of `subsystem`.
    #[must_use]
    pub fn new(host_id: HostId, host_nqn: &Nqn, subsystem: &Nqn, cntlid: u16) -> Self {
        Self {
            hostid: host_id.0,
            cntlid: cntlid.into(),
            subnqn: subsystem.to_field(),
            hostnqn: host_nqn.to_field(),
            ..Self::new_zeroed()
        }
    }

    /// Byte offset of the first reserved field that is not zero.
    #[must_use]
    pub fn reserved_in_use(&self) -> Option<u16> {
        let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
        let fields = [(is_used(&self.reserved), 18), (is_used(&self.reserved2), 768)];
        fields.into_iter().find_map(|(is_used, offset)| is_used.then_some(offset))
    }

    /// The subsystem asked for.
    pub fn subsystem(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// The host's name.
    pub fn host_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.hostnqn)
    }
}

/// Dword 0 of the completion of a successful Connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectResult(pub u32);

impl ConnectResult {
    /// AUTHREQ: in-band authentication is required before any other command.
    pub const ATR: u32 = 1 << 17;
    /// AUTHREQ: a secure channel and then authentication are required.
    pub const ASCR: u32 = 1 << 18;

    /// Connected to controller `cntlid`.
    #[must_use]
    pub const fn new(cntlid: u16) -> Self {
        Self(cntlid as u32)
    }

    /// The same, and the host has to authenticate before anything else.
    #[must_use]
    pub const fn with_authentication(self) -> Self {
        Self(self.0 | Self::ATR)
    }

    /// The controller.
    #[must_use]
    pub const fn cntlid(self) -> u16 {
        (self.0 & 0xFFFF) as u16
    }

    /// Returns true if the host has to authenticate.
    #[must_use]
    pub const fn authentication_required(self) -> bool {
        self.0 & (Self::ATR | Self::ASCR) != 0
    }
}

/// Dword 0 of the completion of a Connect with status Connect Invalid Parameters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectInvalid {
    /// Invalid Parameter Offset: first byte of the wrong field.
    pub ipo: u16,
    /// True if the field is in the data (IATTR bit 0), not in the command.
    pub in_data: bool,
}

impl ConnectInvalid {
    /// The field at byte `ipo` of the submission queue entry is wrong.
    #[must_use]
    pub const fn command(ipo: u16) -> Self {
        Self { ipo, in_data: false }
    }

    /// The field at byte `ipo` of the connect data is wrong.
    #[must_use]
    pub const fn data(ipo: u16) -> Self {
        Self { ipo, in_data: true }
    }

    /// As dword 0.
    #[must_use]
    pub const fn to_dw0(self) -> u32 {
        self.ipo as u32 | (self.in_data as u32) << 16
    }

    /// From dword 0.
    #[must_use]
    pub const fn from_dw0(dw0: u32) -> Self {
        Self { ipo: (dw0 & 0xFFFF) as u16, in_data: dw0 & 1 << 16 != 0 }
    }
}

/// Width of a property, ATTRIB bits 2:0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PropertySize {
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
}

/// Property Get and Property Set.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Property {
    /// 0: opcode, 7Fh.
    pub opcode: u8,
    /// 1: FUSE and PSDT.
    pub flags: u8,
    /// 2..4: Command Identifier.
    pub cid: U16,
    /// 4: FCTYPE, 00h (set) or 04h (get).
    pub fctype: u8,
    /// 5..40: reserved.
    pub reserved: [u8; 35],
    /// 40: ATTRIB, size of the property.
    pub attrib: u8,
    /// 41..44: reserved.
    pub reserved2: [u8; 3],
    /// 44..48: offset of the property; see [`crate::property::offset`].
    pub ofst: U32,
    /// 48..56: value (set only).
    pub value: U64,
    /// 56..64: reserved.
    pub reserved3: [u8; 8],
}

const _: () = assert!(size_of::<Property>() == 64 && offset_of!(Property, ofst) == 44);

impl Property {
    /// Reads the property at `ofst`.
    #[must_use]
    pub fn get(ofst: u32, size: PropertySize) -> Self {
        Self { fctype: FabricsType::PROPERTY_GET.0, ..Self::set(ofst, size, 0) }
    }

    /// Writes `value` to the property at `ofst`.
    #[must_use]
    pub fn set(ofst: u32, size: PropertySize, value: u64) -> Self {
        Self {
            opcode: OPCODE,
            flags: Sqe::PSDT_SGL,
            fctype: FabricsType::PROPERTY_SET.0,
            attrib: u8::from(size == PropertySize::Eight),
            ofst: ofst.into(),
            value: value.into(),
            ..Self::new_zeroed()
        }
    }

    /// Width of the property, or `None` if ATTRIB holds a reserved value.
    #[must_use]
    pub const fn size(&self) -> Option<PropertySize> {
        match self.attrib & 0x7 {
            0 => Some(PropertySize::Four),
            1 => Some(PropertySize::Eight),
            _ => None,
        }
    }
}

/// Disconnect: ends an I/O queue, not the connection.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Disconnect {
    /// 0: opcode, 7Fh.
    pub opcode: u8,
    /// 1: FUSE and PSDT.
    pub flags: u8,
    /// 2..4: Command Identifier.
    pub cid: U16,
    /// 4: FCTYPE, 08h.
    pub fctype: u8,
    /// 5..40: reserved.
    pub reserved: [u8; 35],
    /// 40..42: Record Format, 0.
    pub recfmt: U16,
    /// 42..64: reserved.
    pub reserved2: [u8; 22],
}

const _: () = assert!(size_of::<Disconnect>() == 64 && offset_of!(Disconnect, recfmt) == 40);

impl Disconnect {
    /// The command.
    #[must_use]
    pub fn new() -> Self {
        Self {
            opcode: OPCODE,
            flags: Sqe::PSDT_SGL,
            fctype: FabricsType::DISCONNECT.0,
            ..Self::new_zeroed()
        }
    }
}

impl Default for Disconnect {
    fn default() -> Self {
        Self::new()
    }
}

/// Conversions between a command's own form and the submission queue entry.
macro_rules! same_bytes_as_sqe {
    ($($type:ty),*) => {$(
        impl From<Sqe> for $type {
            fn from(sqe: Sqe) -> Self {
                zerocopy::transmute!(sqe)
            }
        }

        impl From<$type> for Sqe {
            fn from(command: $type) -> Self {
                zerocopy::transmute!(command)
            }
        }
    )*};
}

pub(crate) use same_bytes_as_sqe;
same_bytes_as_sqe!(Connect, Property, Disconnect);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_matches_the_golden_bytes() {
        let mut connect = Connect::new(3, 128, 15_000);
        connect.cid = 0x0102.into();
        #[rustfmt::skip]
        let golden = [
            0x7F, 0x40, 0x02, 0x01,  0x01, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
            0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
            0x00, 0x04, 0, 0,  0, 0, 0, 0x01,                  // SGL: 1024 bytes in the capsule
            0, 0,  0x03, 0,  0x7F, 0,  0, 0,  0x98, 0x3A, 0, 0, // recfmt qid sqsize cattr kato
            0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
        ];
        assert_eq!(connect.as_bytes(), golden);
        let sqe = Sqe::from(connect);
        assert_eq!(fctype(&sqe), FabricsType::CONNECT);
        assert_eq!(Connect::from(sqe).entries(), 128);
    }

    #[test]
    fn property_commands_match_the_golden_bytes() {
        let set = Property::set(0x14, PropertySize::Four, 0x0046_0001);
        assert_eq!(
            set.as_bytes()[40..],
            [0, 0, 0, 0, 0x14, 0, 0, 0, 0x01, 0x00, 0x46, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,]
        );
        let get = Property::get(0, PropertySize::Eight);
        assert_eq!((get.fctype, get.attrib, get.size()), (4, 1, Some(PropertySize::Eight)));
        assert_eq!(Property { attrib: 2, ..get }.size(), None);
    }

    #[test]
    fn wrong_connect_parameters_are_told_in_dword_0() {
        let invalid = ConnectInvalid::data(ConnectData::OFFSET_SUBNQN);
        assert_eq!(invalid.to_dw0(), 0x0001_0100);
        assert_eq!(ConnectInvalid::from_dw0(0x0001_0100), invalid);
        assert_eq!(ConnectInvalid::command(42).to_dw0(), 42);
        assert_eq!(ConnectResult(0x0002_0007).cntlid(), 7);
        assert!(ConnectResult(0x0002_0007).authentication_required());
    }

    #[test]
    fn connect_data_keeps_its_names() {
        let nqn = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa")
            .expect("valid");
        let data = ConnectData::new(HostId([7; 16]), &Nqn::DISCOVERY, &nqn, CNTLID_DYNAMIC);
        assert_eq!(data.subsystem(), Ok(nqn));
        assert_eq!(data.host_nqn(), Ok(Nqn::DISCOVERY));
        assert_eq!(data.as_bytes()[16..18], [0xFF, 0xFF]);
    }
}
