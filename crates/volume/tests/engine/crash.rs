//! Power cuts behind every write and flush of seeded, concurrent workloads.
//!
//! Requests are numbered as they are issued. Overlapping ones take effect in that order, so after a
//! crash the contents must be what all acknowledged requests and some of the others, in order, give:
//! - a block holds its last acknowledged request, or a later one;
//! - a request that shows in one block shows in all of its blocks that no later one has changed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::{Crashed, Random, Sim, TestDevice};
use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    CompareError, ExtentAllocator, FormatOptions, Recovered, Shard, ShardOptions, Volume,
    VolumeError, VolumeSpec, format, read_superblock,
};

const DEVICE_BLOCKS: u64 = 64 << 8;
/// Blocks of the volume that the workload uses.
const SPACE: u64 = 48;
/// Start of the wide requests, which are large enough to be reclaimed in the background.
const WIDE: u64 = 1200;
const UUID: Uuid = Uuid::from_u128(1);

#[derive(Clone, Copy)]
struct Issued {
    start: u64,
    blocks: u64,
    /// Unmaps leave zeroes.
    unmap: bool,
    acknowledged: bool,
    /// Did not happen, and never will.
    refused: bool,
}

#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<Issued>>>);

/// Returns the data that request `number` writes to block `lba`: each sector differs.
fn contents(number: usize, lba: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE];
    for (index, word) in block.chunks_exact_mut(8).enumerate() {
        let value = match index % 2 {
            0 => number as u64 + 1,
            _ => lba << 16 | index as u64,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    block
}

fn data(number: usize, start: u64, blocks: u64) -> BufferSlice {
    let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_SIZE);
    (start..start + blocks).for_each(|lba| bytes.extend_from_slice(&contents(number, lba)));
    Buffer::from_bytes(&bytes).into_slice()
}

impl Log {
    fn issue(&self, start: u64, blocks: u64, unmap: bool) -> usize {
        let issued = Issued { start, blocks, unmap, acknowledged: false, refused: false };
        self.0.borrow_mut().push(issued);
        self.0.borrow().len() - 1
    }

    fn done(&self, number: usize) {
        self.0.borrow_mut()[number].acknowledged = true;
    }

    fn refused(&self, number: usize) {
        self.0.borrow_mut()[number].refused = true;
    }

    /// For each block, the last request acknowledged by now.
    fn acknowledged(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; (SPACE + WIDE) as usize];
        for (number, request) in self.0.borrow().iter().enumerate().filter(|(_, r)| r.acknowledged)
        {
            let start = request.start as usize;
            last[start..start + request.blocks as usize].fill(Some(number));
        }
        last
    }

    /// Panics unless `bytes`, the blocks from `start` on, are what the header says.
    fn check(&self, start: u64, bytes: &[u8], floor: &[Option<usize>], context: &str) {
        let log = self.0.borrow();
        // Which request each block shows: `None` is zeroes, by whichever unmap or by none.
        let shown: Vec<Option<usize>> = bytes
            .chunks(BLOCK_SIZE)
            .zip(start..)
            .map(|(block, lba)| {
                if block.iter().all(|byte| *byte == 0) {
                    return None;
                }
                let tag = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
                let number = tag as usize - 1;
                assert!(block == contents(number, lba), "{context}: foreign block at {lba}");
                assert!(!log[number].unmap && !log[number].refused, "{context}: ghost at {lba}");
                Some(number)
            })
            .collect();
        let covers = |r: &Issued, lba: u64| r.start <= lba && lba < r.start + r.blocks;
        // The request that must have been the last on a block, at least.
        let mut lower: Vec<Option<usize>> =
            (start..).take(shown.len()).map(|lba| floor[lba as usize]).collect();
        loop {
            let before = lower.clone();
            // A request that shows somewhere happened everywhere.
            let visible: BTreeSet<usize> = shown.iter().flatten().copied().collect();
            for number in &visible {
                for (index, lower) in lower.iter_mut().enumerate() {
                    if covers(&log[*number], start + index as u64) {
                        *lower = (*lower).max(Some(*number));
                    }
                }
            }
            if before == lower {
                break;
            }
        }
        for ((shown, lower), lba) in shown.iter().zip(&lower).zip(start..) {
            match (shown, lower) {
                (None, None) => {}
                (Some(shown), lower) => {
                    assert!(
                        Some(*shown) >= *lower,
                        "{context}: block {lba} shows {shown}, must be {lower:?} or later"
                    );
                }
                (None, Some(lower)) => {
                    let unmapped =
                        log[*lower..].iter().any(|r| r.unmap && !r.refused && covers(r, lba));
                    assert!(unmapped, "{context}: block {lba} is empty, must be {lower} or later");
                }
            }
        }
    }
}

