//! Hosts of the oracle against the data plane.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;

use io_traits::{Network, SendBatch, Spawn, Stream};
use local_sync::{Notify, first_of};
use nvme_frontend::{NvmeCore, NvmeOptions, nqn_of};
use sim::{SimDevice, SimStream, SimWorld, Simulation};
use test_support::start_only_shard;
use units::{Duration, MetadataSize, ShardIndex};
use uuid::Uuid;
use volume::{FormatOptions, Terms, VolumeSpec};
use wire_oracle::pdu::Digests;
use wire_oracle::{Cut, Fault, Finding, Host, Identity, Image, Namespace, Queue, Rng, Setup};

const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of test");
const BLOCKS: usize = 128;
const DEVICE_BLOCKS: u64 = 16_384;

pub(crate) type Reached = BTreeMap<&'static str, usize>;

fn portal() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 4420))
}

/// The drawn properties of the server.
#[derive(Clone, Copy)]
struct Server {
    metadata: MetadataSize,
    in_capsule_max: u32,
    h2c_data_max: u32,
    window_bytes: u64,
}

impl Server {
    fn draw(rng: &mut Rng) -> Self {
        let sizes = [MetadataSize::None, MetadataSize::None, MetadataSize::None];
        let sizes = [&sizes[..], &MetadataSize::ALL].concat();
        Self {
            metadata: rng.pick(&sizes),
            in_capsule_max: rng.pick(&[4096, 8192, 16 << 10, 12_288]),
            h2c_data_max: rng.pick(&[4096, 4100, 8192, 65_536, 1 << 20]),
            window_bytes: rng.pick(&[4 << 20, 16 << 20]),
        }
    }

    async fn start(&self, world: &SimWorld) {
        let device = SimDevice::new(world, DEVICE_BLOCKS);
        let options = FormatOptions { uuid: Uuid::from_u128(1) };
        volume::format(&device, &options).await.expect("a sound disk");
        let shard = start_only_shard(device).await;
        let mut options = NvmeOptions::new(portal());
        options.limits.in_capsule_bytes_max = self.in_capsule_max;
        options.limits.h2c_data_bytes_max = self.h2c_data_max;
        options.core.window_bytes = self.window_bytes;
        let core = NvmeCore::new(world, options);
        core.attach(shard);
        let spec = VolumeSpec { uuid: VOLUME, name: "test".into(), blocks: BLOCKS as u64 };
        let terms = Terms { metadata: self.metadata, ..Terms::default() };
        core.create_volume(ShardIndex(0), spec, terms).await.expect("room for a volume");
        let listener = world.listen(portal()).expect("a free address");
        world.spawn(async move { core.serve(listener).await });
    }

    /// Checks that the admin queue reports these properties.
    fn check(&self, admin: &Host) -> Result<(), Finding> {
        let controller = admin.identified(1).ok_or("no Identify Controller")?;
        let namespace = admin.identified(0).ok_or("no Identify Namespace")?;
        let u32_at =
            |at: usize| u32::from_le_bytes(controller[at..at + 4].try_into().expect("four"));
        // IOCCSZ, in units of 16 bytes with the submission queue entry.
        if u32_at(1792) * 16 - 64 != self.in_capsule_max {
            return Err(format!("IOCCSZ {}", u32_at(1792)));
        }
        let nsze = u64::from_le_bytes(namespace[..8].try_into().expect("eight"));
        let format = 128 + 4 * usize::from(namespace[26] & 0xF);
        let metadata = u16::from_le_bytes([namespace[format], namespace[format + 1]]);
        let is_extended = namespace[26] & 0x10 != 0;
        let found = (nsze, usize::from(metadata), namespace[format + 2]);
        if found != (BLOCKS as u64, self.metadata.bytes(), 12) {
            return Err(format!("Identify Namespace: {found:?}"));
        }
        if metadata > 0 && !is_extended {
            return Err("metadata is not transferred with the data".to_owned());
        }
        Ok(())
    }
}

/// Sends chunks in order, while others are received.
struct Sender {
    chunks: RefCell<VecDeque<Vec<u8>>>,
    more: Notify,
}

impl Sender {
    fn start(world: &SimWorld, stream: SimStream) -> Rc<Self> {
        let sender = Rc::new(Self { chunks: RefCell::default(), more: Notify::new() });
        let this = sender.clone();
        world.spawn(async move {
            loop {
                let more = this.more.notified();
                let chunk = this.chunks.borrow_mut().pop_front();
                let Some(chunk) = chunk else {
                    more.await;
                    continue;
                };
                let mut batch = SendBatch::new();
                batch.push_bytes(&chunk);
                if stream.send(batch).await.is_err() {
                    return;
                }
            }
        });
        sender
    }

    fn push(&self, chunk: Vec<u8>) {
        self.chunks.borrow_mut().push_back(chunk);
        self.more.notify_all();
    }
}

