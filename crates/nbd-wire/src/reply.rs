//! Replies of the transmission phase: simple ones, and chunks of structured ones.

use alloc::vec::Vec;

use crate::BadMagic;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::request::HeaderStyle;

/// Bytes of a [`SimpleReply`].
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a compact header of a chunk.
pub const COMPACT_CHUNK_LEN: usize = 20;
/// Bytes of an extended header of a chunk.
pub const EXTENDED_CHUNK_LEN: usize = 32;
/// The flag of the last chunk of a reply.
pub const CHUNK_FLAG_DONE: u16 = 1;

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const COMPACT_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_MAGIC: u32 = 0x6e8a_278c;

/// An error that a request is answered with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Errno(pub u32);

impl Errno {
    /// None.
    pub const SUCCESS: Self = Self(0);
    /// Not permitted.
    pub const EPERM: Self = Self(1);
    /// The data is lost, or the device failed.
    pub const EIO: Self = Self(5);
    /// No memory.
    pub const ENOMEM: Self = Self(12);
    /// The request makes no sense.
    pub const EINVAL: Self = Self(22);
    /// No space, or a write beyond the end.
    pub const ENOSPC: Self = Self(28);
    /// More than one reply can carry.
    pub const EOVERFLOW: Self = Self(75);
    /// Cannot be done so.
    pub const ENOTSUP: Self = Self(95);
    /// The server is ending.
    pub const ESHUTDOWN: Self = Self(108);

    /// The name of the error.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::EPERM => "EPERM",
            Self::EIO => "EIO",
            Self::ENOMEM => "ENOMEM",
            Self::EINVAL => "EINVAL",
            Self::ENOSPC => "ENOSPC",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::ENOTSUP => "ENOTSUP",
            Self::ESHUTDOWN => "ESHUTDOWN",
            _ => "another error",
        }
    }
}

/// A simple reply. The data of a read follows it.
///
/// ```text
/// 0       4       8        16
/// +-------+-------+--------+
/// | magic | error | cookie |
/// +-------+-------+--------+
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SimpleReply {
    /// The error, or success.
    pub error: Errno,
    /// The request.
    pub cookie: u64,
}

