//! The harness of the engine's tests, and their common first steps.
#![allow(unreachable_pub)]

mod device;
mod executor;

use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use io_traits::{Buffer, BufferSlice, Device};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, OpenError, Recovered, Shard, ShardOptions, Superblock, Volume,
    VolumeError, VolumeSpec, format_with_extents, read_superblock,
};

pub use self::device::{Faults, TestDevice, journal_of};
pub use self::executor::{Crashed, Sim};

#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        let drawn = random::mix(self.0);
        self.0 = self.0.wrapping_add(random::STEP);
        drawn
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn data(tag: u8, blocks: u64) -> BufferSlice {
    Buffer::from_bytes(&vec![tag; blocks as usize * BLOCK_SIZE]).into_slice()
}

pub fn range(start: u64, blocks: u64) -> LbaRange {
    LbaRange::new(Lba(start), blocks)
}

/// The first byte of each block.
pub async fn tags(volume: &Volume<TestDevice>, start: u64, blocks: u64) -> Vec<u8> {
    let found = volume.read(range(start, blocks)).await.expect("readable").to_vec();
    found.chunks(BLOCK_SIZE).map(|block| block[0]).collect()
}

pub async fn try_open(device: TestDevice) -> Result<Shard<TestDevice>, OpenError> {
    try_open_with(device, ShardOptions::default()).await
}

pub async fn try_open_with(
    device: TestDevice,
    options: ShardOptions,
) -> Result<Shard<TestDevice>, OpenError> {
    try_recover_with(device, options).await?.confirm().await?.start().await
}

/// Reads the only shard back.
pub async fn try_recover(device: TestDevice) -> Result<Recovered<TestDevice>, OpenError> {
    try_recover_with(device, ShardOptions::default()).await
}

async fn try_recover_with(
    device: TestDevice,
    options: ShardOptions,
) -> Result<Recovered<TestDevice>, OpenError> {
    let superblock = read_superblock(&device).await?;
    let extents = ExtentAllocator::new(&superblock);
    Shard::recover(device, superblock, 0, extents, options).await
}

/// Opens the only shard and starts its loops.
pub fn open(sim: &mut Sim) -> Shard<TestDevice> {
    open_with(sim, ShardOptions::default())
}

/// As [`open`], with options.
pub fn open_with(sim: &mut Sim, options: ShardOptions) -> Shard<TestDevice> {
    let device = sim.device.clone();
    let shard = sim.run_ok(try_open_with(device, options)).expect("sound");
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
    shard
}

/// A formatted device, with extents of a given size, its only shard, and a volume.
pub fn fresh(
    device: &TestDevice,
    extent_blocks: Option<u32>,
    blocks: u64,
) -> (Sim, Volume<TestDevice>) {
    let mut sim = Sim::new(device.clone(), 9);
    let options = FormatOptions { uuid: Uuid::from_u128(42) };
    let usual = Superblock::for_device(options.uuid, device.limits().blocks);
    let extent_blocks = extent_blocks.unwrap_or(usual.expect("large enough").extent_blocks);
    sim.run_ok(format_with_extents(device, &options, extent_blocks)).expect("in bounds");
    let shard = open(&mut sim);
    let spec = VolumeSpec { uuid: Uuid::from_u128(1), name: "v".into(), blocks };
    let volume = sim.run_ok(shard.create_volume(spec)).expect("room");
    (sim, volume)
}

/// Cuts the power and opens the shard again; returns the volume of [`fresh`].
pub fn crash(sim: &mut Sim) -> Volume<TestDevice> {
    let mut random = Random(sim.random.next());
    *sim = Sim::new(sim.device.after_crash(&mut random), random.next());
    open(sim).volume(Uuid::from_u128(1)).expect("durable")
}

pub fn check(sim: &mut Sim, shard: &Shard<TestDevice>) {
    sim.settle();
    let report = sim.run_ok(shard.check(true));
    assert!(report.findings.is_empty(), "{report:#?}");
}

/// Runs requests `0..count`, `depth` at a time.
pub fn run_many<F: Future<Output = ()> + 'static>(
    sim: &mut Sim,
    count: u64,
    depth: u64,
    request: impl Fn(u64) -> F + Clone + 'static,
) {
    let running = Rc::new(std::cell::Cell::new(depth));
    let next = Rc::new(std::cell::Cell::new(0));
    for _ in 0..depth {
        let (running, next, request) = (running.clone(), next.clone(), request.clone());
        sim.spawn(async move {
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                request(number).await;
            }
            running.set(running.get() - 1);
        });
    }
    sim.run_ok(std::future::poll_fn(|_| {
        if running.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
    }));
}

/// Writes a volume from its beginning until the device is full; how many blocks that were.
pub fn fill(sim: &mut Sim, volume: &Volume<TestDevice>) -> u64 {
    sim.run_ok(async {
        let (mut filled, mut blocks) = (0, 256);
        while blocks > 0 {
            match volume.write(Lba(filled), data(1, blocks), None).await {
                Ok(()) => filled += blocks,
                Err(VolumeError::PoolFull) => blocks /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        filled
    })
}
