use std::net::{Ipv4Addr, Ipv6Addr};

use sim::Rng;

use super::*;

const NOW: Instant = Instant(1_000_000_000_000);
/// When all had their chance.
const LATER: Instant = Instant(2_000_000_000_000);

fn volume(number: u64) -> Uuid {
    Uuid::from_u128(number.into())
}

fn v4(number: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).expect("small")))
}

/// Strangers of these sources, the first with number 0.
fn strangers(sources: &[u64]) -> Crowd {
    let mut crowd = Crowd::default();
    for (number, source) in (0..).zip(sources) {
        crowd.add(number, v4(*source), NOW);
    }
    crowd
}

#[test]
fn the_oldest_of_the_source_that_has_most_makes_room() {
    let mut crowd = strangers(&[2, 1, 1, 3, 1]);
    assert_eq!(crowd.who_makes_room(v4(9), NOW), Some(1));
    assert_eq!(crowd.who_makes_room(v4(2), NOW), Some(1));
    crowd.let_in(1, volume(1), None);
    assert_eq!(crowd.who_makes_room(v4(9), NOW), Some(2), "a host that was let in stays");
    (0..5).for_each(|number| crowd.let_in(number, volume(1), None));
    assert_eq!(crowd.who_makes_room(v4(9), LATER), None, "all were let in");
}

#[test]
fn who_has_as_many_as_others_makes_room_himself_when_his_oldest_had_its_chance() {
    for (sources, newcomer, goes) in [
        (&[1, 2, 2, 1][..], 2, 1),
        (&[1, 1, 2], 2, 2),
        (&[2, 1, 1, 1], 1, 1),
        (&[2, 1], 3, 0),
        (&[1], 1, 0),
    ] {
        let crowd = strangers(sources);
        assert_eq!(crowd.who_makes_room(v4(newcomer), NOW), None);
        let early = NOW + (CHANCE - Duration::from_nanos(1));
        assert_eq!(crowd.who_makes_room(v4(newcomer), early), None);
        assert_eq!(crowd.who_makes_room(v4(newcomer), NOW + CHANCE), Some(goes), "{sources:?}");
    }
}

#[test]
fn of_those_on_their_way_out_the_source_that_has_most_goes_first() {
    let mut crowd = strangers(&[2, 1, 1, 1]);
    assert_eq!(crowd.who_lingers_longest(), None);
    (0..3).for_each(|number| crowd.lingers(number));
    assert_eq!((crowd.len(), crowd.open()), (4, 1));
    assert_eq!(crowd.who_lingers_longest(), Some(1));
    crowd.is_cut(1);
    crowd.is_cut(2);
    assert_eq!(crowd.who_lingers_longest(), Some(0));
    crowd.remove(0);
    assert_eq!((crowd.len(), crowd.open(), crowd.who_lingers_longest()), (3, 1, None));
}

/// As many connections to `volume` as it gets.
fn take_all(crowd: &mut Crowd, volume: Uuid, max: usize, tenant_of: &TenantOf) -> usize {
    let (first, mut taken) = (crowd.len() as u64, 0);
    let tenant = tenant_of(volume);
    while crowd.open() < max && crowd.has_place_for(volume, tenant, max) {
        crowd.add(first + taken, v4(1), NOW);
        crowd.let_in(first + taken, volume, tenant);
        taken += 1;
    }
    taken as usize
}

/// GUEST-3. Method: volumes, one after the other, take all places that they get.
#[test]
fn no_volume_takes_all_places_and_each_gets_those_of_a_controller() {
    for (max, expected) in
        [(1024, &[512, 256, 128, 65, 63][..]), (200, &[100, 65, 35]), (50, &[50])]
    {
        let mut crowd = Crowd::default();
        for (number, expected) in (0..).zip(expected) {
            let taken = take_all(&mut crowd, volume(number), max, &|_| None);
            assert_eq!(taken, *expected, "volume {number} of {max}");
        }
        crowd.lingers(0);
        assert!(
            crowd.has_place_for(volume(9), None, max),
            "a connection that ends leaves its place"
        );
    }
}

/// GUEST-1 and GUEST-2. Method: one tenant's volumes, one after the other, take all places that they get, then others'
/// do. Each row has the number of places, those that the volumes of the first tenant get, those of a volume
/// of a second tenant, and those of a volume without a tenant.
#[test]
fn no_tenant_takes_all_places_however_many_volumes_it_has() {
    let tenant_of = |volume: Uuid| match volume.as_u128() {
        0..100 => Some("greedy"),
        100..200 => Some("other"),
        _ => None,
    };
    for (max, greedy, other, nobodys) in [
        (2048, &[683, 228, 76, 37, 0, 0][..], 342, 341),
        (1024, &[342, 114, 56, 0], 171, 171),
        (256, &[86, 42, 0], 65, 63),
        (100, &[65, 0], 35, 0),
    ] {
        let mut crowd = Crowd::default();
        let mut take = |number| take_all(&mut crowd, volume(number), max, &tenant_of);
        let taken: Vec<usize> = (0..greedy.len() as u64).map(&mut take).collect();
        assert_eq!(taken, greedy, "of {max}");
        assert_eq!((take(100), take(200)), (other, nobodys), "of {max}");
    }
}

