//! Counts of waiting tasks.

use std::cell::Cell;

/// Those that wait.
#[derive(Default)]
pub(super) struct Waiting {
    /// Callers, for a checkpoint.
    pub(super) for_checkpoint: Cell<u32>,
    /// Requests, for space, one at a time.
    pub(super) for_space: Cell<u32>,
}

/// One of them, for as long as it does.
pub(super) struct Waits<'a>(&'a Cell<u32>);

impl<'a> Waits<'a> {
    pub(super) fn new(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
