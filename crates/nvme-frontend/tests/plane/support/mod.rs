//! A Flash server and its hosts in a simulation.

pub(crate) mod busy_core;
pub(crate) mod siege;
pub(crate) mod tenants;

use std::rc::Rc;

use client::{Client, Options, Volume};
use device::layer::{Effect, Faulty, Rule, Verb};
use io_traits::{Buffer, BufferSlice, Clock, Device};
use nvme_frontend::{NvmeOptions, nqn_of};
use sim::{SimDevice, SimWorld, Simulation};
use units::{BLOCK_SIZE, Duration, ShardIndex, Slo};
use uuid::Uuid;
use volume::{FormatOptions, VolumeSpec};

pub(crate) use test_hosts::any_disk::AnyDisk;
use test_hosts::cores::serve_nvme;
pub(crate) use test_hosts::cores::{SimNvmeCore as SimCore, announce, open_portal};
pub(crate) use test_hosts::nvme as raw_host;
pub(crate) use test_hosts::nvme::portal;

/// 256 MiB: small enough to fill.
pub(crate) const DEVICE_BLOCKS: u64 = 65_536;
pub(crate) const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of test");

/// A disk under rules that a test makes.
pub(crate) type FaultyDisk = Faulty<SimDevice, SimWorld>;

/// Duration of a write to a busy file on a disk.
const SLOW_WRITE: Duration = Duration::from_millis(5);
const SLOW_FLUSH: Duration = Duration::from_millis(40);

/// Formats a new disk.
pub(crate) async fn formatted(world: SimWorld) -> SimDevice {
    let device = SimDevice::new(&world, DEVICE_BLOCKS);
    let uuid = Uuid::from_u128(world.draw(|rng| rng.next_u64()).into());
    volume::format(&device, &FormatOptions { uuid }).await.expect("a sound disk");
    device
}

/// Starts a server on `device`, as after any boot.
pub(crate) async fn serve(world: SimWorld, device: SimDevice) -> SimCore {
    serve_with(world, device, NvmeOptions::new(portal())).await
}

/// Starts a server on any kind of device, with options.
pub(crate) async fn serve_with(
    world: SimWorld,
    device: impl Device,
    options: NvmeOptions,
) -> SimCore {
    serve_shards(world, device, 1, options).await
}

/// The same with so many shards of the device.
pub(crate) async fn serve_shards(
    world: SimWorld,
    device: impl Device,
    shards: u16,
    options: NvmeOptions,
) -> SimCore {
    serve_nvme(world, AnyDisk::new(device), shards, options).await
}

/// A server with one volume of `blocks` blocks.
pub(crate) async fn serve_new(world: SimWorld, blocks: u64) -> (SimCore, SimDevice) {
    let device = formatted(world.clone()).await;
    let core = serve(world, device.clone()).await;
    create(&core, blocks).await;
    (core, device)
}

/// A new disk that takes its time.
pub(crate) async fn slow_device(world: &SimWorld) -> FaultyDisk {
    delayed(world, SLOW_WRITE, SLOW_FLUSH).await
}

/// A new disk whose writes and flushes take so much longer.
pub(crate) async fn delayed(world: &SimWorld, write: Duration, flush: Duration) -> FaultyDisk {
    let device = Faulty::new(formatted(world.clone()).await, world);
    device.set_rules([
        Rule::of(Effect::Delay(write), &[Verb::Write]),
        Rule::of(Effect::Delay(flush), &[Verb::Flush]),
    ]);
    device
}

/// A server with one volume of `blocks` blocks on a disk that takes its time, with options.
pub(crate) async fn serve_slowly(world: &SimWorld, blocks: u64, options: NvmeOptions) -> SimCore {
    let core = serve_with(world.clone(), slow_device(world).await, options).await;
    create(&core, blocks).await;
    core
}

pub(crate) async fn create(core: &SimCore, blocks: u64) {
    let spec = VolumeSpec { uuid: VOLUME, name: "test".into(), blocks };
    core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("room for a volume");
    announce(core);
}

/// Connects a host.
pub(crate) async fn connect(world: SimWorld, options: Options) -> Volume<SimWorld> {
    let client = Client::connect(world, portal(), &nqn_of(VOLUME), options).await;
    client.expect("a server that serves it").volume().await.expect("a namespace")
}

/// Lets `duration` pass.
pub(crate) async fn sleep(world: &SimWorld, duration: Duration) {
    world.sleep_until(world.now() + duration).await;
}

pub(crate) fn host() -> Options {
    Options::for_host([7; 16])
}

/// `blocks` blocks, each different from any other `stamp`'s.
pub(crate) fn data(stamp: u64, blocks: usize) -> BufferSlice {
    let mut buffer = Buffer::new(blocks);
    for (n, block) in buffer.as_mut_bytes().chunks_mut(BLOCK_SIZE).enumerate() {
        fill(block, stamp, n as u64);
    }
    buffer.into_slice()
}

fn fill(block: &mut [u8], stamp: u64, n: u64) {
    for (at, word) in block.chunks_mut(8).enumerate() {
        let value = stamp.wrapping_mul(0x9E37_79B9) ^ n << 40 ^ at as u64;
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// Runs a scenario to its end, in a world of its own.
pub(crate) fn simulate<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    scenario: impl FnOnce(SimWorld) -> F,
) -> T {
    let simulation = Rc::new(Simulation::new(seed));
    let scenario = scenario(simulation.world());
    simulation.run(scenario).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"))
}
