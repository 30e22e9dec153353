//! The first eight bytes of every PDU, and the lengths that follow from them.

use core::fmt;
use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::PduError;

/// Length of a header or data digest in bytes.
pub const DIGEST_LEN: usize = 4;

/// PDU-Type (TCP, figure "PDU Types").
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum PduType {
    /// Initialize Connection Request, host to controller.
    IcReq = 0x00,
    /// Initialize Connection Response, controller to host.
    IcResp = 0x01,
    /// Terminate Connection Request, host to controller.
    H2cTermReq = 0x02,
    /// Terminate Connection Request, controller to host.
    C2hTermReq = 0x03,
    /// Command Capsule, host to controller.
    CapsuleCmd = 0x04,
    /// Response Capsule, controller to host.
    CapsuleResp = 0x05,
    /// Data, host to controller.
    H2cData = 0x06,
    /// Data, controller to host.
    C2hData = 0x07,
    /// Ready to Transfer, controller to host.
    R2t = 0x09,
}

impl fmt::Display for PduType {
    /// Writes the name in the specification.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IcReq => "ICReq",
            Self::IcResp => "ICResp",
            Self::H2cTermReq => "H2CTermReq",
            Self::C2hTermReq => "C2HTermReq",
            Self::CapsuleCmd => "CapsuleCmd",
            Self::CapsuleResp => "CapsuleResp",
            Self::H2cData => "H2CData",
            Self::C2hData => "C2HData",
            Self::R2t => "R2T",
        })
    }
}

impl PduType {
    /// The type with this number, if there is one.
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// HLEN of this type: the header without digest and padding.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            Self::H2cTermReq
            | Self::C2hTermReq
            | Self::CapsuleResp
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => 24,
        }
    }

    /// Returns true if a host sends it.
    #[must_use]
    pub const fn is_from_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }

    /// Returns true if data may follow its header (the bytes behind a TermReq are no data: they
    /// have neither offset nor digest).
    #[must_use]
    pub const fn may_have_data(self) -> bool {
        matches!(self, Self::CapsuleCmd | Self::H2cData | Self::C2hData)
    }

    /// The bits of FLAGS that have a meaning in it.
    #[must_use]
    const fn flags_defined(self) -> u8 {
        let digests = PduFlags::HDGSTF.0 | PduFlags::DDGSTF.0;
        match self {
            Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq => 0,
            Self::CapsuleCmd => digests,
            // Neither has data, but hosts and controllers differ in whether they set the flag of its digest.
            Self::CapsuleResp | Self::R2t => digests,
            Self::H2cData => digests | PduFlags::LAST_PDU.0,
            Self::C2hData => digests | PduFlags::LAST_PDU.0 | PduFlags::SUCCESS.0,
        }
    }

    /// Returns true if negotiated digests apply to it.
    #[must_use]
    const fn may_have_digest(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }
}

/// Bits of the common header's FLAGS.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PduFlags(pub u8);

impl PduFlags {
    /// A header digest follows the header.
    pub const HDGSTF: Self = Self(1 << 0);
    /// A data digest follows the data.
    pub const DDGSTF: Self = Self(1 << 1);
    /// The last data PDU of a command, or of an R2T.
    pub const LAST_PDU: Self = Self(1 << 2);
    /// C2HData: the command succeeded, no CapsuleResp follows. Only with [`Self::LAST_PDU`].
    pub const SUCCESS: Self = Self(1 << 3);

    /// Returns true if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that `condition` allows: these, or none.
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self(0) }
    }
}

/// The digests that a connection uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// CRC-32C of each header.
    pub header: bool,
    /// CRC-32C of each PDU's data.
    pub data: bool,
}

/// Head of every PDU.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommonHeader {
    /// 0: PDU-Type.
    pub pdu_type: u8,
    /// 1: FLAGS.
    pub flags: u8,
    /// 2: HLEN, length of the header without digest.
    pub hlen: u8,
    /// 3: PDO, offset of the data from the start of the PDU; 0 without data.
    pub pdo: u8,
    /// 4..8: PLEN, length of the whole PDU.
    pub plen: U32,
}

const _: () = assert!(size_of::<CommonHeader>() == 8 && offset_of!(CommonHeader, plen) == 4);

