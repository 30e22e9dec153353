//! Entries counted leaf by leaf, while the tree changes.

use super::Map;

/// Entries with keys below `end`, as of now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    end: u64,
    entries: u64,
}

impl Count {
    pub(super) fn remove(&mut self, key: u64) {
        // More may go than were there where what is counted does not fit.
        self.entries = self.entries.saturating_sub(u64::from(key < self.end));
    }
}

impl Map {
    /// Begins to count.
    pub fn begin_count(&mut self) {
        self.count = Some(Count::default());
    }

    /// From where the count stands to `end` there are `entries`, as of now.
    pub fn count_to(&mut self, end: u64, entries: u64) {
        if let Some(count) = &mut self.count {
            *count = Count { end, entries: count.entries + entries };
        }
    }

    /// All entries that were counted; `None` if some could not be.
    pub fn end_count(&mut self) -> Option<u64> {
        self.count.take().map(|count| count.entries)
    }

    #[inline]
    pub(super) fn note_insert(&mut self, key: u64) {
        self.note_inserts(key, 1);
    }

    /// Keys from `first` on are new, so many.
    #[inline]
    pub(super) fn note_inserts(&mut self, first: u64, keys: u64) {
        if let Some(count) = &mut self.count {
            count.entries += count.end.saturating_sub(first).min(keys);
        }
    }
}
