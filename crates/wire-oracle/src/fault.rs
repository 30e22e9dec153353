//! Rules that a host breaks once, and how a controller must refuse each (NVMe over TCP, clause 3.5 and the
//! figures of H2CData and C2HTermReq).

use crate::Rng;
use crate::command::Asked;
use crate::pdu::{Digests, LAST_PDU};

/// One broken rule. The connection ends with it, and the command that it concerns has no effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// One bit of a header behind the common header, or of its digest. Takes header digests.
    HeaderBit,
    /// One bit of the common header. Takes header digests.
    CommonBit,
    /// LAST_PDU is where it must not be, or is not where it must be.
    LastPdu,
    /// A Transfer Tag of no R2T.
    TransferTag,
    /// The identifier of another command.
    CommandIdentifier,
    /// DATAO is not the next byte.
    DataOffset,
    /// DATAL is not the length of the data.
    DataLength,
    /// The data begins within the header.
    DataInHeader,
    /// The data does not begin at a multiple of four bytes.
    DataUnaligned,
    /// The PDU ends beyond what the R2T asks for.
    BeyondR2t,
}

impl Fault {
    /// Each fault.
    pub const ALL: [Self; 10] = [
        Self::HeaderBit,
        Self::CommonBit,
        Self::LastPdu,
        Self::TransferTag,
        Self::CommandIdentifier,
        Self::DataOffset,
        Self::DataLength,
        Self::DataInHeader,
        Self::DataUnaligned,
        Self::BeyondR2t,
    ];

    /// Returns true if it needs header digests, and can be in a capsule, too.
    #[must_use]
    pub const fn is_in_digested_header(self) -> bool {
        matches!(self, Self::HeaderBit | Self::CommonBit)
    }
}

/// The TermReq with which a controller must end the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// FES, one of these.
    pub(crate) fes: &'static [u16],
    /// FEI, if it is determined.
    pub(crate) fei: Option<u32>,
    /// The fault may look like the end that the host itself announces: no C2HTermReq answers that.
    pub(crate) may_be_silent: bool,
    /// The command that must have no effect.
    pub(crate) cid: u16,
}

const HEADER_FIELD: &[u16] = &[1];

/// An H2CData PDU that is about to be encoded: what its fields say.
pub(crate) struct H2cFields {
    pub(crate) flags: u8,
    pub(crate) cccid: u16,
    pub(crate) ttag: u16,
    pub(crate) datao: usize,
    pub(crate) datal: usize,
    /// The offset of the data in the PDU.
    pub(crate) pdo: usize,
    /// The offset of the data in the PDU's header.
    pub(crate) pdo_said: usize,
}

impl H2cFields {
    /// Breaks a rule in the answer to `asked`; how that must be refused. `None` if this PDU cannot break it.
    pub(crate) fn break_rule(
        &mut self,
        fault: Fault,
        asked: &Asked,
        header_end: usize,
        rng: &mut Rng,
    ) -> Option<Refusal> {
        let cid = self.cccid;
        let refusal = |fes, fei| Refusal { fes, fei, may_be_silent: false, cid };
        Some(match fault {
            Fault::HeaderBit | Fault::CommonBit | Fault::BeyondR2t => return None,
            Fault::LastPdu => {
                self.flags ^= LAST_PDU;
                refusal(HEADER_FIELD, Some(1))
            }
            Fault::TransferTag => {
                self.ttag ^= 0x4000;
                refusal(HEADER_FIELD, Some(10))
            }
            Fault::CommandIdentifier => {
                self.cccid ^= 1 << rng.between(0, 15);
                refusal(HEADER_FIELD, Some(8))
            }
            Fault::DataOffset => {
                let by = rng.pick(&[1, 4, 512, 4096]);
                self.datao = match self.datao.checked_sub(by) {
                    Some(less) if rng.one_in(2) => less,
                    _ => self.datao + by,
                };
                let is_outside = self.datao < asked.start || self.datao + self.datal > asked.end;
                refusal(if is_outside { &[4] } else { &[2] }, Some(0))
            }
            Fault::DataLength => {
                self.datal ^= 1 << rng.between(0, 20);
                refusal(HEADER_FIELD, Some(16))
            }
            Fault::DataInHeader => {
                self.pdo_said = rng.pick(&[0, 4, 8, 20, header_end - 4]);
                refusal(HEADER_FIELD, Some(3))
            }
            Fault::DataUnaligned => {
                self.pdo_said += rng.between(1, 3);
                refusal(HEADER_FIELD, Some(3))
            }
        })
    }
}

/// Flips one bit of a header that has a digest; how that must be refused.
pub(crate) fn flip_header_bit(
    fault: Fault,
    pdu: &mut [u8],
    cid: u16,
    digests: Digests,
    rng: &mut Rng,
) -> Option<Refusal> {
    if !digests.header {
        return None;
    }
    let hlen = usize::from(pdu[2]);
    let (range, fes): (_, &'static [u16]) = match fault {
        Fault::HeaderBit => ((8, hlen + 3), &[3]),
        Fault::CommonBit => ((0, 7), &[1, 2, 3]),
        _ => return None,
    };
    pdu[rng.between(range.0, range.1)] ^= 1 << rng.between(0, 7);
    let digest = u32::from_le_bytes(pdu[hlen..hlen + 4].try_into().expect("four bytes"));
    let is_certain = fault == Fault::HeaderBit;
    Some(Refusal { fes, fei: is_certain.then_some(digest), may_be_silent: !is_certain, cid })
}
