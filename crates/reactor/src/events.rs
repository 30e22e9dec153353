//! Events that others signal.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use uring::{Errno, Fd, Ring, Signal};

use crate::handle::Handle;

/// The signals of an event: an `eventfd`.
pub struct Events {
    ring: Ring,
    event: Fd,
    next: Signal,
}

impl Handle {
    /// Watches `event`, an `eventfd` that waits when it is read. Signals from before count, too.
    #[must_use]
    pub fn events(&self, event: Arc<OwnedFd>) -> Events {
        let (ring, event) = (self.core.ring.clone(), Fd::shared(event));
        Events { next: ring.signal(&event), ring, event }
    }
}

impl Events {
    /// Waits for the next signal; several may be told as one. Not to be asked again once it has failed.
    ///
    /// # Errors
    /// The kernel cannot watch, for want of memory.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Errno>> {
        ready!(Future::poll(Pin::new(&mut self.next), context))?;
        self.next = self.ring.signal(&self.event);
        Poll::Ready(Ok(()))
    }
}
