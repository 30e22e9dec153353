//! Volumes that share a core get their part of its time, through hosts, network and engine, on a
//! simulated processor that takes time for what it does.

use std::cell::Cell;
use std::rc::Rc;

use auth::{Group, Hash, Policy};
use client::{Client, Credentials, Options, Volume};
use io_traits::{Clock, Spawn, Stream};
use nvme_frontend::{NvmeCore, NvmeOptions, nqn_of};
use nvme_wire::Status;
use nvme_wire::identify::{Cns, Identify};
use sim::SimWorld;
use test_hosts::cores::serve_in;
use units::{Duration, Lba, ShardIndex};
use uuid::Uuid;
use volume::{Terms, VolumeSpec};

use crate::authenticating::{opened_by, options, secret};
use crate::support::busy_core::BusyCore;
use crate::support::raw_host::{RawHost, capsule, read_command};
use crate::support::{AnyDisk, announce, formatted, portal, simulate, sleep};

const BLOCKS: u64 = 16_384;
/// Duration of a measurement.
const TIME: Duration = Duration::from_millis(30);
const C2H_DATA: u8 = 7;
/// Time that a crowd may add to a neighbour's request: that of two batches of commands, and of looking at all
/// sockets meanwhile.
const ADDED_MAX: Duration = Duration::from_micros(250);

const QUIET: usize = 0;
const LOUD: usize = 1;

struct Server {
    world: SimWorld,
    processor: BusyCore,
    _core: NvmeCore<BusyCore, AnyDisk>,
}

fn uuid_of(volume: usize) -> Uuid {
    Uuid::from_u128(volume as u128 + 1)
}

impl Server {
    /// A core with two volumes of which no block was ever written.
    async fn new(world: &SimWorld) -> Self {
        Self::with(world, NvmeOptions::new(portal())).await
    }

    async fn with(world: &SimWorld, options: NvmeOptions) -> Self {
        let device = formatted(world.clone()).await;
        let processor = BusyCore::new(world);
        let core = serve_in(processor.clone(), AnyDisk::new(device), 1, options).await;
        for volume in [QUIET, LOUD] {
            let name = format!("volume-{volume}");
            let spec = VolumeSpec { uuid: uuid_of(volume), name, blocks: BLOCKS };
            let access = opened_by(&[volume as u8]).encode().expect("short");
            let terms = Terms { access, ..Terms::default() };
            core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
        }
        announce(&core);
        Self { world: world.clone(), processor, _core: core }
    }

    async fn open(&self, volume: usize, host: u8) -> Volume<SimWorld> {
        let options = Options {
            header_digest: false,
            data_digest: false,
            depth: 120,
            credentials: Some(Credentials {
                secret: secret(volume as u8),
                controller_secret: None,
            }),
            ..Options::for_host([host; 16])
        };
        let nqn = nqn_of(uuid_of(volume));
        let client = Client::connect(self.world.clone(), portal(), &nqn, options).await;
        client.expect("a server").volume().await.expect("a namespace")
    }

    /// Reads single blocks without end, `depth` at a time, and counts them.
    fn read_on(&self, volume: &Volume<SimWorld>, depth: usize, done: &Rc<Cell<u64>>) {
        for worker in 0..depth {
            let (volume, done) = (volume.clone(), done.clone());
            self.world.spawn(async move {
                for n in worker as u64.. {
                    volume.read(Lba(n % BLOCKS), 1).await.expect("read");
                    done.set(done.get() + 1);
                }
            });
        }
    }

    /// Reads of a quiet host, one at a time: how long each took, sorted.
    async fn quiet_reads(&self, quiet: &Volume<SimWorld>) -> Vec<Duration> {
        let (end, mut latencies) = (self.world.now() + TIME, Vec::new());
        while self.world.now() < end {
            let began = self.world.now();
            quiet.read(Lba(latencies.len() as u64), 1).await.expect("read");
            latencies.push(self.world.now().since(began));
        }
        latencies.sort_unstable();
        latencies
    }

    /// Asserts that a crowd adds little to the latency of `quiet`'s reads, which were as in `alone`.
    async fn assert_calm(&self, quiet: &Volume<SimWorld>, alone: &[Duration]) {
        let worked = self.processor.worked();
        let began = self.world.now();
        let crowded = self.quiet_reads(quiet).await;
        let busy = (self.processor.worked() - worked).as_secs_f64();
        let busy = busy / self.world.now().since(began).as_secs_f64();
        assert!(busy > 0.95, "the crowd keeps the processor busy: {busy:.2}");
        let at =
            |all: &[Duration], percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
        for percent in [50, 99, 100] {
            let (before, after) = (at(alone, percent), at(&crowded, percent));
            let shown = format!("{percent} % of reads: {before:?} alone, {after:?} in a crowd");
            println!("{shown}");
            assert!(after <= before + ADDED_MAX, "{shown}");
        }
    }
}

