//! A volume as a local file, with requests by `/dev/fuse` and by io_uring, beside the same volume by the library.
//!
//! All are driven from the client's CPU by one program, and go to one Flash server in memory. The processes that serve the files
//! run where the kernel puts them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde::Serialize;

use super::by_round;
use crate::case::Shape;
use crate::compare::{in_turn, local};
use crate::cpus;
use crate::driver::Driver;
use crate::process::{Server, VolumeAddress, run};

/// Seconds of each measurement.
const SECONDS: f64 = 0.5;
const VOLUME: &str = "attached";

/// The loads.
pub(super) const SHAPES: [Shape; 4] =
    [Shape::READ_1, Shape::WRITE_1, Shape::READ_32, Shape::LARGE_READ];

/// The way to the volume.
#[derive(Clone, Copy)]
enum Way {
    Library,
    Device,
    Ring,
}

/// Requests a second of one load in each round: by the library, and through files whose requests come by `/dev/fuse` and by
/// io_uring. The last ones are none where the kernel does not have that.
#[derive(Default, Serialize)]
pub(super) struct Rates {
    pub(super) library: Vec<f64>,
    pub(super) device: Vec<f64>,
    pub(super) ring: Vec<f64>,
}

impl Rates {
    /// Microseconds that a file adds to each of so many requests at a time, in each round.
    pub(super) fn added_us(&self, file: &[f64], depth: u32) -> Vec<f64> {
        let each_us = |rate: f64| f64::from(depth) / rate * 1e6;
        by_round(&self.library, file, |library, file| each_us(file) - each_us(library))
    }

    /// A file's rate in parts of the library's, in each round.
    pub(super) fn shares(&self, file: &[f64]) -> Vec<f64> {
        by_round(&self.library, file, |library, file| file / library)
    }

    fn of(&mut self, way: Way) -> &mut Vec<f64> {
        match way {
            Way::Library => &mut self.library,
            Way::Device => &mut self.device,
            Way::Ring => &mut self.ring,
        }
    }
}

/// The kernel's switch for FUSE over io_uring, in one position; back in that from before when dropped.
pub(super) struct RingSwitch {
    before: String,
}

impl RingSwitch {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    /// `None` if the kernel has no such switch, or it may not be set.
    pub(super) fn set(on: bool) -> Option<Self> {
        let before = fs::read_to_string(Self::PATH).ok()?;
        fs::write(Self::PATH, if on { "Y" } else { "N" }).ok()?;
        Some(Self { before })
    }
}

impl Drop for RingSwitch {
    fn drop(&mut self) {
        if let Err(error) = fs::write(Self::PATH, &self.before) {
            eprintln!("bench: {} is left as it is: {error}", Self::PATH);
        }
    }
}

/// The file; detached when dropped.
struct Attached {
    farflash: PathBuf,
    directory: PathBuf,
    file: PathBuf,
}

/// The rates of each of [`SHAPES`].
pub(super) fn measure(farflash: &Path, rounds: usize, out: &Path) -> Result<Vec<Rates>> {
    let driver = Driver { farflash: farflash.to_owned(), seconds: SECONDS, token: None };
    let server = Server::start(farflash, "mem:3GiB", cpus::server(), &out.join("attached.log"))?;
    let volume = server.create_volume(VOLUME, "1GiB")?;
    driver.fill(&volume.target(), "1GiB")?;
    let by_device = {
        let _off = RingSwitch::set(false);
        Attached::start(farflash, &volume, out, "attached")?
    };
    let by_ring = match RingSwitch::set(true) {
        Some(_on) => Some(Attached::start(farflash, &volume, out, "attached-by-ring")?),
        None => None,
    };
    let mut ways = vec![(Way::Library, volume.target()), (Way::Device, local(&by_device.file))];
    ways.extend(by_ring.iter().map(|attached| (Way::Ring, local(&attached.file))));
    let mut rates: Vec<Rates> = SHAPES.iter().map(|_| Rates::default()).collect();
    let cases: Vec<(usize, &(Way, String))> =
        (0..SHAPES.len()).flat_map(|shape| ways.iter().map(move |way| (shape, way))).collect();
    for round in 0..rounds {
        eprintln!("an attached volume, round {} of {rounds}", round + 1);
        for (_, &(shape, (way, target))) in in_turn(&cases, round) {
            let sample = driver.sample_on(target, &SHAPES[shape], cpus::client())?;
            rates[shape].of(*way).push(sample.iops);
        }
    }
    Ok(rates)
}

impl Attached {
    fn start(farflash: &Path, volume: &VolumeAddress, out: &Path, name: &str) -> Result<Self> {
        let out = out.canonicalize()?;
        let (directory, file) = (out.join(name), out.join(format!("{name}.img")));
        let attached = Self { farflash: farflash.to_owned(), directory, file };
        let mut command = attached.command("attach");
        run(command.arg(volume.target()).arg("--path").arg(&attached.file))?;
        Ok(attached)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.farflash);
        command.arg(name).arg("--state-dir").arg(&self.directory);
        command
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = run(self.command("detach").arg(&self.file)) {
            eprintln!("bench: {} stays attached: {error:#}", self.file.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ways are compared within a round, where noise hits both.
    #[test]
    fn a_file_is_compared_with_the_library_in_each_round() {
        let rates = Rates { library: vec![1e5, 5e4], device: vec![5e4, 4e4], ring: Vec::new() };
        let near = |values: Vec<f64>, expected: [f64; 2]| {
            values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-9)
        };
        assert!(near(rates.added_us(&rates.device, 2), [20.0, 10.0]));
        assert!(near(rates.shares(&rates.device), [0.5, 0.8]));
        assert!(rates.shares(&rates.ring).is_empty(), "not measured");
    }
}