/// Recovers `shards` shards, then starts them all; the workload runs on the first.
async fn start(device: TestDevice, shards: u16) -> Shard<TestDevice> {
    let superblock = read_superblock(&device).await.expect("formatted");
    let extents = ExtentAllocator::new(&superblock);
    let options = ShardOptions::default();
    let mut all = Vec::new();
    for index in 0..shards {
        let shard =
            Shard::recover(device.clone(), superblock, index, extents.clone(), options).await;
        all.push(shard.expect("sound"));
    }
    Recovered::start_all(all).await.expect("room").swap_remove(0)
}

fn spawn_loops(sim: &mut Sim, shard: &Shard<TestDevice>) {
    let (a, b) = (shard.clone(), shard.clone());
    sim.spawn(async move { a.run_committer().await });
    sim.spawn(async move { b.run_checkpointer().await });
}

async fn one_request(volume: &Volume<TestDevice>, log: &Log, random: &mut Random) {
    let blocks = 1 + random.below(5).min(random.below(9));
    let start = random.below(SPACE - blocks + 1);
    let range = LbaRange::new(Lba(start), blocks);
    match random.below(20) {
        0..10 => {
            let number = log.issue(start, blocks, false);
            match volume.write(Lba(start), data(number, start, blocks), None).await {
                Ok(()) => log.done(number),
                Err(VolumeError::PoolFull) => log.refused(number),
                Err(error) => panic!("{error}"),
            }
        }
        10..13 => {
            let number = log.issue(start, blocks, true);
            volume.unmap(range).await.expect("no faults");
            log.done(number);
        }
        13 => {
            // A wide unmap over everything, or only over the part that is rarely written.
            let start = if random.below(2) == 0 { 0 } else { SPACE };
            let number = log.issue(start, SPACE + WIDE - start, true);
            let range = LbaRange::new(Lba(start), SPACE + WIDE - start);
            volume.unmap(range).await.expect("no faults");
            log.done(number);
        }
        14 => {
            let start = SPACE + random.below(WIDE - 100);
            let number = log.issue(start, 100, false);
            match volume.write(Lba(start), data(number, start, 100), None).await {
                Ok(()) => log.done(number),
                Err(VolumeError::PoolFull) => log.refused(number),
                Err(error) => panic!("{error}"),
            }
        }
        15 => {
            let expected = volume.read(range).await.expect("no faults").to_vec();
            let number = log.issue(start, blocks, false);
            let expected = Buffer::from_bytes(&expected).into_slice();
            let new = data(number, start, blocks);
            match volume.compare_and_write(Lba(start), expected, new).await {
                Ok(()) => log.done(number),
                Err(
                    CompareError::Miscompare { .. } | CompareError::Write(VolumeError::PoolFull),
                ) => log.refused(number),
                Err(error) => panic!("{error}"),
            }
        }
        _ => {
            let floor = log.acknowledged();
            let found = volume.read(range).await.expect("no faults");
            log.check(start, &found.to_vec(), &floor, "read under way");
        }
    }
}

struct Workload {
    seed: u64,
    volatile: bool,
    workers: u64,
    requests: u64,
    /// True if other shards and another volume leave so little room that blocks are reused at once.
    crowded: bool,
}

