//! The NBD protocol as bytes: fixed newstyle handshake, options, requests and replies, both ways.
//!
//! - `handshake.rs`: the greeting, and what each side says of itself.
//! - `option.rs`: options, their data, and the replies to them.
//! - `request.rs`: requests of the transmission phase, with compact and extended headers.
//! - `reply.rs`: simple replies, and chunks of structured ones with either header.
//!
//! All integers are big-endian. `decode` takes exactly the bytes of one message, whose length the header before it names,
//! and refuses what the protocol does not define; unknown numbers of options, commands and replies pass, as each side has to
//! answer them.
//!
//! Absent from this crate: sockets, TLS, the order of messages, what becomes of a request.

#![no_std]

extern crate alloc;

mod bytes;
mod flags;
mod handshake;
mod option;
mod reply;
mod request;

pub use handshake::{
    ClientFlags, EXPORT_NAME_PADDING, GREETING_LEN, Greeting, GreetingError, HandshakeFlags,
    TransmissionFlags,
};
pub use option::{
    BlockSizes, InfoKind, InfoRequest, MetaContextRequest, NAME_BYTES_MAX, OPTION_HEADER_LEN,
    OPTION_REPLY_HEADER_LEN, OptionCode, OptionDataError, OptionHeader, OptionReplyHeader,
    OptionReplyKind, encode_export_name_reply, encode_info_block_size, encode_info_export,
    encode_info_name, encode_meta_context, encode_server,
};
pub use reply::{
    CHUNK_FLAG_DONE, COMPACT_CHUNK_LEN, Chunk, ChunkKind, EXTENDED_CHUNK_LEN, Errno, Extent,
    SIMPLE_REPLY_LEN, SimpleReply, encode_block_status, encode_error, encode_offset,
};
pub use request::{Command, CommandFlags, EXTENDED_REQUEST_LEN, HeaderStyle, REQUEST_LEN, Request};

/// A header whose first bytes are not the magic number of its kind: what follows cannot be understood.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a header begins with {found:#x}, and {expected:#x} was expected")]
pub struct BadMagic {
    /// The number that is there.
    pub found: u64,
    /// The number of a header of this kind.
    pub expected: u64,
}
