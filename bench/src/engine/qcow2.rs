//! farflash beside qemu-nbd on qcow2, the thin format that people have: both over loopback TCP, both on
//! a sparse file, both with every write durable before it is acknowledged.
//!
//! qemu-nbd runs with `cache=directsync`: O_DIRECT, and a flush behind every write, which it shares
//! among writes that wait. fio's nbd engine drives it, `farflash bench` drives farflash.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::bed::Sample;
use super::samples::{Key, Samples, Subject};
use crate::cpus;
use crate::process::{Program, Server, free_address, is_installed, run};

/// The space that the loads go to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Space {
    Full,
    Thin,
}

struct Load {
    name: &'static str,
    rw: &'static str,
    block_bytes: u64,
    depth: u32,
    space: Space,
}

const fn load(name: &'static str, rw: &'static str, depth: u32, space: Space) -> Load {
    Load { name, rw, block_bytes: 4096, depth, space }
}

const LOADS: [Load; 8] = [
    load("random write 4 KiB to thin space, depth 1", "randwrite", 1, Space::Thin),
    load("random write 4 KiB to thin space, depth 32", "randwrite", 32, Space::Thin),
    load("random overwrite 4 KiB, depth 1", "randwrite", 1, Space::Full),
    load("random overwrite 4 KiB, depth 32", "randwrite", 32, Space::Full),
    load("random read 4 KiB, depth 1", "randread", 1, Space::Full),
    load("random read 4 KiB, depth 32", "randread", 32, Space::Full),
    Load {
        block_bytes: 128 << 10,
        ..load("sequential write 128 KiB, depth 8", "write", 8, Space::Thin)
    },
    Load {
        block_bytes: 128 << 10,
        ..load("sequential read 128 KiB, depth 8", "read", 8, Space::Full)
    },
];

/// Names of what is compared.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|load| load.name)
}

pub(super) const PLACE: &str = "file, TCP";
const VOLUME_SIZE: &str = "1GiB";

/// The equipment of the comparison.
pub(super) struct Bed<'a> {
    pub(super) farflash: &'a Path,
    pub(super) out: &'a Path,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

/// The measurement of one load on one server.
type Measured = Result<Sample>;

/// Measures all loads in interleaved rounds; `None` if a program is missing.
pub(super) fn measure(bed: &Bed<'_>) -> Result<Option<Samples>> {
    if !["fio", "qemu-nbd", "qemu-img", "taskset"].iter().all(|name| is_installed(name)) {
        eprintln!("fio, qemu-nbd or qemu-img is not installed: qcow2 is left out");
        return Ok(None);
    }
    let served = bed.out.join("thin-served.img");
    let device = format!("file:{},size={}GiB", served.display(), device_gib(bed.rounds));
    crate::compare::fresh_file(&served)?;
    run(Command::new(bed.farflash).args(["format", "--device", &device]))?;
    let device = format!("file:{}", served.display());
    let server = Server::start(bed.farflash, &device, cpus::server(), &bed.out.join("thin.log"))?;
    let full_volume = server.create_volume("full", VOLUME_SIZE)?.target();
    farflash_fill(bed, &full_volume)?;
    let full_image = create_image(bed, "full")?;
    fio(bed, &full_image, &["--rw=write", "--bs=128k", "--iodepth=8", "--refill_buffers"])?;
    let mut samples = Samples::default();
    for round in 0..bed.rounds {
        eprintln!("qcow2 round {} of {}", round + 1, bed.rounds);
        for (number, load) in LOADS.iter().enumerate() {
            let volume = match load.space {
                Space::Full => full_volume.clone(),
                Space::Thin => {
                    server.create_volume(&format!("thin-{round}-{number}"), VOLUME_SIZE)?.target()
                }
            };
            let mut add = |subject: Subject, sample: Sample| {
                let rate = report::rate(sample.requests_per_second);
                eprintln!("  {:16} {:44} {rate:>9} requests/s", subject.name(), load.name);
                samples.add(Key { place: PLACE, load: load.name, subject }, sample);
            };
            add(Subject::Farflash, farflash_sample(bed, &volume, load)?);
            let sample = match load.space {
                Space::Full => qcow2_sample(bed, &full_image, load)?,
                Space::Thin => {
                    let image = create_image(bed, "thin")?;
                    let sample = qcow2_sample(bed, &image, load);
                    std::fs::remove_file(&image)?;
                    sample?
                }
            };
            add(Subject::Qcow2, sample);
        }
    }
    server.program.terminate()?;
    std::fs::remove_file(served)?;
    std::fs::remove_file(full_image)?;
    Ok(Some(samples))
}

