//! Volumes that share a drive get what they were promised, through hosts, network, engine and a
//! modelled drive.

use std::rc::Rc;

use dataplane::Loss;
use io_traits::Spawn;
use schedule::Slo;
use units::{DeviceIndex, Duration, Lba};
use uuid::Uuid;

use crate::support::simulate;
use crate::support::tenants::{CEILING, Sharing, Tenant, uuid_of};

const SECOND: Duration = Duration::from_secs(1);

fn rate(part: f64) -> Slo {
    Slo::Rate {
        reads_per_second: (CEILING.reads_per_second as f64 * part) as u64,
        writes_per_second: (CEILING.writes_per_second as f64 * part) as u64,
    }
}

/// A part of the ceiling, reads and writes together.
fn share(part: f64) -> f64 {
    (CEILING.reads_per_second + CEILING.writes_per_second) as f64 * part
}

/// Decibel, figure 13: rates of three tenants of 70/30 at depth 30 each before, while and after the
/// second has 90.
fn figure_13(policy: &'static str) -> [Vec<f64>; 3] {
    simulate(1, move |world| async move {
        let sharing = Sharing::new(&world, &[rate(0.3); 3]).await;
        let tenants: Vec<Rc<Tenant>> = (0..3).map(|_| Tenant::new(30, 70, 1)).collect();
        sharing.start_all(&tenants, 90).await;
        sharing.schedule(policy);
        sharing.pass(SECOND / 5).await;
        let before = sharing.rates(&tenants, SECOND).await;
        tenants[1].depth.set(90);
        sharing.pass(SECOND / 5).await;
        let during = sharing.rates(&tenants, SECOND).await;
        tenants[1].depth.set(30);
        sharing.pass(SECOND / 5).await;
        [before, during, sharing.rates(&tenants, SECOND).await]
    })
}

fn assert_within(name: &str, rate: f64, expected: f64, part: f64) {
    let off = rate / expected - 1.0;
    assert!(off.abs() <= part, "{name}: {rate:.0}, and not {expected:.0} within {part}");
}

#[test]
fn without_a_policy_a_burst_takes_from_its_neighbours() {
    let [before, during, after] = figure_13("fcfs");
    for neighbour in [0, 2] {
        assert!(during[neighbour] < 0.8 * before[neighbour], "{before:?} {during:?}");
        assert!(after[neighbour] > 0.9 * before[neighbour], "{before:?} {after:?}");
    }
}

#[test]
fn under_strict_time_sharing_a_burst_gains_nothing() {
    let [before, during, after] = figure_13("sts");
    for tenant in 0..3 {
        for rates in [&before, &during, &after] {
            assert_within("of its share", rates[tenant], share(0.3), 0.02);
        }
    }
}

#[test]
fn under_deficit_round_robin_a_burst_takes_only_what_is_left() {
    let [before, during, after] = figure_13("drr");
    for neighbour in [0, 2] {
        for rates in [&before, &during, &after] {
            assert!(rates[neighbour] >= 0.98 * share(0.3), "{before:?} {during:?} {after:?}");
        }
    }
    let total: f64 = during.iter().sum();
    assert_within("of the ceiling", total, share(1.0), 0.02);
}

/// Jain's index: 1 if all are equal.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

#[test]
fn equal_shares_are_equal_whatever_depth_and_block_size() {
    simulate(2, |world| async move {
        let sharing = Sharing::new(&world, &[Slo::default(); 8]).await;
        let shape = |n: usize| Tenant::new(8 << (n % 4), 70, 1 << (n % 3));
        let tenants: Vec<Rc<Tenant>> = (0..8).map(shape).collect();
        sharing.start_all(&tenants, 64).await;
        sharing.schedule("drr");
        sharing.pass(SECOND / 5).await;
        for _ in 0..2 {
            let rates = sharing.rates(&tenants, SECOND).await;
            assert!(jain(&rates) >= 0.99, "{rates:.0?}");
        }
    });
}

#[test]
fn weights_divide_the_device() {
    simulate(3, |world| async move {
        let slos = [1, 2, 4, 8].map(|weight| Slo::Share { weight });
        let sharing = Sharing::new(&world, &slos).await;
        let tenants: Vec<Rc<Tenant>> = slos.iter().map(|_| Tenant::new(64, 70, 1)).collect();
        sharing.start_all(&tenants, 64).await;
        sharing.schedule("drr");
        sharing.pass(SECOND / 2).await;
        let rates = sharing.rates(&tenants, 2 * SECOND).await;
        let total: f64 = rates.iter().sum();
        for (rate, weight) in rates.iter().zip([1.0, 2.0, 4.0, 8.0]) {
            assert_within("of its weight", *rate, total * weight / 15.0, 0.03);
        }
    });
}

