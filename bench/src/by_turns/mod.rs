//! Random reads of one volume by turns: with something that is measured, and without it.
//!
//! What the programs have in common that are built with something that can be left out (`verification.rs`, `counting.rs`).

#[allow(dead_code, reason = "shared with `bench engine`, which uses all of it")]
#[path = "../engine/bed.rs"]
pub(crate) mod bed;
#[allow(dead_code, reason = "shared with `bench engine`, which uses all of it")]
#[path = "../engine/counted.rs"]
pub(crate) mod counted;
#[allow(dead_code, reason = "shared with `bench`, which uses all of it")]
#[path = "../cpus.rs"]
pub(crate) mod cpus;
pub(crate) mod served;
#[allow(dead_code, reason = "shared with `bench engine`, which uses all of it")]
#[path = "../engine/target.rs"]
pub(crate) mod target;

use std::time::Duration;

use anyhow::Result;
use load::{Limit, Target};
use reactor::Handle;
use serde::Serialize;

use self::bed::Load;

/// Bytes of the volume that is read.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;
/// Bytes of a device in memory that has it.
pub(super) const DEVICE_BYTES: u64 = 2 << 30;
/// Slices of a measurement with and without: a virtual machine varies by more from second to second than is asked.
const SLICES: u32 = 10;

/// Requests a second in each round.
#[derive(Default, Serialize)]
pub(super) struct Rates {
    with: Vec<f64>,
    without: Vec<f64>,
}

/// Amount of measuring.
#[derive(Clone, Copy)]
pub(super) struct Length {
    pub(super) rounds: usize,
    /// Seconds of each round with and without.
    pub(super) seconds: f64,
}

/// Reads `target` with and without, by turns, there and back; `set` says which, while nothing is under way.
pub(super) async fn measure<T: Target>(
    handle: &Handle,
    target: &T,
    Length { rounds, seconds }: Length,
    set: impl AsyncFn(bool),
) -> Result<Rates> {
    let random_read = Load {
        write: false,
        sequential: false,
        block_bytes: 4096,
        depth: 32,
        range_bytes: VOLUME_BYTES,
        limit: Limit::Time(Duration::from_secs_f64(seconds / f64::from(SLICES))),
        seed: 1,
    };
    let limit = Limit::Bytes(VOLUME_BYTES);
    let fill = Load { write: true, sequential: true, block_bytes: 128 << 10, limit, ..random_read };
    bed::run(handle, target, fill).await?;
    let mut rates = Rates::default();
    for round in 0..rounds as u64 {
        let (mut with, mut without) = (0.0, 0.0);
        for slice in 0..u64::from(SLICES) {
            let load = Load { seed: (round << 32) + slice + 1, ..random_read };
            for is_with in [slice % 2 == 0, slice % 2 != 0] {
                set(is_with).await;
                let rate = bed::run(handle, target, load).await?.requests_per_second;
                *(if is_with { &mut with } else { &mut without }) += rate / f64::from(SLICES);
            }
        }
        set(true).await;
        rates.with.push(with);
        rates.without.push(without);
    }
    Ok(rates)
}
