//! Terminate Connection Request: why one side ends the connection (TCP, clauses 3.6.2.4, 3.6.2.5).

use core::mem::{offset_of, size_of};

use alloc::vec::Vec;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, FatalErrorStatus, PduError, PduType};

/// Most bytes of the offending PDU's header that a TermReq quotes: the whole PDU is at most 152.
pub const TERM_REQ_DATA_MAX: usize = 128;

/// Head of an H2CTermReq or C2HTermReq; the header of the offending PDU follows.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TermReq {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..10: Fatal Error Status.
    pub fes: U16,
    /// 10..14: Fatal Error Information.
    pub fei: U32,
    /// 14..24: reserved.
    pub reserved: [u8; 10],
}

const _: () = assert!(size_of::<TermReq>() == 24 && offset_of!(TermReq, fei) == 10);

impl TermReq {
    /// The whole PDU of type `pdu_type` (one of the two) that answers `error`, quoting at most
    /// [`TERM_REQ_DATA_MAX`] bytes of `offending_header`.
    #[must_use]
    pub fn encode(pdu_type: PduType, error: &PduError, offending_header: &[u8]) -> Vec<u8> {
        let quoted = &offending_header[..offending_header.len().min(TERM_REQ_DATA_MAX)];
        let plen = size_of::<Self>() + quoted.len();
        let ch = CommonHeader {
            pdu_type: pdu_type as u8,
            flags: 0,
            hlen: u8::try_from(size_of::<Self>()).expect("24"),
            pdo: 0,
            plen: u32::try_from(plen).expect("at most 152").into(),
        };
        let head =
            Self { ch, fes: error.fes().0.into(), fei: error.fei().into(), reserved: [0; 10] };
        let mut bytes = Vec::with_capacity(plen);
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(quoted);
        bytes
    }

    /// The error that the peer reports.
    #[must_use]
    pub fn status(&self) -> FatalErrorStatus {
        FatalErrorStatus(self.fes.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_req_names_the_field_and_quotes_the_header() {
        let error = PduError::InvalidField { pdu: PduType::CapsuleCmd, offset: 2, value: 0x47 };
        let bytes = TermReq::encode(PduType::C2hTermReq, &error, &[0xAB; 72]);
        let mut golden = [0u8; 96];
        golden[..14].copy_from_slice(&[
            0x03, 0x00, 0x18, 0x00, 0x60, 0x00, 0x00, 0x00, // type flags hlen pdo, plen
            0x01, 0x00, 0x02, 0x00, 0x00, 0x00, // fes, fei
        ]);
        golden[24..].fill(0xAB);
        assert_eq!(bytes, golden);
        let long = TermReq::encode(PduType::H2cTermReq, &error, &[0; 500]);
        assert_eq!(long.len(), 152);
    }
}
