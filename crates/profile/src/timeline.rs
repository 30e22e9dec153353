//! Latency over time, in a bounded number of slices.

use serde::{Deserialize, Serialize};

/// Slices of a timeline at most. One that gets longer has its slices joined in pairs.
pub const SLICES_MAX: usize = 256;
/// Length of a slice at first: 10 ms.
const SLICE_NS: u64 = 10_000_000;

/// Requests that were begun in one slice of time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Number of requests.
    pub count: u64,
    /// Sum of their latencies.
    pub sum_ns: u64,
    /// The largest latency.
    pub max_ns: u64,
}

impl Slice {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// Slices of equal length, one behind the other.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    slice_ns: u64,
    slices: Vec<Slice>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { slice_ns: SLICE_NS, slices: Vec::with_capacity(SLICES_MAX) }
    }
}

impl Timeline {
    /// Length of a slice.
    #[must_use]
    pub fn slice_ns(&self) -> u64 {
        self.slice_ns
    }

    /// The slices.
    #[must_use]
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Records a request that began `since_start_ns` after the beginning.
    #[inline]
    pub fn record(&mut self, since_start_ns: u64, latency_ns: u64) {
        let mut index = (since_start_ns / self.slice_ns) as usize;
        while index >= SLICES_MAX {
            self.halve();
            index = (since_start_ns / self.slice_ns) as usize;
        }
        if index >= self.slices.len() {
            self.slices.resize(index + 1, Slice::default());
        }
        self.slices[index].add(Slice { count: 1, sum_ns: latency_ns, max_ns: latency_ns });
    }

    /// Joins slices in pairs, in place.
    fn halve(&mut self) {
        self.slice_ns *= 2;
        let joined = self.slices.len().div_ceil(2);
        for at in 0..joined {
            let mut both = self.slices[2 * at];
            if let Some(second) = self.slices.get(2 * at + 1) {
                both.add(*second);
            }
            self.slices[at] = both;
        }
        self.slices.truncate(joined);
    }

    /// Joins slices until they are at least `slice_ns` long.
    #[must_use]
    pub fn coarser(&self, slice_ns: u64) -> Self {
        let mut coarser = self.clone();
        while coarser.slice_ns < slice_ns {
            coarser.halve();
        }
        coarser
    }

    /// Appends the slices of a later run.
    pub fn append(&mut self, later: &Self) {
        let slice_ns = self.slice_ns.max(later.slice_ns);
        *self = self.coarser(slice_ns);
        self.slices.extend(&later.coarser(slice_ns).slices);
        while self.slices.len() > SLICES_MAX {
            self.halve();
        }
    }

    /// Returns false for slices that no run can have made.
    pub(crate) fn is_sound(&self) -> bool {
        let doublings = self.slice_ns / SLICE_NS;
        let is_doubled = self.slice_ns.is_multiple_of(SLICE_NS) && doublings.is_power_of_two();
        is_doubled && doublings < 1 << 32 && self.slices.len() <= SLICES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(timeline: &Timeline) -> (u64, u64) {
        let slices = timeline.slices.iter();
        (slices.clone().map(|slice| slice.count).sum(), slices.map(|slice| slice.sum_ns).sum())
    }

    #[test]
    fn no_request_is_lost_however_long_the_run() {
        let mut timeline = Timeline::default();
        for n in 0..10_000 {
            timeline.record(n * 3_000_000, n);
        }
        assert_eq!(total(&timeline), (10_000, (0..10_000).sum()));
        assert!(timeline.slices.len() <= SLICES_MAX && timeline.slices.len() > SLICES_MAX / 3);
        assert_eq!(timeline.slices.last().unwrap().max_ns, 9_999);
        assert!(timeline.is_sound());
    }

    #[test]
    fn a_later_run_follows_behind() {
        let (mut one, mut two) = (Timeline::default(), Timeline::default());
        (0..200).for_each(|n| one.record(n * SLICE_NS, 10));
        (0..400).for_each(|n| two.record(n * SLICE_NS, 20));
        one.append(&two);
        assert_eq!(total(&one), (600, 200 * 10 + 400 * 20));
        assert!(one.slices.len() <= SLICES_MAX);
        assert_eq!((one.slices[0].max_ns, one.slices.last().unwrap().max_ns), (10, 20));
        assert!(one.is_sound());
        // The finer one of both is made coarser, whichever comes first.
        let mut fine = Timeline::default();
        (0..200).for_each(|n| fine.record(n * SLICE_NS, 10));
        two.append(&fine);
        assert_eq!((total(&two).0, two.slices.len()), (600, 150));
        assert!(!Timeline { slice_ns: 3, slices: Vec::new() }.is_sound());
    }
}
