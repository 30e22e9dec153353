//! Latencies of requests, counted by ranges.

use units::Duration;

/// Upper ends of the ranges in microseconds: three to a power of ten, from what memory takes to what no
/// drive should take. What took longer is in one more range.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
];

/// Requests by the time that they took from their turn on the processor to their end, the wait for their
/// turn at the device in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LatencyCounts {
    /// Requests in each range of [`LATENCY_BOUNDS_US`], and beyond; a request is in one of them.
    pub counts: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// Their times together.
    pub sum: Duration,
}

impl LatencyCounts {
    pub(crate) fn note(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let range = LATENCY_BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < took_ns);
        self.counts[range] += 1;
        self.sum += took;
    }

    /// Takes in what another counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(all, count)| *all += count);
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_the_first_range_that_it_does_not_exceed() {
        let mut latency = LatencyCounts::default();
        let cases = [(0, 0), (10_000, 0), (10_001, 1), (1_000_000_000, 15), (u64::MAX, 16)];
        for (nanos, range) in cases {
            let before = latency.counts[range];
            latency.note(Duration::from_nanos(nanos));
            assert_eq!(latency.counts[range], before + 1, "{nanos}");
        }
        assert_eq!(latency.counts.iter().sum::<u64>(), cases.len() as u64);
    }
}
