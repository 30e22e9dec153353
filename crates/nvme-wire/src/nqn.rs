//! NVMe Qualified Names and host identifiers (Base, clause 4.7).

use core::fmt;
use core::str::FromStr;

/// Longest name in bytes.
pub const NQN_LEN_MAX: usize = 223;
/// Bytes of a name in commands and log pages, padded with zeroes.
pub const NQN_FIELD_LEN: usize = 256;
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Why a name is no NQN.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NqnError {
    /// No bytes at all.
    #[error("the NQN is empty")]
    Empty,
    /// Longer than [`NQN_LEN_MAX`], or not ended by a zero byte.
    #[error("an NQN has at most 223 bytes")]
    TooLong,
    /// Not UTF-8, or with control characters.
    #[error("an NQN is printable UTF-8 (byte {offset} is not)")]
    NotText {
        /// The first wrong byte.
        offset: usize,
    },
    /// Not of the form `nqn.yyyy-mm.domain` with or without `:string`.
    #[error("an NQN starts with `nqn.`, a year and month such as `2024-01`, a dot and a domain")]
    NotAnNqn,
    /// The UUID behind `nqn.2014-08.org.nvmexpress:uuid:` is none.
    #[error("the NQN's UUID is not of the form 8-4-4-4-12 hexadecimal digits")]
    InvalidUuid,
}

/// An NVMe Qualified Name, checked. Two names are equal if their bytes are.
#[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd)]
pub struct Nqn {
    bytes: [u8; NQN_LEN_MAX],
    len: u8,
}

impl Nqn {
    /// The well-known name of discovery services.
    pub const DISCOVERY: Self = {
        let (mut bytes, source) = ([0; NQN_LEN_MAX], DISCOVERY.as_bytes());
        let mut index = 0;
        while index < source.len() {
            bytes[index] = source[index];
            index += 1;
        }
        Self { bytes, len: source.len() as u8 }
    };

    /// Checks `name` and copies it.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if name.len() > NQN_LEN_MAX {
            return Err(NqnError::TooLong);
        }
        if let Some((offset, _)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NqnError::NotText { offset });
        }
        if !has_date_and_domain(name.as_bytes()) {
            return Err(NqnError::NotAnNqn);
        }
        if name.strip_prefix(UUID_PREFIX).is_some_and(|uuid| parse_uuid(uuid).is_none()) {
            return Err(NqnError::InvalidUuid);
        }
        let mut bytes = [0; NQN_LEN_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes, len: u8::try_from(name.len()).expect("at most 223") })
    }

    /// The name of the subsystem or host with this UUID.
    #[must_use]
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; NQN_LEN_MAX];
        bytes[..UUID_PREFIX.len()].copy_from_slice(UUID_PREFIX.as_bytes());
        let mut len = UUID_PREFIX.len();
        for (index, byte) in uuid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                bytes[len] = b'-';
                len += 1;
            }
            bytes[len] = HEX[usize::from(byte >> 4)];
            bytes[len + 1] = HEX[usize::from(byte & 0xF)];
            len += 2;
        }
        Self { bytes, len: u8::try_from(len).expect("68") }
    }

    /// From a zero-padded field. Bytes behind the first zero byte do not count.
    pub fn from_field(field: &[u8; NQN_FIELD_LEN]) -> Result<Self, NqnError> {
        let len = field.iter().position(|byte| *byte == 0).ok_or(NqnError::TooLong)?;
        let name = core::str::from_utf8(&field[..len])
            .map_err(|error| NqnError::NotText { offset: error.valid_up_to() })?;
        Self::new(name)
    }

    /// As a zero-padded field.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_LEN] {
        let mut field = [0; NQN_FIELD_LEN];
        field[..NQN_LEN_MAX].copy_from_slice(&self.bytes);
        field
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("checked when made")
    }

    /// The UUID, if the name is of the UUID form.
    #[must_use]
    pub fn uuid(&self) -> Option<[u8; 16]> {
        parse_uuid(self.as_str().strip_prefix(UUID_PREFIX)?)
    }
}

/// Returns true if `name` is `nqn.yyyy-mm.` followed by something.
fn has_date_and_domain(name: &[u8]) -> bool {
    let Some([y0, y1, y2, y3, b'-', m0, m1, b'.', first, ..]) = name.strip_prefix(b"nqn.") else {
        return false;
    };
    let month = matches!((m0, m1), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
    [y0, y1, y2, y3].iter().all(|digit| digit.is_ascii_digit()) && month && *first != b':'
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != 36 || [8, 13, 18, 23].iter().any(|index| text[*index] != b'-') {
        return None;
    }
    let mut uuid = [0; 16];
    let mut digits = text.iter().filter(|byte| **byte != b'-');
    for byte in &mut uuid {
        let (high, low) = (hex_digit(*digits.next()?)?, hex_digit(*digits.next()?)?);
        *byte = high << 4 | low;
    }
    digits.next().is_none().then_some(uuid)
}

fn hex_digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::new(name)
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({self})")
    }
}

/// Host Identifier: 128 bits that tell one host from another, whatever its name.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Returns true if it is all zeroes: no host has that identifier, and a Connect with it is
    /// refused.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    const UUID: [u8; 16] = [
        0x6C, 0x7A, 0x9F, 0x2E, 0x0B, 0x1D, 0x4F, 0x60, 0x8F, 0x3E, 0x2B, 0x8A, 0x51, 0xC0, 0xD9,
        0xAA,
    ];

    #[test]
    fn names_of_both_forms_are_accepted() {
        for name in [
            DISCOVERY,
            "nqn.2014-08.com.example:nvme.host.sys.xyz",
            "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa",
            "nqn.2016-12.io.example",
        ] {
            let nqn = Nqn::new(name).expect(name);
            assert_eq!(nqn.as_str(), name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
        assert_eq!(Nqn::new(DISCOVERY), Ok(Nqn::DISCOVERY));
    }

    #[test]
    fn uuids_make_the_round_trip() {
        let nqn = Nqn::from_uuid(&UUID);
        let name = "nqn.2014-08.org.nvmexpress:uuid:6c7a9f2e-0b1d-4f60-8f3e-2b8a51c0d9aa";
        assert_eq!(nqn.to_string(), name);
        assert_eq!(nqn.uuid(), Some(UUID));
        assert_eq!(Nqn::new(name), Ok(nqn));
        assert_eq!(Nqn::DISCOVERY.uuid(), None);
    }

    #[test]
    fn what_is_no_name_is_refused_with_a_reason() {
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
        assert_eq!(Nqn::new("iqn.2014-08.com.example"), Err(NqnError::NotAnNqn));
        assert_eq!(Nqn::new("nqn.2014-13.com.example"), Err(NqnError::NotAnNqn));
        assert_eq!(Nqn::new("nqn.2014-08."), Err(NqnError::NotAnNqn));
        assert_eq!(Nqn::new("nqn.2014-08.a\nb"), Err(NqnError::NotText { offset: 13 }));
        assert_eq!(
            Nqn::new("nqn.2014-08.org.nvmexpress:uuid:not-a-uuid"),
            Err(NqnError::InvalidUuid)
        );
        let mut long = [b'a'; 256];
        long[..12].copy_from_slice(b"nqn.2014-08.");
        assert_eq!(Nqn::from_field(&long), Err(NqnError::TooLong));
        long[224] = 0;
        assert_eq!(Nqn::from_field(&long), Err(NqnError::TooLong));
        long[223] = 0;
        assert!(Nqn::from_field(&long).is_ok());
    }
}
