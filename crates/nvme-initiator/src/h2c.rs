//! H2CData: the answer to an R2T, cut to what the controller takes at once.

use checksum::crc32c;
use nvme_wire::pdu::{CommonHeader, DIGEST_LEN, Digests, H2cData, PduFlags};
use zerocopy::IntoBytes;

use crate::R2tRequest;
use crate::sabotage::{Sabotage, broken};

/// Most bytes before a PDU's data: it starts at the first multiple of what CPDA asks for, 4 to 128 and not only powers of
/// two, behind a header of at most 76 bytes with its digest. That is the second multiple of 72 at most.
const HEADER_MAX: usize = 2 * 72;

/// A PDU's bytes up to its data: header, header digest, padding.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; HEADER_MAX],
    len: u8,
}

impl HeaderBytes {
    /// `header` with its digest and padding, as its common header `ch` says.
    pub(crate) fn new(header: &[u8], ch: CommonHeader) -> Self {
        let mut bytes = [0; HEADER_MAX];
        bytes[..header.len()].copy_from_slice(header);
        let mut len = header.len();
        if PduFlags(ch.flags).contains(PduFlags::HDGSTF) {
            bytes[len..len + DIGEST_LEN].copy_from_slice(&crc32c(header).to_le_bytes());
            len += DIGEST_LEN;
        }
        len = len.max(usize::from(ch.pdo));
        Self { bytes, len: u8::try_from(len).expect("at most 144") }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// One H2CData PDU: `header`, then bytes `offset..offset + len` of the command's data, then, with
/// data digests, their CRC-32C.
#[derive(Clone, Copy, Debug)]
pub struct H2cPdu {
    /// The bytes before the data.
    pub header: HeaderBytes,
    /// First byte of the command's data.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// The PDUs that answer an R2T.
#[derive(Clone, Debug)]
pub struct H2cPdus {
    pub(crate) request: R2tRequest,
    pub(crate) cid: u16,
    pub(crate) digests: Digests,
    pub(crate) alignment: usize,
    /// MAXH2CDATA.
    pub(crate) len_max: u32,
    /// Bytes of the request that earlier PDUs carry.
    pub(crate) done: u32,
}

impl Iterator for H2cPdus {
    type Item = H2cPdu;

    fn next(&mut self) -> Option<H2cPdu> {
        let rest = self.request.len - self.done;
        if rest == 0 {
            return None;
        }
        let start = if broken(Sabotage::OffsetWithinR2t) { 0 } else { self.request.offset };
        let len_max = if broken(Sabotage::IgnoreMaxH2cData) { rest } else { self.len_max };
        let (offset, len) = (start + self.done, rest.min(len_max));
        self.done += len;
        let ids = (self.cid, self.request.ttag);
        let is_last = len == rest || broken(Sabotage::LastEachTime);
        let pdu = H2cData::new(ids, (offset, len), is_last, self.digests, self.alignment);
        Some(H2cPdu { header: HeaderBytes::new(pdu.as_bytes(), pdu.ch), offset, len })
    }
}
