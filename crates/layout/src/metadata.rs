//! Encodes the metadata size of blocks: its power of two, in one byte.

use units::MetadataSize;

use crate::DecodeError;

/// 0 for none, else the logarithm of the bytes: what one digit can say.
pub(crate) const fn metadata_code(size: MetadataSize) -> u8 {
    match size {
        MetadataSize::None => 0,
        MetadataSize::Bytes8 => 3,
        MetadataSize::Bytes16 => 4,
        MetadataSize::Bytes64 => 6,
    }
}

pub(crate) fn metadata_size(code: u8) -> Result<MetadataSize, DecodeError> {
    let found = MetadataSize::ALL.into_iter().find(|size| metadata_code(*size) == code);
    found.ok_or(DecodeError::Field("metadata of blocks"))
}
