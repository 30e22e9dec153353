//! The servers of `bench front-ends`, and a client for each.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::null_nbd;
use crate::case::{GIB, Shape};
use crate::cpus;
use crate::driver::Driver;
use crate::peers::{self, Export, Peer, pinned};
use crate::process::{Program, VolumeAddress, free_address, is_installed, run};

/// Seconds of each measurement: iscsi-perf takes whole ones.
pub(super) const SECONDS: f64 = 1.0;
const VOLUME: &str = "bench";
/// The name of tgt's target.
const TGT_TARGET: &str = "iqn.2026-01.io.farflash:tgt";
/// Port of tgt's control socket, which is a part of its name.
const TGT_CONTROL: &str = "7";
/// A directory in memory, for the blocks that tgt serves.
const MEMORY: &str = "/dev/shm";

/// A server under a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// farflash by NVMe/TCP.
    Nvme,
    /// farflash by iSCSI.
    Iscsi,
    /// tgt on a file in memory.
    Tgt,
    /// farflash by NBD, over one connection.
    Nbd,
    /// farflash by NBD, over four connections.
    NbdByFour,
    /// nbdkit on memory, over one connection.
    Nbdkit,
    /// nbdkit on memory, over four connections.
    NbdkitByFour,
    /// A server that does nothing, over one connection.
    NullNbd,
    /// A server that does nothing, over four connections.
    NullNbdByFour,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nvme => "farflash, NVMe/TCP",
            Self::Iscsi => "farflash, iSCSI",
            Self::Tgt => "tgt, iSCSI",
            Self::Nbd => "farflash, NBD",
            Self::NbdByFour => "farflash, NBD, 4 connections",
            Self::Nbdkit => "nbdkit, NBD",
            Self::NbdkitByFour => "nbdkit, NBD, 4 connections",
            Self::NullNbd => "null server, NBD",
            Self::NullNbdByFour => "null server, NBD, 4 connections",
        }
    }

    pub(super) fn client(self) -> &'static str {
        match self {
            Self::Nvme => "farflash bench",
            Self::Iscsi | Self::Tgt => "iscsi-perf",
            Self::Nbd
            | Self::NbdByFour
            | Self::Nbdkit
            | Self::NbdkitByFour
            | Self::NullNbd
            | Self::NullNbdByFour => "fio",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) iops: f64,
    /// Processor time of the server: in its own code, and in the kernel. None of one that polls all the time.
    pub(super) cpu_us_per_request: Option<[f64; 2]>,
}

/// The output of `volume create --json`, as far as it is used here.
#[derive(Deserialize)]
struct Created {
    id: String,
    #[serde(flatten)]
    nvme: VolumeAddress,
}

/// A farflash that serves one volume by all protocols.
struct Farflash {
    program: Program,
    nvme: VolumeAddress,
    iscsi_url: String,
    export: Export,
}

/// tgt, and its blocks in memory.
struct Tgt {
    program: Program,
    url: String,
    image: PathBuf,
}

/// All servers, full of data.
pub(super) struct Bed {
    driver: Driver,
    farflash: Farflash,
    tgt: Option<Tgt>,
    nbdkit: Option<Peer>,
}

impl Bed {
    pub(super) fn prepare(farflash: &Path, out: &Path) -> Result<Self> {
        let driver = Driver { farflash: farflash.to_owned(), seconds: SECONDS, token: None };
        let served = Farflash::start(farflash, out)?;
        driver.fill(&served.nvme.target(), "1GiB")?;
        let tgt = has("tgtd", "iscsi-perf").then(|| Tgt::start(out)).transpose()?;
        let nbdkit = has("nbdkit", "fio").then(|| peers::nbdkit_memory(out)).transpose()?;
        Ok(Self { driver, farflash: served, tgt, nbdkit })
    }

    /// Everything for which there is a server and a client.
    pub(super) fn ways(&self) -> Vec<Way> {
        let mut ways = vec![Way::Nvme];
        if is_installed("iscsi-perf") {
            ways.push(Way::Iscsi);
        }
        ways.extend(self.tgt.as_ref().map(|_| Way::Tgt));
        if is_installed("fio") {
            ways.extend([Way::Nbd, Way::NbdByFour, Way::NullNbd, Way::NullNbdByFour]);
        }
        if self.nbdkit.is_some() {
            ways.extend([Way::Nbdkit, Way::NbdkitByFour]);
        }
        ways
    }

    pub(super) fn measure(&self, way: Way) -> Result<Measured> {
        let own = &self.farflash;
        let nbdkit = || self.nbdkit.as_ref().context("nbdkit is not installed");
        let fio = |program: &Program, export: &Export, shape: &Shape| {
            counted(program, || Ok(export.measure(shape, SECONDS)?.0.iops))
        };
        match way {
            Way::Nvme => counted(&own.program, || {
                Ok(self.driver.sample(&own.nvme.target(), &Shape::READ_32)?.iops)
            }),
            Way::Iscsi => counted(&own.program, || iscsi_perf(&own.iscsi_url)),
            Way::Tgt => {
                let tgt = self.tgt.as_ref().context("tgt is not installed")?;
                counted(&tgt.program, || iscsi_perf(&tgt.url))
            }
            Way::Nbd => fio(&own.program, &own.export, &Shape::READ_32),
            Way::NbdByFour => fio(&own.program, &own.export, &Shape::READ_4X32),
            Way::Nbdkit => fio(&nbdkit()?.program, &nbdkit()?.export, &Shape::READ_32),
            Way::NbdkitByFour => fio(&nbdkit()?.program, &nbdkit()?.export, &Shape::READ_4X32),
            Way::NullNbd => null(&Shape::READ_32),
            Way::NullNbdByFour => null(&Shape::READ_4X32),
        }
    }
}

