//! Many seeds, on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use sim::Trace;

use crate::outcome::{Outcome, run};
use crate::profile::Workload;
use crate::reached::Reached;
use crate::run::Counts;
use crate::seam::Seam;

/// Seeds of which one is run twice: a run is a function of its seed, so the second takes the same way.
const AGAIN: u64 = 50;

/// The seeds to run.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Their workload; each seed's own choice if `None`.
    pub workload: Option<Workload>,
    /// Seeds at a time.
    pub threads: usize,
    /// Failures after which it stops.
    pub failures_max: usize,
}

/// The outcome of many runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Sum of their counts.
    pub counts: Counts,
    /// The situations that they reached.
    pub reached: Reached,
    /// Those that found something, by seed.
    pub failures: Vec<Outcome>,
}

impl Soak {
    /// Runs the seeds in order until they are used up or `stop` returns true; `each` is called for every one.
    ///
    /// # Panics
    /// A thread of it panicked, which runs do not.
    #[must_use]
    pub fn run(&self, stop: &AtomicBool, each: impl Fn(&Outcome) + Sync) -> Summary {
        let next = AtomicU64::new(self.seeds.start);
        let summary = Mutex::new(Summary::default());
        let work = || {
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= self.seeds.end {
                    return;
                }
                let run = || run(seed, self.workload, Seam::Honest, &Trace::default());
                let mut outcome = run();
                if seed.is_multiple_of(AGAIN) {
                    outcome.compare(&run());
                }
                each(&outcome);
                let mut summary = summary.lock().expect("no holder panics");
                summary.add(outcome);
                if summary.failures.len() >= self.failures_max {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(work);
            }
        });
        let mut summary = summary.into_inner().expect("all threads have ended");
        summary.failures.sort_by_key(|outcome| outcome.seed);
        summary
    }
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        let (sum, more) = (&mut self.counts, &outcome.counts);
        sum.requests += more.requests;
        sum.failed += more.failed;
        sum.blocks_checked += more.blocks_checked;
        sum.boots += more.boots;
        sum.crashes += more.crashes;
        sum.damaged += more.damaged;
        sum.broken += more.broken;
        sum.unchecked += more.unchecked;
        self.seeds += 1;
        self.reached.add((outcome.workload, outcome.seed), &outcome.situations);
        if outcome.failure.is_some() {
            self.failures.push(outcome);
        }
    }
}
