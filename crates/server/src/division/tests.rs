//! Divisions between cores that go on writing, step by step, in every order that a seed finds.

use std::panic::catch_unwind;

use typed_index_collections::TiVec;
use units::CoreIndex;

use super::*;

/// A core that acts as `volume::Allowance` and `dataplane::Allotment` do.
#[derive(Clone, Debug)]
struct Part {
    /// Blocks in the maps.
    held: u64,
    /// Writes that are not answered, and whether they are in the map.
    under_way: Vec<(u64, bool)>,
    limit: u64,
    /// Blocks that further writes may add before the core is asked again.
    left: u64,
}

/// A division as it was begun.
#[derive(Clone)]
struct Begun {
    number: u64,
    /// By tenant.
    bounds: Vec<u64>,
    /// Blocks that had come with devices by then.
    came: Vec<u64>,
}

/// An order on its way.
struct Sent {
    by: Begun,
    order: Order,
}

#[derive(Default)]
struct Core {
    /// By tenant.
    parts: Vec<Part>,
    /// Orders in the order of their coming.
    mailbox: VecDeque<Sent>,
}

struct World {
    seed: u64,
    cores: TiVec<CoreIndex, Core>,
    bounds: Vec<u64>,
    /// One at a time.
    division: Option<(Begun, Division)>,
    /// True if it has an order on its way.
    waits: bool,
    /// Answers on their way.
    answers: Vec<(u64, CoreIndex, Vec<Allotment>)>,
    count: u64,
    /// By tenant: blocks that came with devices, which is a fact and no division's doing.
    came: Vec<u64>,
    seen: Seen,
}

/// Counts of events, so that a test can check that it tests something.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    divided: u64,
    abandoned: u64,
    /// Cores found to hold more than they were to be lowered to.
    wrote_on: u64,
    refused: u64,
}

impl Part {
    fn new() -> Self {
        Self { held: 0, under_way: Vec::new(), limit: u64::MAX, left: u64::MAX }
    }

    /// As the core counts: a write that is in the map and not answered counts twice.
    fn used(&self) -> u64 {
        self.held + self.under_way.iter().map(|(blocks, _)| blocks).sum::<u64>()
    }

    /// The most that it may come to hold before it is told another limit: what was given back is counted again when it
    /// is asked.
    fn may_hold(&self) -> u128 {
        let adds = self.under_way.iter().filter(|(_, in_map)| !in_map).map(|(blocks, _)| blocks);
        let will_hold = self.held + adds.sum::<u64>();
        u128::from(self.limit).max(u128::from(will_hold) + u128::from(self.left))
    }

    fn write(&mut self, blocks: u64) -> bool {
        let Some(left) = self.left.checked_sub(blocks) else { return false };
        self.left = left;
        self.under_way.push((blocks, false));
        true
    }

