//! One load, in which slices with something beside it and without follow each other.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::Extent;
use super::connects::{CONNECTIONS_EACH, Connecting, Idling};
use super::own_time::OwnTime;
use super::scraping::Scraping;
use crate::case::Shape;
use crate::cpus;
use crate::driver::Driver;
use crate::null::visited::{self, Visits};
use crate::process::{Doors, Server, VolumeAddress};
use crate::steady::{Steady, by_run};

/// Length of a slice, but where metrics are read once in each.
pub(super) const SLICE: Duration = Duration::from_millis(100);
/// Length of a slice in which metrics are read once: as often as any monitoring system does.
pub(super) const LONG_SLICE: Duration = Duration::from_secs(1);
/// Connections a second that are wanted, each authenticated.
pub(super) const CONNECTS_PER_SECOND: f64 = 500.0;

/// The load with something beside it and without, in requests a second, by round.
#[derive(Debug, Default, Serialize)]
pub(super) struct Beside {
    pub(super) without: Vec<f64>,
    pub(super) with: Vec<f64>,
}

impl Beside {
    pub(super) fn ratios(&self) -> Vec<f64> {
        ratios(&self.with, &self.without)
    }
}

/// Hosts that connect, in connections a second, and the load beside them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connects {
    /// Nothing else to do.
    pub(super) alone_per_second: Vec<f64>,
    pub(super) beside_per_second: Vec<f64>,
    /// Microseconds that each connection takes of the load generator's thread.
    pub(super) own_us: Vec<f64>,
    /// The load alone, beside the hosts, and without hosts, but with as much of the generator's time gone: in
    /// requests a second, by round.
    alone: Vec<f64>,
    with: Vec<f64>,
    without_their_time: Vec<f64>,
    /// A null server's load alone, and beside as many visitors with as many messages.
    null_alone: Vec<f64>,
    null_with: Vec<f64>,
}

impl Connects {
    /// Returns the share of the load that is left beside the hosts, by round.
    pub(super) fn of_load(&self) -> Vec<f64> {
        ratios(&self.with, &self.alone)
    }

    /// Returns the share that is left by the hosts' own time alone.
    pub(super) fn of_load_without_their_time(&self) -> Vec<f64> {
        ratios(&self.without_their_time, &self.alone)
    }

    /// Returns the share of a null server's load that is left beside as many visitors, by round.
    pub(super) fn of_null_load(&self) -> Vec<f64> {
        ratios(&self.null_with, &self.null_alone)
    }

    /// A run of a null server.
    fn run_of_null(&mut self, rounds: usize) -> Result<()> {
        let visits = Visits { per_second: CONNECTS_PER_SECOND, slice: SLICE, pairs: rounds };
        let visited = visited::run(cpus::server(), cpus::client(), visits)?;
        self.null_alone.extend(visited.without);
        self.null_with.extend(visited.with);
        Ok(())
    }

    /// A run: slices of all kinds, there and back.
    fn run(&mut self, load: &Steady, door: &VolumeAddress, rounds: usize) -> Result<()> {
        let mut own_time = OwnTime::default();
        for slice in 0..3 * rounds {
            match slice % 6 {
                0 | 5 => self.alone.push(load.rate(SLICE)),
                1 | 4 => {
                    let connecting = Connecting::beside(load, door, CONNECTS_PER_SECOND)?;
                    self.with.push(load.rate(SLICE));
                    let made = connecting.stop()?;
                    own_time = made.own_time;
                    let connections = f64::from(made.hosts) * CONNECTIONS_EACH as f64;
                    self.own_us.push(own_time.spent().as_secs_f64() * 1e6 / connections);
                    self.beside_per_second.push(made.connections_per_second);
                }
                _ => {
                    let idling = Idling::beside(load, own_time.clone())?;
                    self.without_their_time.push(load.rate(SLICE));
                    idling.stop();
                }
            }
        }
        Ok(())
    }
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Returns true if a slice has something beside it: without, with, with, without, and so on.
fn has_company(slice: usize) -> bool {
    matches!(slice % 4, 1 | 2)
}

/// A reader of the metrics beside load.
#[derive(Debug, Default, Serialize)]
pub(super) struct Metrics {
    /// Reads beside a reader of the metrics once a second, and ten times.
    pub(super) each_second: Beside,
    pub(super) tenfold: Beside,
    /// Writes beside a reader of the metrics once a second.
    pub(super) each_second_of_writes: Beside,
    /// Milliseconds that a reading took.
    pub(super) reading_ms: Vec<f64>,
}

/// Slices of one length, in so many pairs, with one reading of the metrics in one of each pair.
#[derive(Clone, Copy)]
struct Pace {
    length: Duration,
    pairs: usize,
}

impl Beside {
    /// A run beside a reader of the metrics; milliseconds that each reading took.
    fn readings(&mut self, load: &Steady, server: &Server, pace: Pace) -> Result<Vec<f64>> {
        let mut reading_ms = Vec::new();
        for half in 0..2 * pace.pairs {
            if !has_company(half) {
                self.without.push(load.rate(pace.length));
            } else {
                let scraping = Scraping::start(server.api, pace.length);
                self.with.push(load.rate(pace.length));
                reading_ms.push(scraping.finish()?.took_ms);
            }
        }
        Ok(reading_ms)
    }
}

impl Metrics {
    fn run(&mut self, reads: &Steady, server: &Server, extent: &Extent) -> Result<()> {
        let long = Pace { length: LONG_SLICE, pairs: extent.long_pairs };
        let short = Pace { length: SLICE, pairs: extent.rounds };
        self.reading_ms.extend(self.each_second.readings(reads, server, long)?);
        self.reading_ms.extend(self.tenfold.readings(reads, server, short)?);
        Ok(())
    }