/// Returns the size of the served device, in volumes: a full one, each thin one as if it were written to its end,
/// and as much as one more for superseded blocks and for the engine's own. The file is sparse.
fn device_gib(rounds: usize) -> usize {
    let thin = LOADS.iter().filter(|load| load.space == Space::Thin).count();
    2 + rounds * thin
}

fn farflash_fill(bed: &Bed<'_>, target: &str) -> Result<()> {
    run(Command::new(bed.farflash)
        .args(["bench", "--target", target, "--rw", "write", "--bs", "128KiB", "--qd", "8"])
        .args(["--bytes", VOLUME_SIZE, "--overwrite", "--quiet", "--json"]))?;
    Ok(())
}

fn farflash_sample(bed: &Bed<'_>, target: &str, load: &Load) -> Measured {
    let mut command = Command::new(bed.farflash);
    command.args(["bench", "--target", target, "--json", "--quiet", "--overwrite"]);
    command.args(["--rw", load.rw, "--bs", &load.block_bytes.to_string()]);
    command.args(["--qd", &load.depth.to_string(), "--cpu", &cpus::client().to_string()]);
    command.args(["--seconds", &bed.seconds.to_string()]);
    let json: serde_json::Value = serde_json::from_str(&run(&mut command)?)?;
    let lane = &json[if load.rw.ends_with("write") { "write" } else { "read" }];
    let number = |value: &serde_json::Value| value.as_f64().context("a number is missing");
    Ok(Sample {
        requests_per_second: number(&lane["iops"])?,
        mean_us: number(&lane["latency"]["mean_ns"])? / 1e3,
        p99_us: number(&lane["latency"]["p99_ns"])? / 1e3,
        device_reads_per_request: None,
    })
}

fn create_image(bed: &Bed<'_>, name: &str) -> Result<PathBuf> {
    let image = bed.out.join(name).with_extension("qcow2");
    crate::compare::fresh_file(&image)?;
    run(Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&image).arg("1G"))?;
    Ok(image)
}

fn qcow2_sample(bed: &Bed<'_>, image: &Path, load: &Load) -> Measured {
    let rw = format!("--rw={}", load.rw);
    let bs = format!("--bs={}", load.block_bytes);
    let depth = format!("--iodepth={}", load.depth);
    let runtime = format!("--runtime={}ms", bed.seconds * 1e3);
    let json = fio(bed, image, &[&rw, &bs, &depth, "--time_based", &runtime, "--norandommap"])?;
    let lane = &json["jobs"][0][if load.rw.ends_with("write") { "write" } else { "read" }];
    let number = |value: &serde_json::Value| value.as_f64().context("fio left out a number");
    Ok(Sample {
        requests_per_second: number(&lane["iops"])?,
        mean_us: number(&lane["clat_ns"]["mean"])? / 1e3,
        p99_us: number(&lane["clat_ns"]["percentile"]["99.000000"])? / 1e3,
        device_reads_per_request: None,
    })
}

/// Serves `image` for one run of fio.
fn fio(bed: &Bed<'_>, image: &Path, args: &[&str]) -> Result<serde_json::Value> {
    let address = free_address()?;
    let mut server = Command::new("taskset");
    server.args(["-c", &cpus::server().to_string(), "qemu-nbd", "-f", "qcow2", "--persistent"]);
    server.args(["--cache=directsync", "--aio=io_uring", "--discard=unmap"]);
    server.args(["-b", &address.ip().to_string(), "-p", &address.port().to_string()]).arg(image);
    let mut program = Program::start(server, &bed.out.join("qcow2.log"))?;
    program.wait_for(address)?;
    let mut fio = Command::new("fio");
    fio.args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--randrepeat=0"]);
    fio.args([&format!("--uri=nbd://{address}"), "--size=1g"]);
    fio.arg(format!("--cpus_allowed={}", cpus::client())).args(args);
    let output = run(&mut fio);
    program.terminate()?;
    let output = output?;
    // fio may print notes before the JSON.
    let json = output.find('{').map(|start| &output[start..]).context("fio printed no JSON")?;
    Ok(serde_json::from_str(json)?)
}
