//! Clusters of hosts: a slice of seeds, and broken decisions that it must notice.

use std::sync::atomic::AtomicBool;

use cluster::{Sabotage, sabotage};
use sim::Trace;
use simulate::{Seam, Soak, Workload, run};
use situations::{Share, Situation};

/// Seeds of the slice, and seeds within which a mutant must be caught.
const SEEDS: u64 = 1000;

/// Seeds that are tried first, as in `mutants.rs`: they found a mutant that is found late.
const FIRST: &[(Sabotage, u64)] =
    &[(Sabotage::IgnoreMark, 826), (Sabotage::KeepLost, 179), (Sabotage::TakeFromLiving, 285)];

/// At most one host serves a device, no host acknowledges a request on a device that it lost, one name is that of one volume,
/// quotas hold, and a cluster that is left alone becomes healthy.
///
/// Method: hosts, clocks, network and etcd fail as each seed has it; all of this is checked after each step, the last at the end.
#[test]
fn a_thousand_clusters_keep_their_promises() {
    let workload = Some(Workload::Cluster);
    let soak = Soak { seeds: 0..SEEDS, workload, threads: 2, failures_max: 5 };
    let summary = soak.run(&AtomicBool::new(false), |_| {});
    for outcome in &summary.failures {
        let failure = outcome.failure.as_deref().unwrap_or_default();
        let seed = outcome.seed;
        println!("{failure}\n  again: farflash-sim --seed {seed} --workload cluster --trace");
    }
    assert!(summary.failures.is_empty(), "{} seeds find something", summary.failures.len());
    assert_eq!(summary.seeds, SEEDS);
    let is_ours = |it: &Situation| it.workload() == "cluster" && it.share() == Share::Often;
    let never: Vec<_> = summary.reached.never().filter(is_ours).collect();
    assert!(never.is_empty(), "never reached: {never:?}");
}

fn must_be_caught(which: Sabotage) {
    sabotage(Some(which));
    let first = FIRST.iter().filter(|(mutant, _)| *mutant == which).map(|(_, seed)| *seed);
    let caught = first.chain(0..SEEDS).find_map(|seed| {
        let outcome = run(seed, Some(Workload::Cluster), Seam::Honest, &Trace::default());
        outcome.failure.map(|finding| (seed, finding))
    });
    sabotage(None);
    let (seed, finding) = caught.unwrap_or_else(|| panic!("no seed notices {which:?}"));
    println!("{which:?}: seed {seed}: {finding}");
    let sound = run(seed, Some(Workload::Cluster), Seam::Honest, &Trace::default());
    assert!(sound.failure.is_none(), "seed {seed} finds {finding} without {which:?}, too");
}

macro_rules! mutants {
    ($($name:ident: $sabotage:ident;)*) => {
        $(
            #[test]
            fn $name() {
                must_be_caught(Sabotage::$sabotage);
            }
        )*

        /// A mutant that is left out would never run.
        #[test]
        fn every_mutant_has_its_test() {
            assert_eq!(Sabotage::ALL, [$(Sabotage::$sabotage),*]);
        }
    };
}

mutants! {
    take_from_living: TakeFromLiving;
    no_wait_for_fence: NoWaitForFence;
    ignore_mark: IgnoreMark;
    keep_lost: KeepLost;
    outlive_lease: OutliveLease;
    trust_watch: TrustWatch;
    take_any_name: TakeAnyName;
    judge_alone: JudgeAlone;
    regrant_blindly: RegrantBlindly;
    keep_name: KeepName;
}
