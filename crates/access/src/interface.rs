//! Names of network interfaces.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// Most bytes of a name (Linux: `IFNAMSIZ` with its terminating zero is 16).
pub const INTERFACE_BYTES_MAX: usize = 15;

/// The name of a network interface, such as `eth0` or `vxlan42`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct InterfaceName(String);

/// Why a text is no name of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InterfaceNameError {
    /// Empty, or longer than the system allows.
    #[error("the name of an interface has 1 to 15 bytes")]
    Length,
    /// Something that the system does not allow.
    #[error("the name of an interface has no spaces, `/` or `:`, and is not `.` or `..`")]
    Character,
}

impl InterfaceName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = InterfaceNameError;

    fn from_str(text: &str) -> Result<Self, InterfaceNameError> {
        if !(1..=INTERFACE_BYTES_MAX).contains(&text.len()) {
            return Err(InterfaceNameError::Length);
        }
        let is_bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':');
        if text.contains(is_bad) || matches!(text, "." | "..") {
            return Err(InterfaceNameError::Character);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