    fn allot(&mut self, limit: u64) -> Allotment {
        self.limit = limit;
        self.left = limit.saturating_sub(self.used());
        Allotment { used: self.used(), limit: limit.max(self.used()) }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            seed,
            cores: TiVec::new(),
            bounds: Vec::new(),
            division: None,
            waits: false,
            answers: Vec::new(),
            count: 0,
            came: Vec::new(),
            seen: Seen::default(),
        };
        world.cores = (0..1 + world.draw(4)).map(|_| Core::default()).collect();
        for _ in 0..1 + world.draw(2) {
            world.add_tenant();
        }
        world
    }

    /// SplitMix64.
    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    }

    /// Bounds one tenant more. Cores know it first, and no division is under way then.
    fn add_tenant(&mut self) {
        if self.division.is_none() && self.bounds.len() < 3 {
            let bound = self.draw(400);
            self.bounds.push(bound);
            self.came.push(0);
            self.cores.iter_mut().for_each(|core| core.parts.push(Part::new()));
        }
    }

    fn may_hold(&self) -> Vec<u128> {
        let of = |tenant: usize| self.cores.iter().map(|core| core.parts[tenant].may_hold()).sum();
        (0..self.bounds.len()).map(of).collect()
    }

    /// A write begins, gets into the map, is answered, or fails; blocks are given back, or come with a device.
    fn write(&mut self) {
        let (core, tenant) =
            (self.draw(self.cores.len() as u64), self.draw(self.came.len() as u64));
        let (what, blocks) = (self.draw(20), 1 + self.draw(60));
        let part = &mut self.cores[CoreIndex(core as usize)].parts[tenant as usize];
        let nth = blocks as usize % part.under_way.len().max(1);
        match what {
            0..5 => self.seen.refused += u64::from(!part.write(blocks)),
            // All that it may.
            5..9 if part.left < 1_000 => drop(part.write(part.left)),
            9..12 => {
                if let Some((blocks, in_map @ false)) = part.under_way.get_mut(nth) {
                    *in_map = true;
                    part.held += *blocks;
                }
            }
            // Answered: with an error, if it is not in the map.
            12..16 if !part.under_way.is_empty() => drop(part.under_way.remove(nth)),
            16..19 => part.held -= blocks.min(part.held),
            19 if blocks < 8 => {
                part.held += blocks;
                self.came[tenant as usize] += blocks;
            }
            _ => {}
        }
    }

    fn divide(&mut self) {
        if self.division.is_none() {
            self.count += 1;
            let (number, bounds, came) = (self.count, self.bounds.clone(), self.came.clone());
            let division = Division::new(bounds.clone(), self.cores.len());
            self.division = Some((Begun { number, bounds, came }, division));
            self.waits = false;
        }
        if self.waits {
            return;
        }
        let (by, division) = self.division.as_mut().expect("begun");
        match division.next() {
            Some(order) => {
                self.cores[order.core].mailbox.push_back(Sent { by: by.clone(), order });
                self.waits = true;
            }
            None => self.finish(),
        }
    }

    /// The most that may be held behind a division that was begun so.
    fn most(&self, begun: &Begun, tenant: usize, blocks: u64) -> u128 {
        u128::from(blocks) + u128::from(self.came[tenant] - begun.came[tenant])
    }

    fn finish(&mut self) {
        let (begun, division) = self.division.take().expect("under way");
        self.seen.divided += 1;
        let may_hold = self.may_hold();
        for (tenant, divided) in division.outcome().iter().enumerate() {
            let most = self.most(&begun, tenant, divided.given);
            assert!(may_hold[tenant] <= most, "{may_hold:?} and not what was given: {divided:?}");
            assert_eq!(divided.left, begun.bounds[tenant].saturating_sub(divided.used));
        }
    }

    /// A core takes the next order out of its mailbox.
    fn obey(&mut self) {
        let at = CoreIndex(self.draw(self.cores.len() as u64) as usize);
        let Some(Sent { by, order }) = self.cores[at].mailbox.pop_front() else { return };
        let before = self.may_hold();
        let parts = self.cores[at].parts.iter_mut().enumerate().map(|(tenant, part)| {
            let limit = order.limits.iter().find(|(other, _)| *other == tenant);
            let wrote_on = limit.is_some_and(|(_, limit)| *limit < part.used());
            self.seen.wrote_on += u64::from(wrote_on);
            part.allot(limit.map_or(part.limit, |(_, limit)| *limit))
        });
        let parts = parts.collect();
        self.answers.push((by.number, at, parts));
        for (tenant, (after, before)) in self.may_hold().into_iter().zip(before).enumerate() {
            let bound = by.bounds.get(tenant).map_or(0, |bound| self.most(&by, tenant, *bound));
            assert!(
                after <= before.max(bound),
                "tenant {tenant} may hold {after} of {bound}, TENANT-ALLOWANCE-1"
            );
        }
    }

    /// An answer arrives. One to a division that was abandoned is heard by nothing.
    fn hear(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let nth = self.draw(self.answers.len() as u64) as usize;
        let (number, core, parts) = self.answers.remove(nth);
        if let Some((begun, division)) = &mut self.division
            && begun.number == number
        {
            division.answered(core, parts);
            self.waits = false;
        }
    }

    fn step(&mut self) {
        match self.draw(100) {
            0..60 => self.write(),
            60..75 => self.obey(),
            75..85 => self.hear(),
            85..96 => self.divide(),
            // The task that divided is gone. Messages that were sent still come.
            96 if self.division.take().is_some() => self.seen.abandoned += 1,
            // A core ends before it takes its order: the server ends, and this division.
            97 => {
                let at = CoreIndex(self.draw(self.cores.len() as u64) as usize);
                let lost = self.cores[at].mailbox.pop_back();
                let is_of = |lost: Sent, begun: &Begun| lost.by.number == begun.number;
                if let (Some(lost), Some((begun, _))) = (lost, &self.division)
                    && is_of(lost, begun)
                {
                    self.division = None;
                }
            }
            98 => {
                let tenant = self.draw(self.bounds.len() as u64) as usize;
                self.bounds[tenant] = self.draw(400);
            }
            _ => self.add_tenant(),
        }
    }

    /// Divides while nothing else happens.
    fn settle(&mut self) {
        self.division = None;
        for core in &mut self.cores {
            core.mailbox.clear();
            for part in &mut core.parts {
                let landed = |(blocks, in_map): (u64, bool)| if in_map { 0 } else { blocks };
                part.held += part.under_way.drain(..).map(landed).sum::<u64>();
            }
        }
        self.answers.clear();
        // The first counts what was given back, the second divides it.
        for _ in 0..2 {
            self.divide();
            while self.division.is_some() {
                (0..self.cores.len() * 40).for_each(|_| self.obey());
                self.hear();
                self.divide();
            }
        }
    }

    /// TENANT-ALLOWANCE-2: each core may add an equal part, and all together the whole bound.
    fn check_settled(&self) {
        for (tenant, bound) in self.bounds.iter().enumerate() {
            let left = self.cores.iter().map(|core| core.parts[tenant].left);
            let used: u64 = self.cores.iter().map(|core| core.parts[tenant].held).sum();
            assert_eq!(left.clone().sum::<u64>(), bound.saturating_sub(used), "all of {bound}");
            let (least, most) = (left.clone().min(), left.max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "equal parts");
        }
    }
}

