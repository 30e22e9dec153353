//! CPUs and pools of threads, for which requests wait.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// CPUs, or a link, that serve in the order of arrival.
#[derive(Debug)]
pub(super) struct Cpus {
    free_at_ns: BinaryHeap<Reverse<u64>>,
    busy_ns: u64,
}

impl Cpus {
    pub(super) fn new(count: u32) -> Self {
        Self { free_at_ns: (0..count).map(|_| Reverse(0)).collect(), busy_ns: 0 }
    }

    /// Runs something that is there at `now_ns`, which does not go back; returns when it is done.
    pub(super) fn run(&mut self, now_ns: u64, cost_ns: u64) -> u64 {
        let mut first = self.free_at_ns.peek_mut().expect("at least one");
        let end_ns = first.0.max(now_ns) + cost_ns;
        first.0 = end_ns;
        self.busy_ns += cost_ns;
        end_ns
    }

    /// Share of all CPUs' time up to `now_ns` that was used or promised.
    pub(super) fn busy(&self, now_ns: u64) -> f64 {
        self.busy_ns as f64 / (now_ns.max(1) as f64 * self.free_at_ns.len() as f64)
    }
}

/// A number of threads, each of which serves one job at a time.
#[derive(Debug)]
pub(super) struct Pool {
    free: u32,
    waiting: VecDeque<usize>,
}

impl Pool {
    pub(super) fn new(threads: u32) -> Self {
        Self { free: threads, waiting: VecDeque::new() }
    }

    /// Takes a thread; without one, the job waits for [`Self::give_back`].
    pub(super) fn take(&mut self, job: usize) -> bool {
        if self.free == 0 {
            self.waiting.push_back(job);
            return false;
        }
        self.free -= 1;
        true
    }

    /// Gives a thread back; returns the job that has it now.
    pub(super) fn give_back(&mut self) -> Option<usize> {
        let next = self.waiting.pop_front();
        self.free += u32::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_serve_in_order_and_count_their_time() {
        let mut cpus = Cpus::new(2);
        assert_eq!([10, 10, 10].map(|cost| cpus.run(0, cost)), [10, 10, 20]);
        assert_eq!(cpus.run(100, 5), 105);
        assert_eq!(cpus.busy(100), 35.0 / 200.0);
    }

    #[test]
    fn a_thread_goes_to_the_job_that_waits_longest() {
        let mut pool = Pool::new(1);
        assert_eq!([1, 2, 3].map(|job| pool.take(job)), [true, false, false]);
        assert_eq!([(); 3].map(|()| pool.give_back()), [Some(2), Some(3), None]);
        assert!(pool.take(4));
    }
}