/// Sixteen hosts read what was never written, 120 at a time each: nearly two thousand commands that
/// cost the device nothing wait for the processor at any time.
#[test]
fn a_flood_of_reads_that_hit_nothing_slows_no_neighbour() {
    simulate(1, |world| async move {
        let server = Server::new(&world).await;
        let quiet = server.open(QUIET, 1).await;
        let alone = server.quiet_reads(&quiet).await;
        let done = Rc::default();
        for host in 0..16 {
            server.read_on(&server.open(LOUD, 2 + host).await, 120, &done);
        }
        sleep(&world, Duration::from_millis(10)).await;
        server.assert_calm(&quiet, &alone).await;
        assert!(done.get() > 5_000, "the flood is served, too: {}", done.get());
    });
}

/// As above, with a neighbour that has enough to do for half of the processor: it gets that half.
#[test]
fn a_neighbour_with_work_gets_half_of_the_processor() {
    simulate(2, |world| async move {
        let server = Server::new(&world).await;
        let (few, many) = (Rc::default(), Rc::default());
        server.read_on(&server.open(QUIET, 1).await, 120, &few);
        for host in 0..16 {
            server.read_on(&server.open(LOUD, 2 + host).await, 120, &many);
        }
        sleep(&world, Duration::from_millis(10)).await;
        few.set(0);
        many.set(0);
        sleep(&world, TIME).await;
        let part = few.get() as f64 / (few.get() + many.get()) as f64;
        assert!((0.45..0.55).contains(&part), "{} of one, {} of 16 hosts", few.get(), many.get());
    });
}

/// Sixteen hosts send Identify Controller without end, thirty times at once each.
#[test]
fn a_flood_of_admin_commands_slows_no_neighbour() {
    simulate(3, |world| async move {
        let server = Server::new(&world).await;
        let quiet = server.open(QUIET, 1).await;
        let alone = server.quiet_reads(&quiet).await;
        let done = Rc::new(Cell::new(0));
        for _ in 0..16 {
            let nqn = nqn_of(uuid_of(LOUD));
            let (io, mut admin) = RawHost::io_queue(&world, &nqn).await.expect("connected");
            let done = done.clone();
            world.spawn(async move {
                let _io = io;
                for cid in 100..130 {
                    admin.send(&identify(cid)).await.expect("taken in");
                }
                for cid in (100..130).cycle() {
                    let header = admin.receive(24).await.expect("data");
                    assert_eq!(header[0], C2H_DATA);
                    admin.receive(4096 + 24).await.expect("data and a completion");
                    admin.send(&identify(cid)).await.expect("taken in");
                    done.set(done.get() + 1);
                }
            });
        }
        sleep(&world, Duration::from_millis(10)).await;
        server.assert_calm(&quiet, &alone).await;
        assert!(done.get() > 1_000, "the flood is served, too: {}", done.get());
    });
}

/// Two hundred hosts with a token of their own begin to open another's volume, fetch the challenge and leave,
/// again and again.
#[test]
fn a_flood_of_exchanges_slows_no_neighbour() {
    simulate(5, |world| async move {
        let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
        let server = Server::with(&world, options(policy)).await;
        let quiet = server.open(QUIET, 1).await;
        let alone = server.quiet_reads(&quiet).await;
        let done = Rc::new(Cell::new(0));
        for _ in 0..200 {
            let (w, done) = (world.clone(), done.clone());
            world.spawn(async move {
                let nqn = nqn_of(uuid_of(QUIET));
                loop {
                    let asked = RawHost::queue(&w, (0, 0xFFFF), &nqn).await;
                    let (mut stranger, answer) = asked.expect("an answer");
                    assert_eq!(answer.status(), Status::SUCCESS);
                    stranger.begin_exchange(&nqn, secret(LOUD as u8)).await.expect("a challenge");
                    stranger.stream.shutdown();
                    done.set(done.get() + 1);
                }
            });
        }
        sleep(&world, Duration::from_millis(10)).await;
        server.assert_calm(&quiet, &alone).await;
        println!("{} exchanges", done.get());
        assert!(done.get() > 200, "the flood is served, too: {}", done.get());
    });
}

fn identify(cid: u16) -> Vec<u8> {
    capsule(cid, Identify::new(Cns::CONTROLLER, 0).encode(), &[])
}

/// Twenty hosts ask for a mebibyte again and again and read nothing: others' replies do not stand
/// behind theirs.
#[test]
fn replies_do_not_wait_behind_those_to_a_slow_peer() {
    simulate(4, |world| async move {
        let server = Server::new(&world).await;
        let quiet = server.open(QUIET, 1).await;
        let alone = server.quiet_reads(&quiet).await;
        let mut deaf = Vec::new();
        for _ in 0..20 {
            let nqn = nqn_of(uuid_of(LOUD));
            let (mut io, admin) = RawHost::io_queue(&world, &nqn).await.expect("connected");
            let commands: Vec<u8> =
                (0..31).flat_map(|cid| capsule(cid, read_command(0, 256), &[])).collect();
            io.send(&commands).await.expect("taken in");
            deaf.push((io, admin));
        }
        let beside = server.quiet_reads(&quiet).await;
        for percent in [50, 99] {
            let at = |all: &[Duration]| all[all.len() * percent / 100];
            let (before, after) = (at(&alone), at(&beside));
            assert!(after <= before + Duration::from_micros(20), "{percent}: {before:?} {after:?}");
        }
    });
}
