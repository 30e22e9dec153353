//! Hosts that stay at the discovery service while volumes come, go, move and are restricted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use access::Restrictions;
use io_traits::{Network, Spawn};
use nvme_frontend::{DiscoveryRecord, NvmeOptions, nqn_of};
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::discovery::{DiscoveryLogEntry, SUBTYPE_CURRENT_DISCOVERY, TREQ_DISABLE_SQ_FLOW};
use nvme_wire::fabrics::{CONNECT_DATA_LEN, Connect, ConnectData};
use nvme_wire::feature::{Fid, SetFeatures};
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::{AdminOpcode, Cqe, HostId, Nqn, SglDescriptor, Sqe};
use sim::SimWorld;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::support::raw_host::{
    C2H_DATA, CAPSULE_RESP, RawHost, capsule, enable_command, greeting,
};
use crate::support::{SimCore, formatted, portal, serve_with, simulate};

/// Asynchronous Event Requests that a host has under way.
const AERS: u16 = 3;
/// Identifiers of such commands have this bit.
const IS_AER: u16 = 1 << 14;
/// Length of the log's header, and of each entry.
const RECORD_LEN: u64 = 1024;
const VOLUMES: u64 = 5;
const ROUNDS: usize = 60;

type List = BTreeMap<Nqn, SocketAddr>;

/// The same portal in another network.
fn other_portal() -> SocketAddr {
    "192.168.0.1:4420".parse().expect("an address")
}

fn name(number: u8) -> Nqn {
    Nqn::from_uuid(&[number; 16])
}

/// Draws the record to which a volume is changed. Its portal is here, in both networks or in one, or at
/// another server.
fn draw_record(world: &SimWorld) -> DiscoveryRecord {
    let [uuid, place, who] = [VOLUMES, 3, 5].map(|bound| world.draw(|rng| rng.below(bound)));
    let elsewhere = "10.9.0.1:4420".parse().expect("an address");
    let addresses = match place {
        0 => vec![portal(), other_portal()],
        1 => vec![portal()],
        _ => vec![elsewhere],
    };
    let mut restrictions = Restrictions::default();
    match who {
        0 => restrictions.hosts.push(name(1).into()),
        1 => restrictions.hosts.extend([name(1).into(), name(2).into()]),
        2 => restrictions.networks.push("192.0.2.0/24".parse().expect("a network")),
        3 => restrictions.networks.push("192.168.0.0/16".parse().expect("a network")),
        _ => {}
    }
    DiscoveryRecord { uuid: Uuid::from_u128(uuid.into()), addresses, restrictions }
}

/// A host at the discovery service, and what it is to be told there.
struct Watcher {
    raw: RawHost,
    name: Nqn,
    asks_at: SocketAddr,
    next_cid: u16,
    waiting: u16,
    heard: u32,
    due: u32,
    list: List,
    /// That of its list, if it has read it.
    generation: Option<u64>,
    /// Those of all lists that it has read.
    generations: BTreeSet<u64>,
    is_unknown: bool,
    is_masked: bool,
}

impl Watcher {
    async fn new(world: &SimWorld, name: Nqn, asks_at: SocketAddr) -> Self {
        let mut raw = RawHost::over(world.connect(asks_at).await.expect("someone listens"));
        raw.send(&greeting()).await.expect("sent");
        raw.receive(128).await.expect("a greeting");
        let mut watcher = Self {
            raw,
            name,
            asks_at,
            next_cid: 0,
            waiting: 0,
            heard: 0,
            due: 0,
            list: List::new(),
            generation: None,
            generations: BTreeSet::new(),
            is_unknown: false,
            is_masked: false,
        };
        let mut connect = Sqe::from(Connect::new(0, 32, 0));
        connect.dptr = SglDescriptor::in_capsule(CONNECT_DATA_LEN);
        let data = ConnectData::new(HostId([9; 16]), &name, &Nqn::DISCOVERY, 0xFFFF);
        watcher.command(connect, data.as_bytes()).await;
        watcher.command(enable_command(), &[]).await;
        let (fid, value) = (Fid::ASYNC_EVENT_CONFIG, 1 << 31);
        let config = SetFeatures { fid, save: false, value, nsid: 0 };
        watcher.command(config.encode(), &[]).await;
        // From now on it waits for events.
        assert!(watcher.heard_all().await);
        watcher
    }

