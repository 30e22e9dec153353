//! Loads of all kinds, open and closed together, against what `docs/policies.md` promises in every window.

mod support;

use schedule::POLICIES;
use support::{Seen, run};

/// For each policy.
const SEEDS: u64 = 60;

fn seeds() -> std::ops::Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|scale| scale.parse().ok());
    0..SEEDS * scale.unwrap_or(1)
}

/// Method: volumes whose hosts ask for less than their quota, as much, or more; evenly, at random, in bursts, or by a
/// number outstanding; requests of 1 to 256 blocks, reads and writes, on one to three cores. In half of the
/// seeds volumes come and go, and promises, ceilings, policies and cost models change on the way.
#[test]
fn promises_hold_in_every_window_whatever_loads_come() {
    for policy in POLICIES {
        let mut sum = Seen::default();
        for seed in seeds() {
            let seen =
                run(seed, *policy, (seed % 2) * 8).unwrap_or_else(|finding| panic!("{finding}"));
            sum.at_once += seen.at_once;
            sum.queued += seen.queued;
            sum.changes += seen.changes;
            let needed = sum.needed.iter_mut().zip(seen.needed);
            needed.for_each(|(most, needed)| *most = most.max(needed));
        }
        println!("{policy}: {sum:.3?}");
        assert!(sum.at_once > 10_000 && sum.queued > 10_000 && sum.changes > 50, "{sum:?}");
    }
}
