//! Other block servers on the same media, measured with fio's nbd engine.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::case::{Sample, Shape, Subject};
use crate::cpus;
use crate::process::{Program, free_address, is_installed, run};

/// A server that is not ours.
pub(crate) struct Peer {
    pub(crate) subject: Subject,
    pub(crate) export: Export,
    pub(crate) program: Program,
}

/// An NBD export of any server, driven by fio's nbd engine.
pub(crate) struct Export {
    uri: String,
}

/// Starts those that are installed. `image` is a file of 1 GiB, full of data, that they may write.
pub(crate) fn start_all(out: &Path, image: &Path) -> Result<Vec<Peer>> {
    let image = image.display().to_string();
    let mut peers = Vec::new();
    if is_installed("nbdkit") {
        peers.push(nbdkit_memory(out)?);
        peers.push(start(Subject::NbdkitFile, out, |address| {
            pinned("nbdkit", &nbdkit_args(address, &["file", &image]))
        })?);
    }
    if is_installed("qemu-nbd") {
        peers.push(start(Subject::QemuNbdFile, out, |address| {
            let (ip, port) = (address.ip().to_string(), address.port().to_string());
            let args = ["-f", "raw", "--persistent", "--shared=16", "--cache=none"];
            let place = ["--aio=io_uring", "-b", &ip, "-p", &port, &image];
            pinned("qemu-nbd", &[&args[..], &place[..]].concat().map_owned())
        })?);
    }
    Ok(peers)
}

/// Starts nbdkit's memory plugin with 1 GiB of data.
pub(crate) fn nbdkit_memory(out: &Path) -> Result<Peer> {
    let peer = start(Subject::NbdkitMem, out, |address| {
        pinned("nbdkit", &nbdkit_args(address, &["memory", "1G"]))
    })?;
    peer.export.fill()?;
    Ok(peer)
}

trait MapOwned {
    fn map_owned(&self) -> Vec<String>;
}

impl MapOwned for Vec<&str> {
    fn map_owned(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

fn nbdkit_args(address: SocketAddr, plugin: &[&str]) -> Vec<String> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    [&["-f", "-i", &ip, "-p", &port], plugin].concat().map_owned()
}

/// A command that runs on the CPU of servers.
pub(crate) fn pinned(program: &str, args: &[String]) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpus::server().to_string(), program]).args(args);
    command
}

fn start(
    subject: Subject,
    out: &Path,
    command: impl FnOnce(SocketAddr) -> Command,
) -> Result<Peer> {
    let address = free_address()?;
    let log = out.join(subject.name().replace(' ', "-")).with_extension("log");
    let mut program = Program::start(command(address), &log)?;
    program.wait_for(address)?;
    Ok(Peer { subject, export: Export::new(address, ""), program })
}

impl Peer {
    /// Measures one shape.
    pub(crate) fn measure(&self, shape: &Shape, seconds: f64) -> Result<Sample> {
        let before = self.program.cpu_seconds()?;
        let (mut sample, requests) = self.export.measure(shape, seconds)?;
        let used = self.program.cpu_seconds()? - before;
        sample.cpu_us_per_request = Some(used * 1e6 / requests);
        Ok(sample)
    }
}

impl Export {
    /// The export `name` of the server at `address`.
    pub(crate) fn new(address: SocketAddr, name: &str) -> Self {
        Self { uri: format!("nbd://{address}/{name}") }
    }

    fn fio(&self, args: &[String]) -> Result<serde_json::Value> {
        let mut fio = Command::new("fio");
        fio.args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--randrepeat=0"]);
        fio.args([format!("--uri={}", self.uri), "--size=1g".to_owned()]);
        fio.arg(format!("--cpus_allowed={}", cpus::client())).args(args);
        let output = run(&mut fio)?;
        // fio may print notes before the JSON.
        let json = output.find('{').map(|start| &output[start..]).context("fio printed no JSON")?;
        Ok(serde_json::from_str(json)?)
    }

    fn fill(&self) -> Result<()> {
        let args = ["--rw=write", "--bs=128k", "--iodepth=8", "--refill_buffers"];
        self.fio(&args.map(str::to_owned)).map(|_| ())
    }

    /// Measures one shape. Returns the number of requests, too; the sample says nothing of the server's time.
    pub(crate) fn measure(&self, shape: &Shape, seconds: f64) -> Result<(Sample, f64)> {
        let way = if shape.write { "write" } else { "read" };
        let args = [
            format!("--rw=rand{way}"),
            format!("--bs={}", shape.block_bytes),
            format!("--iodepth={}", shape.depth),
            "--time_based".to_owned(),
            format!("--runtime={}ms", seconds * 1e3),
            "--norandommap".to_owned(),
            // A connection each.
            format!("--numjobs={}", shape.connections),
            "--group_reporting".to_owned(),
        ];
        let json = self.fio(&args)?;
        let lane = &json["jobs"][0][way];
        let number = |value: &serde_json::Value| value.as_f64().context("fio left out a number");
        let iops = number(&lane["iops"])?;
        let sample = Sample {
            iops,
            mean_us: shape.outstanding() / iops * 1e6,
            p99_us: number(&lane["clat_ns"]["percentile"]["99.000000"]).ok().map(|ns| ns / 1e3),
            ..Sample::default()
        };
        Ok((sample, number(&lane["total_ios"])?))
    }
}