    fn run_of_writes(&mut self, writes: &Steady, server: &Server, extent: &Extent) -> Result<()> {
        let long = Pace { length: LONG_SLICE, pairs: extent.long_pairs };
        self.reading_ms.extend(self.each_second_of_writes.readings(writes, server, long)?);
        Ok(())
    }
}

/// The measurements.
#[derive(Debug, Default, Serialize)]
pub(super) struct Slices {
    pub(super) connects: Connects,
    pub(super) metrics: Metrics,
}

pub(super) fn measure(farflash: &Path, out: &Path, extent: &Extent) -> Result<Slices> {
    let log = out.join("tenants.log");
    let server = Server::start_with(farflash, "mem:2GiB", Doors::Guarded, cpus::server(), &log)?;
    let volume = server.create_volume("load", "1GiB")?;
    let door = server.create_volume("door", "1GiB")?;
    let token = Some(volume.token.clone());
    Driver { farflash: farflash.to_owned(), seconds: 0.0, token }.fill(&volume.target(), "1GiB")?;
    let mut slices = Slices::default();
    for run in 0..extent.runs {
        for _ in 0..extent.rounds {
            let connecting = Connecting::alone(&door)?;
            std::thread::sleep(SLICE);
            slices.connects.alone_per_second.push(connecting.stop()?.connections_per_second);
        }
        slices.connects.run_of_null(extent.rounds)?;
        let load = Steady::start(&volume, Some(volume.credentials()?), Shape::READ_32)?;
        slices.connects.run(&load, &door, extent.rounds)?;
        slices.metrics.run(&load, &server, extent)?;
        load.stop()?;
        say_how_far(run, extent, &slices);
    }
    // Behind all reads, which thus find the volume as it was filled.
    for run in 0..extent.runs {
        let load = Steady::start(&volume, Some(volume.credentials()?), Shape::WRITE_32)?;
        slices.metrics.run_of_writes(&load, &server, extent)?;
        load.stop()?;
        let beside = last_run(&slices.metrics.each_second_of_writes.ratios(), extent.long_pairs);
        eprintln!("run {} of {} of writes: beside metrics {beside:.3}", run + 1, extent.runs);
    }
    server.program.terminate()?;
    Ok(slices)
}

/// The median of the last run, of runs of `each` values.
fn last_run(ratios: &[f64], each: usize) -> f64 {
    by_run(ratios, each).last().copied().unwrap_or(f64::NAN)
}

fn say_how_far(run: usize, extent: &Extent, slices: &Slices) {
    eprintln!(
        "run {} of {}: beside connects {:.3}, null server {:.3}, without their time {:.3}, beside metrics {:.3}",
        run + 1,
        extent.runs,
        last_run(&slices.connects.of_load(), extent.rounds),
        last_run(&slices.connects.of_null_load(), extent.rounds),
        last_run(&slices.connects.of_load_without_their_time(), extent.rounds),
        last_run(&slices.metrics.each_second.ratios(), extent.long_pairs),
    );
}
