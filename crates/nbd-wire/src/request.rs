//! Requests of the transmission phase.

use alloc::vec::Vec;

use crate::BadMagic;
use crate::bytes::{u16_at, u32_at, u64_at};
use crate::flags::flags;

/// Bytes of a compact header.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an extended header.
pub const EXTENDED_REQUEST_LEN: usize = 32;

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

/// The form of headers on a connection, which its client chose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HeaderStyle {
    /// Lengths have 32 bits.
    Compact,
    /// Lengths have 64 bits.
    Extended,
}

impl HeaderStyle {
    /// Bytes of the header of a request.
    #[must_use]
    pub const fn request_len(self) -> usize {
        match self {
            Self::Compact => REQUEST_LEN,
            Self::Extended => EXTENDED_REQUEST_LEN,
        }
    }
}

/// The number of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Command(pub u16);

impl Command {
    /// Return bytes.
    pub const READ: Self = Self(0);
    /// Store the bytes that follow.
    pub const WRITE: Self = Self(1);
    /// End the connection. Not answered.
    pub const DISCONNECT: Self = Self(2);
    /// Make completed writes durable.
    pub const FLUSH: Self = Self(3);
    /// Forget bytes.
    pub const TRIM: Self = Self(4);
    /// Prepare to return bytes.
    pub const CACHE: Self = Self(5);
    /// Make bytes read as zeroes.
    pub const WRITE_ZEROES: Self = Self(6);
    /// Tell what is known of bytes.
    pub const BLOCK_STATUS: Self = Self(7);
}

flags!(CommandFlags);

/// Flags of a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CommandFlags(pub u16);

impl CommandFlags {
    /// Durable before it is answered.
    pub const FUA: Self = Self(1 << 0);
    /// Zeroes take the space that data would.
    pub const NO_HOLE: Self = Self(1 << 1);
    /// One chunk of data.
    pub const DF: Self = Self(1 << 2);
    /// One extent.
    pub const REQ_ONE: Self = Self(1 << 3);
    /// Only if that is faster than to write.
    pub const FAST_ZERO: Self = Self(1 << 4);
    /// The length is that of bytes that follow. Of extended headers.
    pub const PAYLOAD_LEN: Self = Self(1 << 5);
}

/// The header of a request.
///
/// ```text
/// 0       4       6      8        16       24       28       32
/// +-------+-------+------+--------+--------+--------+
/// | magic | flags | type | cookie | offset | length |           compact
/// +-------+-------+------+--------+--------+--------+--------+
/// | magic | flags | type | cookie | offset | length          |  extended
/// +-------+-------+------+--------+--------+-----------------+
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Flags.
    pub flags: CommandFlags,
    /// The command.
    pub command: Command,
    /// Names the request in its replies.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len_bytes: u64,
}

impl Request {
    /// The bytes of the header. Of a length that does not fit a compact header the low half is kept.
    #[must_use]
    pub fn encode(&self, style: HeaderStyle) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(EXTENDED_REQUEST_LEN);
        let magic = match style {
            HeaderStyle::Compact => COMPACT_MAGIC,
            HeaderStyle::Extended => EXTENDED_MAGIC,
        };
        bytes.extend_from_slice(&magic.to_be_bytes());
        bytes.extend_from_slice(&self.flags.0.to_be_bytes());
        bytes.extend_from_slice(&self.command.0.to_be_bytes());
        bytes.extend_from_slice(&self.cookie.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        match style {
            HeaderStyle::Compact => {
                bytes.extend_from_slice(&(self.len_bytes as u32).to_be_bytes());
            }
            HeaderStyle::Extended => bytes.extend_from_slice(&self.len_bytes.to_be_bytes()),
        }
        bytes
    }

    /// Decodes a header. Panics unless `bytes` are [`HeaderStyle::request_len`].
    ///
    /// # Errors
    /// It does not begin as one of this form does.
    pub fn decode(style: HeaderStyle, bytes: &[u8]) -> Result<Self, BadMagic> {
        assert_eq!(bytes.len(), style.request_len(), "the caller collects a header");
        let expected = match style {
            HeaderStyle::Compact => COMPACT_MAGIC,
            HeaderStyle::Extended => EXTENDED_MAGIC,
        };
        let found = u32_at(bytes, 0);
        if found != expected {
            return Err(BadMagic { found: found.into(), expected: expected.into() });
        }
        Ok(Self {
            flags: CommandFlags(u16_at(bytes, 4)),
            command: Command(u16_at(bytes, 6)),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            len_bytes: match style {
                HeaderStyle::Compact => u32_at(bytes, 24).into(),
                HeaderStyle::Extended => u64_at(bytes, 24),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_their_golden_bytes() {
        let request = Request {
            flags: CommandFlags::FUA,
            command: Command::WRITE,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1_0000_0000,
            len_bytes: 4096,
        };
        let compact = b"\x25\x60\x95\x13\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\
                        \0\0\0\x01\0\0\0\0\0\0\x10\0";
        assert_eq!(request.encode(HeaderStyle::Compact), compact);
        assert_eq!(Request::decode(HeaderStyle::Compact, compact), Ok(request));
        let extended = b"\x21\xe4\x1c\x71\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\
                         \0\0\0\x01\0\0\0\0\0\0\0\0\0\0\x10\0";
        assert_eq!(request.encode(HeaderStyle::Extended), extended);
        assert_eq!(Request::decode(HeaderStyle::Extended, extended), Ok(request));
        assert!(Request::decode(HeaderStyle::Compact, &extended[..28]).is_err());
    }
}
