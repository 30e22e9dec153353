//! Commands that ended with an error, counted by what was answered.

use std::collections::BTreeMap;

use nvme_wire::Status;

/// Completions that were no success, by the name of their status in the specification. There are no more names than
/// the specification has.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ErrorCounts(BTreeMap<&'static str, u64>);

impl ErrorCounts {
    /// With a zero for each that is to be expected: who makes rates of counts sees the first one, too.
    pub(crate) fn expecting(statuses: &[Status]) -> Self {
        Self(statuses.iter().map(|status| (status.name(), 0)).collect())
    }

    pub(crate) fn note(&mut self, status: Status) {
        *self.0.entry(status.name()).or_default() += 1;
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
