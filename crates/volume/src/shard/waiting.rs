//! Counts of waiting tasks.

use std::cell::Cell;

/// A task that waits, counted for as long as it does.
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
