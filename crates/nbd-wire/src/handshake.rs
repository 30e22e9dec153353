//! The beginning of a connection: the server's greeting, the client's flags, and the flags of an export.

use crate::bytes::{u16_at, u64_at};
use crate::flags::flags;

flags!(HandshakeFlags, ClientFlags, TransmissionFlags);

/// `NBDMAGIC`.
const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: the newstyle handshake. Also the magic number of an option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// Bytes of a [`Greeting`].
pub const GREETING_LEN: usize = 18;
/// Zeroes behind the answer to `NBD_OPT_EXPORT_NAME`, unless both sides said that there are none.
pub const EXPORT_NAME_PADDING: usize = 124;

/// Flags of the server in its greeting.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HandshakeFlags(pub u16);

impl HandshakeFlags {
    /// Options that are not known are answered, and do not end the connection.
    pub const FIXED_NEWSTYLE: Self = Self(1 << 0);
    /// No padding is needed behind the answer to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: Self = Self(1 << 1);
}

/// Flags of the client, its answer to the greeting.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ClientFlags(pub u32);

impl ClientFlags {
    /// It expects answers to options.
    pub const FIXED_NEWSTYLE: Self = Self(1 << 0);
    /// It expects no padding.
    pub const NO_ZEROES: Self = Self(1 << 1);

    /// Returns whether flags are set that this version of the protocol does not have.
    #[must_use]
    pub const fn has_unknown(self) -> bool {
        self.has_others_than(Self::FIXED_NEWSTYLE.with(Self::NO_ZEROES))
    }
}

/// Flags of an export.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TransmissionFlags(pub u16);

impl TransmissionFlags {
    /// Always set.
    pub const HAS_FLAGS: Self = Self(1 << 0);
    /// Writes are refused.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// `NBD_CMD_FLUSH` is understood.
    pub const SEND_FLUSH: Self = Self(1 << 2);
    /// `NBD_CMD_FLAG_FUA` is understood.
    pub const SEND_FUA: Self = Self(1 << 3);
    /// The export behaves as a rotating disk does.
    pub const ROTATIONAL: Self = Self(1 << 4);
    /// `NBD_CMD_TRIM` is understood.
    pub const SEND_TRIM: Self = Self(1 << 5);
    /// `NBD_CMD_WRITE_ZEROES` is understood.
    pub const SEND_WRITE_ZEROES: Self = Self(1 << 6);
    /// `NBD_CMD_FLAG_DF` is understood.
    pub const SEND_DF: Self = Self(1 << 7);
    /// A flush on one connection covers what was completed on all of them.
    pub const CAN_MULTI_CONN: Self = Self(1 << 8);
    /// `NBD_CMD_CACHE` is understood.
    pub const SEND_CACHE: Self = Self(1 << 10);
    /// `NBD_CMD_FLAG_FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: Self = Self(1 << 11);
}

/// The first bytes of a connection, from the server.
///
/// ```text
/// 0        8          16      18
/// +--------+----------+-------+
/// | NBDMAGIC IHAVEOPT | flags |
/// +--------+----------+-------+
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Greeting {
    /// Flags of the server.
    pub flags: HandshakeFlags,
}

/// Why bytes are no [`Greeting`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GreetingError {
    /// Another protocol.
    #[error("no server of NBD has sent this")]
    NotNbd,
    /// A handshake of before options.
    #[error("the server offers the oldstyle handshake only")]
    Oldstyle,
}

impl Greeting {
    /// The bytes of the greeting.
    #[must_use]
    pub fn encode(self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
        bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes[16..].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes
    }

    /// Decodes a greeting.
    ///
    /// # Errors
    /// It is of another protocol, or of an old handshake.
    pub fn decode(bytes: &[u8; GREETING_LEN]) -> Result<Self, GreetingError> {
        if u64_at(bytes, 0) != NBD_MAGIC {
            return Err(GreetingError::NotNbd);
        }
        if u64_at(bytes, 8) != OPTION_MAGIC {
            return Err(GreetingError::Oldstyle);
        }
        Ok(Self { flags: HandshakeFlags(u16_at(bytes, 16)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_its_golden_bytes() {
        let flags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);
        let greeting = Greeting { flags };
        assert_eq!(greeting.encode(), *b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(Greeting::decode(b"NBDMAGICIHAVEOPT\0\x03"), Ok(greeting));
        assert_eq!(Greeting::decode(b"HTTP/1.1 400 Bad R"), Err(GreetingError::NotNbd));
        let old = *b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0";
        assert_eq!(Greeting::decode(&old), Err(GreetingError::Oldstyle));
    }
}
