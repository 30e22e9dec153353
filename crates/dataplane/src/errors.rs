//! Commands that ended with an error, counted by the name of what was answered.

use std::collections::BTreeMap;

/// Completions that were no success, by the name that their protocol's specification gives the answer. There are no
/// more names than specifications have.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ErrorCounts(BTreeMap<&'static str, u64>);

impl ErrorCounts {
    /// With a zero for each that is to be expected: who makes rates of counts sees the first one, too.
    pub(crate) fn expecting(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(|name| (name, 0)).collect())
    }

    pub(crate) fn note(&mut self, name: &'static str) {
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