/// Shards that leave the first one two extents of a 64 MiB device.
const CROWD: u16 = 7;
/// Blocks of the volume that fills most of what is left.
const BALLAST: u64 = 2140;

impl Workload {
    fn shards(&self) -> u16 {
        if self.crowded { CROWD } else { 1 }
    }

    /// Runs until done or until the power goes; returns the device and the log.
    fn run(&self, crash_at: Option<u64>) -> (TestDevice, Log, u64) {
        let device = TestDevice::new(DEVICE_BLOCKS, self.volatile);
        let mut sim = Sim::new(device.clone(), self.seed);
        let log = Log::default();
        let shard = sim.run_ok(async {
            let options = FormatOptions { uuid: Uuid::from_u128(7) };
            format(&device, &options).await.expect("large enough");
            start(device.clone(), self.shards()).await
        });
        spawn_loops(&mut sim, &shard);
        let spec = VolumeSpec { uuid: UUID, name: "v".into(), blocks: SPACE + WIDE };
        let volume = sim.run_ok(shard.create_volume(spec)).expect("room");
        if self.crowded {
            sim.run_ok(async {
                let uuid = Uuid::from_u128(2);
                let spec = VolumeSpec { uuid, name: "ballast".into(), blocks: BALLAST };
                let ballast = shard.create_volume(spec).await.expect("room");
                let data = Buffer::zeroed(BALLAST as usize / 2).into_slice();
                ballast.write(Lba(0), data.clone(), None).await.expect("room");
                ballast.write(Lba(BALLAST / 2), data, None).await.expect("room");
            });
        }
        let base = device.completed();
        sim.crash_at = crash_at.map(|at| base + at);
        let running = Rc::new(Cell::new(self.workers));
        for worker in 0..self.workers {
            let (volume, log, running) = (volume.clone(), log.clone(), running.clone());
            let mut random = Random(self.seed * 1000 + worker);
            let requests = self.requests;
            let shard = shard.clone();
            sim.spawn(async move {
                for _ in 0..requests {
                    one_request(&volume, &log, &mut random).await;
                    if random.below(25) == 0 {
                        shard.checkpoint().await.expect("no faults");
                    }
                }
                running.set(running.get() - 1);
            });
        }
        let outcome = sim.run(std::future::poll_fn(|_| {
            if running.get() == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }));
        if outcome.is_ok() {
            let report = sim.run(shard.checkpoint());
            if let Ok(report) = report {
                report.expect("no faults");
                sim.settle();
                let report = sim.run_ok(shard.check(!self.crowded));
                assert!(report.findings.is_empty(), "seed {}: {report:#?}", self.seed);
            }
        }
        let total = device.completed() - base;
        (device, log, total)
    }

    fn check_after(&self, device: &TestDevice, log: &Log, crash: u64) {
        let context = format!("seed {} volatile {} crash {crash}", self.seed, self.volatile);
        let mut random = Random(self.seed ^ crash << 20);
        let mut survivor = device.after_crash(&mut random);
        // The power may go again while the shard is being recovered.
        for again in 0..2 {
            let mut sim = Sim::new(survivor.clone(), self.seed + crash + again);
            sim.crash_at = Some(random.below(8));
            if let Err(Crashed) = sim.run(start(survivor.clone(), self.shards())) {
                survivor = survivor.after_crash(&mut random);
            }
        }
        let mut sim = Sim::new(survivor.clone(), self.seed + crash);
        let shard = sim.run_ok(start(survivor, self.shards()));
        spawn_loops(&mut sim, &shard);
        let volume = shard.volume(UUID).expect("acknowledged");
        let bytes = sim.run_ok(volume.read(LbaRange::new(Lba(0), SPACE + WIDE)));
        let bytes = bytes.unwrap_or_else(|error| panic!("{context}: {error}")).to_vec();
        log.check(0, &bytes, &log.acknowledged(), &context);
        sim.run_ok(shard.checkpoint()).expect("no faults");
        sim.settle();
        let report = sim.run_ok(shard.check(!self.crowded));
        assert!(report.findings.is_empty(), "{context}: {report:#?}");
    }
}

