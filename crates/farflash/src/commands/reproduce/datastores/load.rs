//! Load on datastores and on volumes, and the CPU time that it costs.

use std::cell::Cell;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kv_load::{Loop, PeakSearch, RunError, Setup, Workload, WriteCommand};
use reproduce::eurosys::real_time::{PERCENTILES, Rate};
use serde::Deserialize;
use user_messages::Failure;

use super::made::failed;

const KEY_BYTES: &str = "uniform:17,21";
/// Values as they have grown, and what each set adds.
const GROWN_BYTES: &str = "uniform:100,10000";
const ADDED_BYTES: &str = "100";
const WARM_UP: Duration = Duration::from_millis(300);
/// Time for the last answers.
const DRAIN: Duration = Duration::from_secs(30);
/// Latency of 95 % of gets at a peak.
const LIMIT: Duration = Duration::from_micros(1_500);
const FIRST_RATE: f64 = 1_000.0;
const PEAK_TOLERANCE: f64 = 0.06;
/// Share of gets unless it is the subject.
pub(super) const GETS: f64 = 0.9;
/// Clients of a datastore: as many as it has readers.
const CLIENTS: usize = 16;
/// Requests of each in an open loop, at most.
const DEPTH: usize = 64;
/// Shortest measured time: many ticks of the clock by which the kernel counts CPU time, and long enough for some gets on a
/// machine that does much besides.
const TIME_MIN: Duration = Duration::from_millis(500);
/// Unit of processor times in /proc: USER_HZ, the same on all of Linux's common platforms.
const TICK_NS: f64 = 1e9 / 100.0;

/// The load of one experiment.
pub(super) struct Load<'a> {
    pub(super) out: &'a Path,
    /// Part of each measured time.
    pub(super) time: f64,
    pub(super) seed: u64,
    pub(super) stop: &'a AtomicBool,
    /// Keys of a datastore, known when it is filled.
    pub(super) keys: Cell<u64>,
}

/// A run of reads or of a workload by `farflash bench --json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Bench {
    pub(super) requests: u64,
    pub(super) iops: f64,
    pub(super) read: Tally,
    pub(super) write: Tally,
    pub(super) intervals: Vec<Interval>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) latency: Option<Latency>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Latency {
    /// Pairs of quantile and nanoseconds.
    curve: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    pub(super) reads: u64,
}

impl Latency {
    /// Milliseconds that a share of `quantile` does not exceed.
    pub(super) fn ms(&self, quantile: f64) -> f64 {
        let at = self.curve.iter().find(|(place, _)| *place >= quantile);
        at.or(self.curve.last()).map_or(f64::NAN, |(_, ns)| ns / 1e6)
    }
}

impl Load<'_> {
    /// A measured time of `whole_seconds`, if the experiment takes its whole time.
    pub(super) fn seconds(&self, whole_seconds: f64) -> Duration {
        Duration::from_secs_f64(whole_seconds * self.time).max(TIME_MIN)
    }

    /// Latencies of gets that come one at a time, µs.
    pub(super) fn latencies(
        &self,
        address: SocketAddr,
        duration: Duration,
    ) -> Result<[f64; PERCENTILES.len()], Failure> {
        let one = Setup { connections: 1, depth: 1, ..self.setup(address, 1.0, duration) };
        let outcome = self.measure(&one)?;
        let latencies = &outcome.read_latencies;
        check_answered(latencies.count(), outcome.unanswered)?;
        Ok(PERCENTILES.map(|percent| latencies.percentile(percent).as_secs_f64() * 1e6))
    }

    /// The highest rate at which 95 % of gets keep the limit.
    pub(super) fn peak(&self, address: SocketAddr, duration: Duration) -> Result<f64, Failure> {
        let mut search = PeakSearch::new(FIRST_RATE, PEAK_TOLERANCE);
        while let Some(rate) = search.next() {
            let outcome = self.measure(&self.open(address, rate, duration))?;
            search.on_result(outcome.keeps(LIMIT, |latencies| latencies.percentile(95.0)));
        }
        search.peak().ok_or_else(|| {
            let what = "95 % of gets take longer than 1.5 ms even without load";
            Failure::runtime(what, "run it on a machine that does less besides")
        })
    }

    /// The rate of each datastore, all at once, with clients that send the next query when they have the answer.
    pub(super) fn closed(
        &self,
        addresses: &[SocketAddr],
        gets: f64,
        duration: Duration,
    ) -> Result<Vec<Rate>, Failure> {
        self.all(addresses, |address| self.setup(address, gets, duration))
    }

    /// The latencies of each datastore, all at once, at `rate` queries a second.
    pub(super) fn at_rate(
        &self,
        addresses: &[SocketAddr],
        rate: f64,
        duration: Duration,
    ) -> Result<Vec<Rate>, Failure> {
        self.all(addresses, |address| self.open(address, rate, duration))
    }

    fn all(
        &self,
        addresses: &[SocketAddr],
        setup: impl Fn(SocketAddr) -> Setup,
    ) -> Result<Vec<Rate>, Failure> {
        let setups: Vec<Setup> = addresses.iter().map(|address| setup(*address)).collect();
        let stop = self.stop;
        thread::scope(|scope| {
            let start = |setup| scope.spawn(move || measure(setup, stop));
            let started: Vec<_> = setups.iter().map(start).collect();
            let rates = started.into_iter().map(|thread| {
                let outcome =
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcome.and_then(|outcome| {
                    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
                    let latencies = outcome.judged();
                    check_answered(latencies.count(), outcome.unanswered)?;
                    Ok(Rate {
                        per_second: outcome.qps,
                        mean_us: us(latencies.mean()),
                        p95_us: us(latencies.percentile(95.0)),
                    })
                })
            });
            rates.collect()
        })
    }

    pub(super) fn setup(&self, address: SocketAddr, gets: f64, duration: Duration) -> Setup {
        let setup = calm(address, self.keys.get(), self.seed);
        let workload = Workload { read_share: gets, ..setup.workload.clone() };
        Setup { workload, duration, ..setup }
    }

    fn open(&self, address: SocketAddr, rate: f64, duration: Duration) -> Setup {
        let pace = Loop::Open { rate, arrivals: kv_load::Arrivals::Poisson };
        Setup { pace, depth: DEPTH, ..self.setup(address, GETS, duration) }
    }

    fn measure(&self, setup: &Setup) -> Result<kv_load::Outcome, Failure> {
        measure(setup, self.stop)
    }

    /// Fails if the experiment is to end early.
    pub(super) fn go_on(&self) -> Result<(), Failure> {
        go_on(self.stop)
    }
}