impl SimpleReply {
    /// The bytes of the reply.
    #[must_use]
    pub fn encode(self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut bytes = [0; SIMPLE_REPLY_LEN];
        bytes[..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }

    /// Decodes a reply.
    ///
    /// # Errors
    /// It does not begin as one does.
    pub fn decode(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Result<Self, BadMagic> {
        let found = u32_at(bytes, 0);
        if found != SIMPLE_MAGIC {
            return Err(BadMagic { found: found.into(), expected: SIMPLE_MAGIC.into() });
        }
        Ok(Self { error: Errno(u32_at(bytes, 4)), cookie: u64_at(bytes, 8) })
    }
}

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ChunkKind(pub u16);

impl ChunkKind {
    /// Nothing follows.
    pub const NONE: Self = Self(0);
    /// An offset and data follow.
    pub const OFFSET_DATA: Self = Self(1);
    /// The offset and length of zeroes follow.
    pub const OFFSET_HOLE: Self = Self(2);
    /// A context and its extents follow, with lengths of 32 bits.
    pub const BLOCK_STATUS: Self = Self(5);
    /// A context, a count and its extents follow, with lengths of 64 bits.
    pub const BLOCK_STATUS_EXTENDED: Self = Self(6);
    /// An error and its message follow.
    pub const ERROR: Self = Self((1 << 15) | 1);
    /// An error, its message and an offset follow.
    pub const ERROR_OFFSET: Self = Self((1 << 15) | 2);
}

/// The header of a chunk.
///
/// ```text
/// 0       4       6      8        16       20       24       32
/// +-------+-------+------+--------+--------+
/// | magic | flags | kind | cookie | length |                    compact
/// +-------+-------+------+--------+--------+--------+--------+
/// | magic | flags | kind | cookie | offset          | length |  extended
/// +-------+-------+------+--------+-----------------+--------+
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chunk {
    /// It is the last one of its reply.
    pub is_last: bool,
    /// Its kind.
    pub kind: ChunkKind,
    /// The request.
    pub cookie: u64,
    /// The offset that the request named. Only an extended header tells it.
    pub offset: u64,
    /// Bytes that follow.
    pub len_bytes: u64,
}

impl Chunk {
    /// The bytes of the header. Of a length that does not fit a compact header the low half is kept.
    #[must_use]
    pub fn encode(&self, style: HeaderStyle) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(EXTENDED_CHUNK_LEN);
        let magic = match style {
            HeaderStyle::Compact => COMPACT_MAGIC,
            HeaderStyle::Extended => EXTENDED_MAGIC,
        };
        let flags = if self.is_last { CHUNK_FLAG_DONE } else { 0 };
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&self.kind.0.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        match style {
            HeaderStyle::Compact => {
                bytes.extend_from_slice(&(self.len_bytes as u32).to_be_bytes());
            }
            HeaderStyle::Extended => {
                bytes.extend_from_slice(&self.offset.to_be_bytes());
                bytes.extend_from_slice(&self.len_bytes.to_be_bytes());
            }
        }
        bytes
    }

    /// Decodes a header. Panics unless `bytes` are those of one of this form.
    ///
    /// # Errors
    /// It does not begin as one of this form does.
    pub fn decode(style: HeaderStyle, bytes: &[u8]) -> Result<Self, BadMagic> {
        let (expected, len) = match style {
            HeaderStyle::Compact => (COMPACT_MAGIC, COMPACT_CHUNK_LEN),
            HeaderStyle::Extended => (EXTENDED_MAGIC, EXTENDED_CHUNK_LEN),
        };
        assert_eq!(bytes.len(), len, "the caller collects a header");
        let found = u32_at(bytes, 0);
        if found != expected {
            return Err(BadMagic { found: found.into(), expected: expected.into() });
        }
        let (offset, len_bytes) = match style {
            HeaderStyle::Compact => (0, u32_at(bytes, 16).into()),
            HeaderStyle::Extended => (u64_at(bytes, 16), u64_at(bytes, 24)),
        };
        Ok(Self {
            is_last: u16_at(bytes, 4) & CHUNK_FLAG_DONE != 0,
            kind: ChunkKind(u16_at(bytes, 6)),
            cookie: u64_at(bytes, 8),
            offset,
            len_bytes,
        })
    }
}

/// The bytes before the data of [`ChunkKind::OFFSET_DATA`].
#[must_use]
pub fn encode_offset(offset: u64) -> [u8; 8] {
    offset.to_be_bytes()
}

/// The contents of [`ChunkKind::ERROR`]. Of a message that is too long the beginning is kept.
#[must_use]
pub fn encode_error(error: Errno, message: &str) -> Vec<u8> {
    let message = &message.as_bytes()[..message.len().min(MESSAGE_BYTES_MAX)];
    let mut bytes = Vec::with_capacity(6 + message.len());
    bytes.extend_from_slice(&error.0.to_be_bytes());
    bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

/// Most bytes of a message: those of a name.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Consecutive bytes of which the same is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Bytes.
    pub len_bytes: u64,
    /// Flags of the context.
    pub status: u32,
}

impl Extent {
    /// No space is taken for it (`base:allocation`).
    pub const HOLE: u32 = 1 << 0;
    /// It reads as zeroes (`base:allocation`).
    pub const ZERO: u32 = 1 << 1;
}

/// The contents of the chunk that a request for block status is answered with. Lengths that do not fit a compact one are
/// cut: a client asks again for the rest.
#[must_use]
pub fn encode_block_status(style: HeaderStyle, context: u32, extents: &[Extent]) -> Vec<u8> {
    /// The longest extent of a compact chunk, a multiple of any size of blocks.
    const COMPACT_EXTENT_MAX: u64 = 1 << 31;
    let mut bytes = Vec::with_capacity(8 + 16 * extents.len());
    bytes.extend_from_slice(&context.to_be_bytes());
    if style == HeaderStyle::Extended {
        bytes.extend_from_slice(&(extents.len() as u32).to_be_bytes());
    }
    for extent in extents {
        match style {
            HeaderStyle::Compact => {
                let len = extent.len_bytes.min(COMPACT_EXTENT_MAX) as u32;
                bytes.extend_from_slice(&len.to_be_bytes());
                bytes.extend_from_slice(&extent.status.to_be_bytes());
                if extent.len_bytes > COMPACT_EXTENT_MAX {
                    break;
                }
            }
            HeaderStyle::Extended => {
                bytes.extend_from_slice(&extent.len_bytes.to_be_bytes());
                bytes.extend_from_slice(&u64::from(extent.status).to_be_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: u64 = 0x0102_0304_0506_0708;

    #[test]
    fn simple_replies_are_their_golden_bytes() {
        let reply = SimpleReply { error: Errno::ENOSPC, cookie: COOKIE };
        let golden = *b"\x67\x44\x66\x98\0\0\0\x1c\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(reply.encode(), golden);
        assert_eq!(SimpleReply::decode(&golden), Ok(reply));
        assert!(SimpleReply::decode(&[0; 16]).is_err());
    }

    #[test]
    fn chunks_are_their_golden_bytes() {
        let chunk = Chunk {
            is_last: true,
            kind: ChunkKind::OFFSET_DATA,
            cookie: COOKIE,
            offset: 0,
            len_bytes: 520,
        };
        let compact = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\x08";
        assert_eq!(chunk.encode(HeaderStyle::Compact), compact);
        assert_eq!(Chunk::decode(HeaderStyle::Compact, compact), Ok(chunk));
        let chunk = Chunk { offset: 7, kind: ChunkKind::ERROR, is_last: false, ..chunk };
        let extended = b"\x6e\x8a\x27\x8c\0\0\x80\x01\x01\x02\x03\x04\x05\x06\x07\x08\
                         \0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x02\x08";
        assert_eq!(chunk.encode(HeaderStyle::Extended), extended);
        assert_eq!(Chunk::decode(HeaderStyle::Extended, extended), Ok(chunk));
        assert!(Chunk::decode(HeaderStyle::Extended, &[0; 32]).is_err());
    }

    #[test]
    fn contents_of_chunks_are_their_golden_bytes() {
        assert_eq!(encode_error(Errno::EIO, "no"), b"\0\0\0\x05\0\x02no");
        let long = alloc::string::String::from_utf8(alloc::vec![b'x'; 5000]).expect("text");
        assert_eq!(encode_error(Errno::EIO, &long).len(), 6 + 4096);
        let extents = [
            Extent { len_bytes: 4096, status: 0 },
            Extent { len_bytes: 1 << 33, status: Extent::HOLE | Extent::ZERO },
            Extent { len_bytes: 1, status: 0 },
        ];
        let compact = encode_block_status(HeaderStyle::Compact, 1, &extents);
        assert_eq!(compact, b"\0\0\0\x01\0\0\x10\0\0\0\0\0\x80\0\0\0\0\0\0\x03");
        let extended = encode_block_status(HeaderStyle::Extended, 1, &extents[..2]);
        assert_eq!(
            extended,
            b"\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\
              \0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x03"
        );
    }
}
