//! Can it see? Targets that are broken on purpose, each of which must be caught.
//!
//! Method: seeds in order, against the state machine alone or the whole data plane, until one finds something; the
//! same seed must find nothing without the mutant. `--nocapture` shows what it finds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvme_target::sabotage::{Sabotage, sabotage};
use wire_oracle::pdu::Digests;
use wire_oracle::{Fault, Finding, Rng, Setup};

use crate::exchange::Exchange;
use crate::plane;

/// Seeds within which a mutant must be caught.
const SEEDS: u64 = 300;

/// Draws everything: in one of three exchanges data is damaged, in another a rule is broken.
fn anything(setup: &mut Setup, rng: &mut Rng) {
    match rng.between(0, 2) {
        0 => {}
        1 => {
            setup.digests = Digests { header: rng.one_in(2), data: true };
            setup.damaged_one_in = 5;
        }
        _ => {
            setup.digests = Digests { header: true, data: true };
            setup.fault = Some(rng.pick(&Fault::ALL));
        }
    }
}

fn against_the_state_machine(seed: u64) -> Result<(), Finding> {
    Exchange::new(seed, anything).run()
}

fn against_the_data_plane(seed: u64) -> Result<(), Finding> {
    plane::run(seed, anything).map(drop)
}

/// A panic is a finding, too.
fn finding(run: fn(u64) -> Result<(), Finding>, seed: u64) -> Option<Finding> {
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(outcome) => outcome.err(),
        Err(_) => Some("a panic".to_owned()),
    }
}

fn must_be_caught(mutant: Sabotage, run: fn(u64) -> Result<(), Finding>) {
    sabotage(Some(mutant));
    let caught = (0..SEEDS).find_map(|seed| Some((seed, finding(run, seed)?)));
    sabotage(None);
    let (seed, caught) = caught.unwrap_or_else(|| panic!("nothing notices {mutant:?}"));
    assert_eq!(finding(run, seed), None, "seed {seed} without {mutant:?}");
    println!("{mutant:?}: seed {seed}: {caught}");
}

macro_rules! targets {
    ($($name:ident: $sabotage:ident $run:ident;)*) => {
        $(
            #[test]
            fn $name() {
                must_be_caught(Sabotage::$sabotage, $run);
            }
        )*

        /// A mutant that is left out would never run.
        #[test]
        fn every_broken_target_has_its_test() {
            let tested = [$(Sabotage::$sabotage),*];
            for mutant in Sabotage::ALL {
                assert!(tested.contains(&mutant), "{mutant:?}");
            }
        }
    };
}

targets! {
    target_digest_of_other_blocks: DigestOfOtherBlocks against_the_state_machine;
    plane_digest_of_other_blocks: DigestOfOtherBlocks against_the_data_plane;
    target_digest_skips_part: DigestSkipsPart against_the_state_machine;
    plane_digest_skips_part: DigestSkipsPart against_the_data_plane;
    target_sum_of_last_piece: SumOfLastPiece against_the_state_machine;
    plane_sum_of_last_piece: SumOfLastPiece against_the_data_plane;
    target_keep_old_sums: KeepOldSums against_the_state_machine;
    plane_keep_old_sums: KeepOldSums against_the_data_plane;
    target_take_wrong_data: TakeWrongData against_the_state_machine;
    plane_take_wrong_data: TakeWrongData against_the_data_plane;
    target_take_wrong_header: TakeWrongHeader against_the_state_machine;
    target_digest_of_last_chunk: DigestOfLastChunk against_the_state_machine;
    target_ignore_last_pdu: IgnoreLastPdu against_the_state_machine;
    plane_ignore_last_pdu: IgnoreLastPdu against_the_data_plane;
    target_ignore_cccid: IgnoreCccid against_the_state_machine;
    target_r2t_from_start: R2tFromStart against_the_state_machine;
    target_ignore_pdo: IgnorePdo against_the_state_machine;
    plane_ignore_pdo: IgnorePdo against_the_data_plane;
    target_ignore_hpda: IgnoreHpda against_the_state_machine;
    target_success_and_completion: SuccessAndCompletion against_the_state_machine;
    plane_digest_without_metadata: DigestWithoutMetadata against_the_data_plane;
    plane_digest_of_metadata_first: DigestOfMetadataFirst against_the_data_plane;
}
