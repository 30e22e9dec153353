//! Options, which a client haggles with before it opens an export, and the replies to them.

use alloc::vec::Vec;
use core::fmt;

use crate::BadMagic;
use crate::bytes::{Reader, u32_at, u64_at};
use crate::handshake::{EXPORT_NAME_PADDING, OPTION_MAGIC, TransmissionFlags};

/// Most bytes of a name, of a description, and of a query.
pub const NAME_BYTES_MAX: usize = 4096;
/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER_LEN: usize = 16;
/// Bytes of an [`OptionReplyHeader`].
pub const OPTION_REPLY_HEADER_LEN: usize = 20;

const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// The number of an option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OptionCode(pub u32);

impl OptionCode {
    /// Opens an export, and ends the haggling. There is no way to refuse but to close the connection.
    pub const EXPORT_NAME: Self = Self(1);
    /// Ends the connection.
    pub const ABORT: Self = Self(2);
    /// Asks for the names of exports.
    pub const LIST: Self = Self(3);
    /// Goes on in TLS.
    pub const STARTTLS: Self = Self(5);
    /// Asks about an export.
    pub const INFO: Self = Self(6);
    /// Opens an export, and ends the haggling.
    pub const GO: Self = Self(7);
    /// Asks for structured replies.
    pub const STRUCTURED_REPLY: Self = Self(8);
    /// Asks which metadata contexts there are.
    pub const LIST_META_CONTEXT: Self = Self(9);
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: Self = Self(10);
    /// Asks for extended headers.
    pub const EXTENDED_HEADERS: Self = Self(11);
}

/// The name in the protocol's document, which clients print, too.
impl fmt::Display for OptionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::EXPORT_NAME => "NBD_OPT_EXPORT_NAME",
            Self::ABORT => "NBD_OPT_ABORT",
            Self::LIST => "NBD_OPT_LIST",
            Self(4) => "NBD_OPT_PEEK_EXPORT",
            Self::STARTTLS => "NBD_OPT_STARTTLS",
            Self::INFO => "NBD_OPT_INFO",
            Self::GO => "NBD_OPT_GO",
            Self::STRUCTURED_REPLY => "NBD_OPT_STRUCTURED_REPLY",
            Self::LIST_META_CONTEXT => "NBD_OPT_LIST_META_CONTEXT",
            Self::SET_META_CONTEXT => "NBD_OPT_SET_META_CONTEXT",
            Self::EXTENDED_HEADERS => "NBD_OPT_EXTENDED_HEADERS",
            Self(unknown) => return write!(f, "the option {unknown}"),
        })
    }
}

/// The beginning of an option.
///
/// ```text
/// 0          8        12       16
/// +----------+--------+--------+------
/// | IHAVEOPT | option | length | data …
/// +----------+--------+--------+------
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OptionHeader {
    /// The option.
    pub option: OptionCode,
    /// Bytes of its data.
    pub len_bytes: u32,
}

impl OptionHeader {
    /// The bytes of the header.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_HEADER_LEN] {
        let mut bytes = [0; OPTION_HEADER_LEN];
        bytes[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// It does not begin as one does.
    pub fn decode(bytes: &[u8; OPTION_HEADER_LEN]) -> Result<Self, BadMagic> {
        let found = u64_at(bytes, 0);
        if found != OPTION_MAGIC {
            return Err(BadMagic { found, expected: OPTION_MAGIC });
        }
        Ok(Self { option: OptionCode(u32_at(bytes, 8)), len_bytes: u32_at(bytes, 12) })
    }
}

/// The kind of a reply to an option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OptionReplyKind(pub u32);

impl OptionReplyKind {
    /// The last reply to an option that was carried out.
    pub const ACK: Self = Self(1);
    /// An export, for [`OptionCode::LIST`].
    pub const SERVER: Self = Self(2);
    /// A piece of information about an export.
    pub const INFO: Self = Self(3);
    /// A metadata context.
    pub const META_CONTEXT: Self = Self(4);
    /// The option is not known, or not now.
    pub const ERR_UNSUP: Self = Self(ERROR | 1);
    /// The server does not allow it.
    pub const ERR_POLICY: Self = Self(ERROR | 2);
    /// The data of the option makes no sense.
    pub const ERR_INVALID: Self = Self(ERROR | 3);
    /// The option is known, and cannot be had on this system.
    pub const ERR_PLATFORM: Self = Self(ERROR | 4);
    /// It is refused before TLS was started.
    pub const ERR_TLS_REQD: Self = Self(ERROR | 5);
    /// There is no such export for this client.
    pub const ERR_UNKNOWN: Self = Self(ERROR | 6);
    /// The server is ending.
    pub const ERR_SHUTDOWN: Self = Self(ERROR | 7);
    /// The client has to ask for the sizes of blocks.
    pub const ERR_BLOCK_SIZE_REQD: Self = Self(ERROR | 8);
    /// The option asks for too much.
    pub const ERR_TOO_BIG: Self = Self(ERROR | 9);
    /// The client has to ask for extended headers.
    pub const ERR_EXT_HEADER_REQD: Self = Self(ERROR | 10);

