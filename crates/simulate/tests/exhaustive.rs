//! Short programs, crashed at every event of the disk: nothing acknowledged is lost, nothing is torn.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use simulate::{Base, programs};
use units::MetadataSize;

/// Threads, each with programs of its own.
const THREADS: usize = 2;

#[test]
fn no_short_program_loses_anything_wherever_the_power_is_cut() {
    let programs = programs();
    assert!(programs.iter().any(|program| program.steps.len() == 4));
    // The short ones once more where blocks have metadata.
    let all = programs.iter().map(|program| (program, 0));
    let short = programs.iter().filter(|program| program.steps.len() <= 2);
    let jobs: Vec<_> = all.chain(short.map(|program| (program, 1))).collect();
    let (next, looked) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || {
        let bases = [MetadataSize::None, MetadataSize::Bytes16].map(Base::new);
        while let Some((program, base)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = bases[*base].crash_everywhere(program);
            let survivors = found.unwrap_or_else(|finding| panic!("{finding}"));
            looked.fetch_add(survivors, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(work)));
    });
    let looked = looked.into_inner();
    println!("{} programs, {looked} survivors", programs.len());
    assert!(looked > 20 * programs.len() as u64, "each is cut in many places");
}
