//! Sizes as people write them: `8GiB`, `4096`, `1.5 TiB`.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::BLOCK_SIZE;

/// A number of bytes, read and shown with binary units.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ByteLen(pub u64);

/// Why a size could not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseByteLenError {
    /// No digits, or something that is not a number.
    #[error("`{0}` is not a size; write a number and a unit, such as 8GiB or 4096")]
    NotANumber(String),
    /// The letters behind the number are no unit.
    #[error("`{0}` is no unit; use B, KiB, MiB, GiB, TiB, PiB or kB, MB, GB, TB, PB")]
    UnknownUnit(String),
    /// The size does not fit into 64 bits, or is no whole number of bytes.
    #[error("`{0}` is not a whole number of bytes below 2^64")]
    OutOfRange(String),
}

const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("p", 1 << 50),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("pib", 1 << 50),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
];

impl ByteLen {
    /// Whole blocks in this many bytes, or `None` if a part of a block is left over.
    #[must_use]
    pub fn whole_blocks(self) -> Option<u64> {
        self.0.is_multiple_of(BLOCK_SIZE as u64).then_some(self.0 / BLOCK_SIZE as u64)
    }
}

impl FromStr for ByteLen {
    type Err = ParseByteLenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim().to_ascii_lowercase());
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| ParseByteLenError::UnknownUnit(text[digits..].trim().to_string()))?;
        let not_a_number = || ParseByteLenError::NotANumber(text.to_string());
        let out_of_range = || ParseByteLenError::OutOfRange(text.to_string());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 {
            return Err(not_a_number());
        }
        let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
        let mut bytes = whole.checked_mul(*factor).ok_or_else(out_of_range)?;
        if !fraction.is_empty() {
            let numerator: u128 = fraction.parse().map_err(|_| not_a_number())?;
            let scaled = numerator * u128::from(*factor);
            let denominator = 10u128.pow(u32::try_from(fraction.len()).expect("at most 9"));
            if !scaled.is_multiple_of(denominator) {
                return Err(out_of_range());
            }
            let extra = u64::try_from(scaled / denominator).map_err(|_| out_of_range())?;
            bytes = bytes.checked_add(extra).ok_or_else(out_of_range)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteLen {
    /// The largest binary unit that divides it exactly, else one decimal of the largest that fits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let power = (0..NAMES.len()).rev().find(|p| self.0 >= 1 << (10 * p)).unwrap_or(0);
        let unit = 1u64 << (10 * power);
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {}", self.0 / unit, NAMES[power])
        } else {
            let tenths = u128::from(self.0) * 10 / u128::from(unit);
            write!(f, "{}.{} {}", tenths / 10, tenths % 10, NAMES[power])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("8 gib", 8 << 30),
            ("1g", 1 << 30),
            ("1.5TiB", 3 << 39),
            ("10 MB", 10_000_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(ByteLen(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for text in ["", "GiB", "1.GiBB", "8 elephants", "-1", "99999999999999999999", "20000PiB"] {
            assert!(text.parse::<ByteLen>().is_err(), "{text}");
        }
        assert_eq!("1.3".parse::<ByteLen>(), Err(ParseByteLenError::OutOfRange("1.3".into())));
    }

    #[test]
    fn shown_sizes_are_short() {
        assert_eq!(ByteLen(8 << 30).to_string(), "8 GiB");
        assert_eq!(ByteLen(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(ByteLen(0).to_string(), "0 B");
    }
}