/// The rate of fio with a server that does nothing.
fn null(shape: &Shape) -> Result<Measured> {
    let load = |address| Ok(Export::new(address, "").measure(shape, SECONDS)?.0.iops);
    Ok(Measured { iops: null_nbd::serve_during(load)?, cpu_us_per_request: None })
}

fn has(server: &str, client: &str) -> bool {
    let has = is_installed(server) && is_installed(client) && is_installed("taskset");
    if !has {
        eprintln!("{server}, {client} or taskset is not installed: it is left out");
    }
    has
}

/// Runs a load of [`SECONDS`], which returns its rate, and counts the server's time for it.
fn counted(program: &Program, load: impl FnOnce() -> Result<f64>) -> Result<Measured> {
    let before = program.cpu_seconds_apart()?;
    let iops = load()?;
    let after = program.cpu_seconds_apart()?;
    let each = |part: usize| (after[part] - before[part]) * 1e6 / (iops * SECONDS);
    Ok(Measured { iops, cpu_us_per_request: Some([each(0), each(1)]) })
}

/// Reads random blocks of 4 KiB, 32 at a time; returns the rate.
fn iscsi_perf(url: &str) -> Result<f64> {
    let mut perf = Command::new("taskset");
    perf.args(["-c", &cpus::client().to_string(), "iscsi-perf"]);
    perf.args(["-m", "32", "-b", "1", "-r", "-t", &SECONDS.to_string(), url]);
    average_of(&run(&mut perf)?).context("iscsi-perf told no rate")
}

/// The last average that iscsi-perf printed.
fn average_of(output: &str) -> Option<f64> {
    let (_, last) = output.rsplit_once("iops average ")?;
    last.split_whitespace().next()?.parse().ok()
}

impl Farflash {
    fn start(farflash: &Path, out: &Path) -> Result<Self> {
        let [portal, api, iscsi, nbd] =
            [free_address()?, free_address()?, free_address()?, free_address()?];
        let mut command = Command::new(farflash);
        command.args(["serve", "--device", "mem:3GiB", "--auth", "off", "--api-open"]);
        command.args(["--discovery", "off", "--cores", &cpus::server().to_string()]);
        let places = [("--listen", portal), ("--api", api), ("--iscsi", iscsi), ("--nbd", nbd)];
        for (option, address) in places {
            command.args([option, &address.to_string()]);
        }
        let mut program = Program::start(command, &out.join("front-ends.log"))?;
        for (_, address) in places {
            program.wait_for(address)?;
        }
        let api = format!("http://{api}");
        let volume = |args: &[&str]| {
            run(Command::new(farflash).arg("volume").args(args).args(["--api", &api]))
        };
        let made = volume(&["create", VOLUME, "--size", "1GiB", "--json"])?;
        let made: Created =
            serde_json::from_str(&made).with_context(|| format!("not understood: {made}"))?;
        volume(&["restrict", VOLUME, "--nbd-network", "127.0.0.0/8"])?;
        Ok(Self {
            program,
            nvme: made.nvme,
            iscsi_url: format!("iscsi://{iscsi}/iqn.2026-01.io.farflash:{}/0", made.id),
            export: Export::new(nbd, VOLUME),
        })
    }
}

impl Tgt {
    fn start(out: &Path) -> Result<Self> {
        let image = Path::new(MEMORY).join(format!("farflash-bench-{}.img", std::process::id()));
        fill_with_noise(&image)?;
        let (portal, socket) = (free_address()?, out.join("tgtd.socket"));
        let place = format!("portal={portal}");
        let args = ["-f", "-C", TGT_CONTROL, "--iscsi", &place].map(str::to_owned);
        let mut command = pinned("tgtd", &args);
        command.env("TGT_IPC_SOCKET", &socket);
        let program = Program::start(command, &out.join("tgtd.log"))?;
        // From here on its image is removed whatever fails.
        let mut tgt = Self { program, url: format!("iscsi://{portal}/{TGT_TARGET}/1"), image };
        tgt.program.wait_for(portal)?;
        tgt.offer(&socket)?;
        Ok(tgt)
    }

    /// Makes the image a logical unit with blocks of 4096 bytes, for every initiator.
    fn offer(&self, socket: &Path) -> Result<()> {
        let admin = |mode: &str, op: &str, args: &[&str]| {
            let mut command = Command::new("tgtadm");
            command.env("TGT_IPC_SOCKET", socket).args(["-C", TGT_CONTROL, "--lld", "iscsi"]);
            run(command.args(["--mode", mode, "--op", op, "--tid", "1"]).args(args))
        };
        let image = self.image.display().to_string();
        admin("target", "new", &["--targetname", TGT_TARGET])?;
        let unit = ["--lun", "1", "--backing-store", &image, "--blocksize", "4096"];
        admin("logicalunit", "new", &unit)?;
        admin("target", "bind", &["--initiator-address", "ALL"])?;
        Ok(())
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = fs::remove_file(&self.image);
    }
}

/// Writes a GiB that no file system takes for zeroes.
fn fill_with_noise(path: &Path) -> Result<()> {
    let mut noise = vec![0; 1 << 20];
    File::open("/dev/urandom")?.read_exact(&mut noise)?;
    let mut file = File::create(path)?;
    for _ in 0..GIB / noise.len() as u64 {
        file.write_all(&noise)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_average_counts() {
        let output = "connected to iscsi://x\n\r00:00:01 - lba 6, iops current 12960 (50 MB/s), \
                      iops average 12960 (50 MB/s), in_flight 32\riops average 12920 (50 MB/s)   \n";
        assert_eq!(average_of(output), Some(12920.0));
        assert_eq!(average_of("finished"), None);
    }
}
