//! Everything that a host may send, by an encoder that shares no code with the target (`wire_oracle`).
//!
//! Each seed is a connection: digests, alignment, flow control, limits, metadata, commands, sizes and offsets of
//! their PDUs, padding, order, cuts, and how much of a command's data is asked for at once. What the target sends
//! is decoded by the oracle, which also knows what every block must hold. `FARFLASH_TEST_SCALE` multiplies the
//! seeds.

mod driver;
mod exchange;

use std::collections::BTreeMap;

use exchange::Exchange;
use nvme_target::CloseReason;
use wire_oracle::pdu::Digests;
use wire_oracle::{Fault, Rng, Setup};

fn seeds(count: u64) -> std::ops::Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    0..count * scale.unwrap_or(1_u64)
}

/// Runs all `seeds`, and counts the situations that they reach.
fn run_all(
    seeds: std::ops::Range<u64>,
    adjust: impl Fn(&mut Setup, &mut Rng),
) -> BTreeMap<&'static str, usize> {
    let mut reached = BTreeMap::new();
    for seed in seeds {
        let mut exchange = Exchange::new(seed, &adjust);
        if let Err(finding) = exchange.run() {
            panic!("seed {seed}: {finding}");
        }
        for (situation, count) in exchange.host.reached() {
            *reached.entry(*situation).or_default() += count;
        }
    }
    reached
}

#[test]
fn what_is_written_in_any_pdus_is_what_is_read() {
    let reached = run_all(seeds(1000), |_, _| {});
    println!("{reached:#?}");
    for (situation, count) in reached {
        assert!(count >= 20, "{situation}: {count} times");
    }
}

/// A damaged digest, or a damaged bit of data, costs its command alone.
#[test]
fn damaged_data_changes_nothing() {
    let reached = run_all(seeds(500), |setup, rng| {
        setup.digests = Digests { header: rng.one_in(2), data: true };
        setup.damaged_one_in = 5;
    });
    assert!(reached["a damaged data PDU"] > 200, "{reached:?}");
}

/// NVME-CONNECTION-4. Method: each fault once in a drawn exchange, at a PDU that is drawn, too.
#[test]
fn a_broken_rule_ends_the_connection_and_changes_nothing() {
    for fault in Fault::ALL {
        let reached = run_all(seeds(100), |setup, rng| {
            if fault.is_in_digested_header() {
                setup.digests = Digests { header: true, data: rng.one_in(2) };
            }
            setup.fault = Some(fault);
        });
        let refused = reached.get("a fault that was refused").copied().unwrap_or_default();
        assert!(refused >= 30, "{fault:?}: {refused}");
    }
}

/// A host that broke a rule is told so, and the reason is the one that it was told.
#[test]
fn the_reason_that_is_kept_is_the_one_that_the_host_is_told() {
    for seed in seeds(100) {
        let mut exchange = Exchange::new(seed, |setup, _| setup.fault = Some(Fault::TransferTag));
        exchange.run().unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
        if exchange.host.has_broken_a_rule() {
            let Some(CloseReason::Protocol(error)) = exchange.target.closed else {
                panic!("seed {seed}: {:?}", exchange.target.closed);
            };
            assert_eq!((error.fes().0, error.fei()), (1, 10), "seed {seed}");
        }
    }
}
