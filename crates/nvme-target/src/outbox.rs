//! The queue of bytes for the host.

use alloc::vec::Vec;

/// Takes bytes to send, in order. The driver's own type also takes payload, which never passes
/// through this crate: it is appended by the closure given to
/// [`crate::Connection::complete_with_data`].
pub trait Outbox {
    /// Appends a copy of `bytes`: headers, digests and other small things.
    fn bytes(&mut self, bytes: &[u8]);
}

impl Outbox for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
