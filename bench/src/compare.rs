//! `bench compare`: all cases in interleaved rounds, so that noise hits all alike.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use report::{Spread, json_line};
use serde::Serialize;

use crate::case::{self, Case, GIB, Sample, Shape, Subject};
use crate::cpus;
use crate::distance;
use crate::driver::Driver;
use crate::goals::{self, Verdict};
use crate::idle;
use crate::machine::{Facts, machine};
use crate::null::{self, Blocks, Direction, NullResult, NullSpec};
use crate::page;
use crate::peers::{self, Peer};
use crate::process::{Server, VolumeAddress, is_installed, run};
use crate::run_args::RunArgs;

/// Rounds, and seconds of each measurement, in a full and in a quick run. The pace of a virtual machine changes within
/// seconds: many short measurements side by side agree better than few long ones.
const FULL: (usize, f64) = (20, 0.5);
const QUICK: (usize, f64) = (2, 0.5);
/// A farflash device holds volumes of a GiB, two in memory and one in a file, and room for the writes of a copy-on-write
/// engine.
const MEM_SIZE: &str = "3GiB";
const FILE_SIZE: &str = "2GiB";
const VOLUME_SIZE: &str = "1GiB";

#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Rounds: at least five for a page
    #[arg(long)]
    rounds: Option<usize>,
    /// Only cases whose name contains this
    #[arg(long, conflicts_with = "report")]
    only: Option<String>,
}

/// Everything that a comparison brought.
pub(crate) struct Results {
    pub(crate) cases: Vec<Case>,
    /// `samples[round][case]`; `None` where a case could not be measured.
    pub(crate) samples: Vec<Vec<Option<Sample>>>,
    pub(crate) verdicts: Vec<Verdict>,
    pub(crate) facts: Facts,
    pub(crate) seconds: f64,
}

struct Bed {
    driver: Driver,
    mem: (Server, VolumeAddress),
    /// Another volume of the same server, written once.
    in_order: VolumeAddress,
    file: (Server, VolumeAddress),
    local_file: PathBuf,
    peers: Vec<Peer>,
}

#[derive(Serialize)]
struct Line<'a> {
    round: usize,
    case: &'a Case,
    /// Round trip between the two CPUs just before, in ns.
    cpu_round_trip_ns: Option<f64>,
    sample: Sample,
}

/// Runs the comparison and writes what it brought.
pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    let (rounds, seconds) = if args.run.quick { QUICK } else { FULL };
    let rounds = args.run.rounds(args.rounds, rounds)?;
    let out = args.run.out()?;
    let mut facts = machine();
    let mut bed = prepare(&args.run, seconds, &mut facts)?;
    let mut cases = case::all();
    cases.retain(|case| {
        let name = format!("{} {}", case.subject.name(), case.shape.name());
        args.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
            && (bed.peers.iter().any(|peer| peer.subject == case.subject) || !is_peer(case.subject))
    });
    ensure!(!cases.is_empty(), "no case is left to be measured");
    let (mut samples, mut failures) = (Vec::new(), 0_usize);
    let (mut lines, mut distances) = (String::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut row = vec![None; cases.len()];
        for (at, case) in in_turn(&cases, round) {
            let cpu_round_trip_ns = distance::round_trip_ns()?;
            distances.extend(cpu_round_trip_ns);
            let sample = measure(&mut bed, case, round + 1 == rounds);
            match &sample {
                Ok(sample) => {
                    let (subject, shape) = (case.subject.name(), case.shape.name());
                    eprintln!("  {subject:16} {shape:42} {:>9} IOPS", report::rate(sample.iops));
                    let sample = *sample;
                    lines += &json_line(&Line { round, case, cpu_round_trip_ns, sample })?;
                }
                Err(error) => {
                    failures += 1;
                    let (subject, shape) = (case.subject.name(), case.shape.name());
                    eprintln!("  {subject}, {shape} failed: {error:#}");
                }
            }
            row[at] = sample.ok();
        }
        samples.push(row);
    }
    facts.cpu_round_trip_ns = Spread::of(&distances);
    let verdicts = goals::judge(rounds, |round, case| {
        let index = cases.iter().position(|other| other == case)?;
        samples[round][index]
    });
    let results = Results { cases, samples, verdicts, facts, seconds };
    fs::write(out.join("samples.jsonl"), lines)?;
    page::write(&results, &out, args.run.report.as_deref().filter(|_| failures == 0))?;
    ensure!(failures == 0, "{failures} measurements failed; what is published stays as it was");
    Ok(())
}

/// All that is measured in a round, with their numbers, in reverse order in every other round: a virtual drive may allow more
/// for a while than for long, and later ones get less of that.
pub(crate) fn in_turn<T>(all: &[T], round: usize) -> Vec<(usize, &T)> {
    let mut all: Vec<_> = all.iter().enumerate().collect();
    if round % 2 == 1 {
        all.reverse();
    }
    all
}

fn is_peer(subject: Subject) -> bool {
    matches!(subject, Subject::NbdkitMem | Subject::NbdkitFile | Subject::QemuNbdFile)
}