/// The latency is at most that of one request in each of the others' turns, and the device's own.
#[test]
fn a_hundredth_is_kept_beside_63_greedy_neighbours() {
    simulate(4, |world| async move {
        let mut slos = vec![Slo::default(); 63];
        slos.push(rate(0.01));
        let sharing = Sharing::new(&world, &slos).await;
        let mut tenants: Vec<Rc<Tenant>> = (0..63).map(|_| Tenant::new(16, 70, 1)).collect();
        tenants.push(Tenant::new(4, 70, 1));
        sharing.start_all(&tenants, 16).await;
        sharing.schedule("drr");
        sharing.pass(SECOND).await;
        let rates = sharing.rates(&tenants, 2 * SECOND).await;
        assert!(rates[63] >= 0.99 * share(0.01), "{:.1} of {:.1}", rates[63], share(0.01));
        let total: f64 = rates.iter().sum();
        assert!(total >= 0.97 * share(1.0), "{total}");
    });
}

#[test]
fn ten_requests_a_second_are_ten() {
    for policy in ["sts", "drr"] {
        simulate(5, move |world| async move {
            let ten = Slo::Rate { reads_per_second: 10, writes_per_second: 10 };
            let sharing = Sharing::new(&world, &[rate(0.9), ten]).await;
            let tenants = [Tenant::new(64, 70, 1), Tenant::new(4, 100, 1)];
            sharing.start_all(&tenants, 64).await;
            sharing.schedule(policy);
            sharing.pass(SECOND).await;
            let rates = sharing.rates(&tenants, 2 * SECOND).await;
            assert!(rates[1] >= 9.5, "{policy}: {rates:.1?}");
            if policy == "sts" {
                assert!(rates[1] <= 11.0, "{rates:.1?}");
            }
        });
    }
}

/// Ceiling, policy and promises change under load. Every request is answered, every volume goes on,
/// and nothing stays in the queues.
#[test]
fn changes_under_load_lose_nothing() {
    simulate(6, |world| async move {
        let sharing = Sharing::new(&world, &[Slo::default(); 3]).await;
        let tenants: Vec<Rc<Tenant>> = (0..3).map(|_| Tenant::new(32, 70, 2)).collect();
        sharing.start_all(&tenants, 32).await;
        for round in 0..40 {
            match round % 5 {
                0 => sharing.schedule("fcfs"),
                1 => sharing.schedule("drr"),
                2 => sharing.core.schedule(DeviceIndex(0), None, &[]),
                3 => sharing.schedule("sts"),
                _ => {
                    sharing.core.schedule(DeviceIndex(0), None, &[]);
                    sharing.schedule("drr");
                }
            }
            let rates = sharing.rates(&tenants, SECOND / 20).await;
            assert!(rates.iter().all(|rate| *rate > 0.0), "round {round}: {rates:?}");
        }
        tenants.iter().for_each(|tenant| tenant.depth.set(0));
        sharing.pass(SECOND).await;
        let window = sharing.core.stats().devices[DeviceIndex(0)].window;
        assert_eq!((window.in_use_blocks, window.queued), ([0; 2], [0; 2]));
        for flow in sharing.core.flows_from(Uuid::nil(), usize::MAX) {
            let stats = flow.done.flow;
            assert_eq!((stats.queued, stats.in_flight, stats.in_flight_blocks), (0, 0, [0; 2]));
        }
    });
}

/// Requests that wait for their turn end with their host and with their volume, and hold up no other.
#[test]
fn a_host_that_goes_leaves_the_line() {
    simulate(7, |world| async move {
        let ten = Slo::Rate { reads_per_second: 10, writes_per_second: 10 };
        let sharing = Sharing::new(&world, &[ten, ten, rate(0.5)]).await;
        let stays = Tenant::new(8, 70, 1);
        sharing.start(&sharing.filled(2).await, 8, &stays);
        let (leaves, deleted) = (sharing.open(0).await, sharing.open(1).await);
        sharing.schedule("sts");
        for n in 0..64 {
            for volume in [leaves.clone(), deleted.clone()] {
                world.spawn(async move { drop(volume.read(Lba(n), 1).await) });
            }
        }
        sharing.pass(SECOND / 2).await;
        let queued =
            |n: usize| sharing.core.flows_from(Uuid::nil(), usize::MAX)[n].done.flow.queued;
        assert!(queued(0) > 50 && queued(1) > 50, "{} {}", queued(0), queued(1));
        leaves.client().close().await;
        sharing.core.delete_volume(uuid_of(1), Loss::Accepted).await.expect("deleted");
        sharing.pass(SECOND / 2).await;
        assert_eq!(queued(0), 0);
        let rates = sharing.rates(std::slice::from_ref(&stays), SECOND).await;
        assert!(rates[0] > 0.4 * share(1.0), "{rates:?}");
        let stats = sharing.core.stats();
        assert!(stats.devices[DeviceIndex(0)].window.queued.iter().sum::<u64>() <= 8, "{stats:?}");
        sharing.core.shutdown().await.expect("a checkpoint");
    });
}