    /// Has a command carried out: its data. Events that come meanwhile are counted.
    async fn command(&mut self, sqe: Sqe, data: &[u8]) -> Vec<u8> {
        self.next_cid += 1;
        self.raw.send(&capsule(self.next_cid, sqe, data)).await.expect("sent");
        let mut returned = Vec::new();
        loop {
            let head = self.raw.receive(8).await.expect("an answer");
            let len = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
            let rest = self.raw.receive(len - 8).await.expect("the rest of it");
            match head[0] {
                C2H_DATA => returned.extend_from_slice(&rest[usize::from(head[3]) - 8..]),
                other => {
                    assert_eq!(other, CAPSULE_RESP);
                    let cqe = Cqe::read_from_bytes(&rest).expect("16 bytes");
                    assert!(cqe.status().is_success(), "{}", cqe.status());
                    if cqe.cid.get() == self.next_cid {
                        return returned;
                    }
                    assert_ne!(cqe.cid.get() & IS_AER, 0);
                    assert_eq!(cqe.dw0(), AsyncEvent::DISCOVERY_CHANGED.encode());
                    self.waiting -= 1;
                    self.heard += 1;
                }
            }
        }
    }

    /// Returns true if it has heard of each change that it sees, and of no other.
    async fn heard_all(&mut self) -> bool {
        while self.waiting < AERS {
            self.next_cid += 1;
            let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
            let request = capsule(self.next_cid | IS_AER, request, &[]);
            self.raw.send(&request).await.expect("sent");
            self.waiting += 1;
        }
        self.command(Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), &[]).await;
        std::mem::take(&mut self.heard) == std::mem::take(&mut self.due)
    }

    /// Reads a piece of its log.
    async fn read(&mut self, offset: u64, len_bytes: u64, rae: bool) -> Vec<u8> {
        let get = GetLogPage { rae, ..GetLogPage::new(Lid::DISCOVERY, 0, offset, len_bytes) };
        let bytes = self.command(get.encode(), &[]).await;
        assert_eq!(bytes.len() as u64, len_bytes);
        self.is_unknown &= offset > 0;
        if !rae {
            self.is_masked = false;
            if self.is_unknown {
                self.is_due();
            }
        }
        bytes
    }

    /// It has read the generation of its list, which is another than those of all lists before.
    fn look_at(&mut self, generation: u64) {
        let is_new = self.generations.insert(generation);
        assert_eq!(self.generation.is_none(), is_new, "{:?}, {generation}", self.generation);
        assert_eq!(*self.generation.get_or_insert(generation), generation);
    }

    fn is_due(&mut self) {
        (self.is_masked, self.is_unknown) = (true, false);
        self.due += 1;
    }

    /// The generation counter, and how many entries there are.
    async fn header(&mut self, rae: bool) -> (u64, u64) {
        let bytes = self.read(0, 16, rae).await;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (word(0), word(8))
    }

    /// Returns the volumes that it sees. Its own address counts as it comes by: the simulated host has that
    /// of the portal.
    fn sees(&self, volumes: &BTreeMap<Uuid, DiscoveryRecord>) -> List {
        let is_admitted = |allowed: &Restrictions| {
            (allowed.hosts.is_empty() || allowed.hosts.contains(&self.name.into()))
                && (allowed.networks.is_empty()
                    || allowed.networks.iter().any(|network| network.contains(self.asks_at.ip())))
        };
        let seen = volumes.values().filter(|record| is_admitted(&record.restrictions));
        let nearest = |record: &DiscoveryRecord| {
            let is_here = record.addresses.contains(&self.asks_at);
            if is_here { self.asks_at } else { record.addresses[0] }
        };
        seen.map(|record| (nqn_of(record.uuid), nearest(record))).collect()
    }

    /// The volumes are these now.
    fn note(&mut self, volumes: &BTreeMap<Uuid, DiscoveryRecord>) {
        let list = self.sees(volumes);
        if list == self.list {
            return;
        }
        self.list = list;
        self.generation = None;
        match self.is_masked {
            true => self.is_unknown = true,
            false => self.is_due(),
        }
    }
}

