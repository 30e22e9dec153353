//! The share that each policy gives to each flow.

mod common;

use common::{Bench, Client, jain};
use units::Duration;

const SECOND: Duration = Duration::from_secs(1);
const READS: [f64; 2] = [100_000.0, 40_000.0];

fn reader(depth: u32, quota: f64) -> Client {
    Client { depth, blocks: 1, reads_percent: 100, quota: [quota, quota] }
}

#[test]
fn equal_shares_are_equal_whatever_the_size_and_depth_of_requests() {
    for count in [2_u32, 7, 64] {
        let quota = 100_000.0 / f64::from(count);
        let client = |n: u32| Client { blocks: 1 << (n % 6), ..reader(16 << (n % 3), quota) };
        let clients: Vec<Client> = (0..count).map(client).collect();
        let mut bench = Bench::new("drr", READS, 256, 64, &clients);
        bench.run(SECOND);
        for _ in 0..3 {
            bench.reset();
            bench.run(SECOND);
            let index = jain(&bench.blocks);
            assert!(index >= 0.99, "{count} clients: {index}, {:?}", bench.blocks);
            let sum: u64 = bench.blocks.iter().sum();
            assert!(sum >= 98_000, "{count} clients left something unused: {sum}");
        }
    }
}

#[test]
fn weighted_shares_are_kept_within_three_percent() {
    for policy in ["drr", "sts"] {
        let clients = [1.0, 2.0, 4.0, 8.0].map(|weight| reader(64, weight / 15.0 * 100_000.0));
        let mut bench = Bench::new(policy, READS, 256, 64, &clients);
        bench.run(SECOND / 4);
        bench.reset();
        bench.run(SECOND);
        for (client, blocks) in clients.iter().zip(&bench.blocks) {
            let part = *blocks as f64 / client.quota[0];
            assert!((0.97..1.03).contains(&part), "{policy}: {part} of {client:?}");
        }
    }
}

#[test]
fn a_small_promise_is_kept_beside_greedy_neighbours() {
    let mut clients = vec![reader(256, 99_000.0 / 63.0); 63];
    clients.push(reader(4, 1_000.0));
    for policy in ["drr", "sts"] {
        let mut bench = Bench::new(policy, READS, 128, 64, &clients);
        bench.run(SECOND / 2);
        bench.reset();
        bench.run(2 * SECOND);
        assert!(bench.blocks[63] >= 1_960, "{policy}: {}", bench.blocks[63]);
        if policy == "drr" {
            let slowest = bench.latencies[63].iter().max().expect("some");
            assert!(*slowest < Duration::from_millis(20), "{slowest:?}");
        }
    }
}

#[test]
fn ten_requests_a_second_are_kept() {
    let clients = [reader(2, 10.0), reader(256, 99_990.0)];
    for policy in ["drr", "sts"] {
        let mut bench = Bench::new(policy, READS, 128, 64, &clients);
        bench.run(SECOND);
        bench.reset();
        bench.run(10 * SECOND);
        let blocks = bench.blocks[0];
        assert!(blocks >= 98, "{policy}: {blocks}");
        if policy == "sts" {
            assert!(blocks <= 102, "strict is strict: {blocks}");
        }
    }
}

#[test]
fn large_requests_pay_for_what_they_take() {
    let clients = [reader(32, 50_000.0), Client { blocks: 256, ..reader(8, 50_000.0) }];
    let mut bench = Bench::new("drr", READS, 512, 64, &clients);
    bench.run(SECOND);
    bench.reset();
    bench.run(SECOND);
    assert!(jain(&bench.blocks) > 0.99, "{:?}", bench.blocks);
}

/// Twelve blocks at a time, or one and twenty-two in turn: what a request costs beyond a round's
/// quantum is waited for, and not a bit of it is lost.
#[test]
fn sizes_that_do_not_fit_into_rounds_cost_nothing() {
    let clients = [12, 22, 3, 1, 64].map(|blocks| Client { blocks, ..reader(16, 739.0) });
    let mut bench = Bench::new("drr", [5021.0, 5021.0], 256, 64, &clients);
    bench.run(SECOND);
    bench.reset();
    bench.run(20 * SECOND);
    assert!(jain(&bench.blocks) > 0.9999, "{:?}", bench.blocks);
}

