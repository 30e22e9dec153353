//! The outbox: bytes to be sent.

use alloc::vec::Vec;

/// Takes bytes that are to be sent, in order.
pub trait Outbox {
    /// Appends a copy of `bytes`.
    fn bytes(&mut self, bytes: &[u8]);
}

impl Outbox for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
