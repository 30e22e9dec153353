//! Bytes that reach the device for each byte that a tenant writes.

use anyhow::Result;
use io_traits::Device;
use load::Limit;

use super::bed::{Load, run};
use super::samples::Written;
use super::suite::{MIB, OVERWRITTEN_BYTES, Suite};

/// Repetitions, of which the median counts.
const REPETITIONS: usize = 3;
/// In steady state: enough for checkpoints to come by themselves.
const STEADY_BYTES: u64 = 192 * MIB;
/// Shorter than the steady state, for what is only reported.
const SHORT_BYTES: u64 = 64 * MIB;

/// A pattern of writes to the volume that is full.
struct Pattern {
    name: &'static str,
    block_bytes: u64,
    depth: u32,
    sequential: bool,
    bytes: u64,
}

/// The one with a goal.
pub(super) const STEADY: &str = "4 KiB random overwrites, depth 32";

const PATTERNS: [Pattern; 5] = [
    Pattern { name: STEADY, block_bytes: 4096, depth: 32, sequential: false, bytes: STEADY_BYTES },
    Pattern {
        name: "4 KiB random overwrites, depth 1",
        block_bytes: 4096,
        depth: 1,
        sequential: false,
        bytes: 16 * MIB,
    },
    Pattern {
        name: "4 KiB sequential overwrites, depth 32",
        block_bytes: 4096,
        depth: 32,
        sequential: true,
        bytes: SHORT_BYTES,
    },
    Pattern {
        name: "16 KiB random overwrites, depth 32",
        block_bytes: 16 << 10,
        depth: 32,
        sequential: false,
        bytes: SHORT_BYTES,
    },
    Pattern {
        name: "128 KiB sequential overwrites, depth 8",
        block_bytes: 128 << 10,
        depth: 8,
        sequential: true,
        bytes: STEADY_BYTES,
    },
];

/// Writes each pattern to the full volume. It begins and ends with a checkpoint, so that all that a
/// write causes later is counted.
pub(super) async fn measure<D: Device>(suite: &mut Suite<D>) -> Result<()> {
    let quick = suite.length().rounds < REPETITIONS;
    let (place, _) = suite.samples();
    for pattern in &PATTERNS {
        // What the device is like shows in the first pattern; the others take long on a slow one.
        if place != "mem" && pattern.name != STEADY {
            continue;
        }
        for repetition in 0..if quick { 1 } else { REPETITIONS } {
            let load = Load {
                write: true,
                sequential: pattern.sequential,
                block_bytes: pattern.block_bytes,
                depth: pattern.depth,
                range_bytes: OVERWRITTEN_BYTES,
                limit: Limit::Bytes(pattern.bytes),
                seed: 1_000 + repetition as u64,
            };
            let engine = suite.engine();
            engine.shard.checkpoint().await?;
            let before = engine.device.counts();
            run(suite.handle(), suite.aged(), load).await?;
            let engine = suite.engine();
            engine.shard.checkpoint().await?;
            let counts = engine.device.counts().since(before);
            let requests = (pattern.bytes / pattern.block_bytes) as f64;
            let written = Written {
                per_byte: counts.bytes_written as f64 / pattern.bytes as f64,
                flushes_per_request: counts.flushes as f64 / requests,
            };
            let (_, samples) = suite.samples();
            eprintln!("  {place:6} {:44} {:.3} bytes a byte", pattern.name, written.per_byte);
            samples.add_written(place, pattern.name, written);
        }
    }
    Ok(())
}
