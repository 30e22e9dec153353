use std::net::Ipv4Addr;

use super::*;

fn stranger(number: u32) -> Lane {
    Lane::Stranger(IpAddr::V4(Ipv4Addr::from_bits(number)))
}

/// Returns the units that each lane spends until `units` are spent, all having more than they get.
fn spend(costs: &[u32], units: u32, lane: impl Fn(&mut Turns<usize>) -> Lane) -> Vec<u32> {
    let mut turns = Turns::default();
    let lanes: Vec<Lane> = costs.iter().map(|_| lane(&mut turns)).collect();
    let mut spent = vec![0; costs.len()];
    for (n, (lane, cost)) in lanes.iter().zip(costs).enumerate() {
        (0..units).for_each(|_| turns.push(*lane, n, *cost));
    }
    while spent.iter().sum::<u32>() < units {
        let (lane, cost) = turns.pop().expect("more waits");
        spent[lane] += cost;
    }
    spent
}

#[test]
fn lanes_and_sources_get_equal_parts_whatever_their_commands_cost() {
    let costs = [1, 3, 65, 7, 1];
    let volumes = spend(&costs, 20_000, |turns| Lane::Volume(turns.add_lane()));
    let next = std::cell::Cell::new(0);
    let sources = spend(&costs, 20_000, |_| stranger(next.replace(next.get() + 1)));
    for spent in volumes.iter().chain(&sources) {
        assert!((3_800..=4_200).contains(spent), "{volumes:?} {sources:?}");
    }
}

/// TURN-3, among volumes and among sources.
#[test]
fn a_new_lane_waits_for_one_turn_of_each_other() {
    let volume = |turns: &mut Turns<&str>, _| Lane::Volume(turns.add_lane());
    let source = |_: &mut Turns<&str>, n| stranger(n);
    for lane in [volume, source] {
        let mut turns = Turns::default();
        let (crowd, late) = ([0, 1, 2].map(|n| lane(&mut turns, n)), lane(&mut turns, 3));
        for lane in crowd {
            (0..1000).for_each(|_| turns.push(lane, "crowd", 1));
        }
        assert!((0..20).all(|_| turns.pop() == Some(("crowd", 1))));
        turns.push(late, "late", 1);
        let before = std::iter::from_fn(|| turns.pop()).take_while(|(who, _)| *who != "late");
        assert!(before.count() <= 3 * QUANTUM_UNITS as usize);
    }
}

/// TURN-4. Method: strangers of a thousand sources have more Connects than are served, beside two
/// volumes.
#[test]
fn all_strangers_together_get_no_more_than_one_volume() {
    let mut turns = Turns::default();
    let volumes = [turns.add_lane(), turns.add_lane()];
    for n in 0..20_000 {
        turns.push(stranger(n % 1_000), "strangers", 5);
        volumes.iter().for_each(|volume| turns.push(Lane::Volume(*volume), "volumes", 1));
    }
    let popped: Vec<(&str, u32)> = std::iter::from_fn(|| turns.pop()).take(20_000).collect();
    let of = |wanted| popped.iter().filter(|(who, _)| *who == wanted).map(|(_, u)| u).sum::<u32>();
    let part = f64::from(of("strangers")) / f64::from(of("strangers") + of("volumes"));
    assert!((0.32..0.34).contains(&part), "{part}");
}

/// TURN-4. Method: of 256 sources each has all others before it once, one of them with a thousand
/// commands.
#[test]
fn a_stranger_waits_for_one_turn_of_each_other_source() {
    for alone in 1..256 {
        let mut turns = Turns::default();
        (0..1_000).for_each(|_| turns.push(stranger(0), "crowd", 5));
        turns.push(stranger(alone), "alone", 5);
        let before = std::iter::from_fn(|| turns.pop()).take_while(|(who, _)| *who != "alone");
        assert!(before.map(|(_, units)| units).sum::<u32>() <= QUANTUM_UNITS);
    }
}

/// TURN-1.
#[test]
fn commands_keep_their_order_and_those_of_a_lane_that_goes_are_dropped() {
    let mut turns = Turns::default();
    let (stays, goes) = (turns.add_lane(), turns.add_lane());
    for n in 0..300 {
        let lane = [Lane::Volume(stays), Lane::Volume(goes), stranger(n % 2)][n as usize % 3];
        turns.push(lane, n, n % 40);
    }
    let gone: Vec<u32> = turns.remove_lane(goes).collect();
    assert!(gone.into_iter().eq((0..300).filter(|n| n % 3 == 1)));
    turns.push(Lane::Volume(goes), 1, 1);
    let left: Vec<u32> = std::iter::from_fn(|| turns.pop()).map(|(n, _)| n).collect();
    assert_eq!((left.len(), turns.is_empty()), (200, true));
    for (rest, parity) in [(0, None), (2, Some(0)), (2, Some(1))] {
        let is_one = |n: &u32| n % 3 == rest && parity.is_none_or(|parity| n % 2 == parity);
        assert!(left.iter().copied().filter(is_one).eq((0..300).filter(is_one)));
    }
    let Waiting::Strangers(strangers) = &turns.round.turns[STRANGERS].queue else { panic!() };
    assert!(strangers.round.turns.is_empty(), "of those without commands nothing is left");
}
