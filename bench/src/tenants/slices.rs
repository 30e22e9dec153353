//! One load, in which slices with something beside it and without follow each other.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::Extent;
use super::connects::{Connecting, Made};
use super::control::Control;
use super::scraping::Scraping;
use crate::case::Shape;
use crate::cpus;
use crate::driver::Driver;
use crate::process::{Doors, Server, VolumeAddress};
use crate::steady::{Steady, by_run};

/// Length of a slice, but where metrics are read once in each.
pub(super) const SLICE: Duration = Duration::from_millis(200);
/// Length of a slice in which metrics are read once: as often as anybody does who looks on.
pub(super) const LONG_SLICE: Duration = Duration::from_secs(1);
/// Readings in a [`SLICE`], of somebody who reads ten times a second.
const READINGS: u32 = 2;
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

/// Hosts that connect beside load.
#[derive(Debug, Default, Serialize)]
pub(super) struct Connects {
    /// Connections a second: nothing else to do, and beside load.
    pub(super) alone_per_second: Vec<f64>,
    pub(super) beside_per_second: Vec<f64>,
    /// The load's requests a second without anybody, beside those who connect, and beside the control.
    load_alone: Vec<f64>,
    load_beside_hosts: Vec<f64>,
    load_beside_control: Vec<f64>,
    /// Shares of the load generator's CPU that they took, and how often they woke there.
    pub(super) cpu_of_hosts: Vec<f64>,
    pub(super) cpu_of_control: Vec<f64>,
    wakes_of_hosts_per_second: Vec<f64>,
    wakes_of_control_per_second: Vec<f64>,
}

impl Connects {
    /// The load beside hosts, of the load alone.
    pub(super) fn beside_hosts(&self) -> Vec<f64> {
        ratios(&self.load_beside_hosts, &self.load_alone)
    }

    /// The load beside the control, of the load alone.
    pub(super) fn beside_control(&self) -> Vec<f64> {
        ratios(&self.load_beside_control, &self.load_alone)
    }

    /// The load beside hosts, of the load beside the control: what the server leaves of it.
    pub(super) fn left_by_server(&self) -> Vec<f64> {
        ratios(&self.load_beside_hosts, &self.load_beside_control)
    }

    fn slice_alone(&mut self, load: &Steady) {
        self.load_alone.push(load.rate(SLICE));
    }

    fn slice_beside_hosts(&mut self, load: &Steady, door: &VolumeAddress) -> Result<Made> {
        let connecting = Connecting::start(door, Some(CONNECTS_PER_SECOND))?;
        self.load_beside_hosts.push(load.rate(SLICE));
        let made = connecting.stop()?;
        self.beside_per_second.push(made.per_second);
        self.cpu_of_hosts.push(made.hosts.cpu_share);
        self.wakes_of_hosts_per_second.push(made.hosts.wakes_per_second);
        Ok(made)
    }

    fn slice_beside_control(&mut self, load: &Steady, as_much: Made) -> Result<()> {
        let control = Control::start(as_much.hosts)?;
        self.load_beside_control.push(load.rate(SLICE));
        let control = control.stop()?;
        self.cpu_of_control.push(control.cpu_share);
        self.wakes_of_control_per_second.push(control.wakes_per_second);
        Ok(())
    }

    /// A run: slices of the three kinds, there and back.
    fn run(&mut self, load: &Steady, door: &VolumeAddress, rounds: usize) -> Result<()> {
        let connecting = Connecting::start(door, Some(CONNECTS_PER_SECOND))?;
        std::thread::sleep(SLICE);
        // The control does what was last measured.
        let mut made = connecting.stop()?;
        for round in 0..rounds {
            if round % 2 == 0 {
                self.slice_alone(load);
                made = self.slice_beside_hosts(load, door)?;
                self.slice_beside_control(load, made)?;
            } else {
                self.slice_beside_control(load, made)?;
                made = self.slice_beside_hosts(load, door)?;
                self.slice_alone(load);
            }
        }
        Ok(())
    }
}

/// Somebody who reads the metrics beside load.
#[derive(Debug, Default, Serialize)]
pub(super) struct Metrics {
    /// The load beside somebody who reads them once a second, and ten times.
    pub(super) each_second: Beside,
    pub(super) tenfold: Beside,
    /// Milliseconds that a reading took.
    pub(super) reading_ms: Vec<f64>,
}

impl Metrics {
    fn run(&mut self, load: &Steady, server: &Server, extent: &Extent) -> Result<()> {
        let reading_ms = &mut self.reading_ms;
        let kinds = [
            (&mut self.each_second, LONG_SLICE, 1, extent.long_pairs),
            (&mut self.tenfold, SLICE, READINGS, extent.rounds),
        ];
        for (beside, length, readings, pairs) in kinds {
            for half in 0..2 * pairs {
                // Without, with, with, without, and so on.
                if half % 4 == 0 || half % 4 == 3 {
                    beside.without.push(load.rate(length));
                } else {
                    let scraping = Scraping::start(server.api, length, readings);
                    beside.with.push(load.rate(length));
                    reading_ms.extend(scraping.finish()?);
                }
            }
        }
        Ok(())
    }
}

/// What was measured.
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
            let connecting = Connecting::start(&door, None)?;
            std::thread::sleep(SLICE);
            slices.connects.alone_per_second.push(connecting.stop()?.per_second);
        }
        let load = Steady::start(&volume, Some(volume.credentials()?), Shape::READ_32)?;
        slices.connects.run(&load, &door, extent.rounds)?;
        slices.metrics.run(&load, &server, extent)?;
        load.stop()?;
        say_how_far(run, extent, &slices);
    }
    server.program.terminate()?;
    Ok(slices)
}

fn say_how_far(run: usize, extent: &Extent, slices: &Slices) {
    let last = |ratios: &[f64], each| by_run(ratios, each).last().copied().unwrap_or(f64::NAN);
    eprintln!(
        "run {} of {}: beside connects {:.3}, beside their control {:.3}, beside metrics {:.3}",
        run + 1,
        extent.runs,
        last(&slices.connects.beside_hosts(), extent.rounds),
        last(&slices.connects.beside_control(), extent.rounds),
        last(&slices.metrics.each_second.ratios(), extent.long_pairs),
    );
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}
