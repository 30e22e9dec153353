//! PDUs as bytes (NVMe over TCP, clause 3.6).
//!
//! ```text
//! byte 0        1      2     3    4     8            HLEN          PDO          PLEN
//! +------------+------+-----+----+-----+------------+-------+-----+------+-------+
//! | PDU-Type   |FLAGS |HLEN |PDO |PLEN | PDU's own  | HDGST | PAD | DATA | DDGST |
//! +------------+------+-----+----+-----+------------+-------+-----+------+-------+
//! ```

use crate::Finding;
use crate::crc::crc32c;

/// Initialize Connection Request.
pub const IC_REQ: u8 = 0x00;
/// Initialize Connection Response.
pub const IC_RESP: u8 = 0x01;
/// Host to Controller Terminate Connection Request.
pub const H2C_TERM_REQ: u8 = 0x02;
/// Controller to Host Terminate Connection Request.
pub const C2H_TERM_REQ: u8 = 0x03;
/// Command Capsule.
pub const CAPSULE_CMD: u8 = 0x04;
/// Response Capsule.
pub const CAPSULE_RESP: u8 = 0x05;
/// Host to Controller Data Transfer.
pub const H2C_DATA: u8 = 0x06;
/// Controller to Host Data Transfer.
pub const C2H_DATA: u8 = 0x07;
/// Ready to Transfer.
pub const R2T: u8 = 0x09;

/// FLAGS: a header digest follows the header.
pub const HDGSTF: u8 = 0x01;
/// FLAGS: a data digest follows the data.
pub const DDGSTF: u8 = 0x02;
/// FLAGS of data PDUs: the last one.
pub const LAST_PDU: u8 = 0x04;
/// FLAGS of C2HData: the command succeeded, and no response capsule follows.
pub const SUCCESS: u8 = 0x08;

/// Bytes of a digest.
const DIGEST: usize = 4;
/// Bytes of the common header.
const COMMON: usize = 8;

/// Digests that a connection uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// Header digests.
    pub header: bool,
    /// Data digests.
    pub data: bool,
}

/// A PDU to be encoded.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    /// PDU-Type.
    pub kind: u8,
    /// FLAGS without those of digests.
    pub flags: u8,
    /// Bytes 8 to HLEN.
    pub own: &'a [u8],
    /// Data.
    pub data: &'a [u8],
    /// PDO. Meaningless without data.
    pub pdo: usize,
    /// The byte that fills the padding.
    pub padding: u8,
}

impl Draft<'_> {
    /// The PDU, with the digests of a connection that uses `digests`.
    #[must_use]
    pub fn encode(&self, digests: Digests) -> Vec<u8> {
        let mut pdu = self.header(digests);
        self.finish(&mut pdu, digests);
        pdu
    }

    /// Bytes up to HLEN.
    #[must_use]
    pub fn header(&self, digests: Digests) -> Vec<u8> {
        let has_data = !self.data.is_empty();
        let with_header_digest = digests.header && has_digests(self.kind);
        let with_data_digest = digests.data && has_digests(self.kind) && has_data;
        let hlen = COMMON + self.own.len();
        let header_end = hlen + if with_header_digest { DIGEST } else { 0 };
        let plen = if has_data {
            self.pdo + self.data.len() + if with_data_digest { DIGEST } else { 0 }
        } else {
            header_end
        };
        let mut flags = self.flags;
        flags |= if with_header_digest { HDGSTF } else { 0 };
        flags |= if with_data_digest { DDGSTF } else { 0 };
        let pdo = if has_data { self.pdo } else { 0 };
        let mut header = vec![self.kind, flags, hlen as u8, pdo as u8];
        header.extend_from_slice(&(plen as u32).to_le_bytes());
        header.extend_from_slice(self.own);
        header
    }

    /// Appends what follows `header`: its digest, padding, data and the digest of the data.
    pub fn finish(&self, header: &mut Vec<u8>, digests: Digests) {
        if digests.header && has_digests(self.kind) {
            let digest = crc32c(header);
            header.extend_from_slice(&digest.to_le_bytes());
        }
        if self.data.is_empty() {
            return;
        }
        header.resize(self.pdo.max(header.len()), self.padding);
        header.extend_from_slice(self.data);
        if digests.data && has_digests(self.kind) {
            header.extend_from_slice(&crc32c(self.data).to_le_bytes());
        }
    }
}

