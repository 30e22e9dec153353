//! Requests, checked.

use nbd_wire::{Command, CommandFlags, Errno, HeaderStyle, Request};

use crate::connection::Connection;

/// A request that makes sense. Ranges are in bytes, and within the export; none is empty but where that is said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Return bytes; perhaps none.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u32,
    },
    /// Store the payload; perhaps none.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u32,
    },
    /// Make completed writes durable.
    Flush,
    /// Forget bytes; perhaps none.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
    },
    /// Make bytes read as zeroes; perhaps none.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// The space is to be taken.
        no_hole: bool,
    },
    /// Prepare to return bytes; perhaps none.
    Cache {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
    },
    /// Tell which bytes take space.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Bytes.
        len_bytes: u64,
        /// One extent is enough.
        one: bool,
    },
}

/// A request that makes no sense, or cannot be carried out so.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refused {
    /// The error.
    pub errno: Errno,
    /// The message.
    pub message: &'static str,
}

const fn refused<T>(errno: Errno, message: &'static str) -> Result<T, Refused> {
    Err(Refused { errno, message })
}

/// Checks a request for an export of `size_bytes`.
///
/// # Errors
/// It makes no sense.
pub fn decode_operation(
    connection: &Connection,
    request: &Request,
    size_bytes: u64,
) -> Result<Operation, Refused> {
    let &Request { flags, command, offset, len_bytes, .. } = request;
    let allowed = match allowed_flags(command) {
        Some(allowed) if connection.style == HeaderStyle::Extended => match command {
            Command::WRITE => allowed.with(CommandFlags::PAYLOAD_LEN),
            _ => allowed,
        },
        Some(allowed) => allowed,
        None => return refused(Errno::EINVAL, "the command is not known"),
    };
    if flags.has_others_than(allowed) {
        return refused(Errno::EINVAL, "the command has no such flag");
    }
    if flags.has(CommandFlags::DF) && !connection.is_structured {
        return refused(Errno::EINVAL, "structured replies were not asked for");
    }
    if command == Command::FLUSH {
        return match (offset, len_bytes) {
            (0, 0) => Ok(Operation::Flush),
            _ => refused(Errno::EINVAL, "a flush has no range"),
        };
    }
    if offset.checked_add(len_bytes).is_none_or(|end| end > size_bytes) {
        let changes = matches!(command, Command::WRITE | Command::WRITE_ZEROES);
        let errno = if changes { Errno::ENOSPC } else { Errno::EINVAL };
        return refused(errno, "the range ends beyond the export");
    }
    let short = || match u32::try_from(len_bytes) {
        Ok(len_bytes) if len_bytes <= connection.limits.payload_bytes_max => Ok(len_bytes),
        _ => refused(Errno::EOVERFLOW, "the range is longer than the largest block"),
    };
    Ok(match command {
        Command::READ => Operation::Read { offset, len_bytes: short()? },
        Command::WRITE => Operation::Write { offset, len_bytes: short()? },
        Command::TRIM => Operation::Trim { offset, len_bytes },
        Command::CACHE => Operation::Cache { offset, len_bytes },
        Command::WRITE_ZEROES => {
            let no_hole = flags.has(CommandFlags::NO_HOLE);
            if no_hole && flags.has(CommandFlags::FAST_ZERO) {
                return refused(Errno::ENOTSUP, "zeroes that take space are written as data is");
            }
            Operation::WriteZeroes { offset, len_bytes, no_hole }
        }
        Command::BLOCK_STATUS if !connection.has_context => {
            return refused(Errno::EINVAL, "no metadata context was chosen for this export");
        }
        Command::BLOCK_STATUS if len_bytes == 0 => {
            return refused(Errno::EINVAL, "the range is empty");
        }
        Command::BLOCK_STATUS => {
            let one = flags.has(CommandFlags::REQ_ONE);
            Operation::BlockStatus { offset, len_bytes, one }
        }
        _ => return refused(Errno::EINVAL, "the command is not known"),
    })
}

/// The flags that a command may have, with compact headers. `FUA` stands for nothing where nothing is changed, and clients
/// send it all the same.
fn allowed_flags(command: Command) -> Option<CommandFlags> {
    let fua = CommandFlags::FUA;
    Some(match command {
        Command::READ => fua.with(CommandFlags::DF),
        Command::WRITE | Command::FLUSH | Command::TRIM | Command::CACHE => fua,
        Command::WRITE_ZEROES => fua.with(CommandFlags::NO_HOLE).with(CommandFlags::FAST_ZERO),
        Command::BLOCK_STATUS => fua.with(CommandFlags::REQ_ONE),
        _ => return None,
    })
}
