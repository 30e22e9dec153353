//! The generator's own CPU: whether it was the limit of what it measured.

use std::time::Duration;

/// A thread that wanted the CPU for more than this share of a run may have sent and received late.
const BUSY_MAX: f64 = 0.9;

/// Time of one thread.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct CpuTime {
    /// On a CPU.
    pub(crate) running: Duration,
    /// Ready to run, while others had the CPU.
    pub(crate) waiting: Duration,
}

impl CpuTime {
    /// Reads the calling thread's times; 0 if the kernel does not account for them.
    pub(crate) fn now() -> Self {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        Self::parse(&text).unwrap_or_default()
    }

    /// Reads a line of `schedstat`: nanoseconds on a CPU, nanoseconds ready to run, time slices.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers =
            text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
        Some(Self { running: numbers.next()??, waiting: numbers.next()?? })
    }

    /// The share of `wall` in which the thread wanted the CPU, from `earlier` to now.
    pub(crate) fn share_since(&self, earlier: &Self, wall: Duration) -> f64 {
        let wanted = self.running.saturating_sub(earlier.running)
            + self.waiting.saturating_sub(earlier.waiting);
        wanted.as_secs_f64() / wall.as_secs_f64().max(1e-9)
    }
}

/// The busiest thread's share, if it is so high that the figures are the generator's and not the server's.
pub(crate) fn limiting_share(shares: &[f64]) -> Option<f64> {
    shares.iter().copied().filter(|share| *share > BUSY_MAX).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_found() {
        assert_eq!(limiting_share(&[0.1, 0.5, 0.9]), None);
        assert_eq!(limiting_share(&[0.1, 0.95, 0.91]), Some(0.95));
    }

    #[test]
    fn time_spent_waiting_for_the_cpu_counts() {
        let earlier = CpuTime::parse("100 50 3\n").expect("times");
        let later = CpuTime::parse("400 650 9\n").expect("times");
        let share = later.share_since(&earlier, Duration::from_nanos(1000));
        assert!((share - 0.9).abs() < 1e-9, "{share}");
        assert_eq!(CpuTime::parse(""), None);
    }
}
