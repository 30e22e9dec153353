//! The loads, and the servers under them.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cpus;
use crate::driver::Driver;
use crate::null::{self, Blocks, Direction, NullSpec};
use crate::process::{Server, VolumeAddress, run};

/// Seconds in which a rate is measured. Changes in the speed of a virtual machine's processor hit all servers alike only if they
/// are measured soon after one another.
pub(super) const TURN_SECONDS: f64 = 0.06;
/// Seconds in which first writes, tails and processor time are measured, with requests of a block and larger ones: ten thousand
/// requests tell a 99.9th percentile. As long is a load before its tail is measured: the host of a virtual machine provides
/// memory when it is touched first, which takes a generator that has just started milliseconds.
const LONG_SECONDS: f64 = 0.4;
const LARGE_LONG_SECONDS: f64 = 1.5;
/// Least number of requests of which a 99.9th percentile is told.
const TAIL_REQUESTS_MIN: f64 = 10_000.0;
const DEVICE_SIZE: &str = "8GiB";
const VOLUME_SIZE: &str = "1GiB";
/// A volume for first writes: few of a measurement hit a block twice.
const FIRST_SIZE: &str = "4GiB";
/// Time in which a device in memory gets what a deleted volume held.
const DELETION: Duration = Duration::from_secs(1);

/// A load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Load {
    pub(super) name: &'static str,
    /// As `farflash bench --rw` takes it, with the share of reads if it is mixed.
    rw: &'static str,
    reads_percent: Option<&'static str>,
    block_bytes: usize,
    pub(super) depth: u64,
    /// The volume holds nothing yet.
    pub(super) is_first: bool,
    /// Use that a null server makes of the blocks, if one is measured.
    pub(super) blocks: Option<Blocks>,
    /// Rate that is to be reached, in multiples of the other build.
    pub(super) times_min: Option<f64>,
}

pub(super) const READ_1: &str = "4 KiB random read, depth 1";
pub(super) const READ_32: &str = "4 KiB random read, depth 32";
pub(super) const WRITE_1: &str = "4 KiB random write, depth 1";
pub(super) const WRITE_32: &str = "4 KiB random write, depth 32";
pub(super) const LARGE_WRITE: &str = "128 KiB random write, depth 8";
pub(super) const MIXED: &str = "4 KiB, 70 % reads, depth 32";
pub(super) const FIRST_32: &str = "4 KiB random first write, depth 32";

/// Random requests of 4 KiB, one by one.
const PLAIN: Load = Load {
    name: READ_1,
    rw: "randread",
    reads_percent: None,
    block_bytes: 4096,
    depth: 1,
    is_first: false,
    blocks: Some(Blocks::Checked),
    times_min: None,
};
const WRITE: Load = Load { name: WRITE_1, rw: "randwrite", blocks: Some(Blocks::Stored), ..PLAIN };
const FIRST: Load = Load { is_first: true, blocks: Some(Blocks::StoredFirst), depth: 32, ..WRITE };

pub(super) const LOADS: [Load; 11] = [
    PLAIN,
    Load { name: READ_32, depth: 32, ..PLAIN },
    Load { name: "4 KiB random read, depth 128", depth: 128, times_min: Some(1.1), ..PLAIN },
    Load {
        name: "128 KiB random read, depth 8",
        block_bytes: 128 << 10,
        depth: 8,
        times_min: Some(1.2),
        ..PLAIN
    },
    WRITE,
    Load { name: WRITE_32, depth: 32, times_min: Some(1.25), ..WRITE },
    Load { name: LARGE_WRITE, block_bytes: 128 << 10, depth: 8, times_min: Some(1.6), ..WRITE },
    Load { name: MIXED, rw: "randrw", reads_percent: Some("70"), depth: 32, blocks: None, ..PLAIN },
    Load { name: FIRST_32, times_min: Some(1.4), ..FIRST },
    Load {
        name: "4 KiB first write in order, depth 32",
        rw: "write",
        times_min: Some(1.4),
        ..FIRST
    },
    Load {
        name: "128 KiB random first write, depth 8",
        block_bytes: 128 << 10,
        depth: 8,
        times_min: Some(2.0),
        ..FIRST
    },
];

/// Measurements of one load of one server in one round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Measured {
    pub(super) iops: Option<f64>,
    pub(super) p999_us: Option<f64>,
    pub(super) cpu_us_per_request: Option<f64>,
}

/// The length of a measurement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Length {
    /// As short as tells a rate.
    Turn,
    /// As long as tells the processor time of a request.
    Long,
    /// As long as tells a tail, behind as much of the same load.
    Tail,
}

impl Load {
    fn seconds(&self, length: Length) -> f64 {
        match length {
            Length::Turn => TURN_SECONDS,
            _ if self.block_bytes > 4096 => LARGE_LONG_SECONDS,
            Length::Long | Length::Tail => LONG_SECONDS,
        }
    }

    /// Seconds of the same load before, which are not measured.
    fn warm_up_seconds(&self, length: Length) -> f64 {
        if length == Length::Tail { self.seconds(length) } else { 0.0 }
    }