/// The least offset of the data of a PDU with a header of this length: a multiple of `alignment`.
#[must_use]
pub fn data_offset(hlen: usize, digests: Digests, alignment: usize) -> usize {
    let end = hlen + if digests.header { DIGEST } else { 0 };
    end.div_ceil(alignment) * alignment
}

/// Returns true if digests that were agreed on apply to this type.
fn has_digests(kind: u8) -> bool {
    kind >= CAPSULE_CMD
}

/// HLEN of a type.
fn hlen_of(kind: u8) -> Option<usize> {
    Some(match kind {
        IC_REQ | IC_RESP => 128,
        CAPSULE_CMD => 72,
        H2C_TERM_REQ | C2H_TERM_REQ | CAPSULE_RESP | H2C_DATA | C2H_DATA | R2T => 24,
        _ => return None,
    })
}

/// FLAGS that a type defines, but for those of digests.
fn flags_of(kind: u8) -> u8 {
    match kind {
        H2C_DATA => LAST_PDU,
        C2H_DATA => LAST_PDU | SUCCESS,
        _ => 0,
    }
}

/// A PDU that came: lengths, flags and digests are right.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pdu {
    /// PDU-Type.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// Bytes 0 to HLEN.
    pub header: Vec<u8>,
    /// Data; behind the header of a TermReq, what it quotes.
    pub data: Vec<u8>,
}

impl Pdu {
    /// The 16-bit field at byte `at` of the header.
    #[must_use]
    pub fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.header[at], self.header[at + 1]])
    }

    /// The 32-bit field at byte `at` of the header.
    #[must_use]
    pub fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.header[at..at + 4].try_into().expect("four bytes"))
    }
}

/// Takes the PDU at the start of `stream` out of it, once all of it has come. Data must begin at a multiple of
/// `alignment`.
pub fn take(
    stream: &mut Vec<u8>,
    digests: Digests,
    alignment: usize,
) -> Result<Option<Pdu>, Finding> {
    if stream.len() < COMMON {
        return Ok(None);
    }
    let (kind, flags, hlen) = (stream[0], stream[1], usize::from(stream[2]));
    let pdo = usize::from(stream[3]);
    let plen = u32::from_le_bytes(stream[4..8].try_into().expect("four bytes")) as usize;
    let wrong = |what: &str| format!("{what} in a PDU that begins with {:02x?}", &stream[..8]);
    if Some(hlen) != hlen_of(kind) {
        return Err(wrong("type or HLEN"));
    }
    let digests = if has_digests(kind) { digests } else { Digests::default() };
    let header_end = hlen + if digests.header { DIGEST } else { 0 };
    if plen < header_end {
        return Err(wrong("PLEN"));
    }
    if stream.len() < plen {
        return Ok(None);
    }
    let is_term = matches!(kind, H2C_TERM_REQ | C2H_TERM_REQ);
    let has_data = plen > header_end && !is_term;
    let mut defined = flags_of(kind);
    defined |= if digests.header { HDGSTF } else { 0 };
    // Without data the flag of its digest means nothing, and may be there.
    defined |= if digests.data { DDGSTF } else { 0 };
    if flags & !defined != 0 || (flags & HDGSTF != 0) != digests.header {
        return Err(wrong("FLAGS"));
    }
    if digests.header && stream[hlen..header_end] != crc32c(&stream[..hlen]).to_le_bytes() {
        return Err(wrong("header digest"));
    }
    let mut data = Vec::new();
    if is_term {
        data = stream[header_end..plen].to_vec();
    } else if has_data {
        if !matches!(kind, CAPSULE_CMD | H2C_DATA | C2H_DATA) {
            return Err(wrong("data"));
        }
        if (flags & DDGSTF != 0) != digests.data {
            return Err(wrong("flag of the data digest"));
        }
        let data_end = plen - if digests.data { DIGEST } else { 0 };
        if pdo < header_end || pdo % alignment != 0 || pdo >= data_end {
            return Err(wrong("PDO"));
        }
        data = stream[pdo..data_end].to_vec();
        if digests.data && stream[data_end..plen] != crc32c(&data).to_le_bytes() {
            return Err(wrong("data digest"));
        }
    } else if matches!(kind, H2C_DATA | C2H_DATA) {
        return Err(wrong("no data"));
    }
    let header = stream[..hlen].to_vec();
    stream.drain(..plen);
    Ok(Some(Pdu { kind, flags, header, data }))
}