/// The positions of the parts of a PDU, checked for consistency.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PduLayout {
    /// The PDU's type.
    pub pdu_type: PduType,
    /// The PDU's flags.
    pub flags: PduFlags,
    /// Length of the header without digest.
    pub header_len: usize,
    /// True if the header digest lies at `header_len`.
    pub header_digest: bool,
    /// Offset of the data from the start of the PDU. Without data: the end of the PDU.
    pub data_offset: usize,
    /// Number of data bytes.
    pub data_len: usize,
    /// True if the data digest lies behind the data.
    pub data_digest: bool,
    /// Length of the whole PDU.
    pub plen: usize,
}

impl PduLayout {
    /// Bytes up to the end of the header digest, if there is one, else of the header.
    #[must_use]
    pub const fn header_end(&self) -> usize {
        self.header_len + if self.header_digest { DIGEST_LEN } else { 0 }
    }
}

impl CommonHeader {
    /// Byte offset of PDU-Type.
    pub const OFFSET_TYPE: u8 = 0;
    /// Byte offset of FLAGS.
    pub const OFFSET_FLAGS: u8 = 1;
    /// Byte offset of HLEN.
    pub const OFFSET_HLEN: u8 = 2;
    /// Byte offset of PDO.
    pub const OFFSET_PDO: u8 = 3;
    /// Byte offset of PLEN.
    pub const OFFSET_PLEN: u8 = 4;

    /// The header of a PDU of `pdu_type` that carries `data_len` bytes at `alignment` (any
    /// multiple of 4; 4 where the peer asks for none). `flags` without digest bits: `digests` sets them.
    #[must_use]
    pub fn new(
        pdu_type: PduType,
        flags: PduFlags,
        digests: Digests,
        data_len: usize,
        alignment: usize,
    ) -> Self {
        let header_digest = digests.header && pdu_type.may_have_digest();
        let data_digest = digests.data && data_len > 0 && pdu_type.may_have_digest();
        let header_end = pdu_type.header_len() + if header_digest { DIGEST_LEN } else { 0 };
        let data_offset = header_end.next_multiple_of(alignment.max(1));
        let plen = if data_len == 0 {
            header_end
        } else {
            data_offset + data_len + if data_digest { DIGEST_LEN } else { 0 }
        };
        let flags = flags
            .union(PduFlags::HDGSTF.when(header_digest))
            .union(PduFlags::DDGSTF.when(data_digest));
        Self {
            pdu_type: pdu_type as u8,
            flags: flags.0,
            hlen: u8::try_from(pdu_type.header_len()).expect("at most 128"),
            pdo: if data_len == 0 { 0 } else { u8::try_from(data_offset).expect("at most 255") },
            plen: u32::try_from(plen).expect("a PDU is shorter than 4 GiB").into(),
        }
    }

    /// The first eight bytes of `bytes`, or `None` if there are fewer.
    #[must_use]
    pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// Checks that FLAGS has no bit that is reserved in a PDU of `pdu_type`.
    pub fn check_reserved_flags(&self, pdu_type: PduType) -> Result<(), PduError> {
        if self.flags & !pdu_type.flags_defined() == 0 {
            return Ok(());
        }
        let (offset, value) = (Self::OFFSET_FLAGS, u32::from(self.flags));
        Err(PduError::InvalidField { pdu: pdu_type, offset, value })
    }