    /// Measures a null server.
    pub(super) fn null(&self, length: Length) -> Result<Measured> {
        let is_read = self.rw == "randread";
        let seconds = self.seconds(length);
        let result = null::run(&NullSpec {
            direction: if is_read { Direction::Read } else { Direction::Write },
            block_bytes: self.block_bytes,
            blocks: self.blocks.context("this load has no null server")?,
            depth: self.depth,
            connections: 1,
            server_cpu: cpus::server(),
            client_cpu: cpus::client(),
            warm_up_seconds: self.warm_up_seconds(length),
            seconds,
        })?;
        let cpu = result.server_cpu_us_per_request;
        Ok(Measured::of(result.requests_per_second, seconds, result.p999_us, cpu))
    }
}

impl Measured {
    fn of(iops: f64, seconds: f64, p999_us: Option<f64>, cpu_us_per_request: f64) -> Self {
        let p999_us = p999_us.filter(|_| iops * seconds >= TAIL_REQUESTS_MIN);
        Self { iops: Some(iops), p999_us, cpu_us_per_request: Some(cpu_us_per_request) }
    }
}

/// A server with a volume that is written.
struct Served {
    server: Server,
    volume: VolumeAddress,
    /// Volumes made for first writes so far.
    made: u32,
    /// Those that are there.
    written: Vec<String>,
}

/// All servers.
pub(super) struct Bed {
    driver: Driver,
    farflash: Served,
    base: Option<Served>,
}

impl Bed {
    /// Starts the servers, and writes their volumes once.
    pub(super) fn prepare(farflash: &Path, base: Option<&Path>, out: &Path) -> Result<Self> {
        let driver = Driver { farflash: farflash.to_owned(), seconds: LONG_SECONDS, token: None };
        let start = |program: &Path, log: &str| -> Result<Served> {
            let (device, log) = (format!("mem:{DEVICE_SIZE}"), out.join(log));
            let server = Server::start(program, &device, cpus::server(), &log)?;
            let volume = server.create_volume("written", VOLUME_SIZE)?;
            driver.fill(&volume.target(), VOLUME_SIZE)?;
            Ok(Served { server, volume, made: 0, written: Vec::new() })
        };
        let farflash = start(farflash, "writes.log")?;
        let base = base.map(|base| start(base, "writes-base.log")).transpose()?;
        Ok(Self { driver, farflash, base })
    }

    pub(super) fn farflash(&mut self, load: &Load, length: Length) -> Result<Measured> {
        self.farflash.measure(&self.driver, load, length)
    }

    pub(super) fn base(&mut self, load: &Load, length: Length) -> Result<Measured> {
        let base = self.base.as_mut().context("there is no other build")?;
        base.measure(&self.driver, load, length)
    }

    /// Deletes the volumes that were made for first writes, behind all servers' first writes of a load.
    pub(super) fn clear(&mut self) -> Result<()> {
        let mut deleted = self.farflash.clear()?;
        if let Some(base) = &mut self.base {
            deleted |= base.clear()?;
        }
        if deleted {
            sleep(DELETION);
        }
        Ok(())
    }
}

impl Served {
    fn measure(&mut self, driver: &Driver, load: &Load, length: Length) -> Result<Measured> {
        if !load.is_first {
            return self.drive(driver, load, length, (&self.volume, VOLUME_SIZE));
        }
        self.made += 1;
        let name = format!("first-{}", self.made);
        let volume = self.server.create_volume(&name, FIRST_SIZE)?;
        self.written.push(name);
        self.drive(driver, load, length, (&volume, FIRST_SIZE))
    }

    fn clear(&mut self) -> Result<bool> {
        let deleted = !self.written.is_empty();
        for name in self.written.drain(..) {
            self.server.delete_volume(&name)?;
        }
        Ok(deleted)
    }

    fn drive(
        &self,
        driver: &Driver,
        load: &Load,
        length: Length,
        (volume, size): (&VolumeAddress, &str),
    ) -> Result<Measured> {
        let mut command = Command::new(&driver.farflash);
        command.args(["bench", "--target", &volume.target(), "--json", "--quiet", "--overwrite"]);
        command.args(["--rw", load.rw, "--bs", &load.block_bytes.to_string()]);
        command.args(load.reads_percent.into_iter().flat_map(|share| ["--rwmixread", share]));
        command.args(["--qd", &load.depth.to_string(), "--range", size]);
        let (seconds, warm_up) = (load.seconds(length), load.warm_up_seconds(length));
        command.args(["--seconds", &seconds.to_string(), "--warm-up", &warm_up.to_string()]);
        command.args(["--cpu", &cpus::client().to_string()]);
        let before = self.server.program.cpu_seconds()?;
        let output = run(&mut command)?;
        let used = self.server.program.cpu_seconds()? - before;
        let json: serde_json::Value = serde_json::from_str(&output)?;
        let number = |value: &serde_json::Value| value.as_f64().context("a number is missing");
        let iops = number(&json["iops"])?;
        let lane =
            if json["write"]["latency"].is_object() { &json["write"] } else { &json["read"] };
        let p999_us = number(&lane["latency"]["p99_9_ns"])? / 1e3;
        Ok(Measured::of(iops, seconds, Some(p999_us), used * 1e6 / (iops * (warm_up + seconds))))
    }
}
