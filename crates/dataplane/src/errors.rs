//! Commands that ended with an error, counted by the name of what was answered.

use std::collections::BTreeMap;

/// Completions that were no success, by the name that their protocol's specification gives the answer. There are no
/// more names than specifications have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ErrorCounts(BTreeMap<&'static str, u64>);

impl ErrorCounts {
    /// Counts with a zero for each error that is to be expected: rates of counts then show the first one, too.
    #[must_use]
    pub fn expecting(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(|name| (name, 0)).collect())
    }

    /// Counts an error of this name.
    pub fn note(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// Takes in what another counted.
    pub fn add(&mut self, other: &Self) {
        other.iter().for_each(|(name, count)| *self.0.entry(name).or_default() += count);
    }

    /// Names and counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, *count))
    }
}