    /// Returns whether the option was refused.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 & ERROR != 0
    }
}

/// The bit of a reply that refuses.
const ERROR: u32 = 1 << 31;

/// The beginning of a reply to an option.
///
/// ```text
/// 0       8        12     16       20
/// +-------+--------+------+--------+------
/// | magic | option | kind | length | data …
/// +-------+--------+------+--------+------
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OptionReplyHeader {
    /// The option.
    pub option: OptionCode,
    /// The kind of the reply.
    pub kind: OptionReplyKind,
    /// Bytes of its data.
    pub len_bytes: u32,
}

impl OptionReplyHeader {
    /// The bytes of the header.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_REPLY_HEADER_LEN] {
        let mut bytes = [0; OPTION_REPLY_HEADER_LEN];
        bytes[..8].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.option.0.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.kind.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// It does not begin as one does.
    pub fn decode(bytes: &[u8; OPTION_REPLY_HEADER_LEN]) -> Result<Self, BadMagic> {
        let found = u64_at(bytes, 0);
        if found != REPLY_MAGIC {
            return Err(BadMagic { found, expected: REPLY_MAGIC });
        }
        Ok(Self {
            option: OptionCode(u32_at(bytes, 8)),
            kind: OptionReplyKind(u32_at(bytes, 12)),
            len_bytes: u32_at(bytes, 16),
        })
    }
}

/// Why the data of an option makes no sense.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OptionDataError {
    /// A length within it does not fit its own.
    #[error("the lengths in the data of the option do not fit its length")]
    Length,
    /// A name or query is longer than the protocol allows.
    #[error("a name or query has more than {NAME_BYTES_MAX} bytes")]
    TooLong,
    /// A name or query is no UTF-8.
    #[error("a name or query is no UTF-8")]
    NotText,
}

/// A piece of information about an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InfoKind(pub u16);

impl InfoKind {
    /// Size and flags.
    pub const EXPORT: Self = Self(0);
    /// The name of record.
    pub const NAME: Self = Self(1);
    /// A description for people.
    pub const DESCRIPTION: Self = Self(2);
    /// The sizes of blocks.
    pub const BLOCK_SIZE: Self = Self(3);
}

/// The data of [`OptionCode::INFO`] and [`OptionCode::GO`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default one.
    pub name: &'a str,
    /// The information that the client asks for. It may be told more, or less.
    pub infos: Vec<InfoKind>,
}

impl<'a> InfoRequest<'a> {
    /// The bytes of the data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, self.name);
        bytes.extend_from_slice(&(self.infos.len() as u16).to_be_bytes());
        self.infos.iter().for_each(|info| bytes.extend_from_slice(&info.0.to_be_bytes()));
        bytes
    }

    /// Decodes the data.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, OptionDataError> {
        let mut reader = Reader(bytes);
        let name = text(&mut reader)?;
        let count = reader.u16().ok_or(OptionDataError::Length)?;
        if reader.0.len() != usize::from(count) * 2 {
            return Err(OptionDataError::Length);
        }
        let infos = core::iter::from_fn(|| reader.u16().map(InfoKind)).collect();
        Ok(Self { name, infos })
    }
}

