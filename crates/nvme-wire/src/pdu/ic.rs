//! Initialize Connection: the first PDU each way (TCP, clauses 3.6.2.2 and 3.6.2.3).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, Digests, PduError, PduFlags, PduType};

/// PDU Format Version 1.0, the only one.
pub const PFV_1_0: u16 = 0;
/// DGST: header digests.
pub const DIGEST_HEADER: u8 = 1 << 0;
/// DGST: data digests.
pub const DIGEST_DATA: u8 = 1 << 1;
/// Smallest MAXH2CDATA that a controller may state, in bytes.
pub const MAXH2CDATA_MIN: u32 = 4096;
/// Largest HPDA and CPDA.
const PDA_MAX: u8 = 31;
/// Byte offset of what is reserved in an ICReq.
const OFFSET_RESERVED: u8 = 16;

/// Bytes of alignment that HPDA or CPDA asks for: a 0's based number of dwords.
#[must_use]
pub const fn alignment_from_pda(pda: u8) -> usize {
    (pda as usize + 1) * 4
}

impl Digests {
    /// As DGST says.
    #[must_use]
    pub const fn from_dgst(dgst: u8) -> Self {
        Self { header: dgst & DIGEST_HEADER != 0, data: dgst & DIGEST_DATA != 0 }
    }

    /// As DGST says it.
    #[must_use]
    pub const fn to_dgst(self) -> u8 {
        (if self.header { DIGEST_HEADER } else { 0 }) | (if self.data { DIGEST_DATA } else { 0 })
    }

    /// The digests that both sides want.
    #[must_use]
    pub const fn both(self, other: Self) -> Self {
        Self { header: self.header && other.header, data: self.data && other.data }
    }
}

/// ICReq: what the host offers.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IcReq {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: PDU Format Version.
    pub pfv: U16,
    /// 10: Host PDU Data Alignment, 0's based dwords; see [`alignment_from_pda`].
    pub hpda: u8,
    /// 11: DGST, digests that the host wants.
    pub dgst: u8,
    /// 12..16: MAXR2T, 0's based number of R2Ts outstanding per command that the host can handle.
    pub maxr2t: U32,
    /// 16..128: reserved.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<IcReq>() == 128 && offset_of!(IcReq, maxr2t) == 12);

/// ICResp: what the controller accepts.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IcResp {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: PDU Format Version.
    pub pfv: U16,
    /// 10: Controller PDU Data Alignment, 0's based dwords; see [`alignment_from_pda`].
    pub cpda: u8,
    /// 11: DGST, digests that will be used.
    pub dgst: u8,
    /// 12..16: MAXH2CDATA, largest number of data bytes in an H2CData.
    pub maxh2cdata: U32,
    /// 16..128: reserved.
    pub reserved: [u8; 112],
}

const _: () = assert!(size_of::<IcResp>() == 128 && offset_of!(IcResp, maxh2cdata) == 12);

impl IcReq {
    /// An ICReq without alignment wishes; `r2ts_max` R2Ts may be outstanding per command (≥ 1).
    #[must_use]
    pub fn new(digests: Digests, r2ts_max: u32) -> Self {
        let ch = CommonHeader::new(PduType::IcReq, PduFlags::default(), Digests::default(), 0, 4);
        Self {
            ch,
            dgst: digests.to_dgst(),
            maxr2t: r2ts_max.saturating_sub(1).into(),
            ..Self::new_zeroed()
        }
    }

    /// Checks every field but the common header, which [`CommonHeader::layout`] checked. PDO is reserved
    /// here; and with PFV 1.0 so is all behind MAXR2T.
    pub fn check(&self) -> Result<(), PduError> {
        let pdu = PduType::IcReq;
        if self.ch.pdo != 0 {
            let (offset, value) = (CommonHeader::OFFSET_PDO, u32::from(self.ch.pdo));
            return Err(PduError::InvalidField { pdu, offset, value });
        }
        check_fields(pdu, self.pfv.get(), self.hpda, self.dgst)?;
        match self.reserved.iter().find(|byte| **byte != 0) {
            None => Ok(()),
            Some(byte) => {
                let (offset, value) = (OFFSET_RESERVED, u32::from(*byte));
                Err(PduError::InvalidField { pdu, offset, value })
            }
        }
    }

    /// Digests that the host wants.
    #[must_use]
    pub const fn digests(&self) -> Digests {
        Digests::from_dgst(self.dgst)
    }

