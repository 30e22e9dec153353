//! Rates over the last seconds, from samples of counters.

use std::collections::VecDeque;
use std::time::Duration;

/// Counters of a block device, from `/sys/dev/block/MAJOR:MINOR/stat`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceStat {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl DeviceStat {
    /// Reads the kernel's line; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // Sectors of 512 bytes, whatever the device's own are.
        const SECTOR: u64 = 512;
        let numbers: Option<Vec<u64>> =
            text.split_whitespace().map(|word| word.parse().ok()).collect();
        match numbers?.as_slice() {
            [reads, _, read_sectors, _, writes, _, write_sectors, ..] => Some(Self {
                reads: *reads,
                read_bytes: read_sectors * SECTOR,
                writes: *writes,
                write_bytes: write_sectors * SECTOR,
            }),
            _ => None,
        }
    }
}

/// Counters at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// The time, since the server started.
    pub at: Duration,
    /// Requests served.
    pub requests: u64,
    /// The device below the data path; all 0 if there is none.
    pub device: DeviceStat,
}

/// The last samples.
#[derive(Debug)]
pub struct Rates {
    window: Duration,
    samples: VecDeque<Sample>,
}

impl Rates {
    /// Rates over `window`.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        Self { window, samples: VecDeque::new() }
    }

    /// Takes a sample in, and drops those that are older than the window.
    pub fn push(&mut self, sample: Sample) {
        self.samples.push_back(sample);
        // One sample at or before the window's start stays, so that the window is whole.
        while self.samples.get(1).is_some_and(|second| second.at + self.window <= sample.at) {
            self.samples.pop_front();
        }
    }

    /// The increase of a counter per second over the window.
    pub fn per_second(&self, counter: impl Fn(&Sample) -> u64) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) if last.at > first.at => {
                let more = counter(last).saturating_sub(counter(first));
                more as f64 / (last.at - first.at).as_secs_f64()
            }
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_read() {
        let line = "  100 5 800 30 50 2 1600 40 0 60 70 1 2 3 4\n";
        let expected =
            DeviceStat { reads: 100, read_bytes: 409_600, writes: 50, write_bytes: 819_200 };
        assert_eq!(DeviceStat::parse(line), Some(expected));
        assert_eq!(DeviceStat::parse("1 2"), None);
        assert_eq!(DeviceStat::parse("a b c d e f g"), None);
    }

    #[test]
    fn rates_are_those_of_the_window() {
        let mut rates = Rates::new(Duration::from_secs(10));
        assert_eq!(rates.per_second(|sample| sample.requests), 0.0);
        for second in 0..=30 {
            // 100 a second for twenty seconds, then 400.
            let requests = if second <= 20 { 100 * second } else { 2000 + 400 * (second - 20) };
            let at = Duration::from_secs(second);
            rates.push(Sample { at, requests, device: DeviceStat::default() });
        }
        assert_eq!(rates.per_second(|sample| sample.requests), 400.0);
        assert_eq!(rates.samples.len(), 11);
    }
}