/// The data of [`OptionCode::LIST_META_CONTEXT`] and [`OptionCode::SET_META_CONTEXT`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MetaContextRequest<'a> {
    /// Name of the export.
    pub name: &'a str,
    /// Names of contexts, or namespaces of such (`base:`).
    pub queries: Vec<&'a str>,
}

impl<'a> MetaContextRequest<'a> {
    /// The bytes of the data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, self.name);
        bytes.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        self.queries.iter().for_each(|query| put_text(&mut bytes, query));
        bytes
    }

    /// Decodes the data.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, OptionDataError> {
        let mut reader = Reader(bytes);
        let name = text(&mut reader)?;
        let count = reader.u32().ok_or(OptionDataError::Length)?;
        let mut queries = Vec::new();
        for _ in 0..count {
            // Each takes bytes, so a count that is a lie ends soon.
            queries.push(text(&mut reader)?);
        }
        if reader.0.is_empty() { Ok(Self { name, queries }) } else { Err(OptionDataError::Length) }
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, OptionDataError> {
    let len = reader.u32().ok_or(OptionDataError::Length)?;
    let len = usize::try_from(len).map_err(|_| OptionDataError::Length)?;
    let bytes = reader.bytes(len).ok_or(OptionDataError::Length)?;
    if len > NAME_BYTES_MAX {
        return Err(OptionDataError::TooLong);
    }
    core::str::from_utf8(bytes).map_err(|_| OptionDataError::NotText)
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// The data of [`OptionReplyKind::SERVER`].
#[must_use]
pub fn encode_server(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + name.len());
    put_text(&mut bytes, name);
    bytes
}

/// The data of [`OptionReplyKind::INFO`] with [`InfoKind::EXPORT`].
#[must_use]
pub fn encode_info_export(size_bytes: u64, flags: TransmissionFlags) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..2].copy_from_slice(&InfoKind::EXPORT.0.to_be_bytes());
    bytes[2..10].copy_from_slice(&size_bytes.to_be_bytes());
    bytes[10..].copy_from_slice(&flags.0.to_be_bytes());
    bytes
}

/// The data of [`OptionReplyKind::INFO`] with [`InfoKind::NAME`] or [`InfoKind::DESCRIPTION`].
#[must_use]
pub fn encode_info_name(kind: InfoKind, text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + text.len());
    bytes.extend_from_slice(&kind.0.to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// Sizes of requests for an export.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of it.
    pub minimum: u32,
    /// Requests that are multiples of it are carried out best.
    pub preferred: u32,
    /// Most bytes of a read or write.
    pub maximum: u32,
}

/// The data of [`OptionReplyKind::INFO`] with [`InfoKind::BLOCK_SIZE`].
#[must_use]
pub fn encode_info_block_size(sizes: BlockSizes) -> [u8; 14] {
    let mut bytes = [0; 14];
    bytes[..2].copy_from_slice(&InfoKind::BLOCK_SIZE.0.to_be_bytes());
    bytes[2..6].copy_from_slice(&sizes.minimum.to_be_bytes());
    bytes[6..10].copy_from_slice(&sizes.preferred.to_be_bytes());
    bytes[10..].copy_from_slice(&sizes.maximum.to_be_bytes());
    bytes
}

/// The data of [`OptionReplyKind::META_CONTEXT`].
#[must_use]
pub fn encode_meta_context(id: u32, name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + name.len());
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