struct Scene {
    world: SimWorld,
    core: SimCore,
    volumes: BTreeMap<Uuid, DiscoveryRecord>,
    watchers: Vec<Watcher>,
    /// The logs that were read under each generation, by any host.
    logs: BTreeMap<u64, (SocketAddr, List)>,
}

impl Scene {
    async fn new(world: SimWorld) -> Self {
        let device = formatted(world.clone()).await;
        let options =
            NvmeOptions { portal_also: vec![other_portal().ip()], ..NvmeOptions::new(portal()) };
        let core = serve_with(world.clone(), device, options).await;
        let (serving, listener) = (core.clone(), world.listen(other_portal()).expect("free"));
        world.spawn(async move { serving.serve(listener).await });
        let mut watchers = Vec::new();
        for (number, asks_at) in
            [(1, portal()), (1, other_portal()), (2, portal()), (3, other_portal())]
        {
            watchers.push(Watcher::new(&world, name(number), asks_at).await);
        }
        Self { world, core, volumes: BTreeMap::new(), watchers, logs: BTreeMap::new() }
    }

    /// Something becomes of a volume; often nothing that all can see, or nothing at all.
    fn change(&mut self) {
        let record = draw_record(&self.world);
        if self.world.draw(|rng| rng.one_in(4)) {
            self.core.withdraw(record.uuid);
            self.volumes.remove(&record.uuid);
        } else {
            self.core.announce(record.clone());
            self.volumes.insert(record.uuid, record);
        }
        self.watchers.iter_mut().for_each(|watcher| watcher.note(&self.volumes));
    }

    /// Has one host read its log in pieces, while something may change.
    async fn read(&mut self, watcher: usize) {
        let (mut at, mut entries) = (RECORD_LEN, Vec::new());
        let [changes, rae, ends] = [2, 2, 2].map(|n| self.world.draw(|rng| rng.one_in(n)));
        let (generation, numrec) = self.watchers[watcher].header(true).await;
        let expected = self.watchers[watcher].list.clone();
        assert_eq!(numrec, 1 + expected.len() as u64);
        self.watchers[watcher].look_at(generation);
        let log = (self.watchers[watcher].asks_at, expected.clone());
        let before = self.logs.entry(generation).or_insert_with(|| log.clone());
        assert_eq!(*before, log, "two logs of one generation");
        if changes {
            self.change();
        }
        while at < (1 + numrec) * RECORD_LEN {
            let left = (1 + numrec) * RECORD_LEN - at;
            let len = left.min(4 * self.world.draw(|rng| rng.between(1, 600)));
            entries.extend(self.watchers[watcher].read(at, len, rae).await);
            at += len;
        }
        let watcher = &mut self.watchers[watcher];
        let (again, _) = watcher.header(!ends).await;
        watcher.look_at(again);
        assert_eq!(again == generation, watcher.list == expected, "a change can be told");
        if again == generation {
            let entries: Vec<_> = entries.chunks_exact(RECORD_LEN as usize).collect();
            let (own, volumes) = entries.split_first().expect("the service itself");
            let entry = |bytes: &[u8]| {
                let entry = DiscoveryLogEntry::read_from_bytes(bytes).expect("1024 bytes");
                (entry.subsystem().expect("a name"), entry.address().expect("an address"))
            };
            assert_eq!(entry(own), (Nqn::DISCOVERY, watcher.asks_at));
            assert_eq!(volumes.iter().map(|bytes| entry(bytes)).collect::<List>(), expected);
        }
    }
}

/// NVME-DISCOVERY-1 and NVME-DISCOVERY-3, and CONTROLLER-3: each host reads one state of its log, or can tell that it has not;
/// the counter changes with what this host sees, and an event is sent for each that the host has not read of, once until the
/// event is cleared. By none of these it can tell a volume that it may not open from one that is not there.
///
/// Method: volumes change by chance, and hosts in two networks read by chance, in pieces, with a change between two of them. A model says
/// what each is to hear.
#[test]
fn each_host_follows_its_own_log_whatever_becomes_of_volumes() {
    for seed in 0..30 {
        simulate(seed, |world| async move {
            let mut scene = Scene::new(world).await;
            for round in 0..ROUNDS {
                scene.change();
                for n in 0..scene.watchers.len() {
                    assert!(scene.watchers[n].heard_all().await, "round {round}, host {n}");
                    if scene.world.draw(|rng| rng.one_in(3)) {
                        scene.read(n).await;
                        assert!(scene.watchers[n].heard_all().await, "round {round}, host {n}");
                    }
                }
            }
        });
    }
}