/// Starts the servers and writes all that is going to be read.
fn prepare(args: &RunArgs, seconds: f64, facts: &mut Facts) -> Result<Bed> {
    let (out, farflash) = (args.out()?, args.farflash()?);
    let log = |name: &str| out.join(name).with_extension("log");
    eprintln!("preparing");
    let mem = Server::start(&farflash, &format!("mem:{MEM_SIZE}"), cpus::server(), &log("mem"))?;
    facts.startup_ms = mem.startup.as_secs_f64() * 1e3;
    facts.resident_idle_bytes = mem.program.resident_bytes()?;
    let mem_volume = mem.create_volume("bench", VOLUME_SIZE)?;
    let in_order = mem.create_volume("in-order", VOLUME_SIZE)?;
    let served = out.join("served.img");
    fresh_file(&served)?;
    let device = format!("file:{}", served.display());
    run(Command::new(&farflash).args([
        "format",
        "--device",
        &format!("{device},size={FILE_SIZE}"),
    ]))?;
    let file = Server::start(&farflash, &device, cpus::server(), &log("file"))?;
    let file_volume = file.create_volume("bench", VOLUME_SIZE)?;
    let local_file = out.join("local.img");
    fresh_file(&local_file)?;
    fs::File::create(&local_file)?.set_len(GIB)?;
    let driver = Driver { farflash, seconds, token: None };
    let volumes = [&mem_volume, &in_order, &file_volume].map(VolumeAddress::target);
    for target in volumes.into_iter().chain([local(&local_file)]) {
        driver.fill(&target, VOLUME_SIZE)?;
    }
    facts.idle = idle::measure(&mem.program, &mem_volume).context("measure the idle server")?;
    facts.resident_written_bytes = file.program.resident_bytes()?;
    let mut peers = Vec::new();
    if is_installed("fio") && is_installed("taskset") {
        peers = peers::start_all(&out, &local_file)?;
    } else {
        eprintln!("fio is not installed: peers are left out");
    }
    let (mem, file) = ((mem, mem_volume), (file, file_volume));
    Ok(Bed { driver, mem, in_order, file, local_file, peers })
}

/// Removes what is there, if anything.
pub(crate) fn fresh_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A local file as the target of `farflash bench`.
pub(crate) fn local(path: &Path) -> String {
    format!("file:{}", path.display())
}

fn measure(bed: &mut Bed, case: &Case, count_calls: bool) -> Result<Sample> {
    match case.subject {
        Subject::Null => null_sample(&case.shape, Blocks::Cached, bed.driver.seconds),
        Subject::NullScattered => null_sample(&case.shape, Blocks::Scattered, bed.driver.seconds),
        Subject::NullChecked => null_sample(&case.shape, Blocks::Checked, bed.driver.seconds),
        Subject::NullFile => {
            let spec = null_spec(&case.shape, Blocks::Cached, bed.driver.seconds)?;
            Ok(sample_of(&null::file::run(&spec, &bed.local_file)?))
        }
        Subject::FarflashMem => {
            farflash_sample(bed, (&bed.mem.0, &bed.mem.1), &case.shape, count_calls)
        }
        Subject::FarflashMemInOrder => {
            farflash_sample(bed, (&bed.mem.0, &bed.in_order), &case.shape, count_calls)
        }
        Subject::FarflashFile => {
            farflash_sample(bed, (&bed.file.0, &bed.file.1), &case.shape, count_calls)
        }
        Subject::LocalFile => bed.driver.sample(&local(&bed.local_file), &case.shape),
        Subject::NbdkitMem | Subject::NbdkitFile | Subject::QemuNbdFile => {
            let peer = bed.peers.iter().find(|peer| peer.subject == case.subject);
            peer.context("not installed")?.measure(&case.shape, bed.driver.seconds)
        }
    }
}

fn null_sample(shape: &Shape, blocks: Blocks, seconds: f64) -> Result<Sample> {
    Ok(sample_of(&null::run(&null_spec(shape, blocks, seconds)?)?))
}

fn null_spec(shape: &Shape, blocks: Blocks, seconds: f64) -> Result<NullSpec> {
    Ok(NullSpec {
        direction: if shape.write { Direction::Write } else { Direction::Read },
        block_bytes: usize::try_from(shape.block_bytes)?,
        blocks,
        depth: u64::from(shape.depth),
        connections: shape.connections as usize,
        server_cpu: cpus::server(),
        client_cpu: cpus::client(),
        warm_up_seconds: 0.0,
        seconds,
    })
}

fn sample_of(result: &NullResult) -> Sample {
    Sample {
        iops: result.requests_per_second,
        mean_us: result.mean_latency_us,
        p99_us: None,
        cpu_us_per_request: Some(result.server_cpu_us_per_request),
        system_calls_per_request: result.server_system_calls_per_request,
    }
}

fn farflash_sample(
    bed: &Bed,
    (server, volume): (&Server, &VolumeAddress),
    shape: &Shape,
    count_calls: bool,
) -> Result<Sample> {
    let before = server.program.cpu_seconds()?;
    let mut sample = bed.driver.sample(&volume.target(), shape)?;
    let used = server.program.cpu_seconds()? - before;
    sample.cpu_us_per_request = Some(used * 1e6 / (sample.iops * bed.driver.seconds));
    if count_calls && is_installed("perf") {
        // Apart from the run that counts for speed, which tracing would slow down.
        sample.system_calls_per_request = system_calls(bed, server, volume, shape).ok();
    }
    Ok(sample)
}

/// System calls of the server for each request, counted by `perf stat`.
fn system_calls(bed: &Bed, server: &Server, volume: &VolumeAddress, shape: &Shape) -> Result<f64> {
    let pid = server.program.pid().to_string();
    let load = bed.driver.command(&volume.target(), shape);
    let mut perf = Command::new("perf");
    perf.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &pid, "--"]);
    perf.arg(load.get_program()).args(load.get_args());
    let output = perf.output()?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let requests = json["requests"].as_f64().context("no requests")?;
    let counted = String::from_utf8_lossy(&output.stderr);
    let line = counted.lines().find(|line| line.contains("raw_syscalls"));
    let count = line.and_then(|line| line.split(',').next()).context("perf counted nothing")?;
    Ok(count.parse::<f64>()? / requests)
}
