//! Overwrites while checkpoints are taken beside overwrites while none is: whether a tenant notices.
//!
//! - BENCH-CHECKPOINT-1: both kinds of windows begin behind a checkpoint, have as many writes, and come by turns. One
//!   without checkpoints is so short that the engine takes none by itself; that is looked at, and the pair left out if
//!   it did.
//! - BENCH-CHECKPOINT-2: in the others a checkpoint begins each time so many writes were done that a pause which hits
//!   all writes in flight hits several times as many writes as there are above p99.9.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use io_traits::{Clock, Device, Spawn};
use load::Limit;
use local_sync::oneshot;
use reactor::Handle;
use report::Spread;
use serde::Serialize;
use units::BLOCK_SIZE;
use volume::{Shard, VolumeError};

use super::bed::{Load, drive};
use super::counted::Counted;
use super::suite::{OVERWRITTEN_BYTES, Suite};

const DEPTH: u32 = 32;
/// Writes of a window: a journal of 24 MiB is half full, and a checkpoint due, after twice as many or more.
const WRITES: u64 = 32_768;
/// Writes from one checkpoint to the next (BENCH-CHECKPOINT-2): 32 in flight are 0.4 % of them. By itself the engine
/// takes one each 60 000 to 100 000.
const WRITES_EACH: u64 = 8_192;
/// Pairs of windows in a round.
const PAIRS: u64 = 4;
/// Interval at which a checkpoint's due time is checked; also where none is ever due.
const LOOK: Duration = Duration::from_millis(1);

/// Latencies of writes in a window.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Tail {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    /// Checkpoints that were taken meanwhile.
    pub(crate) checkpoints: u64,
}

/// All windows on one kind of device, by pairs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tails {
    pub(crate) place: &'static str,
    pub(crate) without: Vec<Tail>,
    pub(crate) with: Vec<Tail>,
}

impl Tails {
    /// Returns the values of `of` with checkpoints as multiples of those without, within each pair.
    pub(super) fn times(&self, of: impl Fn(&Tail) -> f64) -> Option<Spread> {
        let pairs = self.with.iter().zip(&self.without);
        Spread::of(&pairs.map(|(with, without)| of(with) / of(without)).collect::<Vec<f64>>())
    }
}

/// Measures the pairs of a round on the volume that is full.
pub(super) async fn measure<D: Device>(suite: &mut Suite<D>, round: usize) -> Result<()> {
    for pair in 0..PAIRS {
        let seed = 2_000 + round as u64 * PAIRS + pair;
        let without = window(suite, seed, None).await?;
        let with = window(suite, seed, Some(WRITES_EACH)).await?;
        let (place, samples) = suite.samples();
        let Some((without, with)) = without.zip(with) else {
            eprintln!("  {place:6} a checkpoint came by itself: a pair is left out");
            continue;
        };
        let (above, below) = (with.p99_9_us, without.p99_9_us);
        eprintln!("  {place:6} checkpoints: p99.9 {above:.0} µs, without {below:.0} µs");
        samples.add_tails(place, without, with);
    }
    Ok(())
}

/// One window, with a checkpoint each time `each` writes were done; `None` if others were taken.
async fn window<D: Device>(suite: &Suite<D>, seed: u64, each: Option<u64>) -> Result<Option<Tail>> {
    let (handle, shard) = (suite.handle(), &suite.engine().shard);
    let block_bytes = BLOCK_SIZE as u64;
    let load = Load {
        write: true,
        sequential: false,
        block_bytes,
        depth: DEPTH,
        range_bytes: OVERWRITTEN_BYTES,
        limit: Limit::Bytes(WRITES * block_bytes),
        seed,
    };
    shard.checkpoint().await.context("take a checkpoint")?;
    let used_before = shard.journal_used();
    let is_over = Rc::new(Cell::new(false));
    let (answer, taken) = oneshot();
    let taker = Taker { clock: handle.clone(), shard: shard.clone(), is_over: is_over.clone() };
    let volume = suite.aged().0.clone();
    handle.spawn(async move {
        answer.send(taker.take(|| volume.stats().writes, each.unwrap_or(u64::MAX)).await);
    });
    let outcome = drive(handle, suite.aged(), load).await?;
    let used = shard.journal_used();
    is_over.set(true);
    let checkpoints = taken.await.context("the task that takes checkpoints has ended")??;
    let latency = outcome.write.latency.as_ref().context("not one request was done")?;
    let us = |ns: u64| ns as f64 / 1e3;
    let is_alone = each.is_some() || (used_before <= used && used < 0.5);
    Ok(is_alone.then(|| Tail {
        p50_us: us(latency.p50_ns),
        p99_us: us(latency.p99_ns),
        p99_9_us: us(latency.p99_9_ns),
        checkpoints,
    }))
}

/// Takes checkpoints until a window is over.
struct Taker<D: Device> {
    clock: Handle,
    shard: Shard<Counted<D>>,
    is_over: Rc<Cell<bool>>,
}

impl<D: Device> Taker<D> {
    /// Takes one each time `writes` has grown by `each`; returns how many.
    async fn take(&self, writes: impl Fn() -> u64, each: u64) -> Result<u64, VolumeError> {
        let (mut taken, mut due) = (0, writes().saturating_add(each));
        while !self.is_over.get() {
            if writes() >= due {
                due += each;
                self.shard.checkpoint().await?;
                taken += 1;
            }
            self.clock.sleep_until(self.clock.now() + LOOK).await;
        }
        Ok(taken)
    }
}
