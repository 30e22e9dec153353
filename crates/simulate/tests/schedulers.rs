//! Can the tests of the scheduler see? Deliberately broken schedulers, each of which the loads of
//! `schedule/tests/loads` must catch.
//!
//! Method: as in `mutants.rs`, without hosts, engine and disk: the seeds under every policy.

#[path = "../../schedule/tests/loads/support/mod.rs"]
mod support;

use std::panic::catch_unwind;

use schedule::{POLICIES, Sabotage, sabotage};

/// Seeds within which a mutant must be caught.
const SEEDS: u64 = 1_000;

/// Seeds that are tried first, as in `mutants.rs`: they found a mutant that is found late.
const FIRST: &[(Sabotage, u64)] = &[(Sabotage::BeyondIsHeldAgainst, 684)];

fn run(seed: u64, sabotaged: Option<Sabotage>) -> Option<String> {
    sabotage(sabotaged);
    let run = || {
        let policy = POLICIES[seed as usize % POLICIES.len()];
        support::run(seed, policy, (seed % 2) * 8).err()
    };
    let finding = catch_unwind(run).unwrap_or_else(|_| Some("a panic".to_owned()));
    sabotage(None);
    finding
}

fn must_be_caught(mutant: Sabotage) {
    let first = FIRST.iter().filter(|(late, _)| *late == mutant).map(|(_, seed)| *seed);
    let caught = first.chain(0..SEEDS).find_map(|seed| Some((seed, run(seed, Some(mutant))?)));
    let (seed, finding) = caught.unwrap_or_else(|| panic!("nothing notices {mutant:?}"));
    assert_eq!(run(seed, None), None, "seed {seed} finds something without {mutant:?}, too");
    println!("{mutant:?}: {finding}");
}

macro_rules! schedulers {
    ($($name:ident: $sabotage:ident;)*) => {$(
        #[test]
        fn $name() {
            must_be_caught(Sabotage::$sabotage);
        }
    )*};
}

schedulers! {
    scheduler_uncharged_at_once: UnchargedAtOnce;
    scheduler_free_at_once: FreeAtOnce;
    scheduler_forget_debt: ForgetDebt;
    scheduler_no_return: NoReturn;
    scheduler_refill_by_ceiling: RefillByCeiling;
    scheduler_refill_by_quota: RefillByQuota;
    scheduler_beyond_is_held_against: BeyondIsHeldAgainst;
    scheduler_keep_unused: KeepUnused;
    scheduler_parts_by_part: PartsByPart;
    scheduler_rest_for_each: RestForEach;
    scheduler_window_of_gone: WindowOfGone;
}
