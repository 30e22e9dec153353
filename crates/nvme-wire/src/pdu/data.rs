//! Data on its way, and the R2T that asks for it (TCP, clauses 3.6.2.8 to 3.6.2.10).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, Digests, PduError, PduFlags, PduLayout, PduType};

/// Byte offset of DATAL in H2CData and C2HData, and of R2TL in R2T.
const OFFSET_LENGTH: u8 = 16;

/// H2CData: a piece of a write's data, answering an R2T.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct H2cData {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: Command Capsule CID.
    pub cccid: U16,
    /// 10..12: Transfer Tag of the R2T.
    pub ttag: U16,
    /// 12..16: Data Offset, in bytes from the start of the command's data.
    pub datao: U32,
    /// 16..20: Data Length in bytes.
    pub datal: U32,
    /// 20..24: reserved.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<H2cData>() == 24 && offset_of!(H2cData, datal) == 16);

/// C2HData: a piece of a read's data.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct C2hData {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: Command Capsule CID.
    pub cccid: U16,
    /// 10..12: reserved.
    pub reserved: [u8; 2],
    /// 12..16: Data Offset, in bytes from the start of the command's data.
    pub datao: U32,
    /// 16..20: Data Length in bytes.
    pub datal: U32,
    /// 20..24: reserved.
    pub reserved2: [u8; 4],
}

const _: () = assert!(size_of::<C2hData>() == 24 && offset_of!(C2hData, datal) == 16);

/// R2T: the controller asks for a piece of a write's data.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct R2t {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: Command Capsule CID.
    pub cccid: U16,
    /// 10..12: Transfer Tag; the host returns it in every H2CData for this R2T.
    pub ttag: U16,
    /// 12..16: R2T Offset, in bytes from the start of the command's data.
    pub r2to: U32,
    /// 16..20: R2T Length in bytes.
    pub r2tl: U32,
    /// 20..24: reserved.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<R2t>() == 24 && offset_of!(R2t, r2tl) == 16);

impl H2cData {
    /// Bytes `datao..datao + datal` for the R2T `ttag` of command `cccid`.
    #[must_use]
    pub fn new(
        ids: (u16, u16),
        (datao, datal): (u32, u32),
        last: bool,
        digests: Digests,
        alignment: usize,
    ) -> Self {
        let flags = PduFlags::LAST_PDU.when(last);
        let ch = CommonHeader::new(PduType::H2cData, flags, digests, datal as usize, alignment);
        let (cccid, ttag) = (ids.0.into(), ids.1.into());
        Self { ch, cccid, ttag, datao: datao.into(), datal: datal.into(), reserved: [0; 4] }
    }

    /// Checks that DATAL is the data length that `layout` found.
    pub fn check(&self, layout: &PduLayout) -> Result<(), PduError> {
        check_datal(self.datal.get(), layout)
    }
}

impl C2hData {
    /// Bytes `datao..datao + datal` of the data of command `cccid`. `flags` says whether it is
    /// the last ([`PduFlags::LAST_PDU`]) and stands for the completion ([`PduFlags::SUCCESS`]).
    #[must_use]
    pub fn new(
        cccid: u16,
        (datao, datal): (u32, u32),
        flags: PduFlags,
        digests: Digests,
        alignment: usize,
    ) -> Self {
        let ch = CommonHeader::new(PduType::C2hData, flags, digests, datal as usize, alignment);
        Self {
            ch,
            cccid: cccid.into(),
            reserved: [0; 2],
            datao: datao.into(),
            datal: datal.into(),
            reserved2: [0; 4],
        }
    }

    /// Checks that DATAL is the data length that `layout` found, and that SUCCESS comes with
    /// LAST_PDU only.
    pub fn check(&self, layout: &PduLayout) -> Result<(), PduError> {
        check_datal(self.datal.get(), layout)?;
        let flags = layout.flags;
        if flags.contains(PduFlags::SUCCESS) && !flags.contains(PduFlags::LAST_PDU) {
            return Err(PduError::InvalidField {
                pdu: layout.pdu_type,
                offset: CommonHeader::OFFSET_FLAGS,
                value: u32::from(flags.0),
            });
        }
        Ok(())
    }
}

fn check_datal(datal: u32, layout: &PduLayout) -> Result<(), PduError> {
    if datal as usize == layout.data_len {
        return Ok(());
    }
    Err(PduError::InvalidField { pdu: layout.pdu_type, offset: OFFSET_LENGTH, value: datal })
}

impl R2t {
    /// Asks for bytes `r2to..r2to + r2tl` of the data of command `cccid`.
    #[must_use]
    pub fn new(cccid: u16, ttag: u16, (r2to, r2tl): (u32, u32), digests: Digests) -> Self {
        let ch = CommonHeader::new(PduType::R2t, PduFlags::default(), digests, 0, 4);
        Self {
            ch,
            cccid: cccid.into(),
            ttag: ttag.into(),
            r2to: r2to.into(),
            r2tl: r2tl.into(),
            reserved: [0; 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Digests = Digests { header: false, data: false };

    #[test]
    fn h2c_data_matches_the_golden_bytes() {
        let data = H2cData::new(
            (0x1234, 0x0007),
            (0x1000, 0x2000),
            true,
            Digests { header: true, data: true },
            4,
        );
        #[rustfmt::skip]
        let golden = [
            0x06, 0x07, 0x18, 0x1C, 0x20, 0x20, 0x00, 0x00, // type flags hlen pdo, plen
            0x34, 0x12, 0x07, 0x00, 0x00, 0x10, 0x00, 0x00, // cccid, ttag, datao
            0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // datal
        ];
        assert_eq!(data.as_bytes(), golden);
        assert_eq!(H2cData::read_from_bytes(&golden), Ok(data));
    }

    #[test]
    fn c2h_data_matches_the_golden_bytes() {
        let flags = PduFlags::LAST_PDU.union(PduFlags::SUCCESS);
        let data = C2hData::new(0x0102, (0, 0x1000), flags, NONE, 4);
        #[rustfmt::skip]
        let golden = [
            0x07, 0x0C, 0x18, 0x18, 0x18, 0x10, 0x00, 0x00, // type flags hlen pdo, plen
            0x02, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // cccid, datao
            0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // datal
        ];
        assert_eq!(data.as_bytes(), golden);
        assert_eq!(C2hData::read_from_bytes(&golden), Ok(data));
    }

    #[test]
    fn r2t_matches_the_golden_bytes() {
        let r2t = R2t::new(0x1234, 1, (0x1000, 0x2000), NONE);
        #[rustfmt::skip]
        let golden = [
            0x09, 0x00, 0x18, 0x00, 0x18, 0x00, 0x00, 0x00, // type flags hlen pdo, plen
            0x34, 0x12, 0x01, 0x00, 0x00, 0x10, 0x00, 0x00, // cccid, ttag, r2to
            0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // r2tl
        ];
        assert_eq!(r2t.as_bytes(), golden);
        assert_eq!(R2t::read_from_bytes(&golden), Ok(r2t));
    }

    #[test]
    fn success_without_last_is_refused() {
        let data = C2hData::new(1, (0, 512), PduFlags::SUCCESS, NONE, 4);
        let layout = data.ch.layout(NONE, 4).expect("lengths are right");
        assert_eq!(data.check(&layout).expect_err("flags").fei(), 1);
        let wrong_length =
            C2hData { datal: 8.into(), ..C2hData::new(1, (0, 512), PduFlags(0), NONE, 4) };
        assert_eq!(wrong_length.check(&layout).expect_err("datal").fei(), 16);
    }
}
