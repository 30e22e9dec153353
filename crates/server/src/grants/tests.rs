//! Hosts that divide a quota, step by step, in every order that a seed finds.

use dataplane::Allotment;
use typed_index_collections::TiVec;
use units::CoreIndex;

use super::*;
use crate::division::{Division, Order};

/// A host: what it knows and what its cores hold. Its steps are those of `granting.rs`, torn apart where others
/// may come between or it may end.
struct Host {
    id: Uuid,
    session: u128,
    bound: u64,
    /// By core: what it holds, and may.
    cores: TiVec<CoreIndex, (u64, u64)>,
    /// The blocks that they held when it last divided.
    counted: u64,
    /// The record as it saw it last.
    seen: (u64, GrantsRecord),
    /// Changes that are on their way, whose answers may be waited for: the revision, the record, the grant.
    sent: Vec<(u64, GrantsRecord)>,
    lives: bool,
}

struct World {
    quota: u64,
    revision: u64,
    record: GrantsRecord,
    hosts: Vec<Host>,
    seed: u64,
}

impl Host {
    fn used(&self) -> u64 {
        self.cores.iter().map(|(used, _)| used).sum()
    }

    fn limits(&self) -> u64 {
        self.cores.iter().map(|(_, limit)| limit).sum()
    }

    /// Divides the bound at one moment. What comes between the steps of it, `division/tests.rs` has.
    fn divide(&mut self) {
        let mut division = Division::new(vec![self.bound], self.cores.len());
        while let Some(Order { core, limits }) = division.next() {
            let (used, limit) = &mut self.cores[core];
            *limit = limits.first().map_or(*limit, |(_, limit)| *limit);
            let part = Allotment { used: *used, limit: (*limit).max(*used) };
            division.answered(core, vec![part]);
        }
        self.counted = self.used();
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            quota: 0,
            revision: 0,
            record: GrantsRecord::default(),
            hosts: Vec::new(),
            seed: seed | 1,
        };
        world.quota = 1 + world.draw(5_000);
        for id in 0..1 + world.draw(4) {
            let cores = vec![(0, 0); 1 + id as usize % 3].into();
            world.hosts.push(Host {
                id: Uuid::from_u128(id.into()),
                session: 0,
                bound: 0,
                cores,
                counted: 0,
                seen: Default::default(),
                sent: Vec::new(),
                lives: true,
            });
        }
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % below
    }

    fn own(&self, at: usize, is_idle: bool) -> Own {
        let host = &self.hosts[at];
        let shorts =
            host.seen.1.hosts.iter().filter(|(id, grant)| **id != host.id && grant.is_short);
        let session = Uuid::from_u128(host.session);
        Own {
            host: host.id,
            session,
            quota: self.quota,
            bound: host.bound,
            used: host.counted,
            is_idle,
            other_is_short: shorts.count() > 0,
        }
    }

    /// A host looks at what it saw last and sends what it wants, if it wants anything.
    fn ask(&mut self, at: usize, is_idle: bool) {
        let mut wish = self.own(at, is_idle).wish(&self.hosts[at].seen.1);
        let host = &mut self.hosts[at];
        if wish.blocks < host.bound {
            host.bound = wish.blocks;
            host.divide();
            host.bound = host.bound.max(host.limits());
            wish.blocks = host.bound;
        }
        let after = with(&host.seen.1, (host.id, wish));
        if after != host.seen.1 || wish.blocks != host.bound {
            host.sent.push((host.seen.0, after));
        }
    }

    /// One of the changes on their way arrives, and is answered or not.
    fn arrive(&mut self, at: usize, is_answered: bool) {
        if self.hosts[at].sent.is_empty() {
            return;
        }
        let number = self.draw(self.hosts[at].sent.len() as u64) as usize;
        let (revision, after) = self.hosts[at].sent.remove(number);
        if revision != self.revision {
            return;
        }
        self.revision += 1;
        self.record = after;
        let host = &mut self.hosts[at];
        let grant = self.record.hosts[&host.id];
        // A host that has asked again meanwhile no longer waits for an answer.
        let is_heard = is_answered && host.sent.is_empty() && host.lives;
        if is_heard && grant.session == Uuid::from_u128(host.session) {
            host.bound = host.bound.max(grant.blocks);
            host.divide();
        }
    }

    fn step(&mut self) {
        let at = self.draw(self.hosts.len() as u64) as usize;
        let (what, number) = (self.draw(100), self.draw(self.quota + 1));
        let host = &mut self.hosts[at];
        let core = CoreIndex(number as usize % host.cores.len());
        match what {
            0..30 if host.lives => {
                let (used, limit) = &mut host.cores[core];
                *used += (number % 64).min(*limit - *used);
            }
            30..40 if host.lives => host.cores[core].0 -= number.min(host.cores[core].0),
            40..50 => host.seen = (self.revision, self.record.clone()),
            50..55 if host.lives => host.divide(),
            55..80 if host.lives => self.ask(at, number % 4 == 0),
            80..95 => self.arrive(at, number % 4 != 0),
            95..97 => host.lives = false,
            // Back, with what its volumes hold, and no memory but that.
            97..100 if !host.lives => {
                host.lives = true;
                host.session += 1;
                host.bound = host.used();
                host.divide();
            }
            _ => {}
        }
    }

    fn granted(&self) -> u64 {
        self.record.hosts.values().map(|grant| grant.blocks).sum()
    }

    fn check(&self, what: &str) {
        assert!(self.granted() <= self.quota, "{what}: GRANT-1");
        for host in &self.hosts {
            let grant = self.record.hosts.get(&host.id).map_or(0, |grant| grant.blocks);
            assert!(host.bound <= grant && host.limits() <= host.bound, "{what}: GRANT-2");
        }
    }

    /// All hosts look and are answered, one by one.
    fn settle(&mut self, is_idle: bool) {
        for at in 0..self.hosts.len() {
            self.hosts[at].sent.clear();
            self.hosts[at].seen = (self.revision, self.record.clone());
            self.hosts[at].divide();
            self.ask(at, is_idle);
            self.arrive(at, true);
        }
    }

    /// Writes on one host until it is refused for several rounds; what all hold then.
    fn fill(&mut self, at: usize) -> u64 {
        for _ in 0..200 {
            self.settle(false);
            self.hosts[at].cores.iter_mut().for_each(|(used, limit)| *used = *limit);
        }
        self.hosts.iter().map(Host::used).sum()
    }
}

