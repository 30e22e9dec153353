//! From a seed to what it came to.

use std::collections::BTreeMap;

use sim::{Rng, Trace};
use situations::Situation;

use crate::cluster::Cluster;
use crate::mending::Mending;
use crate::profile::{Profile, Workload};
use crate::run::{Counts, Run};
use crate::scenario::Scenario;
use crate::seam::Seam;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seed of the run.
    pub seed: u64,
    /// Workload of the run.
    pub workload: Workload,
    /// The failure, if any.
    pub failure: Option<String>,
    /// Counts of its operations.
    pub counts: Counts,
    /// The situations that it reached, and how often each.
    pub situations: BTreeMap<Situation, u64>,
    /// Hash of its trace.
    pub hash: u64,
    /// Events in its trace.
    pub events: u64,
}

impl Outcome {
    /// Holds another run of the same seed against this one, which fails if the other took another way.
    pub(crate) fn compare(&mut self, again: &Self) {
        if self.failure.is_none() && (self.hash, self.events) != (again.hash, again.events) {
            let (events, others) = (self.events, again.events);
            self.failure =
                Some(format!("run again it goes another way: {events} events, then {others}"));
        }
    }
}

/// Runs `seed`.
#[must_use]
pub fn run(seed: u64, workload: Option<Workload>, seam: Seam, trace: &Trace) -> Outcome {
    let workload = workload.unwrap_or_else(|| Workload::of_seed(seed));
    // What was counted before is no part of it.
    let _ = situations::take();
    let mut rng = Rng::new(seed ^ (workload as u64) << 56);
    let profile = Profile::draw(workload, &mut rng);
    let run = Run::new(trace.clone());
    volume::set_node_capacity(profile.nodes);
    volume::set_journal_blocks(profile.journal_blocks);
    let panicked = {
        let run = run.clone();
        let run = std::panic::AssertUnwindSafe(move || match workload {
            Workload::Cluster => Cluster::new(run, rng).run(),
            Workload::Repair => Mending::new(run, seam, rng).run(),
            _ => Scenario { run, profile, seam, rng }.run(),
        });
        std::panic::catch_unwind(run).err()
    };
    volume::set_node_capacity(None);
    volume::set_journal_blocks(None);
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        run.fail(format!("panic: {}", text.unwrap_or("of an unknown kind")));
    }
    if !run.has_failed() && !profile.cuts {
        run.check_orders();
    }
    let (counts, failure, situations) = (run.counts(), run.failure(), situations::take());
    let (hash, events) = (trace.hash(), trace.events());
    Outcome { seed, workload, failure, counts, situations, hash, events }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: a run is held against itself, and against one with another hash, of as many events.
    #[test]
    fn a_run_that_goes_another_way_fails() {
        let mut outcome = run(1, Some(Workload::Cluster), Seam::Honest, &Trace::default());
        let mut again = outcome.clone();
        outcome.compare(&again);
        assert_eq!(outcome.failure, None);
        again.hash ^= 1;
        outcome.compare(&again);
        assert!(outcome.failure.is_some());
    }
}
