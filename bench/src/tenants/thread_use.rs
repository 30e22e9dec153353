//! What a thread that shares the load generator's CPU takes of it.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use reactor::{CoreConfig, IdlePolicy};

use crate::cpus;

/// A thread's use of its CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadUse {
    /// Share of the CPU.
    pub(super) cpu_share: f64,
    /// How often it slept and was woken.
    pub(super) wakes_per_second: f64,
}

/// Since when, and what it had used then.
pub(super) struct Meter {
    begin: Instant,
    cpu_seconds: f64,
    wakes: u64,
}

/// A core on the load generator's CPU that sleeps when it has nothing to do.
pub(super) fn beside_load(name: &str) -> CoreConfig {
    CoreConfig { cpu: Some(cpus::client()), name: name.to_owned(), idle: IdlePolicy::Sleep }
}

impl ThreadUse {
    /// Measures the calling thread from now on.
    pub(super) fn meter() -> Result<Meter> {
        let wakes = wakes()?;
        Ok(Meter { begin: Instant::now(), cpu_seconds: cpu_seconds(), wakes })
    }
}

impl Meter {
    /// CPU time of the calling thread, which is the one that is measured.
    pub(super) fn cpu_seconds(&self) -> f64 {
        cpu_seconds() - self.cpu_seconds
    }

    pub(super) fn read(&self) -> Result<ThreadUse> {
        let (cpu_seconds, elapsed) = (self.cpu_seconds(), self.begin.elapsed().as_secs_f64());
        let wakes = wakes()? - self.wakes;
        Ok(ThreadUse { cpu_share: cpu_seconds / elapsed, wakes_per_second: wakes as f64 / elapsed })
    }
}

fn cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// How often the calling thread has gone to sleep.
fn wakes() -> Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("no voluntary_ctxt_switches")?.trim().parse()?)
}
