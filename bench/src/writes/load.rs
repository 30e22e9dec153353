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

/// Seconds of each measurement. The speed of a virtual machine's processor changes by half within a second: it hits all servers
/// alike only if they are measured soon after one another.
pub(super) const SECONDS: f64 = 0.06;
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
    depth: u64,
    /// The volume holds nothing yet.
    is_first: bool,
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

/// One measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Measured {
    pub(super) iops: f64,
    pub(super) mean_us: f64,
    pub(super) p999_us: Option<f64>,
    pub(super) cpu_us_per_request: f64,
}

impl Load {
    /// The rate of a null server.
    pub(super) fn null(&self) -> Result<Measured> {
        let is_read = self.rw == "randread";
        let result = null::run(&NullSpec {
            direction: if is_read { Direction::Read } else { Direction::Write },
            block_bytes: self.block_bytes,
            blocks: self.blocks.context("this load has no null server")?,
            depth: self.depth,
            connections: 1,
            server_cpu: cpus::server(),
            client_cpu: cpus::client(),
            seconds: SECONDS,
        })?;
        Ok(Measured {
            iops: result.requests_per_second,
            mean_us: result.mean_latency_us,
            p999_us: result.p999_us,
            cpu_us_per_request: result.server_cpu_us_per_request,
        })
    }
}

/// A server with a volume that is written.
struct Served {
    server: Server,
    volume: VolumeAddress,
    /// Volumes made for first writes so far.
    made: u32,
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
        let driver = Driver { farflash: farflash.to_owned(), seconds: SECONDS, token: None };
        let start = |program: &Path, log: &str| -> Result<Served> {
            let (device, log) = (format!("mem:{DEVICE_SIZE}"), out.join(log));
            let server = Server::start(program, &device, cpus::server(), &log)?;
            let volume = server.create_volume("written", VOLUME_SIZE)?;
            driver.fill(&volume.target(), VOLUME_SIZE)?;
            Ok(Served { server, volume, made: 0 })
        };
        let farflash = start(farflash, "writes.log")?;
        let base = base.map(|base| start(base, "writes-base.log")).transpose()?;
        Ok(Self { driver, farflash, base })
    }

    pub(super) fn farflash(&mut self, load: &Load) -> Result<Measured> {
        self.farflash.measure(&self.driver, load)
    }

    pub(super) fn base(&mut self, load: &Load) -> Result<Measured> {
        self.base.as_mut().context("there is no other build")?.measure(&self.driver, load)
    }
}

impl Served {
    fn measure(&mut self, driver: &Driver, load: &Load) -> Result<Measured> {
        if !load.is_first {
            return self.drive(driver, load, (&self.volume, VOLUME_SIZE));
        }
        self.made += 1;
        let name = format!("first-{}", self.made);
        let volume = self.server.create_volume(&name, FIRST_SIZE)?;
        let measured = self.drive(driver, load, (&volume, FIRST_SIZE))?;
        self.server.delete_volume(&name)?;
        sleep(DELETION);
        Ok(measured)
    }

    fn drive(
        &self,
        driver: &Driver,
        load: &Load,
        (volume, size): (&VolumeAddress, &str),
    ) -> Result<Measured> {
        let mut command = Command::new(&driver.farflash);
        command.args(["bench", "--target", &volume.target(), "--json", "--quiet", "--overwrite"]);
        command.args(["--rw", load.rw, "--bs", &load.block_bytes.to_string()]);
        command.args(load.reads_percent.into_iter().flat_map(|share| ["--rwmixread", share]));
        command.args(["--qd", &load.depth.to_string(), "--range", size]);
        command.args(["--seconds", &SECONDS.to_string(), "--cpu", &cpus::client().to_string()]);
        let before = self.server.program.threads_cpu_seconds()?;
        let output = run(&mut command)?;
        let used = self.server.program.threads_cpu_seconds()? - before;
        let json: serde_json::Value = serde_json::from_str(&output)?;
        let number = |value: &serde_json::Value| value.as_f64().context("a number is missing");
        let iops = number(&json["iops"])?;
        let lane =
            if json["write"]["latency"].is_object() { &json["write"] } else { &json["read"] };
        Ok(Measured {
            iops,
            mean_us: load.depth as f64 / iops * 1e6,
            p999_us: Some(number(&lane["latency"]["p99_9_ns"])? / 1e3),
            cpu_us_per_request: used * 1e6 / (iops * SECONDS),
        })
    }
}