/// Lets `host` speak to the server until it is done. The stream stays open as long as what is returned.
async fn drive(world: &SimWorld, host: &mut Host) -> Result<SimStream, Finding> {
    let stream = world.connect(portal()).await.map_err(|error| error.to_string())?;
    let sender = Sender::start(world, stream.clone());
    while !host.is_done() {
        let heard = if let Some(chunk) = host.next_chunk() {
            sender.push(chunk);
            if !world.draw(|rng| rng.one_in(3)) {
                continue;
            }
            // Some of the answers come between.
            let pause = world.delay(Duration::ZERO, Duration::from_micros(60));
            first_of(stream.recv(), pin!(pause)).await.first()
        } else {
            Some(stream.recv().await)
        };
        match heard {
            Some(Ok(bytes)) => host.on_bytes(&bytes)?,
            Some(Err(_)) => host.on_close()?,
            None => {}
        }
    }
    Ok(stream)
}

/// One association: an admin queue, and I/O queue 1, for which `adjust` has its say.
async fn associate(
    world: &SimWorld,
    rng: &mut Rng,
    server: &Server,
    image: Image,
    adjust: impl FnOnce(&mut Setup, &mut Rng),
) -> Result<Host, Finding> {
    let identity = Identity {
        hostid: [9; 16],
        hostnqn: "nqn.2014-08.org.example:host".to_owned(),
        subnqn: nqn_of(VOLUME).to_string(),
    };
    let namespace = Namespace {
        metadata: server.metadata.bytes(),
        in_capsule_max: server.in_capsule_max as usize,
        transfer_blocks_max: 256,
    };
    let setup = Setup::draw(rng, &identity, Queue::Admin, namespace);
    let mut admin = Host::new(rng.next_u64(), setup, Image::new(0, namespace.each()));
    let _kept = drive(world, &mut admin).await.map_err(|finding| format!("admin: {finding}"))?;
    server.check(&admin)?;
    let queue = Queue::Io { qid: 1, cntlid: admin.cntlid() };
    let mut setup = Setup::draw(rng, &identity, queue, namespace);
    // A send costs the simulation more than a byte.
    if setup.cut == Cut::Crumbs && !rng.one_in(4) {
        setup.cut = Cut::Any;
    }
    setup.sweep = true;
    adjust(&mut setup, rng);
    let mut host = Host::new(rng.next_u64(), setup, image);
    let _kept = drive(world, &mut host).await?;
    Ok(host)
}

/// Runs the server and the host of `seed`. Where the server had to end the connection, all blocks are read by
/// another one.
pub(crate) fn run(
    seed: u64,
    adjust: impl Fn(&mut Setup, &mut Rng) + 'static,
) -> Result<Reached, Finding> {
    let simulation = Rc::new(Simulation::new(seed));
    let world = simulation.world();
    let scenario = async move {
        let mut rng = Rng::new(seed);
        let server = Server::draw(&mut rng);
        server.start(&world).await;
        let image = Image::new(BLOCKS, 4096 + server.metadata.bytes());
        let host = associate(&world, &mut rng, &server, image, adjust).await?;
        if host.has_broken_a_rule() {
            let only_reads = |setup: &mut Setup, _: &mut Rng| setup.commands = 0;
            let image = host.image().clone();
            associate(&world, &mut rng, &server, image, only_reads)
                .await
                .map_err(|finding| format!("behind the end: {finding}"))?;
        }
        Ok(host.reached().clone())
    };
    simulation.run(scenario).unwrap_or_else(|stalled| Err(format!("{stalled:?}")))
}

fn run_all(
    seeds: std::ops::Range<u64>,
    adjust: impl Fn(&mut Setup, &mut Rng) + Clone + 'static,
) -> Reached {
    let mut reached = Reached::new();
    for seed in seeds {
        let found =
            run(seed, adjust.clone()).unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
        for (situation, count) in found {
            *reached.entry(situation).or_default() += count;
        }
    }
    reached
}

#[test]
fn what_is_written_in_any_pdus_is_what_is_read() {
    let reached = run_all(crate::seeds(300), |_, _| {});
    println!("{reached:#?}");
    for situation in [
        "a part of a block at the end",
        "data in a capsule behind padding",
        "data of one command between that of another",
        "data that is not dword aligned",
        "whole blocks from within a block",
    ] {
        assert!(reached.get(situation).is_some_and(|count| *count >= 20), "{situation}");
    }
}

/// A damaged digest, or a damaged bit of data, costs its command alone.
#[test]
fn damaged_data_changes_nothing() {
    let reached = run_all(crate::seeds(200), |setup, rng| {
        setup.digests = Digests { header: rng.one_in(2), data: true };
        setup.damaged_one_in = 5;
    });
    assert!(reached["a damaged data PDU"] > 100, "{reached:?}");
}

/// Method: each fault once in a drawn exchange, at a PDU that is drawn, too; then another connection reads everything.
#[test]
fn a_broken_rule_ends_the_connection_and_changes_nothing() {
    for fault in Fault::ALL {
        let reached = run_all(crate::seeds(30), move |setup, rng| {
            if fault.is_in_digested_header() {
                setup.digests = Digests { header: true, data: rng.one_in(2) };
            }
            setup.fault = Some(fault);
        });
        let refused = reached.get("a fault that was refused").copied().unwrap_or_default();
        assert!(refused >= 10, "{fault:?}: {refused}");
    }
}
