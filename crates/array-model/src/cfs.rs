//! Decisions of CFS, the scheduler of Linux 4.7, between a reading thread and a background task on one CPU.
//!
//! Both have the same weight. The constants are those of `kernel/sched/fair.c`, times `1 + log2(8)`, which is its scaling
//! for eight CPUs and more.

use units::Duration;

const SCALE: u32 = 4;
/// A CPU's tasks run once in this time.
const LATENCY: Duration = Duration::from_millis(6 * SCALE as u64);
/// A task that wakes takes the CPU only if it is behind by more than this.
const WAKEUP_GRANULARITY: Duration = Duration::from_millis(SCALE as u64);

/// The lead that a background task gets on the threads of its CPU when it wakes: half of a period
/// (`GENTLE_FAIR_SLEEPERS`), as such a task sleeps longer than that.
pub(crate) fn sleeper_credit_ns() -> u64 {
    (LATENCY / 2).as_nanos() as u64
}

/// Returns true if a reading thread that wakes takes the CPU from a task that has run for `ran_ns` since it woke.
pub(crate) fn preempts_on_wakeup(ran_ns: u64) -> bool {
    ran_ns > sleeper_credit_ns() + WAKEUP_GRANULARITY.as_nanos() as u64
}

/// Time after which the tick takes the CPU from a task while others wait.
pub(crate) fn slice_ns(tasks: usize) -> u64 {
    LATENCY.as_nanos() as u64 / tasks.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task of a few milliseconds keeps the CPU to its end: its credit for having slept outlasts it.
    #[test]
    fn a_reader_waits_for_a_task_that_woke_lately() {
        assert!(!preempts_on_wakeup(5_000_000));
        assert!(!preempts_on_wakeup(16_000_000));
        assert!(preempts_on_wakeup(16_000_001));
        assert_eq!((slice_ns(2), slice_ns(3)), (12_000_000, 8_000_000));
    }
}