fn crash_everywhere(volatile: bool, crowded: bool, seeds: std::ops::Range<u64>, step: u64) {
    let mut crashes = 0;
    for seed in seeds {
        let requests = if crowded { 60 } else { 30 };
        let workload = Workload { seed, volatile, workers: 1 + seed % 5, requests, crowded };
        let (device, log, total) = workload.run(None);
        workload.check_after(&device, &log, total);
        for crash in (seed % step..total).step_by(step as usize) {
            let (device, log, _) = workload.run(Some(crash));
            workload.check_after(&device, &log, crash);
            crashes += 1;
        }
    }
    assert!(crashes > 30, "the workloads are too short to mean anything");
}

#[test]
fn no_crash_loses_an_acknowledged_write_on_a_device_with_a_volatile_cache() {
    crash_everywhere(true, false, 1..9, 5);
}

#[test]
fn no_crash_loses_an_acknowledged_write_on_a_device_without_one() {
    crash_everywhere(false, false, 1..9, 5);
}

/// Blocks are reused as soon as they may be: where that is too soon, a crash shows it.
#[test]
fn no_crash_loses_an_acknowledged_write_on_a_nearly_full_device() {
    crash_everywhere(true, true, 1..4, 11);
    crash_everywhere(false, true, 4..7, 11);
}

/// Blocks that the reclaimer took out of the map are reused only behind a root that does not name
/// them: else replay would bring a later tenant's write to blocks that the old map still has.
#[test]
fn blocks_that_were_reclaimed_in_the_background_are_not_reused_too_early() {
    const BEFORE: u64 = 1100;
    for volatile in [false, true] {
        let device = TestDevice::new(DEVICE_BLOCKS, volatile);
        let mut sim = Sim::new(device.clone(), 5);
        let shard = sim.run_ok(async {
            let options = FormatOptions { uuid: Uuid::from_u128(7) };
            format(&device, &options).await.expect("large enough");
            start(device.clone(), 1).await
        });
        spawn_loops(&mut sim, &shard);
        let spec = |n| VolumeSpec { uuid: Uuid::from_u128(n), name: "v".into(), blocks: 1 << 20 };
        let (a, b) = sim.run_ok(async {
            let a = shard.create_volume(spec(1)).await.expect("room");
            let b = shard.create_volume(spec(2)).await.expect("room");
            a.write(Lba(0), data(0, 0, BEFORE), None).await.expect("room");
            shard.checkpoint().await.expect("no faults");
            (a, b)
        });
        let filled = sim.run_ok(async {
            let mut filled = 0;
            while b.write(Lba(filled), data(1, filled, 16), None).await.is_ok() {
                filled += 16;
            }
            a.unmap(LbaRange::new(Lba(0), BEFORE)).await.expect("possible");
            filled
        });
        sim.settle();
        let written = sim.run_ok(async {
            let mut written = 0;
            while written < 900
                && b.write(Lba(filled + written), data(2, filled + written, 4), None).await.is_ok()
            {
                written += 4;
            }
            written
        });
        assert!(written > 800, "only {written} blocks came back");
        let survivor = device.after_crash(&mut Random(1));
        let mut sim = Sim::new(survivor.clone(), 6);
        let shard = sim.run_ok(start(survivor, 1));
        spawn_loops(&mut sim, &shard);
        sim.settle();
        let report = sim.run_ok(shard.check(true));
        assert!(report.findings.is_empty(), "{report:#?}");
        let b = shard.volume(Uuid::from_u128(2)).expect("durable");
        let found = sim.run_ok(b.read(LbaRange::new(Lba(filled), written))).expect("readable");
        assert!(found.to_vec() == data(2, filled, written).as_bytes(), "acknowledged data is lost");
    }
}
