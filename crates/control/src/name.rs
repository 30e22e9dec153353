//! Names and sizes of volumes: their valid forms and bounds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use units::{BLOCK_SIZE, ByteLen};
use uuid::Uuid;

/// Longest name. It fits the place that a volume's record on the device has for it.
const NAME_BYTES_MAX: usize = 63;
/// Largest volume. Block addresses stay below 2^51, and sums of sizes within 64 bits.
const SIZE_BYTES_MAX: u64 = 1 << 63;

/// A volume's name: 1 to 63 of `a-z`, `0-9`, `.`, `_`, `-`, beginning with a letter or a digit, and
/// not in the form of a UUID, so that a path can name a volume either way.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct VolumeName(String);

/// Why a text is no volume name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all.
    #[error("a volume name cannot be empty")]
    Empty,
    /// Longer than the record of a volume can hold.
    #[error("a volume name has at most 63 characters; this one has {characters}")]
    TooLong {
        /// Characters found.
        characters: usize,
    },
    /// Begins with punctuation.
    #[error("a volume name begins with a lower-case letter or a digit, not with `{}`", .0.escape_default())]
    BadStart(char),
    /// Holds something outside of the alphabet.
    #[error("a volume name has only a-z, 0-9, `.`, `_` and `-`, not `{}`", .0.escape_default())]
    BadCharacter(char),
    /// Could be confused with a volume's id.
    #[error("a volume name cannot have the form of a UUID")]
    LooksLikeUuid,
}

impl VolumeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let first = text.chars().next().ok_or(NameError::Empty)?;
        if let Some(c) = text.chars().find(|c| !allowed(c) && !"._-".contains(*c)) {
            return Err(NameError::BadCharacter(c));
        }
        if !allowed(&first) {
            return Err(NameError::BadStart(first));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { characters: text.len() });
        }
        if Uuid::try_parse(text).is_ok() {
            return Err(NameError::LooksLikeUuid);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for VolumeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A volume's size in bytes: a whole number of blocks, at least one and at most 2^63 bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct VolumeSize(u64);

/// Why a number of bytes is no volume size.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum VolumeSizeError {
    /// No block at all.
    #[error("a volume has at least one block of 4096 bytes")]
    Zero,
    /// A part of a block is left over.
    #[error("a volume's size is a multiple of 4096 bytes; {bytes} is not (the next one is {})", .bytes.next_multiple_of(4096))]
    NotWholeBlocks {
        /// Bytes asked for.
        bytes: u64,
    },
    /// Larger than addresses reach.
    #[error("a volume has at most 2^63 bytes; {bytes} is more")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
    },
}

impl VolumeSize {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// The size in blocks.
    #[must_use]
    pub fn blocks(self) -> u64 {
        self.0 / BLOCK_SIZE as u64
    }
}

impl TryFrom<u64> for VolumeSize {
    type Error = VolumeSizeError;

    fn try_from(bytes: u64) -> Result<Self, VolumeSizeError> {
        match ByteLen(bytes).whole_blocks() {
            _ if bytes > SIZE_BYTES_MAX => Err(VolumeSizeError::TooLarge { bytes }),
            Some(0) => Err(VolumeSizeError::Zero),
            None => Err(VolumeSizeError::NotWholeBlocks { bytes }),
            Some(_) => Ok(Self(bytes)),
        }
    }
}

impl<'de> Deserialize<'de> for VolumeSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_alphabet_are_taken() {
        let longest = "a".repeat(63);
        for name in ["a", "0", "db-1", "db_1.main", "0-._", longest.as_str()] {
            assert_eq!(name.parse::<VolumeName>().as_ref().map(VolumeName::as_str), Ok(name));
        }
    }

    #[test]
    fn each_bad_name_is_told_apart() {
        for (name, error) in [
            ("", NameError::Empty),
            ("-a", NameError::BadStart('-')),
            (".", NameError::BadStart('.')),
            ("Db", NameError::BadCharacter('D')),
            ("a/b", NameError::BadCharacter('/')),
            ("a b", NameError::BadCharacter(' ')),
            ("ä", NameError::BadCharacter('ä')),
            ("a\0", NameError::BadCharacter('\0')),
            ("550e8400-e29b-41d4-a716-446655440000", NameError::LooksLikeUuid),
            ("550e8400e29b41d4a716446655440000", NameError::LooksLikeUuid),
        ] {
            assert_eq!(name.parse::<VolumeName>(), Err(error), "{name:?}");
        }
        let long = "a".repeat(64).parse::<VolumeName>();
        assert_eq!(long, Err(NameError::TooLong { characters: 64 }));
    }

    #[test]
    fn sizes_are_whole_blocks_within_bounds() {
        assert_eq!(VolumeSize::try_from(4096).map(VolumeSize::blocks), Ok(1));
        assert_eq!(VolumeSize::try_from(1 << 63).map(VolumeSize::blocks), Ok(1 << 51));
        assert_eq!(VolumeSize::try_from(0), Err(VolumeSizeError::Zero));
        let odd = VolumeSize::try_from(4097);
        assert_eq!(odd, Err(VolumeSizeError::NotWholeBlocks { bytes: 4097 }));
        let bytes = (1 << 63) + 4096;
        assert_eq!(VolumeSize::try_from(bytes), Err(VolumeSizeError::TooLarge { bytes }));
    }
}