/// A tenant had a drive for itself that does half of what its ceiling says. When another comes, both
/// get their part of it, though the first has had several times its quota till then.
#[test]
fn what_others_left_is_not_held_against_who_took_it() {
    let clients = [reader(64, 10_000.0), reader(0, 45_000.0)];
    let mut bench = Bench::new("drr", READS, 8, 4, &clients);
    bench.run(5 * SECOND);
    bench.set_depth(1, 64);
    bench.run(SECOND / 5);
    bench.reset();
    bench.run(SECOND);
    let parts = [10.0 / 55.0, 45.0 / 55.0].map(|part| part * 50_000.0);
    for (blocks, part) in bench.blocks.iter().zip(parts) {
        let part = *blocks as f64 / part;
        assert!((0.9..1.1).contains(&part), "{:?}, and not {parts:?}", bench.blocks);
    }
}

/// Decibel, figure 13, in small: the middle of three clients bursts.
fn burst(policy: &str) -> [[u64; 3]; 2] {
    let mixed = Client {
        depth: 30,
        blocks: 1,
        reads_percent: 70,
        quota: [140_000.0 / 3.0, 60_000.0 / 3.0],
    };
    // The device has a hundred units of 500 µs: 90 requests under way are 90 % of its ceiling, and
    // the window lets no more in than it has units.
    let mut bench = Bench::new(policy, [140_000.0, 60_000.0], 100, 100, &[mixed; 3]);
    bench.set_times(Duration::from_micros(400), Duration::from_micros(733));
    bench.run(SECOND);
    let mut rates = [[0; 3]; 2];
    for (depth, rates) in [30, 90].into_iter().zip(&mut rates) {
        bench.set_depth(1, depth);
        bench.run(SECOND / 2);
        bench.reset();
        bench.run(2 * SECOND);
        rates.copy_from_slice(&bench.blocks);
    }
    rates
}

#[test]
fn a_burst_costs_the_neighbours_only_without_isolation() {
    let [before, during] = burst("fcfs");
    assert!(during[0] < before[0] * 85 / 100, "{before:?} {during:?}");
    for policy in ["drr", "sts"] {
        let [before, during] = burst(policy);
        for neighbour in [0, 2] {
            let part = during[neighbour] as f64 / before[neighbour] as f64;
            assert!((0.98..1.03).contains(&part), "{policy}: {before:?} {during:?}");
        }
    }
}

#[test]
fn strict_time_sharing_gives_nothing_beyond_the_quota() {
    let clients = [reader(256, 10_000.0), reader(1, 1_000.0)];
    let mut bench = Bench::new("sts", READS, 128, 64, &clients);
    bench.run(SECOND);
    assert!((9_900..=10_050).contains(&bench.blocks[0]), "{:?}", bench.blocks);
}

#[test]
fn deficit_round_robin_gives_what_others_leave_up_to_the_ceiling() {
    let clients = [reader(256, 10_000.0), reader(1, 90_000.0)];
    let mut bench = Bench::new("drr", READS, 256, 64, &clients);
    bench.run(SECOND);
    let sum = bench.blocks[0] + bench.blocks[1];
    assert!((98_000..=100_300).contains(&sum), "{:?}", bench.blocks);
    assert!(bench.blocks[1] > 9_000, "one at a time takes what it can: {:?}", bench.blocks);
}

/// A few large writes of each tenant fill the window of the writes, on a device that takes its time over
/// them. Reads have a window of their own and do not stand behind them.
#[test]
fn reads_do_not_wait_for_the_writes_window() {
    for policy in schedule::POLICIES {
        let both = Client { depth: 16, blocks: 32, reads_percent: 0, quota: [10_000.0, 1_000.0] };
        let mut bench = Bench::new(policy.name, READS, 64, 128, &[both, reader(1, 10_000.0)]);
        bench.set_times(Duration::from_micros(100), Duration::from_millis(50));
        bench.run(SECOND);
        bench.reset();
        bench.run(SECOND);
        let slowest = bench.latencies[1].iter().max().expect("reads");
        assert!(*slowest <= Duration::from_millis(51), "{policy}: {slowest:?}");
        assert!(bench.blocks[0] > 0 && bench.blocks[1] > 5_000, "{policy}: {:?}", bench.blocks);
    }
}
