//! `bench engine`: what the volume engine costs beside the device that it lies on, at equal durability.
//!
//! - `suite.rs`: random and sequential load on a raw device and on the engine over one like it, in this
//!   process and on one CPU, by the same load generator.
//! - `checkpoints.rs`: how long writes take while checkpoints are taken.
//! - `written.rs`: bytes that reach the device for each byte written.
//! - `recovery.rs`: coming back after a kill.
//! - `qcow2.rs`: the server beside qemu-nbd.
//! - `verification.rs`: reads with checksums beside reads without, by a program of its own that can leave
//!   them out.

mod bed;
mod checked;
mod checkpoints;
mod counted;
mod goals;
mod hollow;
mod page;
mod places;
mod qcow2;
mod recovery;
mod samples;
mod suite;
mod target;
mod verification;
mod written;

use std::fs;
use std::path::Path;

use anyhow::Result;
use device::MemDevice;
use reactor::{FileDevice, Handle, OpenOptions, OwnedDevice};
use serde::Serialize;
use units::BLOCK_SIZE;

use self::recovery::Recoveries;
use self::samples::Samples;
use self::suite::{ENGINE_BYTES, ENGINE_MEMORY_BYTES, Length, MIB, RAW_BYTES};
use crate::compare::fresh_file;
use crate::cpus;
use crate::machine::{Facts, machine};
use crate::process::run;
use crate::run_args::RunArgs;
use crate::verdict::Verdict;

/// Rounds, and seconds of each measurement, in a full and in a quick run.
const FULL: Length = Length { rounds: 6, seconds: 1.0 };
const QUICK: Length = Length { rounds: 2, seconds: 0.3 };

#[derive(Debug, clap::Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Rounds: at least five for a page
    #[arg(long)]
    rounds: Option<usize>,
    /// Only one part
    #[arg(long, value_enum, conflicts_with = "report")]
    only: Option<Part>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Part {
    File,
    Mem,
    Qcow2,
    Recovery,
    Verification,
}

/// Everything that a run brought.
#[derive(Serialize)]
pub(crate) struct Results {
    pub(crate) facts: Facts,
    pub(crate) length: (usize, f64),
    pub(crate) samples: Samples,
    pub(crate) recoveries: Vec<Recoveries>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn engine(args: &EngineArgs) -> Result<()> {
    let length = if args.run.quick { QUICK } else { FULL };
    let length = Length { rounds: args.run.rounds(args.rounds, length.rounds)?, ..length };
    let out = args.run.out()?;
    let wanted = |part: Part| args.only.is_none_or(|only| only == part);
    let facts = machine();
    let mut samples = Samples::default();
    if wanted(Part::File) {
        samples.join(on_file(&out, length)?);
    }
    if wanted(Part::Mem) {
        samples.join(on_memory(length)?);
    }
    if wanted(Part::Qcow2) {
        let farflash = args.run.farflash()?;
        let Length { rounds, seconds } = length;
        let bed = qcow2::Bed { farflash: &farflash, out: &out, rounds, seconds };
        samples.join(qcow2::measure(&bed)?.unwrap_or_default());
    }
    let mut recoveries = Vec::new();
    if wanted(Part::Recovery) {
        recoveries = measure_recovery(&out)?;
    }
    let verification = match wanted(Part::Verification) {
        true => verification::measure(&out, length)?,
        false => Vec::new(),
    };
    let verdicts = goals::judge(&samples, &recoveries, &verification);
    let length = (length.rounds, length.seconds);
    let results = Results { facts, length, samples, recoveries, verdicts };
    page::write(&results, &out, args.run.report.as_deref())
}

/// Half of the rounds with one file under the engine, half with the other: one place of a disk may be a quarter faster
/// than another.
fn on_file(out: &Path, length: Length) -> Result<Samples> {
    let files = ["engine-a.img", "engine-b.img"].map(|name| out.join(name));
    for file in &files {
        full_file(file, ENGINE_BYTES)?;
    }
    let half = length.rounds.div_ceil(2);
    let mut samples = Samples::default();
    for (rounds, [raw, engine]) in [(0..half, [0, 1]), (half..length.rounds, [1, 0])] {
        let open = |file: usize| OwnedDevice::open(&files[file], OpenOptions::default());
        let (raw, engine) = (open(raw)?, open(engine)?);
        samples = bed::on_core(cpus::server(), move |handle| async move {
            let devices = (raw.attach(&handle), engine.attach(&handle));
            suite::measure(handle, "file", devices, (length, rounds), samples).await
        })?;
    }
    for file in files {
        fs::remove_file(file)?;
    }
    Ok(samples)
}

fn on_memory(length: Length) -> Result<Samples> {
    bed::on_core(cpus::server(), move |handle| async move {
        let devices = (memory(RAW_BYTES)?, memory(ENGINE_MEMORY_BYTES)?);
        // The kernel's search for pages is no cost of either side.
        bed::fill(&devices.0).await?;
        bed::fill(&devices.1).await?;
        let all = (length, 0..length.rounds);
        suite::measure(handle, "mem", devices, all, Samples::default()).await
    })
}

fn measure_recovery(out: &Path) -> Result<Vec<Recoveries>> {
    eprintln!("recovery");
    let file = out.join("engine-recovery.img");
    fresh_file(&file)?;
    reactor::create_sparse(&file, recovery::DEVICE_BYTES)?;
    let device = OwnedDevice::open(&file, OpenOptions::default())?;
    let on_file = bed::on_core(cpus::server(), move |handle: Handle| async move {
        let device: FileDevice = device.attach(&handle);
        recovery::full_journal(handle, "file", device).await
    })?;
    fs::remove_file(file)?;
    let on_memory = bed::on_core(cpus::server(), |handle| async move {
        recovery::full_journal(handle, "mem", memory(recovery::DEVICE_BYTES)?).await
    })?;
    let [clean, dirty] = bed::on_core(cpus::server(), recovery::large_volume)?;
    Ok(vec![on_file, on_memory, clean, dirty])
}

fn memory(bytes: u64) -> Result<MemDevice> {
    Ok(MemDevice::new(bytes / BLOCK_SIZE as u64)?)
}

/// A file that is full of data, as a drive is that was used before.
fn full_file(path: &Path, bytes: u64) -> Result<()> {
    fresh_file(path)?;
    let (from, to) = ("if=/dev/zero", format!("of={}", path.display()));
    let (size, count) = (format!("bs={MIB}"), format!("count={}", bytes / MIB));
    run(std::process::Command::new("dd").args([from, &to, &size, &count]).args([
        "oflag=direct",
        "conv=fsync",
        "status=none",
    ]))?;
    Ok(())
}