fn go_on(stop: &AtomicBool) -> Result<(), Failure> {
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::runtime("ended by Ctrl-C", "run it again for its figures"));
    }
    Ok(())
}

fn measure(setup: &Setup, stop: &AtomicBool) -> Result<kv_load::Outcome, Failure> {
    go_on(stop)?;
    kv_load::run(setup).map_err(|error| load_failed(&error))
}

/// Refuses a measurement in which nothing was answered: its latencies would be zeroes, or, of requests without an answer, the
/// measured time.
fn check_answered(latencies: u64, unanswered: u64) -> Result<(), Failure> {
    if latencies <= unanswered {
        let what = "nothing was answered in a measured time";
        return Err(Failure::runtime(what, "give a larger --time, or a machine that does less"));
    }
    Ok(())
}

fn load_failed(error: &RunError) -> Failure {
    Failure::runtime(format!("the load of a datastore failed: {error}"), "see its log in --out")
}

/// Gets of clients that each wait for their answer.
fn calm(address: SocketAddr, keys: u64, seed: u64) -> Setup {
    let sizes = |text: &str| text.parse().expect("sizes");
    let workload = Workload {
        keys,
        key_sizes: sizes(KEY_BYTES),
        value_sizes: sizes(ADDED_BYTES),
        popularity: kv_load::Popularity::Uniform,
        read_share: 1.0,
        write: WriteCommand::Set,
        seed,
    };
    Setup {
        address,
        tls: None,
        password: None,
        threads: 1,
        connections: CLIENTS,
        depth: 1,
        pace: Loop::Closed,
        warm_up: WARM_UP,
        duration: WARM_UP,
        drain: DRAIN,
        probe_rate: 0.0,
        workload,
    }
}

/// Fills a datastore with values as they have grown.
pub(super) fn filled(address: SocketAddr, keys: u64, seed: u64) -> Result<(), Failure> {
    let calm = calm(address, keys, seed);
    let value_sizes = GROWN_BYTES.parse().expect("sizes");
    let workload = Workload { value_sizes, ..calm.workload.clone() };
    let filled = kv_load::fill(&Setup { workload, ..calm }).map_err(|error| load_failed(&error))?;
    match filled.first_error {
        Some(error) => Err(failed(format!("the datastore at {address} cannot be filled: {error}"))),
        None => Ok(()),
    }
}

/// Waits for `farflash bench --json` and takes its result.
pub(super) fn finished(child: Child) -> Result<Bench, Failure> {
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("the load of a volume failed: {}", said.trim())));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| failed(format!("the load of a volume has no result: {error}")))
}

/// CPU time of a process so far, threads that ended included.
pub(super) fn cpu_ns(process: u32) -> Result<f64, Failure> {
    let [own, _] = times_ns(&process.to_string())?;
    Ok(own)
}

/// CPU time of the children of this process that have ended.
pub(super) fn childrens_cpu_ns() -> Result<f64, Failure> {
    let [_, children] = times_ns("self")?;
    Ok(children)
}

fn times_ns(process: &str) -> Result<[f64; 2], Failure> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).map_err(|error| failed(format!("{path}: {error}")))?;
    parse_times(&stat).ok_or_else(|| failed(format!("{path} is not understood: {stat}")))
}

/// CPU time in ns by a line of `stat`: of the process, and of its children that have ended.
fn parse_times(stat: &str) -> Option<[f64; 2]> {
    // The name in parentheses may hold anything; fields are counted behind it.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: Vec<f64> = fields
        .take(4)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()
        .filter(|ticks: &Vec<f64>| ticks.len() == 4)?;
    Some([ticks[0] + ticks[1], ticks[2] + ticks[3]].map(|ticks| ticks * TICK_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_those_behind_the_name() {
        let stat = "7 (a ) b 9) S 1 7 7 0 -1 4194560 900 0 0 0 12 34 5 6 20 0 3 0 100";
        assert_eq!(parse_times(stat), Some([0.46e9, 0.11e9]));
        assert_eq!(parse_times("7 (cut) S 1 7 7"), None);
    }

    /// A machine that was busy for all of a measured time gives no figure, not one of 0 µs.
    #[test]
    fn nothing_that_was_measured_is_no_figure() {
        assert!(check_answered(0, 0).is_err() && check_answered(3, 3).is_err());
        assert!(check_answered(1, 0).is_ok() && check_answered(3, 2).is_ok());
    }

    /// The quantile is that of the curve, whose last point stands for what lies beyond it.
    #[test]
    fn a_latency_is_read_from_its_curve() {
        let latency = Latency { curve: vec![(0.0, 1e6), (0.9, 2e6), (0.96, 3e6)] };
        assert_eq!([0.5, 0.95, 0.99].map(|quantile| latency.ms(quantile)), [2.0, 3.0, 3.0]);
    }
}