    /// Checks the lengths against each other and against the `digests` of the connection, and
    /// that data starts at a multiple of `alignment` (4 where this side asked for none).
    ///
    /// A digest flag on a PDU without data is ignored; hosts differ there.
    pub fn layout(&self, digests: Digests, alignment: usize) -> Result<PduLayout, PduError> {
        let Some(pdu) = PduType::from_u8(self.pdu_type) else {
            return Err(PduError::UnknownType { pdu_type: self.pdu_type });
        };
        let invalid = |offset, value| PduError::InvalidField { pdu, offset, value };
        let flags = PduFlags(self.flags);
        let header_digest = digests.header && pdu.may_have_digest();
        if flags.contains(PduFlags::HDGSTF) != header_digest {
            return Err(invalid(Self::OFFSET_FLAGS, u32::from(self.flags)));
        }
        let header_len = pdu.header_len();
        if usize::from(self.hlen) != header_len {
            return Err(invalid(Self::OFFSET_HLEN, u32::from(self.hlen)));
        }
        let header_end = header_len + if header_digest { DIGEST_LEN } else { 0 };
        let plen = self.plen.get() as usize;
        let wrong_plen = invalid(Self::OFFSET_PLEN, self.plen.get());
        let mut layout = PduLayout {
            pdu_type: pdu,
            flags,
            header_len,
            header_digest,
            data_offset: plen,
            data_len: 0,
            data_digest: false,
            plen,
        };
        if plen < header_end {
            return Err(wrong_plen);
        }
        if plen == header_end {
            // H2CData and C2HData exist to carry data.
            let needs_data = matches!(pdu, PduType::H2cData | PduType::C2hData);
            return if needs_data { Err(wrong_plen) } else { Ok(layout) };
        }
        if matches!(pdu, PduType::H2cTermReq | PduType::C2hTermReq) {
            let data_len = plen - header_end;
            if data_len > super::TERM_REQ_DATA_MAX {
                return Err(wrong_plen);
            }
            return Ok(PduLayout { data_offset: header_end, data_len, ..layout });
        }
        if !pdu.may_have_data() {
            return Err(wrong_plen);
        }
        if flags.contains(PduFlags::DDGSTF) != digests.data {
            return Err(invalid(Self::OFFSET_FLAGS, u32::from(self.flags)));
        }
        let data_offset = usize::from(self.pdo);
        if data_offset < header_end || !data_offset.is_multiple_of(alignment.max(1)) {
            return Err(invalid(Self::OFFSET_PDO, u32::from(self.pdo)));
        }
        let data_end = plen - if digests.data { DIGEST_LEN } else { 0 };
        if data_end <= data_offset {
            return Err(wrong_plen);
        }
        layout.data_offset = data_offset;
        layout.data_len = data_end - data_offset;
        layout.data_digest = digests.data;
        Ok(layout)
    }
}

/// The header of type `T` at the start of `bytes`, or `None` if there are fewer bytes.
///
/// The types of this module accept any bytes; what their fields may hold is checked by their own
/// `check` functions and by the connection that knows what it agreed on.
#[must_use]
pub fn header_from_bytes<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Option<&T> {
    T::ref_from_prefix(bytes).ok().map(|(header, _)| header)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Digests = Digests { header: false, data: false };
    const BOTH: Digests = Digests { header: true, data: true };

    #[test]
    fn what_new_makes_layout_accepts() {
        for pdu in (0..=9).filter_map(PduType::from_u8) {
            for digests in [NONE, BOTH] {
                for alignment in [4, 8, 64, 128] {
                    let data_len = if pdu.may_have_data() { 4096 } else { 0 };
                    let header =
                        CommonHeader::new(pdu, PduFlags::default(), digests, data_len, alignment);
                    let layout = header.layout(digests, alignment).expect("consistent");
                    assert_eq!((layout.pdu_type, layout.data_len), (pdu, data_len));
                    assert_eq!(layout.data_digest, digests.data && data_len > 0);
                }
            }
        }
    }

    #[test]
    fn each_wrong_field_is_named_by_its_offset() {
        let good = CommonHeader::new(PduType::CapsuleCmd, PduFlags::default(), BOTH, 512, 4);
        let offset = |header: CommonHeader| match header.layout(BOTH, 4) {
            Err(PduError::InvalidField { offset, .. }) => Some(offset),
            _ => None,
        };
        assert_eq!(offset(good), None);
        assert_eq!(offset(CommonHeader { flags: 0, ..good }), Some(1));
        assert_eq!(offset(CommonHeader { flags: PduFlags::HDGSTF.0, ..good }), Some(1));
        assert_eq!(offset(CommonHeader { hlen: 71, ..good }), Some(2));
        assert_eq!(offset(CommonHeader { pdo: 72, ..good }), Some(3), "inside the header digest");
        assert_eq!(offset(CommonHeader { pdo: 78, ..good }), Some(3), "not aligned");
        assert_eq!(offset(CommonHeader { plen: 75.into(), ..good }), Some(4));
        assert_eq!(offset(CommonHeader { plen: 80.into(), ..good }), Some(4), "digest, no data");
        assert_eq!(
            CommonHeader { pdu_type: 8, ..good }.layout(BOTH, 4),
            Err(PduError::UnknownType { pdu_type: 8 })
        );
    }

    #[test]
    fn a_response_with_data_is_refused() {
        let header = CommonHeader {
            plen: 28.into(),
            ..CommonHeader::new(PduType::CapsuleResp, PduFlags::default(), NONE, 0, 4)
        };
        assert_eq!(
            header.layout(NONE, 4),
            Err(PduError::InvalidField { pdu: PduType::CapsuleResp, offset: 4, value: 28 })
        );
    }
}
