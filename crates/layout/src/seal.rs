//! Seals blocks with a checksum.

use checksum::crc32c;

/// Why bytes from a device are not what they should be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the structure has.
    #[error("the block is cut short")]
    Short,
    /// Something else, or nothing, lies here.
    #[error("the block does not begin as expected")]
    Magic,
    /// The block was changed, or written in part.
    #[error("the block does not match its checksum")]
    Checksum,
    /// Made by another version of the program.
    #[error("format version {0} is not known here")]
    Version(u32),
    /// Whole, with something that only a later release gives a meaning.
    #[error("{0} that this release does not know")]
    Unknown(&'static str),
    /// Whole, but a field has no sense.
    #[error("{0} out of bounds")]
    Field(&'static str),
}

/// Writes the CRC-32C of everything behind the four bytes at `at` into them.
pub(crate) fn seal(block: &mut [u8], at: usize) {
    let crc = crc32c(&block[at + 4..]);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns whether the four bytes at `at` are the CRC-32C of everything behind them.
pub(crate) fn sealed(block: &[u8], at: usize) -> bool {
    let Some(stored) = block.get(at..at + 4) else { return false };
    stored == crc32c(&block[at + 4..]).to_le_bytes()
}
