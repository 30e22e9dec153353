//! A volume as a local file, beside the same volume by the library.
//!
//! Both are driven from the client's CPU by one program, and go to one Flash server in memory. The process that serves the file
//! runs where the kernel puts it.

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

/// Requests a second of one load in each round, by the library and through the file.
#[derive(Default, Serialize)]
pub(super) struct Pair {
    pub(super) library: Vec<f64>,
    pub(super) file: Vec<f64>,
}

impl Pair {
    /// Microseconds that the file adds to each of so many requests at a time, in each round.
    pub(super) fn added_us(&self, depth: u32) -> Vec<f64> {
        let each_us = |rate: f64| f64::from(depth) / rate * 1e6;
        by_round(&self.library, &self.file, |library, file| each_us(file) - each_us(library))
    }

    /// The file's rate in parts of the library's, in each round.
    pub(super) fn shares(&self) -> Vec<f64> {
        by_round(&self.library, &self.file, |library, file| file / library)
    }
}

/// The file; detached when dropped.
struct Attached {
    farflash: PathBuf,
    directory: PathBuf,
    file: PathBuf,
}

/// The rates of each of [`SHAPES`].
pub(super) fn measure(farflash: &Path, rounds: usize, out: &Path) -> Result<Vec<Pair>> {
    let driver = Driver { farflash: farflash.to_owned(), seconds: SECONDS, token: None };
    let server = Server::start(farflash, "mem:3GiB", cpus::server(), &out.join("attached.log"))?;
    let volume = server.create_volume(VOLUME, "1GiB")?;
    driver.fill(&volume.target(), "1GiB")?;
    let attached = Attached::start(farflash, &volume, out)?;
    let file = local(&attached.file);
    let mut pairs: Vec<Pair> = SHAPES.iter().map(|_| Pair::default()).collect();
    let cases: Vec<(usize, bool)> =
        (0..SHAPES.len()).flat_map(|shape| [(shape, false), (shape, true)]).collect();
    for round in 0..rounds {
        eprintln!("an attached volume, round {} of {rounds}", round + 1);
        for (_, &(shape, is_file)) in in_turn(&cases, round) {
            let pair = &mut pairs[shape];
            let (target, rates) = match is_file {
                true => (file.clone(), &mut pair.file),
                false => (volume.target(), &mut pair.library),
            };
            rates.push(driver.sample_on(&target, &SHAPES[shape], cpus::client())?.iops);
        }
    }
    Ok(pairs)
}

impl Attached {
    fn start(farflash: &Path, volume: &VolumeAddress, out: &Path) -> Result<Self> {
        let out = out.canonicalize()?;
        let (directory, file) = (out.join("attached"), out.join("attached.img"));
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
        let pair = Pair { library: vec![1e5, 5e4], file: vec![5e4, 4e4] };
        let near = |values: Vec<f64>, expected: [f64; 2]| {
            values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 1e-9)
        };
        assert!(near(pair.added_us(2), [20.0, 10.0]));
        assert!(near(pair.shares(), [0.5, 0.8]));
    }
}
