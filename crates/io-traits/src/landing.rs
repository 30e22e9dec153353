//! Lent memory that data is received into.

use std::fmt;

/// Memory for received bytes instead of a [`crate::Buffer`]. Its owner can take it back at any
/// time; bytes that arrive later are dropped.
pub trait Landing: fmt::Debug {
    /// Its length.
    fn len_bytes(&self) -> usize;

    /// Has `each` put something there; `false`, without that, if the owner has it back.
    fn with(&self, each: &mut dyn FnMut(&mut [u8])) -> bool;
}