    /// R2Ts that may be outstanding per command, at least one.
    #[must_use]
    pub fn r2ts_max(&self) -> u32 {
        self.maxr2t.get().saturating_add(1)
    }

    /// Alignment in bytes of data that goes to the host.
    #[must_use]
    pub const fn data_alignment(&self) -> usize {
        alignment_from_pda(self.hpda)
    }
}

impl IcResp {
    /// An ICResp without alignment wishes.
    #[must_use]
    pub fn new(digests: Digests, maxh2cdata: u32) -> Self {
        let ch = CommonHeader::new(PduType::IcResp, PduFlags::default(), Digests::default(), 0, 4);
        Self { ch, dgst: digests.to_dgst(), maxh2cdata: maxh2cdata.into(), ..Self::new_zeroed() }
    }

    /// Checks every field but the common header; that no digest was agreed on which was not
    /// `offered`; that MAXH2CDATA is large enough and a multiple of four.
    pub fn check(&self, offered: Digests) -> Result<(), PduError> {
        let pdu = PduType::IcResp;
        check_fields(pdu, self.pfv.get(), self.cpda, self.dgst)?;
        let agreed = Digests::from_dgst(self.dgst);
        if agreed.both(offered) != agreed {
            return Err(PduError::InvalidField { pdu, offset: 11, value: u32::from(self.dgst) });
        }
        let maxh2cdata = self.maxh2cdata.get();
        if maxh2cdata < MAXH2CDATA_MIN || !maxh2cdata.is_multiple_of(4) {
            return Err(PduError::InvalidField { pdu, offset: 12, value: maxh2cdata });
        }
        Ok(())
    }

    /// Digests that the connection uses.
    #[must_use]
    pub const fn digests(&self) -> Digests {
        Digests::from_dgst(self.dgst)
    }

    /// Alignment in bytes of data that goes to the controller.
    #[must_use]
    pub const fn data_alignment(&self) -> usize {
        alignment_from_pda(self.cpda)
    }
}

fn check_fields(pdu: PduType, pfv: u16, pda: u8, dgst: u8) -> Result<(), PduError> {
    if pfv != PFV_1_0 {
        return Err(PduError::Unsupported { pdu, offset: 8, value: u32::from(pfv) });
    }
    if pda > PDA_MAX {
        return Err(PduError::InvalidField { pdu, offset: 10, value: u32::from(pda) });
    }
    if dgst & !(DIGEST_HEADER | DIGEST_DATA) != 0 {
        return Err(PduError::InvalidField { pdu, offset: 11, value: u32::from(dgst) });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icreq_matches_the_golden_bytes() {
        let request = IcReq::new(Digests { header: true, data: true }, 16);
        let mut golden = [0u8; 128];
        golden[..16].copy_from_slice(&[
            0x00, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, // type flags hlen pdo, plen
            0x00, 0x00, 0x00, 0x03, 0x0F, 0x00, 0x00, 0x00, // pfv, hpda, dgst, maxr2t
        ]);
        assert_eq!(request.as_bytes(), golden);
        assert_eq!(request.check(), Ok(()));
        assert_eq!(request.r2ts_max(), 16);
    }

    #[test]
    fn icresp_matches_the_golden_bytes() {
        let response = IcResp::new(Digests { header: false, data: true }, 0x0002_0000);
        let mut golden = [0u8; 128];
        golden[..16].copy_from_slice(&[
            0x01, 0x00, 0x80, 0x00, 0x80, 0x00, 0x00, 0x00, // type flags hlen pdo, plen
            0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x02, 0x00, // pfv, cpda, dgst, maxh2cdata
        ]);
        assert_eq!(response.as_bytes(), golden);
        assert_eq!(response.check(Digests { header: true, data: true }), Ok(()));
        assert!(response.check(Digests::default()).is_err(), "data digest was not offered");
    }

    #[test]
    fn wrong_parameters_are_named_by_their_offset() {
        let good = IcReq::new(Digests::default(), 1);
        let unsupported = IcReq { pfv: 1.into(), ..good }.check().expect_err("version");
        assert_eq!((unsupported.fes().0, unsupported.fei()), (6, 8));
        let invalid = IcReq { hpda: 32, ..good }.check().expect_err("alignment");
        assert_eq!((invalid.fes().0, invalid.fei()), (1, 10));
        let invalid = IcReq { dgst: 4, ..good }.check().expect_err("reserved digest bit");
        assert_eq!((invalid.fes().0, invalid.fei()), (1, 11));
    }
}
