//! The client against a target that shares no code with it (`wire_oracle`), which draws R2Ts, data PDUs and padding.
//!
//! `FARFLASH_TEST_SCALE` multiplies the seeds.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use client::{Blocks, Client, Error, Options, Volume};
use io_traits::{Clock, Listener, Network, SendBatch, Spawn, Stream};
use nvme_wire::Nqn;
use sim::{SimStream, SimWorld, Simulation};
use units::{Duration, Lba};
use wire_oracle::{Controller, Rng, Target, TargetSetup};

const BLOCKS: usize = 256;
const BLOCK: usize = 4096;

fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 4420))
}

/// The last I/O queue that was connected.
type IoQueue = Rc<RefCell<Option<Rc<RefCell<Target>>>>>;

/// Serves connections; what is wrong with one is a panic.
fn start(world: &SimWorld, seed: u64, setup: TargetSetup, controller: Controller) -> IoQueue {
    let queue = IoQueue::default();
    let listener = world.listen(address()).expect("a free address");
    let (last, accepting) = (queue.clone(), world.clone());
    world.spawn(async move {
        let mut rng = Rng::new(seed);
        while let Ok(stream) = listener.accept().await {
            let each = BLOCK + usize::from(controller.metadata);
            let memory = vec![0; BLOCKS * each];
            let target = Target::new(rng.next_u64(), setup.clone(), memory, each);
            let target = Rc::new(RefCell::new(target.with_controller(controller)));
            accepting.spawn(serve(stream, target, last.clone(), seed));
        }
    });
    queue
}

async fn serve(stream: SimStream, target: Rc<RefCell<Target>>, last: IoQueue, seed: u64) {
    while let Ok(bytes) = stream.recv().await {
        if let Err(finding) = target.borrow_mut().on_bytes(&bytes) {
            panic!("seed {seed}: {finding}");
        }
        if target.borrow().is_io() {
            *last.borrow_mut() = Some(target.clone());
        }
        loop {
            let Some(chunk) = target.borrow_mut().next_chunk() else { break };
            let mut batch = SendBatch::new();
            batch.push_bytes(&chunk);
            if stream.send(batch).await.is_err() {
                return;
            }
        }
    }
}

/// Requests of one task, all within blocks of its own. Returns how many reads failed for damage.
async fn work(volume: Volume<SimWorld>, mut rng: Rng, first: usize, count: usize) -> usize {
    let metadata = volume.metadata_size() as usize;
    let (mut data, mut extra) = (vec![0; count * BLOCK], vec![0; count * metadata]);
    let mut failed = 0;
    for _ in 0..10 {
        let start = rng.between(0, count - 1);
        let blocks = rng.between(1, (count - start).min(31));
        let (bytes, extras) = (
            start * BLOCK..(start + blocks) * BLOCK,
            start * metadata..(start + blocks) * metadata,
        );
        let lba = Lba((first + start) as u64);
        if rng.one_in(2) {
            data[bytes.clone()].copy_from_slice(&rng.bytes(blocks * BLOCK));
            extra[extras.clone()].copy_from_slice(&rng.bytes(blocks * metadata));
            let blocks = Blocks { data: &data[bytes], metadata: &extra[extras] };
            volume.write_ex(lba, blocks).await.expect("written");
        } else {
            match volume.read_ex(lba, blocks as u32).await {
                Ok(found) => {
                    assert!(found.data.as_bytes() == &data[bytes], "data from {lba:?}");
                    assert!(found.metadata == extra[extras], "metadata from {lba:?}");
                }
                Err(Error::Damaged { .. }) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    failed
}

/// Runs a client and a target of `seed`; returns the number of damaged data PDUs, and of reads that failed for it.
pub(crate) fn run(seed: u64, damaged_one_in: u64) -> (usize, usize) {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let scenario = async move {
        let mut rng = Rng::new(seed);
        let mut setup = TargetSetup { damaged_one_in, ..TargetSetup::draw(&mut rng) };
        setup.digests.data |= damaged_one_in > 0;
        let metadata = rng.pick(&[0, 0, 8, 16, 64]);
        let in_capsule_max = rng.pick(&[0, 4096, 8192]);
        let controller = Controller::new(BLOCKS as u64, 12, metadata, in_capsule_max);
        let queue = start(&world, seed, setup, controller);
        let options = Options {
            header_digest: !rng.one_in(3),
            data_digest: damaged_one_in > 0 || !rng.one_in(3),
            depth: rng.between(1, 16) as u16,
            ..Options::for_host([7; 16])
        };
        let nqn = Nqn::from_uuid(&[3; 16]);
        let client = Client::connect(world.clone(), address(), &nqn, options).await;
        let volume = client.expect("connects").volume().await.expect("a namespace");
        let failed = Rc::new(RefCell::new(Vec::new()));
        for task in 0..4 {
            let work = work(volume.clone(), Rng::new(rng.next_u64()), task * 64, 64);
            let failed = failed.clone();
            world.spawn(async move {
                let count = work.await;
                failed.borrow_mut().push(count);
            });
        }
        while failed.borrow().len() < 4 {
            world.sleep_until(world.now() + Duration::from_millis(1)).await;
        }
        let target = queue.borrow().clone().expect("an I/O queue was connected");
        let damaged = target.borrow().damaged.values().sum();
        let failed = failed.borrow().iter().sum();
        (damaged, failed)
    };
    simulation.run(scenario).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"))
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    0..count * scale.unwrap_or(1_u64)
}

#[test]
fn what_is_written_at_any_r2ts_is_what_is_read_in_any_pdus() {
    for seed in seeds(150) {
        assert_eq!(run(seed, 0), (0, 0), "seed {seed}");
    }
}

/// Damaged data is read again. A read fails only where the target damages most of it, and damaged data is never
/// returned.
#[test]
fn damaged_data_is_never_taken() {
    let (mut damaged, mut failed) = (0, 0);
    for seed in seeds(100) {
        let found = run(seed, 40);
        (damaged, failed) = (damaged + found.0, failed + found.1);
    }
    println!("{damaged} data PDUs were damaged, {failed} reads failed");
    assert!(damaged > 100, "{damaged}");
    assert!(failed < damaged, "{failed} of {damaged}");
}
