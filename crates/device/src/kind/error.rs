//! Why a text names no device, and why a device is not as it is described.

use std::fmt;

use units::ParseByteLenError;

/// Why a text names no device.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseDeviceError {
    /// No kind stands before the first colon.
    #[error("`{text}` names no kind of device; {kinds}")]
    NoKind {
        /// The whole text.
        text: String,
        /// The kinds that there are, in words.
        kinds: String,
    },
    /// The kind before the colon is unknown.
    #[error("`{scheme}:` is no kind of device; there are {forms}")]
    UnknownKind {
        /// The word before the colon.
        scheme: String,
        /// The kinds that there are.
        forms: String,
    },
    /// Nothing stands behind the colon.
    #[error("`{scheme}:` is not followed by {wanted}")]
    NoPlace {
        /// The kind.
        scheme: &'static str,
        /// The missing part, and how it is written.
        wanted: &'static str,
    },
    /// An option that the kind does not have.
    #[error("`{option}` is no option of {scheme}:{known}")]
    UnknownOption {
        /// The option as it is written.
        option: String,
        /// The kind.
        scheme: &'static str,
        /// The options that there are, and where others belong.
        known: &'static str,
    },
    /// A value that the option cannot have.
    #[error("`{key}={value}`: {wanted}")]
    Value {
        /// The option.
        key: &'static str,
        /// The text behind it.
        value: String,
        /// The values that it can have.
        wanted: &'static str,
    },
    /// An option is repeated.
    #[error("the option `{0}` is given twice")]
    Twice(&'static str),
    /// A size that cannot be read.
    #[error(transparent)]
    Size(#[from] ParseByteLenError),
    /// A size that is not a multiple of a block.
    #[error("a device of {0} bytes: its size must be a multiple of 4096 bytes, and not zero")]
    NotWholeBlocks(u64),
}

/// Why a device cannot be as it is described. The kinds' own errors are told in words, since only their files know them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KindError {
    /// The fault.
    pub what: String,
    /// Advice.
    pub remedy: &'static str,
    /// True if the specification makes no sense; false if something about this host is in the way.
    pub is_usage: bool,
}

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl std::error::Error for KindError {}
