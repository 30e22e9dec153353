//! Time to recover after a kill.
//!
//! The engine is abandoned in the middle, which leaves its device as a kill of the process does, and
//! the device is read back by another engine.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use io_traits::{Buffer, Clock, Device, Spawn};
use reactor::Handle;
use serde::Serialize;
use units::{BLOCK_SIZE, Lba};

use super::bed::{Background, Engine, recover};
use super::counted::Counted;
use super::hollow::{HollowDevice, TENANT};
use super::target::EngineTarget;

/// Repetitions of what only reads.
const REPETITIONS: usize = 3;
/// A journal of the largest size, 64 MiB, comes with a device of this size.
pub(super) const DEVICE_BYTES: u64 = 8 << 30;
const VOLUME_BYTES: u64 = 1 << 30;
const DEPTH: u64 = 32;
/// A journal is full when nothing was acknowledged for so long.
const STALL: Duration = Duration::from_millis(500);
/// Mapped by a single volume, to see what large ones cost.
const MAPPED_BYTES: u64 = 128 << 30;
const MAPPED_DEVICE_BYTES: u64 = MAPPED_BYTES + (4 << 30);
const LARGE_BLOCKS: u64 = 256;
/// Random overwrites in the journal of the large volume.
const OVERWRITES: u64 = 100_000;

/// One return.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Recovery {
    /// Until all acknowledged changes are in memory.
    pub(crate) seconds: f64,
    pub(crate) bytes_read: u64,
}

/// All returns of one kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recoveries {
    pub(crate) what: &'static str,
    pub(crate) place: &'static str,
    pub(crate) mapped_bytes: u64,
    /// Writes acknowledged since the last checkpoint, all of which come from the journal.
    pub(crate) writes_in_journal: u64,
    pub(crate) samples: Vec<Recovery>,
    /// Memory of the engine that was abandoned; where that was measured.
    pub(crate) memory_bytes: Option<u64>,
}

/// Fills a journal to its limit and reads everything back.
pub(super) async fn full_journal<D: Device>(
    handle: Handle,
    place: &'static str,
    device: D,
) -> Result<Recoveries> {
    let engine = Engine::format(&handle, device.clone(), Background::NoCheckpoints).await?;
    let volume = engine.volume(VOLUME_BYTES).await?;
    let acknowledged: Rc<Cell<u64>> = Rc::default();
    for task in 0..DEPTH {
        let (volume, acknowledged) = (volume.clone(), acknowledged.clone());
        let mut place = task + 1;
        handle.spawn(async move {
            let data = tenant_data(1);
            loop {
                place = draw(place);
                let lba = Lba((place >> 33) % (VOLUME_BYTES / BLOCK_SIZE as u64));
                if volume.0.write(lba, data.clone(), None).await.is_err() {
                    return;
                }
                acknowledged.set(acknowledged.get() + 1);
            }
        });
    }
    let mut before = 0;
    loop {
        handle.sleep_until(handle.precise_now() + STALL).await;
        let now = acknowledged.get();
        if now == before {
            break;
        }
        before = now;
    }
    ensure!(before > 0, "nothing was acknowledged");
    let samples = read_back(&handle, &device).await?;
    Ok(Recoveries {
        what: "journal at its limit, 64 MiB",
        place,
        mapped_bytes: volume.0.mapped_blocks() * BLOCK_SIZE as u64,
        writes_in_journal: before,
        samples,
        memory_bytes: None,
    })
}

/// Maps a large volume, overwrites some of it at random, and reads everything back.
pub(super) async fn large_volume(handle: Handle) -> Result<[Recoveries; 2]> {
    let resident_before = resident_bytes()?;
    let device = HollowDevice::new(MAPPED_DEVICE_BYTES);
    let engine = Engine::format(&handle, device.clone(), Background::All).await?;
    let volume = engine.volume(MAPPED_BYTES).await?;
    let blocks = MAPPED_BYTES / BLOCK_SIZE as u64;
    let large = (0..blocks / LARGE_BLOCKS).map(|index| (index * LARGE_BLOCKS, LARGE_BLOCKS));
    write_all(&volume, large).await?;
    engine.shard.checkpoint().await.context("take a checkpoint")?;
    let clean = read_back(&handle, &device).await?;
    let mut place = 7;
    let small = std::iter::repeat_with(|| {
        place = draw(place);
        ((place >> 20) % blocks, 1)
    });
    write_all(&volume, small.take(OVERWRITES as usize)).await?;
    let resident = resident_bytes()?.saturating_sub(resident_before);
    let recoveries = |what, writes_in_journal, samples| Recoveries {
        what,
        place: "simulated",
        mapped_bytes: MAPPED_BYTES,
        writes_in_journal,
        samples,
        memory_bytes: Some(resident.saturating_sub(device.kept_bytes())),
    };
    let dirty = read_back(&handle, &device).await?;
    Ok([
        recoveries("128 GiB mapped, behind a checkpoint", 0, clean),
        recoveries("128 GiB mapped, after random overwrites", OVERWRITES, dirty),
    ])
}

/// Writes at each `(block, blocks)` in turn.
async fn write_all<D: Device>(
    volume: &EngineTarget<Counted<D>>,
    places: impl Iterator<Item = (u64, u64)>,
) -> Result<()> {
    let data = tenant_data(LARGE_BLOCKS as usize);
    let crc = checksum::crc32c(&data.as_bytes()[..BLOCK_SIZE]);
    let crcs = vec![crc; LARGE_BLOCKS as usize];
    for (lba, blocks) in places {
        let count = blocks as usize;
        volume.0.write(Lba(lba), data.blocks(0, count), Some(&crcs[..count])).await?;
    }
    Ok(())
}

async fn read_back<D: Device>(handle: &Handle, device: &D) -> Result<Vec<Recovery>> {
    let mut samples = Vec::new();
    for _ in 0..REPETITIONS {
        let device = Counted::new(device.clone());
        let begin = handle.precise_now();
        drop(recover(&device).await?);
        let seconds = handle.precise_now().since(begin).as_secs_f64();
        samples.push(Recovery { seconds, bytes_read: device.counts().bytes_read });
    }
    Ok(samples)
}

fn tenant_data(blocks: usize) -> io_traits::BufferSlice {
    let mut buffer = Buffer::zeroed(blocks);
    buffer.as_mut_bytes().fill(TENANT);
    buffer.into_slice()
}

fn draw(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Memory of this process that is resident.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.parse::<u64>()? << 10)
}
