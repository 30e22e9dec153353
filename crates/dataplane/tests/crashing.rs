//! Power cuts under load, through the whole server.

mod support;

use std::cell::RefCell;
use std::rc::Rc;

use client::{Options, Reconnect};
use io_traits::Spawn;
use sim::{Rng, SimDevice, SimWorld, Simulation};
use units::{Duration, Lba, LbaRange};

use support::{connect, data, host, serve, serve_new};

/// Blocks of each writer: none touches another's.
const REGION_BLOCKS: u64 = 64;
const WRITERS: u64 = 6;
const SEEDS: u64 = 60;

/// What a region holds: for each block the write that it is from, `None` for zeroes.
type Region = Vec<Option<(u64, usize)>>;

/// What a writer knows.
#[derive(Clone)]
struct Knowledge {
    /// As acknowledged.
    certain: Region,
    /// As it will be if the request under way takes effect.
    possible: Region,
}

type Writers = Rc<RefCell<Vec<Knowledge>>>;

/// One random request: notes what it may do, does it, notes that it is done.
async fn step(volume: &client::Volume<SimWorld>, writers: &Writers, writer: u64, rng: &mut Rng) {
    let start = rng.below(REGION_BLOCKS);
    let blocks = 1 + rng.below((REGION_BLOCKS - start).min(20));
    let is_write = !rng.one_in(4);
    let stamp = rng.next_u64();
    let mut possible = writers.borrow()[writer as usize].certain.clone();
    for n in 0..blocks {
        possible[(start + n) as usize] = is_write.then_some((stamp, n as usize));
    }
    writers.borrow_mut()[writer as usize].possible.clone_from(&possible);
    let lba = Lba(writer * REGION_BLOCKS + start);
    let done = if is_write {
        volume.write(lba, data(stamp, blocks as usize)).await
    } else if rng.one_in(2) {
        volume.deallocate(&[LbaRange::new(lba, blocks)]).await
    } else {
        volume.write_zeroes(LbaRange::new(lba, blocks)).await
    };
    if done.is_ok() {
        writers.borrow_mut()[writer as usize].certain = possible;
    }
}

/// Writes until the power goes at request `crash_at` of the disk.
fn run_until_crash(seed: u64, crash_after: u64) -> (SimDevice, Vec<Knowledge>) {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let empty = vec![None; REGION_BLOCKS as usize];
    let knowledge = Knowledge { certain: empty.clone(), possible: empty };
    let writers: Writers = Rc::new(RefCell::new(vec![knowledge; WRITERS as usize]));
    let (w, shared) = (world.clone(), writers.clone());
    let device = simulation
        .run(async move {
            let (_core, device) = serve_new(w.clone(), WRITERS * REGION_BLOCKS).await;
            let options = Options { reconnect: Reconnect::Never, queues: 2, ..host() };
            let volume = connect(w.clone(), options).await;
            device.crash_at_request(device.requests() + crash_after);
            for writer in 0..WRITERS {
                let (volume, writers) = (volume.clone(), shared.clone());
                let mut rng = w.draw(Rng::fork);
                w.spawn(async move {
                    loop {
                        step(&volume, &writers, writer, &mut rng).await;
                    }
                });
            }
            device
        })
        .expect("starts");
    while !device.has_crashed() {
        simulation.run_for(Duration::from_millis(1));
    }
    let knowledge = writers.borrow().clone();
    (device, knowledge)
}

/// Every acknowledged request is there after a power cut; the one that was under way is there wholly
/// or not at all.
///
/// Method: six writers in regions of their own; the power goes at a random request of the disk; of
/// what was not flushed each sector survives or not by chance. Then the server starts again and every
/// region must be what its writer knew, before or after the request under way.
#[test]
fn a_power_cut_costs_nothing_acknowledged_and_tears_nothing() {
    for seed in 0..SEEDS {
        let crash_after = Rng::new(seed).below(400);
        let (device, knowledge) = run_until_crash(seed, crash_after);
        let next_boot = Simulation::new(seed ^ 0xB007);
        let world = next_boot.world();
        let survivor = device.after_crash(&world);
        let checked = next_boot.run(async move {
            let _core = serve(world.clone(), survivor).await;
            let volume = connect(world, host()).await;
            for (writer, known) in knowledge.iter().enumerate() {
                let lba = Lba(writer as u64 * REGION_BLOCKS);
                let read = volume.read(lba, REGION_BLOCKS as u32).await.expect("readable");
                let holds = |region: &Region| {
                    let blocks = read.as_bytes().chunks(units::BLOCK_SIZE);
                    region.iter().zip(blocks).all(|(from, bytes)| match from {
                        None => bytes.iter().all(|byte| *byte == 0),
                        Some((stamp, n)) => *bytes == *data(*stamp, n + 1).blocks(*n, 1).as_bytes(),
                    })
                };
                assert!(
                    holds(&known.certain) || holds(&known.possible),
                    "seed {seed}, crash after {crash_after}: writer {writer} lost something"
                );
            }
        });
        checked.unwrap_or_else(|stalled| panic!("seed {seed}: no recovery: {stalled:?}"));
    }
}
