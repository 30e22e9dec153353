//! Can it see? Clients that are broken on purpose, each of which must be caught.
//!
//! Method: that of `mutants.rs`, with a client against the target of the oracle; in every other seed data is damaged.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nvme_initiator::sabotage::{Sabotage, sabotage};

use crate::client_wire;

/// Seeds within which a mutant must be caught.
const SEEDS: u64 = 100;

fn is_noticed(seed: u64) -> bool {
    let damaged_one_in = if seed.is_multiple_of(2) { 0 } else { 15 };
    catch_unwind(AssertUnwindSafe(|| client_wire::run(seed, damaged_one_in))).is_err()
}

fn must_be_caught(mutant: Sabotage) {
    sabotage(Some(mutant));
    let caught = (0..SEEDS).find(|seed| is_noticed(*seed));
    sabotage(None);
    let seed = caught.unwrap_or_else(|| panic!("nothing notices {mutant:?}"));
    assert!(!is_noticed(seed), "seed {seed} fails without {mutant:?}, too");
    println!("{mutant:?}: seed {seed}");
}

macro_rules! hosts {
    ($($name:ident: $sabotage:ident;)*) => {
        $(
            #[test]
            fn $name() {
                must_be_caught(Sabotage::$sabotage);
            }
        )*

        /// A mutant that is left out would never run.
        #[test]
        fn every_broken_host_has_its_test() {
            let tested = [$(Sabotage::$sabotage),*];
            for mutant in Sabotage::ALL {
                assert!(tested.contains(&mutant), "{mutant:?}");
            }
        }
    };
}

hosts! {
    host_offset_within_r2t: OffsetWithinR2t;
    host_last_each_time: LastEachTime;
    host_ignore_cpda: IgnoreCpda;
    host_ignore_max_h2c_data: IgnoreMaxH2cData;
    host_digest_of_last_piece: DigestOfLastPiece;
    host_take_wrong_data: TakeWrongData;
    host_digest_from_start: DigestFromStart;
}
