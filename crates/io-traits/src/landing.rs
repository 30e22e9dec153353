//! Memory of somebody else's, into which is received.

use std::fmt;

/// Where received bytes go instead of a [`crate::Buffer`]. Its owner can have the memory back at any time; what
/// comes then goes nowhere.
pub trait Landing: fmt::Debug {
    /// Its length.
    fn len_bytes(&self) -> usize;

    /// Has `each` put something there; `false`, without that, if the owner has it back.
    fn with(&self, each: &mut dyn FnMut(&mut [u8])) -> bool;
}
