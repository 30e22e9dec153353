//! Capsules: a command or its completion (TCP, clauses 3.6.2.6 and 3.6.2.7).

use core::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommonHeader, Digests, PduFlags, PduType};
use crate::{Cqe, Sqe};

/// CapsuleCmd: a command; in-capsule data may follow.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleCmd {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..72: CCSQE, the submission queue entry.
    pub sqe: Sqe,
}

const _: () = assert!(size_of::<CapsuleCmd>() == 72 && offset_of!(CapsuleCmd, sqe) == 8);

/// CapsuleResp: a completion.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CapsuleResp {
    /// 0..8: common header.
    pub ch: CommonHeader,
    /// 8..24: RCCQE, the completion queue entry.
    pub cqe: Cqe,
}

const _: () = assert!(size_of::<CapsuleResp>() == 24 && offset_of!(CapsuleResp, cqe) == 8);

impl CapsuleCmd {
    /// `sqe` with `data_len` bytes of in-capsule data, which start at a multiple of `alignment`.
    #[must_use]
    pub fn new(sqe: Sqe, data_len: usize, digests: Digests, alignment: usize) -> Self {
        let flags = PduFlags::default();
        let ch = CommonHeader::new(PduType::CapsuleCmd, flags, digests, data_len, alignment);
        Self { ch, sqe }
    }
}

impl CapsuleResp {
    /// `cqe` on its way to the host.
    #[must_use]
    pub fn new(cqe: Cqe, digests: Digests) -> Self {
        let flags = PduFlags::default();
        Self { ch: CommonHeader::new(PduType::CapsuleResp, flags, digests, 0, 4), cqe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;

    #[test]
    fn capsule_resp_matches_the_golden_bytes() {
        let cqe = Cqe::new(0x1234, Status::INVALID_FIELD.with_dnr());
        let response = CapsuleResp::new(cqe, Digests { header: true, data: true });
        #[rustfmt::skip]
        let golden = [
            0x05, 0x01, 0x18, 0x00, 0x1C, 0x00, 0x00, 0x00, // type flags hlen pdo, plen
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // result
            0x00, 0x00, 0x00, 0x00, 0x34, 0x12, 0x04, 0x80, // sqhd, sqid, cid, status
        ];
        assert_eq!(response.as_bytes(), golden);
        assert_eq!(CapsuleResp::read_from_bytes(&golden), Ok(response));
    }
}