/// The answer to [`OptionCode::EXPORT_NAME`], which has no header.
#[must_use]
pub fn encode_export_name_reply(
    size_bytes: u64,
    flags: TransmissionFlags,
    has_padding: bool,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(10 + EXPORT_NAME_PADDING);
    bytes.extend_from_slice(&size_bytes.to_be_bytes());
    bytes.extend_from_slice(&flags.0.to_be_bytes());
    if has_padding {
        bytes.resize(10 + EXPORT_NAME_PADDING, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn headers_are_their_golden_bytes() {
        let header = OptionHeader { option: OptionCode::GO, len_bytes: 258 };
        let golden = *b"IHAVEOPT\0\0\0\x07\0\0\x01\x02";
        assert_eq!(header.encode(), golden);
        assert_eq!(OptionHeader::decode(&golden), Ok(header));
        let wrong = OptionHeader::decode(b"IHAVEOPS\0\0\0\x07\0\0\x01\x02");
        assert_eq!(wrong.map_err(|error| error.expected), Err(OPTION_MAGIC));
        let kind = OptionReplyKind::ERR_UNKNOWN;
        let reply = OptionReplyHeader { option: OptionCode::INFO, kind, len_bytes: 3 };
        let golden = *b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x06\x80\0\0\x06\0\0\0\x03";
        assert_eq!(reply.encode(), golden);
        assert_eq!(OptionReplyHeader::decode(&golden), Ok(reply));
        assert!(kind.is_error() && !OptionReplyKind::ACK.is_error());
    }

    /// As a person finds it in the protocol's document.
    #[test]
    fn options_have_names() {
        let named = [OptionCode::GO, OptionCode::SET_META_CONTEXT, OptionCode(4), OptionCode(99)];
        assert_eq!(
            named.map(|option| alloc::format!("{option}")),
            ["NBD_OPT_GO", "NBD_OPT_SET_META_CONTEXT", "NBD_OPT_PEEK_EXPORT", "the option 99"]
        );
    }

    #[test]
    fn requests_for_information_are_their_golden_bytes() {
        let request =
            InfoRequest { name: "vol", infos: vec![InfoKind::NAME, InfoKind::BLOCK_SIZE] };
        let golden = b"\0\0\0\x03vol\0\x02\0\x01\0\x03";
        assert_eq!(request.encode(), golden);
        assert_eq!(InfoRequest::decode(golden), Ok(request));
        for bad in [
            &b""[..],
            b"\0\0\0\x03vo",
            b"\0\0\0\x03vol",
            b"\0\0\0\x03vol\0\x02\0\x01",
            b"\0\0\0\x03vol\0\x01\0\x01\0",
            b"\xff\xff\xff\xffvol\0\0",
        ] {
            assert_eq!(InfoRequest::decode(bad), Err(OptionDataError::Length), "{bad:?}");
        }
        let not_text = InfoRequest::decode(b"\0\0\0\x01\xff\0\0");
        assert_eq!(not_text, Err(OptionDataError::NotText));
        let mut long = vec![0, 0, 0x10, 1];
        long.resize(4 + NAME_BYTES_MAX + 1 + 2, 0);
        assert_eq!(InfoRequest::decode(&long), Err(OptionDataError::TooLong));
    }

    #[test]
    fn requests_for_contexts_are_their_golden_bytes() {
        let request = MetaContextRequest { name: "v", queries: vec!["base:allocation", "x:"] };
        let golden = b"\0\0\0\x01v\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x02x:";
        assert_eq!(request.encode(), golden);
        assert_eq!(MetaContextRequest::decode(golden), Ok(request));
        for bad in [&b"\0\0\0\x01v"[..], b"\0\0\0\x01v\xff\xff\xff\xff", b"\0\0\0\x01v\0\0\0\0\0"] {
            assert_eq!(MetaContextRequest::decode(bad), Err(OptionDataError::Length), "{bad:?}");
        }
    }

    #[test]
    fn data_of_replies_is_its_golden_bytes() {
        assert_eq!(encode_server("ab"), b"\0\0\0\x02ab");
        assert_eq!(encode_info_name(InfoKind::NAME, "ab"), b"\0\x01ab");
        assert_eq!(encode_meta_context(1, "base:allocation"), b"\0\0\0\x01base:allocation");
        let flags = TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_FLUSH);
        assert_eq!(encode_info_export(4096, flags), *b"\0\0\0\0\0\0\0\0\x10\0\0\x05");
        let sizes = BlockSizes { minimum: 1, preferred: 4096, maximum: 1 << 25 };
        assert_eq!(encode_info_block_size(sizes), *b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0");
        let short = encode_export_name_reply(4096, flags, false);
        assert_eq!(short, b"\0\0\0\0\0\0\x10\0\0\x05");
        let long = encode_export_name_reply(4096, flags, true);
        assert_eq!((long.len(), &long[..10]), (134, &short[..]));
    }
}
