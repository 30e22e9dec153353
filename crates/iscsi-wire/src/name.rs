//! iSCSI names (RFC 7143, clause 4.2.7).

use alloc::string::String;
use core::fmt;

/// Longest name in bytes.
pub const NAME_LEN_MAX: usize = 223;

/// Why a text is no iSCSI name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than [`NAME_LEN_MAX`].
    #[error("an iSCSI name has 1 to 223 bytes")]
    Length,
    /// Neither `iqn.`, `eui.` nor `naa.`.
    #[error("an iSCSI name starts with `iqn.`, `eui.` or `naa.`")]
    Type,
    /// A byte that no name has.
    #[error("an iSCSI name has no blanks and no control characters")]
    Character,
}

/// An iSCSI name in the form in which names are compared: ASCII letters are lower case.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct IscsiName(String);

impl IscsiName {
    /// Checks `name` and takes a copy of it.
    ///
    /// # Errors
    /// It is none.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if !(1..=NAME_LEN_MAX).contains(&name.len()) {
            return Err(NameError::Length);
        }
        let name = name.to_ascii_lowercase();
        if !["iqn.", "eui.", "naa."].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(NameError::Type);
        }
        if name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',') {
            return Err(NameError::Character);
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_compared_in_lower_case() {
        let name = IscsiName::new("IQN.1993-08.org.Debian:01:ab").expect("a name");
        assert_eq!(name.as_str(), "iqn.1993-08.org.debian:01:ab");
        assert_eq!(IscsiName::new(""), Err(NameError::Length));
        assert_eq!(IscsiName::new(&"i".repeat(224)), Err(NameError::Length));
        assert_eq!(IscsiName::new("nqn.2014-08.org.x"), Err(NameError::Type));
        assert_eq!(IscsiName::new("iqn.2014-08.org x"), Err(NameError::Character));
    }
}