fn run(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for _ in 0..3 {
        (0..400).for_each(|_| world.step());
        world.settle();
        world.check_settled();
    }
    world.seen
}

const SEEDS: u64 = 1_000;

/// TENANT-ALLOWANCE-1. At no moment may cores come to hold more than they could before, unless that is within the
/// bound: whatever they write between question and order, however late they answer, and also if a division ends on its
/// way.
#[test]
fn cores_never_may_hold_more_than_the_bound() {
    let mut sum = Seen::default();
    for seed in 0..SEEDS {
        let seen = catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("seed {seed}"));
        sum.divided += seen.divided;
        sum.abandoned += seen.abandoned;
        sum.wrote_on += seen.wrote_on;
        sum.refused += seen.refused;
    }
    let Seen { divided, abandoned, wrote_on, refused } = sum;
    assert!(divided > SEEDS && abandoned > SEEDS, "{sum:?}");
    assert!(wrote_on > SEEDS / 10 && refused > SEEDS, "{sum:?}");
}

/// Each is caught by the seeds of the test above.
#[test]
fn broken_divisions_are_noticed() {
    for mutant in Sabotage::ALL {
        sabotage(Some(mutant));
        let caught = (0..SEEDS).find(|seed| catch_unwind(|| run(*seed)).is_err());
        sabotage(None);
        println!("{mutant:?}: seed {caught:?}");
        assert!(caught.is_some(), "nothing notices {mutant:?}");
    }
}

#[test]
fn shares_add_up_to_the_bound() {
    let used = [7, 0, 3];
    for left in [0, 1, 2, 3, 100] {
        let shares: Vec<u64> = shares(&used, left).collect();
        assert_eq!(shares.iter().sum::<u64>(), 10 + left);
        assert!(shares.iter().zip(&used).all(|(share, used)| share >= used));
    }
}