/// GRANT-1 and GRANT-2, whatever comes between: stale views, answers that come late or never, hosts that end at
/// any point.
#[test]
fn what_hosts_may_hold_is_within_the_quota_at_each_step() {
    for seed in 0..400 {
        let mut world = World::new(seed * 7_919);
        for step in 0..2_000 {
            world.step();
            world.check(&format!("seed {seed} step {step}"));
        }
    }
}

/// After any such history, one host alone can use what the others do not.
#[test]
fn what_one_host_does_not_use_another_gets() {
    for seed in 0..100 {
        let mut world = World::new(seed * 104_729);
        world.quota = world.quota.max(64);
        (0..500).for_each(|_| world.step());
        for host in &mut world.hosts {
            if !host.lives {
                (host.lives, host.bound) = (true, host.used());
                host.session += 1;
                host.divide();
            }
        }
        let last = world.hosts.len() - 1;
        for at in [0, last] {
            let used = world.fill(at);
            assert!(used * 100 >= world.quota * 90, "seed {seed}: {used} of {}", world.quota);
            world.check(&format!("seed {seed}"));
            // Another gets what is given back.
            world.hosts[at].cores.iter_mut().for_each(|(used, _)| *used /= 4);
        }
    }
}

/// When nothing is written, nothing is asked for, after a while.
#[test]
fn idle_hosts_come_to_rest() {
    for seed in 0..100 {
        let mut world = World::new(seed * 1_299_709);
        (0..500).for_each(|_| world.step());
        world.hosts.iter_mut().for_each(|host| {
            (host.lives, host.bound, host.session) = (true, host.used(), host.session + 1);
            host.divide();
        });
        (0..100).for_each(|_| world.settle(true));
        let before = world.revision;
        world.settle(true);
        assert_eq!(world.revision, before, "seed {seed}: {:?}", world.record);
    }
}

/// GRANT-3: a process goes on with what its host was granted, also beyond what its volumes hold.
#[test]
fn a_host_that_is_back_has_its_grant() {
    let host = Uuid::from_u128(1);
    let record =
        GrantsRecord { hosts: [(host, grant(80, 1)), (Uuid::from_u128(2), grant(20, 9))].into() };
    let back = Own {
        host,
        session: Uuid::from_u128(3),
        quota: 100,
        bound: 30,
        used: 30,
        is_idle: false,
        other_is_short: false,
    };
    assert_eq!(back.wish(&record), grant(80, 3));
}

fn grant(blocks: u64, session: u128) -> GrantRecord {
    GrantRecord { blocks, session: Uuid::from_u128(session), is_short: false }
}

/// Volumes that came with a device count, also beyond the quota: no host adds anything then, and a host that
/// has something left gives it.
#[test]
fn volumes_that_came_count_even_beyond_the_quota() {
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let record = GrantsRecord { hosts: [(a, grant(80, 1))].into() };
    let came = Own {
        host: b,
        session: b,
        quota: 100,
        bound: 60,
        used: 60,
        is_idle: false,
        other_is_short: false,
    };
    let wish = came.wish(&record);
    assert_eq!((wish.blocks, wish.is_short), (60, true));
    let record = with(&record, (b, wish));
    let has_left = Own { host: a, session: a, bound: 80, used: 50, other_is_short: true, ..came };
    assert_eq!(has_left.wish(&record).blocks, 50);
    // GRANT-4: what the gone host had is free again.
    let record = without(&record, &[a]);
    assert_eq!(came.wish(&record).blocks, 80);
}
