//! Text segments of Login and Text PDUs: `key=value` pairs, each ended by a zero byte (RFC 7143, clause 6.1).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use base64ct::{Base64, Encoding};

/// Longest key in bytes.
pub const KEY_LEN_MAX: usize = 63;
/// Longest value in bytes: a large binary item as hexadecimal digits.
pub const VALUE_LEN_MAX: usize = 8192;

/// Why bytes are no text segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TextError {
    /// A pair has no `=`, or a key or value is too long.
    #[error("a text segment holds what is no key=value pair")]
    Pair,
    /// Not UTF-8.
    #[error("a text segment is not UTF-8")]
    Utf8,
    /// The last pair is not ended by a zero byte.
    #[error("the last pair of a text segment is cut short")]
    Short,
}

/// The pairs of a text segment, in order.
///
/// # Errors
/// See [`TextError`].
pub fn pairs(bytes: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let Some(bytes) = bytes.strip_suffix(&[0]) else {
        return if bytes.is_empty() { Ok(Vec::new()) } else { Err(TextError::Short) };
    };
    // Some initiators pad with zeroes within the segment.
    let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(pair).collect()
}

fn pair(bytes: &[u8]) -> Result<(&str, &str), TextError> {
    let text = core::str::from_utf8(bytes).map_err(|_| TextError::Utf8)?;
    let (key, value) = text.split_once('=').ok_or(TextError::Pair)?;
    let is_fit = (1..=KEY_LEN_MAX).contains(&key.len()) && value.len() <= VALUE_LEN_MAX;
    if is_fit { Ok((key, value)) } else { Err(TextError::Pair) }
}

/// Appends a pair.
pub fn put(bytes: &mut Vec<u8>, key: &str, value: &str) {
    bytes.extend_from_slice(key.as_bytes());
    bytes.push(b'=');
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(0);
}

/// A number, decimal or hexadecimal.
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    match hex_digits(value) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if !value.starts_with('+') => value.parse().ok(),
        _ => None,
    }
}

fn hex_digits(value: &str) -> Option<&str> {
    value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"))
}

/// A binary value of at most `len_max` bytes: hexadecimal digits behind `0x`, or Base64 behind `0b`.
#[must_use]
pub fn binary(value: &str, len_max: usize) -> Option<Vec<u8>> {
    let bytes = if let Some(digits) = hex_digits(value) {
        from_hex(digits)?
    } else {
        let digits = value.strip_prefix("0b").or_else(|| value.strip_prefix("0B"))?;
        Base64::decode_vec(digits).ok()?
    };
    (bytes.len() <= len_max).then_some(bytes)
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit =
        |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Option<Vec<u8>> = digits.as_bytes().iter().map(digit).collect();
    let digits = digits.filter(|digits| !digits.is_empty() && digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Bytes as hexadecimal digits behind `0x`.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    // Writing into a string does not fail.
    bytes.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_are_taken_apart() {
        assert_eq!(pairs(b"a=1\0b=\0\0c=x=y\0"), Ok(vec![("a", "1"), ("b", ""), ("c", "x=y")]));
        assert_eq!(pairs(b""), Ok(vec![]));
        assert_eq!(pairs(b"a=1"), Err(TextError::Short));
        assert_eq!(pairs(b"a\0"), Err(TextError::Pair));
        assert_eq!(pairs(b"=1\0"), Err(TextError::Pair));
        assert_eq!(pairs(b"a=\xFF\0"), Err(TextError::Utf8));
    }

    #[test]
    fn numbers_and_binary_values_have_two_forms() {
        assert_eq!(
            (number("262144"), number("0x40000"), number("0X1f")),
            (Some(262_144), Some(262_144), Some(31))
        );
        assert_eq!(
            (number("+1"), number("0x+1"), number(""), number("x")),
            (None, None, None, None)
        );
        assert_eq!(binary("0x0aFF", 2), Some(vec![10, 255]));
        assert_eq!(binary("0bCv8=", 2), Some(vec![10, 255]));
        assert_eq!(
            (binary("0x0a0", 9), binary("0x", 9), binary("0aff", 9), binary("0x0aff", 1)),
            (None, None, None, None)
        );
    }

    proptest! {
        /// ISCSI-WIRE-1.
        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = pairs(&bytes);
            if let Ok(text) = core::str::from_utf8(&bytes) {
                let _ = (number(text), binary(text, 64));
            }
        }

        #[test]
        fn binary_values_come_back(bytes in prop::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(binary(&to_hex(&bytes), 64), Some(bytes));
        }
    }
}