/// Method: a tenant has its share; all of one of its volumes leave, and the others get their places.
#[test]
fn a_host_that_leaves_leaves_a_place_to_its_tenant() {
    let (max, tenant_of) = (400, |_: Uuid| Some("one"));
    let mut crowd = Crowd::default();
    let take = |crowd: &mut Crowd, number| take_all(crowd, volume(number), max, &tenant_of);
    let taken: usize = (0..4).map(|number| take(&mut crowd, number)).sum();
    assert_eq!(taken, 200);
    let of_first = crowd.count_of(volume(0));
    (0..of_first as u64).for_each(|number| crowd.is_cut(number));
    assert_eq!(crowd.count_of(volume(0)), 0);
    let more: usize = (1..5).map(|number| take(&mut crowd, number)).sum();
    assert_eq!(more, of_first);
}

type TenantOf = dyn Fn(Uuid) -> Option<&'static str>;

/// The same, by looking at all of them.
#[derive(Default)]
struct Model {
    all: Vec<(u64, IpAddr, Instant, Stage)>,
}

impl Model {
    fn set(&mut self, number: u64, to: Stage) {
        let is_it = |member: &&mut (u64, IpAddr, Instant, Stage)| member.0 == number;
        if let Some(member) = self.all.iter_mut().find(is_it)
            && member.3 != Stage::Cut
        {
            member.3 = to;
        }
    }

    fn let_in(&mut self, number: u64, volume: Uuid) {
        if self.at(Stage::Stranger).any(|member| member.0 == number) {
            self.set(number, Stage::LetIn(volume));
        }
    }

    fn at(&self, stage: Stage) -> impl Iterator<Item = &(u64, IpAddr, Instant, Stage)> {
        self.all.iter().filter(move |member| member.3 == stage)
    }

    fn count(&self, stage: Stage, source: IpAddr) -> usize {
        self.at(stage).filter(|member| member.1 == source).count()
    }

    /// The oldest of the source that has most at `stage`, and how many these are.
    fn crowd(&self, stage: Stage) -> Option<(u64, usize)> {
        let counted = self.at(stage).map(|member| (self.count(stage, member.1), member.1));
        let (most, crowd) = counted.max()?;
        self.at(stage).find(|member| member.1 == crowd).map(|member| (member.0, most))
    }

    fn who_makes_room(&self, newcomer: IpAddr, now: Instant) -> Option<u64> {
        let (oldest, most) = self.crowd(Stage::Stranger)?;
        let own = self.count(Stage::Stranger, newcomer);
        if own + 1 < most {
            return Some(oldest);
        }
        let is_equal = |member: &&(u64, IpAddr, Instant, Stage)| own == 0 || member.1 == newcomer;
        let (number, _, since, _) = self.at(Stage::Stranger).find(is_equal)?;
        (now.since(*since) >= CHANCE).then_some(*number)
    }
}

/// Method: hundreds of connections of few sources come, are let in, ended, cut, and go, by chance; behind each step all
/// answers are those of the model.
#[test]
fn answers_are_those_of_a_plain_model() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let (mut crowd, mut model) = (Crowd::default(), Model::default());
        let (mut now, sources) = (NOW, rng.between(1, 12));
        for next in 0..500_u64 {
            now = now + Duration::from_millis(rng.below(40));
            let number = rng.between(next.saturating_sub(60), next);
            match rng.below(8) {
                0..=3 => {
                    let source = v4(rng.below(sources));
                    crowd.add(next, source, now);
                    model.all.push((next, source, now, Stage::Stranger));
                }
                4 => {
                    let volume = volume(rng.below(3));
                    crowd.let_in(number, volume, None);
                    model.let_in(number, volume);
                }
                5 => {
                    crowd.lingers(number);
                    model.set(number, Stage::Lingering);
                }
                6 => {
                    crowd.is_cut(number);
                    model.set(number, Stage::Cut);
                }
                _ => {
                    crowd.remove(number);
                    model.all.retain(|member| member.0 != number);
                }
            }
            let ended = model.at(Stage::Lingering).count() + model.at(Stage::Cut).count();
            assert_eq!((crowd.len(), crowd.open()), (model.all.len(), model.all.len() - ended));
            let volume = volume(rng.below(4));
            let let_in = model.at(Stage::LetIn(volume)).count();
            assert_eq!(crowd.count_of(volume), let_in, "seed {seed}, step {next}");
            let newcomer = v4(rng.below(sources + 1));
            let expected = model.who_makes_room(newcomer, now);
            assert_eq!(crowd.who_makes_room(newcomer, now), expected, "seed {seed}, step {next}");
            let expected = model.crowd(Stage::Lingering).map(|(number, _)| number);
            assert_eq!(crowd.who_lingers_longest(), expected, "seed {seed}, step {next}");
        }
        let left: Vec<u64> = model.all.iter().map(|member| member.0).collect();
        left.into_iter().for_each(|number| crowd.remove(number));
        assert!(crowd.members.is_empty() && crowd.strangers.numbers.is_empty());
        assert!(crowd.guests.is_empty());
        assert!(crowd.strangers.ranks.is_empty() && crowd.lingering.ranks.is_empty());
        assert!(crowd.by_age.is_empty() && crowd.lingering.numbers.is_empty());
    }
}

/// All of an IPv6 network are one source (`strangers::source`).
#[test]
fn addresses_of_one_network_are_one_crowd() {
    use strangers::source;
    let host = |n: u128| source(IpAddr::V6(Ipv6Addr::from_bits((7 << 64) | n)));
    let mut crowd = Crowd::default();
    for number in 0..100 {
        crowd.add(number, host(number.into()), NOW);
    }
    assert_eq!(crowd.who_makes_room(host(1000), NOW), None);
    assert_eq!(crowd.who_makes_room(v4(1), NOW), Some(0));
}