/// Hosts look for the entry of the service that they are connected to, by address and port, and disconnect if there is none.
#[test]
fn the_entry_for_the_service_itself_names_the_port_that_was_asked() {
    simulate(60, |world| async move {
        let scene = Scene::new(world.clone()).await;
        let apart = SocketAddr::new(portal().ip(), 8009);
        let (serving, listener) = (scene.core.clone(), world.listen(apart).expect("free"));
        world.spawn(async move { serving.serve(listener).await });
        for asks_at in [portal(), other_portal(), apart] {
            let mut host = Watcher::new(&world, name(1), asks_at).await;
            let bytes = host.read(RECORD_LEN, RECORD_LEN, true).await;
            let own = DiscoveryLogEntry::read_from_bytes(&bytes).expect("1024 bytes");
            assert_eq!(own.subtype, SUBTYPE_CURRENT_DISCOVERY);
            assert_eq!(own.address(), Some(asks_at));
            assert_eq!(own.treq, TREQ_DISABLE_SQ_FLOW);
        }
    });
}

/// A host that has gone keeps no other from anything, and its view has no part in what others are told.
#[test]
fn volumes_change_while_hosts_come_and_go() {
    simulate(40, |world| async move {
        let mut scene = Scene::new(world).await;
        for round in 0..ROUNDS {
            let gone = scene.watchers.remove(0);
            scene.change();
            drop(gone);
            scene.change();
            let asks_at = if round.is_multiple_of(2) { portal() } else { other_portal() };
            let mut came = Watcher::new(&scene.world, name(1 + (round % 3) as u8), asks_at).await;
            came.list = came.sees(&scene.volumes);
            scene.watchers.push(came);
            scene.read(3).await;
            for watcher in &mut scene.watchers {
                assert!(watcher.heard_all().await, "round {round}");
            }
        }
    });
}

/// NVME-DISCOVERY-3: a host that comes again can tell by the generation alone whether its log is the one that it has read, and
/// cannot tell by it what becomes of volumes that it does not see.
///
/// Method: a host goes and comes, with each of a few changes between.
#[test]
fn a_host_that_comes_again_can_tell_whether_its_log_is_the_same() {
    simulate(50, |world| async move {
        let mut scene = Scene::new(world.clone()).await;
        let record = |uuid: u128, hosts: Vec<Nqn>| {
            let hosts = hosts.into_iter().map(Into::into).collect();
            let restrictions = Restrictions { hosts, ..Restrictions::default() };
            DiscoveryRecord { uuid: Uuid::from_u128(uuid), addresses: vec![portal()], restrictions }
        };
        let (world, core) = (&world, &scene.core);
        let come = || async move { Watcher::new(world, name(1), portal()).await };
        let read = async || come().await.header(true).await.0;
        core.announce(record(1, Vec::new()));
        let first = read().await;
        core.announce(record(2, vec![name(2)]));
        core.announce(record(3, vec![name(2)]));
        core.withdraw(Uuid::from_u128(3));
        assert_eq!(read().await, first, "it sees the same");
        core.announce(record(4, vec![name(1)]));
        let more = read().await;
        core.withdraw(Uuid::from_u128(1));
        let other = read().await;
        core.withdraw(Uuid::from_u128(4));
        let none = read().await;
        core.announce(record(1, Vec::new()));
        let mut stays = come().await;
        assert_eq!(stays.header(true).await.0, first, "it is as it was");
        core.withdraw(Uuid::from_u128(1));
        core.announce(record(1, Vec::new()));
        let back = stays.header(true).await.0;
        let all = BTreeSet::from([first, more, other, none, back]);
        assert_eq!(all.len(), 5, "a log that has changed and changed back was not read at once");
        scene.watchers.clear();
    });
}
