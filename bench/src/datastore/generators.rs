//! Load generators against a server that answers at once.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use kv_load::{Loop, Popularity, Setup, Sizes, Workload, WriteCommand};
use serde::Serialize;

use super::by_round;
use crate::cpus;
use crate::null::pin;
use crate::peers::pinned;
use crate::process::{Program, free_address, is_installed, own_and_childrens_cpu_seconds, run};

/// Requests outstanding on a connection, and whether the goals are for that.
pub(super) const DEPTHS: [(usize, bool); 3] = [(1, false), (16, true), (64, false)];
/// Length of a measurement of kv-load; redis-benchmark has as many requests.
pub(super) const SECONDS: f64 = 1.0;
const CONNECTIONS: usize = 16;
const KEY_BYTES: u32 = 20;

/// Requests for each second of the generator's CPU time, by round.
#[derive(Default, Serialize)]
pub(super) struct Pair {
    pub(super) own: Vec<f64>,
    pub(super) redis: Vec<f64>,
    /// Those of a generator that does only what cannot be left out.
    pub(super) bare: Vec<f64>,
}

impl Pair {
    /// kv-load's and the bare generator's in multiples of redis-benchmark's, by round.
    pub(super) fn times(&self) -> [Vec<f64>; 2] {
        [&self.own, &self.bare].map(|of| by_round(of, &self.redis, |of, redis| of / redis))
    }
}

/// Measures both by turns at each depth; redis-benchmark only where it is installed.
pub(super) fn measure(rounds: usize, out: &Path) -> Result<Vec<Pair>> {
    let address = free_address()?;
    let own = std::env::current_exe()?.display().to_string();
    let arguments = ["echo".to_owned(), "--port".to_owned(), address.port().to_string()];
    let mut server = Program::start(pinned(&own, &arguments), &out.join("echo.log"))?;
    server.wait_for(address)?;
    let has_redis = is_installed("redis-benchmark");
    let mut all = Vec::new();
    for (depth, _) in DEPTHS {
        let mut pair = Pair::default();
        for round in 0..rounds {
            let (requests, per_second) = kv_load(address, depth)?;
            pair.own.push(per_second);
            pair.bare.push(bare(address, depth)?);
            if has_redis {
                pair.redis.push(redis_benchmark(address, depth, requests)?);
            }
            eprintln!(
                "depth {depth}, round {} of {rounds}: {per_second:.0} a CPU second",
                round + 1
            );
        }
        all.push(pair);
    }
    Ok(all)
}

/// Returns the requests, and those of a CPU second.
fn kv_load(address: SocketAddr, depth: usize) -> Result<(u64, f64)> {
    let workload = Workload {
        keys: 10_000,
        key_sizes: Sizes::Fixed(KEY_BYTES),
        value_sizes: Sizes::Fixed(KEY_BYTES),
        popularity: Popularity::Uniform,
        read_share: 1.0,
        write: WriteCommand::Set,
        seed: 1,
    };
    let setup = Setup {
        address,
        tls: None,
        password: None,
        threads: 1,
        connections: CONNECTIONS,
        depth,
        pace: Loop::Closed,
        warm_up: Duration::ZERO,
        duration: Duration::from_secs_f64(SECONDS),
        drain: Duration::from_secs(1),
        probe_rate: 0.0,
        workload,
    };
    let before = own_and_childrens_cpu_seconds()?[0];
    let load = move || {
        pin(cpus::client())?;
        // Its own CPU is the limit, which is what is measured here.
        kv_load::run(&setup).map_err(anyhow::Error::from)
    };
    let outcome = thread::spawn(load).join().map_err(|_| anyhow!("the load panicked"))??;
    let requests = outcome.reads.count;
    Ok((requests, requests as f64 / (own_and_childrens_cpu_seconds()?[0] - before)))
}

fn bare(address: SocketAddr, depth: usize) -> Result<f64> {
    let length = Duration::from_secs_f64(SECONDS);
    // On a thread of its own, as it takes that to its CPU.
    let load = move || super::bare::run(address, (CONNECTIONS, depth), KEY_BYTES as usize, length);
    thread::spawn(load).join().map_err(|_| anyhow!("the load panicked"))?
}

fn redis_benchmark(address: SocketAddr, depth: usize, requests: u64) -> Result<f64> {
    let before = own_and_childrens_cpu_seconds()?[1];
    let mut command = Command::new("taskset");
    command.args(["-c", &cpus::client().to_string(), "redis-benchmark", "-q", "-t", "get"]);
    command.args(["-p", &address.port().to_string(), "-c", &CONNECTIONS.to_string()]);
    // Its key is one of ten thousand, too.
    command.args(["-P", &depth.to_string(), "-n", &requests.to_string(), "-r", "10000"]);
    run(&mut command)?;
    Ok(requests as f64 / (own_and_childrens_cpu_seconds()?[1] - before))
}
