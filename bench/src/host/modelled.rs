//! Threads that read modelled drives and do nothing else: no draw of places, no percentiles, no timeline. Their latencies are
//! those of the model, of timers and of the scheduler.

use std::num::NonZeroU64;
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use device::kind::{Kind, ModelSpec};
use profile::{Latencies, now_ns, sleep_until_ns};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use ssd_model::Model;
use units::{Instant, Pba, PbaRange};

/// Time before a measurement, as the profiler has it.
const WARM_UP_NS: u64 = 500_000_000;
/// A step from place to place that reaches all of a drive's units.
const STEP_BLOCKS: u64 = 7919;
const BLOCKS: u64 = 1 << 18;

/// The CPUs that the threads share, as the profiler takes them.
pub(super) fn cpus_list() -> String {
    let cpus: Vec<String> = profile::allowed_cpus().iter().map(u32::to_string).collect();
    cpus.join(",")
}

/// Latencies of `drives` drives that are read for `seconds`.
pub(super) fn wait(drive: &str, drives: u64, seconds: f64) -> Result<Latencies> {
    let cpus = profile::allowed_cpus();
    let count = usize::try_from(drives)?;
    let ready = Arc::new(Barrier::new(count));
    let start = |index: usize| -> Result<JoinHandle<Vec<u64>>> {
        let spec = ModelSpec::parse(&format!("{drive},seed={}", index + 1))?;
        let model = spec.model().map_err(|error| anyhow!(error.what))?;
        let (cpu, ready) = (cpus[index % cpus.len()], ready.clone());
        // Room for twice as many reads as the fastest drive would make.
        let room = Vec::with_capacity((seconds * 1e4) as usize);
        Ok(thread::spawn(move || {
            let mut set = CpuSet::new();
            set.set(cpu as usize);
            // Hints: without them the figures are merely worse.
            let _ = sched_setaffinity(None, &set);
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            ready.wait();
            read(model, seconds, room)
        }))
    };
    let threads: Vec<_> = (0..count).map(start).collect::<Result<_>>()?;
    let mut all = Latencies::default();
    for thread in threads {
        let read = thread.join().ok().context("a thread panicked")?;
        read.into_iter().for_each(|ns| all.record(ns));
    }
    Ok(all)
}

fn read(mut model: Model, seconds: f64, mut latencies: Vec<u64>) -> Vec<u64> {
    let begin = now_ns();
    let measured = begin + WARM_UP_NS;
    let end = measured + (seconds * 1e9) as u64;
    let mut place = 0;
    loop {
        place = (place + STEP_BLOCKS) % BLOCKS;
        let asked = now_ns();
        let Instant(done) = model.read(Instant(asked), PbaRange::new(Pba(place), 1));
        sleep_until_ns(done);
        let answered = now_ns();
        if asked >= measured {
            latencies.push(answered - asked);
        }
        if answered >= end {
            return latencies;
        }
    }
}
