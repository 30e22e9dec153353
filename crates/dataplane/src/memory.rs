//! Who may use how much of a core's memory for data.
//!
//! - M1: the data of all requests of a core, from the moment memory is found for it until it was
//!   written or sent, stays within the core's budget. What does not fit waits its turn.
//! - M2: one connection holds at most its window, so a peer that never reads its replies, or never
//!   sends the data it announced, ties up that much and no more.
//! - M3: data that comes inside a command capsule cannot be refused. It is counted if there is room;
//!   if not, at most one received chunk per connection goes uncounted before reading stops.

use local_sync::{Permit, Semaphore};

/// The memory that one connection may use, within that of its core.
#[derive(Clone)]
pub(crate) struct Window {
    core: Semaphore,
    connection: Semaphore,
}

/// A part of both, given back when dropped.
pub(crate) struct Share {
    _core: Permit,
    _connection: Permit,
}

impl Window {
    /// A window of `window_bytes` within the budget `core`.
    pub(crate) fn new(core: &Semaphore, window_bytes: u64) -> Self {
        Self { core: core.clone(), connection: Semaphore::new(window_bytes) }
    }

    /// Takes `bytes` if they are free.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Share> {
        let connection = self.connection.try_acquire(bytes as u64)?;
        let core = self.core.try_acquire(bytes as u64)?;
        Some(Share { _core: core, _connection: connection })
    }

    /// Waits for `bytes`. The window comes first: who waits for his own window keeps nobody waiting.
    pub(crate) async fn take(&self, bytes: usize) -> Share {
        if let Some(share) = self.try_take(bytes) {
            return share;
        }
        let connection = self.connection.acquire(bytes as u64).await;
        let core = self.core.acquire(bytes as u64).await;
        Share { _core: core, _connection: connection }
    }

    /// Whether the core has memory left for more requests of this connection.
    pub(crate) fn has_room(&self) -> bool {
        self.connection.available() > 0 && self.core.available() > 0
    }

    /// Waits until there is room, and takes none.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            drop(self.take(1).await);
        }
    }
}
