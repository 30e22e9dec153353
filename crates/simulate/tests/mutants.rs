//! Can the simulator see? Deliberately broken engines and disks, each of which it must catch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sim::Trace;
use simulate::{Seam, Workload, run};
use volume::Sabotage;

/// Seeds within which a mutant must be caught.
const SEEDS: u64 = 400;

#[derive(Clone, Copy, Debug)]
enum Mutant {
    Engine(Sabotage),
    Disk(Seam),
}

/// The first seed that catches the mutant, and what it finds.
fn catch(mutant: Mutant, workload: Workload) -> Option<(u64, String)> {
    let seam = match mutant {
        Mutant::Engine(which) => {
            volume::sabotage(Some(which));
            Seam::Honest
        }
        Mutant::Disk(seam) => seam,
    };
    let caught = (0..SEEDS).find_map(|seed| {
        let outcome = run(seed, Some(workload), seam, &Trace::default());
        outcome.failure.map(|finding| (seed, finding))
    });
    volume::sabotage(None);
    caught
}

const MUTANTS: &[(Sabotage, Workload)] = &[
    (Sabotage::AckBeforeRecord, Workload::Crash),
    (Sabotage::AckBeforeData, Workload::Crash),
    (Sabotage::SkipFlush, Workload::Crash),
    (Sabotage::IgnoreFlushError, Workload::Errors),
    (Sabotage::IgnoreRecordError, Workload::Errors),
    (Sabotage::IgnoreDataError, Workload::Errors),
    (Sabotage::SkipRestore, Workload::Errors),
    (Sabotage::SkipEntries, Workload::Crash),
    (Sabotage::SettleTooMuch, Workload::Crash),
    (Sabotage::SkipReadChecksum, Workload::Corrupt),
    (Sabotage::ReuseWhileRead, Workload::Full),
    (Sabotage::ReuseNodes, Workload::Full),
    (Sabotage::ReuseReclaimed, Workload::Full),
    (Sabotage::RootBeforeFlush, Workload::Crash),
    (Sabotage::LateReplayPoint, Workload::Crash),
    (Sabotage::ReplayTwoRecords, Workload::Crash),
    (Sabotage::ReplaySkipsUnmaps, Workload::Crash),
    (Sabotage::ReplaySkipsDeletes, Workload::Churn),
    (Sabotage::ReplayTrustsData, Workload::Crash),
    (Sabotage::CompareUnlocked, Workload::Crash),
    (Sabotage::ShortApply, Workload::Crash),
    (Sabotage::ShrinkKeepsBlocks, Workload::Churn),
    (Sabotage::ReadDead, Workload::Crash),
    (Sabotage::LeakOverwritten, Workload::Crash),
];

/// Every broken promise is found within a few seeds, and what finds it is said.
///
/// Method: the same seeds that find nothing wrong with the engine as it is.
#[test]
fn every_broken_engine_and_every_lying_disk_is_caught() {
    // Broken engines panic; the finding says so.
    std::panic::set_hook(Box::new(|_| {}));
    let engines = MUTANTS.iter().map(|(which, workload)| (Mutant::Engine(*which), *workload));
    let disks = Seam::BROKEN.iter().map(|seam| (Mutant::Disk(*seam), Workload::Crash));
    let mutants: Vec<_> = engines.chain(disks).collect();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((mutant, workload)) =
                    mutants.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let caught = catch(*mutant, *workload);
                    lines.lock().expect("no panic").push((format!("{mutant:?}"), caught));
                }
            });
        }
    });
    drop(std::panic::take_hook());
    let mut lines = lines.into_inner().expect("no panic");
    lines.sort();
    for (mutant, caught) in &lines {
        match caught {
            Some((seed, finding)) => println!("{mutant}: seed {seed}: {finding}"),
            None => println!("{mutant}: NOT CAUGHT"),
        }
    }
    let missed: Vec<_> = lines.iter().filter(|(_, caught)| caught.is_none()).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
