//! Short programs, crashed at every event of the disk: nothing acknowledged is lost, nothing is torn.

use std::sync::atomic::AtomicBool;

use simulate::{Base, Crashes, Program, Step, programs, shape_programs, tall_programs};
use volume::Sabotage;

/// Threads, each with programs of its own.
const THREADS: usize = 2;

/// Method: the slice of the programs; `farflash-sim --programs`, a part of `make soak`, crashes all.
#[test]
fn no_short_program_loses_anything_wherever_the_power_is_cut() {
    let slice = Crashes::slice();
    let looked = slice.run(THREADS, &AtomicBool::new(false), |_| {});
    let looked = looked.unwrap_or_else(|finding| panic!("{finding}"));
    println!("{} of {} programs, {looked} survivors", slice.count(), Crashes::all().count());
    assert!(looked > 5 * slice.count() as u64, "each is cut in several places");
}

/// The slice has all programs of up to two operations, and of the longer ones some that begin with each operation and some that
/// end with it.
#[test]
fn the_slice_has_something_of_everything() {
    let slice = Crashes::slice();
    let has =
        |wanted: &dyn Fn(&Program) -> bool| slice.programs().any(|(program, _)| wanted(program));
    let programs = programs();
    for short in programs.iter().filter(|program| program.steps.len() <= 2) {
        assert!(has(&|program| program == short), "{short:?}");
    }
    for step in programs.iter().flat_map(|program| &program.steps) {
        for (len, at_once) in [(3, false), (3, true)] {
            let is_such = |p: &Program| p.steps.len() == len && p.at_once == at_once;
            assert!(has(&|p| is_such(p) && p.steps.first() == Some(step)), "{step:?} first");
            assert!(has(&|p| is_such(p) && p.steps.last() == Some(step)), "{step:?} last");
        }
    }
    assert!(has(&|program| program.steps.len() == 4), "and some of four");
}

/// Only in its last operation is the power cut in a program in order: so what comes before must be another.
#[test]
fn with_every_program_in_order_there_is_what_it_begins_with() {
    let programs = programs();
    for program in programs.iter().filter(|program| !program.at_once && program.steps.len() > 1) {
        let steps = program.steps[..program.steps.len() - 1].to_vec();
        let shorter = Program { steps, ..program.clone() };
        assert!(programs.contains(&shorter), "{program:?}");
    }
}

/// The same where a map has three levels.
#[test]
fn no_short_program_loses_anything_of_a_map_of_three_levels() {
    let base = Base::tall();
    let survivors = tall_programs().into_iter().map(|program| {
        base.crash_everywhere(&program).unwrap_or_else(|finding| panic!("{finding}"))
    });
    let looked: u64 = survivors.sum();
    println!("{looked} survivors");
    assert!(looked > 500, "each is cut in several places");
}

/// The same where operations go across bounds of leaves and of inner nodes, of which some are partly emptied.
#[test]
fn no_short_program_loses_anything_across_the_bounds_of_nodes() {
    let base = Base::shaped();
    let survivors = shape_programs().into_iter().map(|program| {
        base.crash_everywhere(&program).unwrap_or_else(|finding| panic!("{finding}"))
    });
    let looked: u64 = survivors.sum();
    println!("{looked} survivors");
    assert!(looked > 1000, "each is cut in several places");
}

/// Broken engines that only show where there are inner nodes below a root.
///
/// Method: the programs for three levels, until one finds something; and all of up to two operations elsewhere.
fn shows_in_three_levels_only(mutant: Sabotage) {
    let base = Base::tall();
    volume::sabotage(Some(mutant));
    let finding = tall_programs().iter().find_map(|program| base.crash_everywhere(program).err());
    let programs = programs();
    let is_short = |program: &&Program| program.steps.len() <= 2;
    let other = first_finding(programs.iter().filter(is_short));
    volume::sabotage(None);
    println!("{mutant:?}: {}", finding.unwrap_or_else(|| panic!("no check notices {mutant:?}")));
    assert_eq!(other, None, "{mutant:?} shows elsewhere");
}

#[test]
fn an_inner_node_behind_an_old_checksum_is_found_in_three_levels() {
    shows_in_three_levels_only(Sabotage::KeepInnerChecksum);
}

/// Returns the finding of the first program that finds anything.
fn first_finding<'a>(mut programs: impl Iterator<Item = &'a Program>) -> Option<String> {
    let base = Base::default();
    programs.find_map(|program| base.crash_everywhere(program).err())
}

/// Broken engines that are found by programs with one of these operations, and by none without.
///
/// Method: the programs with one, short ones first, until one finds something; and of those without all up to two
/// operations, where memory has no limit.
fn is_found_by(steps: &[Step], mutant: Sabotage) {
    let programs = programs();
    let (with, without): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.steps.iter().any(|step| steps.contains(step)));
    let is_short = |program: &&Program| program.steps.len() <= 2 && program.map_memory.is_none();
    volume::sabotage(Some(mutant));
    let finding = first_finding(with.into_iter());
    let other = first_finding(without.into_iter().filter(is_short));
    volume::sabotage(None);
    println!("{mutant:?}: {}", finding.unwrap_or_else(|| panic!("no check notices {mutant:?}")));
    assert_eq!(other, None, "{mutant:?} shows without {steps:?}");
}

#[test]
fn a_compare_and_write_without_its_lock_is_found() {
    is_found_by(&[Step::Swap], Sabotage::CompareUnlocked);
}

#[test]
fn a_compare_and_write_that_writes_over_something_else_is_found() {
    is_found_by(&[Step::Swap, Step::SwapWrongly], Sabotage::MiscompareWrites);
}

#[test]
fn a_replay_without_creations_is_found() {
    is_found_by(&[Step::Create], Sabotage::ReplaySkipsCreates);
}

#[test]
fn a_replay_without_deletions_is_found() {
    is_found_by(&[Step::Delete], Sabotage::ReplaySkipsDeletes);
}

#[test]
fn a_checkpoint_that_keeps_what_is_gone_is_found() {
    is_found_by(&[Step::Delete], Sabotage::KeepGone);
}
