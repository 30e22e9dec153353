//! Waking a core from another thread.
//!
//! - WAKE-1: a core that is about to sleep says so, and then looks for work once more; a waker
//!   first leaves the work, and then looks whether the core said so. Each does its two steps in
//!   that order in the view of the other, so no work is left with a sleeping core.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Wakes one core. Costs a system call only while the core sleeps.
#[derive(Debug)]
pub struct RemoteWake {
    event: Arc<OwnedFd>,
    asleep: AtomicBool,
}

impl RemoteWake {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        // Without EFD_NONBLOCK: the ring's read has to wait rather than fail.
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Arc::new(Self { event, asleep: AtomicBool::new(false) }))
    }

    pub(crate) fn event(&self) -> Arc<OwnedFd> {
        self.event.clone()
    }

    /// Makes the core look for work soon. The work was left where it looks, before this call.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // It fails only if 2^64 wakes were left unread.
            let _ = rustix::io::write(self.event.as_fd(), &1u64.to_ne_bytes());
        }
    }

    /// WAKE-1, the core's first step; the caller then looks for work.
    pub(crate) fn announce_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
