//! A fixed slice of seeds, and that a seed is a run.

use std::sync::atomic::AtomicBool;

use sim::Trace;
use simulate::{Seam, Soak, Workload, run};
use situations::Share;

/// Seeds of the slice: each workload has its share.
const SEEDS: u64 = 1200;

/// No seed finds anything wrong, and they reach together what the table of situations expects of them.
///
/// Method: every seed chooses a workload, faults, power cuts and what survives; all that is read is
/// compared with what may be there. A finding prints the command that shows it again.
#[test]
fn a_thousand_runs_find_nothing_wrong() {
    let soak = Soak { seeds: 0..SEEDS, workload: None, threads: 2, failures_max: 5 };
    let summary = soak.run(&AtomicBool::new(false), |_| {});
    for outcome in &summary.failures {
        let (seed, name) = (outcome.seed, outcome.workload.name());
        let failure = outcome.failure.as_deref().unwrap_or_default();
        println!("{failure}\n  again: farflash-sim --seed {seed} --workload {name} --trace");
    }
    assert!(summary.failures.is_empty(), "{} seeds find something", summary.failures.len());
    let counts = summary.counts;
    println!("{} seeds: {counts:?}", summary.seeds);
    assert_eq!(summary.seeds, SEEDS);
    assert!(counts.crashes > SEEDS, "the power is cut often enough to mean anything");
    assert!(counts.damaged > SEEDS, "enough is damaged to mean anything");
    assert!(counts.unchecked * 1000 < counts.requests, "the checker of orders keeps up");
    let is_often = |situation: &situations::Situation| situation.share() == Share::Often;
    let never: Vec<_> = summary.reached.never().filter(is_often).collect();
    assert!(never.is_empty(), "never reached: {never:?}");
}

/// A run is a function of its seed: two take the same way, event by event, and others another.
///
/// Method: a seed of each workload; [`Soak`] holds one of fifty seeds to it, in the test above and in `make soak`.
#[test]
fn a_seed_gives_the_same_trace_again() {
    for (_, workload) in Workload::ALL {
        let hash = |seed| {
            let outcome = run(seed, Some(workload), Seam::Honest, &Trace::default());
            assert!(outcome.events > 100, "{workload:?}: something happens");
            outcome.hash
        };
        let first = hash(0);
        assert_eq!(first, hash(0), "{workload:?}");
        assert_ne!(first, hash(1), "{workload:?}");
    }
}
