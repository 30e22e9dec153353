//! `farflash profile`: latency of many drives at once, to six nines, and the causes of slow requests.

mod elsewhere;
mod prepare;
mod tuned;

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use local_devices::sharing_spec::parse_latency;
use profile::{DRIVES_MAX, Drive, DriveError, Limit, Plan, Profile, RunError, SlowerThan, show};
use units::ByteLen;
use user_messages::Failure;
use user_messages::output::{self, note};

use super::interrupt::Interrupt;
use super::tokens::TokenArgs;
use crate::core_list::CoreList;

pub(super) const EXAMPLES: &str = "\
Reads blocks of 4 KiB at random places, one at a time, by a pinned thread for each drive. Drives are opened for reading \
alone, and may be in use, but with --precondition. As root it also says why requests were slow.

Examples:
  Two minutes on all drives, with a saved result and a plot:
    farflash profile /dev/nvme*n1 --seconds 120 --out before.json --plot before.svg

  Six nines need ten million requests of each drive:
    farflash profile /dev/nvme0n1 /dev/nvme1n1 --requests 10000000 --realtime 50

  A new drive, brought into its steady state first; what it holds is lost:
    farflash profile /dev/nvme0n1 --precondition --destroy-data

  Before and after the settings that the report proposes, or that are named:
    farflash profile /dev/nvme*n1 --tuned
    farflash profile /dev/nvme*n1 --tuned=irq-drives,cpu-idle-states

  A volume of a Flash server, and a modelled drive:
    farflash profile tcp://192.0.2.9:4420/NQN --realtime 50
    farflash profile model:m2-960,scale=0.1

  Runs of several hosts as one, and a comparison of two settings:
    farflash profile merge host-1.json host-2.json --out array.json
    farflash profile compare before.json after.json";
const MERGE_EXAMPLES: &str = "\
A drive that was read in several runs is one drive; drives of different hosts stand beside each other.

Examples:
  farflash profile merge run-1.json run-2.json run-3.json --out before.json";
const COMPARE_EXAMPLES: &str = "\
A figure has changed if the difference is more than chance: between runs if both sides have three or more, else between \
drives, or, with a single drive, by its sample alone.

Examples:
  farflash profile compare before.json after.json";

const WARM_UP_DEFAULT: f64 = 2.0;
const SECONDS_DEFAULT: f64 = 30.0;
/// A day: longer runs are typing mistakes.
const SECONDS_MAX: f64 = 86_400.0;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ProfileCommand {
    #[command(subcommand)]
    saved: Option<Saved>,
    #[command(flatten)]
    measure: Measure,
}

#[derive(Debug, Subcommand)]
enum Saved {
    /// Put saved results together
    #[command(after_help = MERGE_EXAMPLES)]
    Merge(Merge),
    /// Compare two saved results
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(Compare),
}

#[derive(Debug, Args)]
struct Measure {
    /// Block devices, files, volumes (tcp://IP:PORT/NQN) or modelled drives (model:m2-960), up to 64
    #[arg(value_name = "DRIVE", required = true)]
    drives: Vec<PathBuf>,
    /// The part of each drive that is read, from its beginning [default: all]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteLen>,
    /// Measured time [default: 30, or until --requests]
    #[arg(long, value_name = "SECONDS", conflicts_with = "requests")]
    seconds: Option<f64>,
    /// Requests of each drive, instead of a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Seconds before that, which are not measured
    #[arg(long, value_name = "SECONDS", default_value_t = WARM_UP_DEFAULT)]
    warm_up: f64,
    /// CPUs of the reading threads, such as 2-7 [default: the last ones, one for each drive]
    #[arg(long, value_name = "CPUS")]
    cpus: Option<CoreList>,
    /// Real-time priority of the reading threads (SCHED_FIFO)
    #[arg(long, value_name = "1-99", value_parser = clap::value_parser!(u8).range(1..=99))]
    realtime: Option<u8>,
    /// Latency from which on a request is slow [default: the 99.9 % of the warm-up]
    #[arg(long, value_name = "TIME")]
    slower_than: Option<String>,
    /// Do not look for the causes of slow requests, which traces the kernel
    #[arg(long)]
    no_causes: bool,
    /// Seed of the places that are read
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tokens: TokenArgs,
    #[command(flatten)]
    prepare: prepare::Prepare,
    #[command(flatten)]
    tuned: tuned::Tuned,
    #[command(flatten)]
    results: Results,
}

#[derive(Debug, Args)]
struct Results {
    /// Save the result, for merge and compare
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Plot latency over time as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Merge {
    /// Saved results
    #[arg(value_name = "FILE", required = true, num_args = 2..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    results: Results,
}

#[derive(Debug, Args)]
struct Compare {
    /// Saved result before a change
    before: PathBuf,
    /// Saved result after it
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ProfileCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.saved {
            None => self.measure.run(),
            Some(Saved::Merge(merge)) => merge.run(),
            Some(Saved::Compare(compare)) => compare.run(),
        }
    }
}

impl Measure {
    fn run(self) -> Result<(), Failure> {
        let limit = match (self.requests, self.seconds.unwrap_or(SECONDS_DEFAULT)) {
            (Some(requests), _) => Limit::Requests(requests),
            (None, seconds) => Limit::Time(span("--seconds", 0.01, seconds)?),
        };
        let warm_up = span("--warm-up", 0.0, self.warm_up)?;
        let slower_than = match &self.slower_than {
            None => SlowerThan::WarmUp,
            Some(text) => {
                let latency = parse_latency(text)
                    .map_err(|error| Failure::usage(error.to_string(), "mend --slower-than"))?;
                SlowerThan::Ns(latency.as_nanos() as u64)
            }
        };
        let cpus = self.cpus()?;
        let drives = self.open()?;
        self.tuned.check()?;
        self.results.check(&self.drives)?;
        let stop = Interrupt::catch(true)?.flag();
        let prepared = self.prepare.run(&self.drives, self.size, self.seed, &stop)?;
        let measure = |drives| -> Result<Profile, Failure> {
            let plan = Plan {
                drives,
                cpus: cpus.clone(),
                limit,
                warm_up,
                slower_than,
                realtime: self.realtime,
                attribute: !self.no_causes,
                seed: self.seed,
                stop: stop.clone(),
            };
            let mut profile = profile::run(plan).map_err(|error| refused(&error))?;
            profile.runs.iter_mut().for_each(|run| run.notes.extend_from_slice(&prepared));
            Ok(profile)
        };
        let before = measure(drives)?;
        let settings = self.tuned.settings(&before);
        if settings.is_empty() || stop.load(std::sync::atomic::Ordering::Relaxed) {
            return self.results.give(&before);
        }
        let cores = self.cpus.as_ref().map(|CoreList(cpus)| cpus.clone());
        let (said, steps) = self.tuned.apply(settings, cores)?;
        let after = measure(self.open()?)?;
        self.tuned.give(&self.results, [&before, &after], &said, &steps)
    }

    fn cpus(&self) -> Result<Vec<u32>, Failure> {
        let Some(CoreList(cpus)) = &self.cpus else { return Ok(Vec::new()) };
        let allowed = profile::allowed_cpus();
        match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            None => Ok(cpus.clone()),
            Some(cpu) => {
                let allowed: host_tune::CpuSet = allowed.into_iter().collect();
                let what = format!("--cpus: this process cannot run on CPU {cpu}");
                Err(Failure::usage(what, format!("these can be used: {allowed}")))
            }
        }
    }

    fn open(&self) -> Result<Vec<Drive>, Failure> {
        if self.drives.len() > DRIVES_MAX {
            let what = format!(
                "{} drives are named, {DRIVES_MAX} at most can be read at once",
                self.drives.len()
            );
            return Err(Failure::usage(what, "read them in several runs, and merge the results"));
        }
        if let Some(path) = twice(&self.drives) {
            let what = format!("{} is named twice", path.display());
            return Err(Failure::usage(
                what,
                "name each drive once: one request is outstanding at a time",
            ));
        }
        let size = self.size.map(|size| size.0);
        let open = |path: &PathBuf| match path.to_str() {
            Some(name) if elsewhere::is_elsewhere(name) => {
                elsewhere::open(name, size, &self.tokens)
            }
            _ => Drive::open(path, size).map_err(|error| not_opened(&error)),
        };
        self.drives.iter().map(open).collect()
    }
}

fn twice(paths: &[PathBuf]) -> Option<&PathBuf> {
    let whole = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let all: Vec<PathBuf> = paths.iter().map(whole).collect();
    let again = (0..all.len()).find(|at| all[..*at].contains(&all[*at]))?;
    paths.get(again)
}

fn span(flag: &str, least: f64, seconds: f64) -> Result<Duration, Failure> {
    if (least..=SECONDS_MAX).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(Failure::usage(format!("{flag} {seconds} is no time to measure"), format!("try {flag} 10")))
}

fn not_opened(error: &DriveError) -> Failure {
    let remedy = match error {
        DriveError::Open { .. } => "name a drive that this user may read, such as /dev/nvme0n1",
        DriveError::NoDrive { .. } => {
            "name block devices, such as /dev/nvme0n1, files, or volumes, as tcp://IP:PORT/NQN"
        }
        DriveError::NoDirect { .. } => {
            "put the file on a file system with direct I/O, such as ext4 or XFS"
        }
        DriveError::Small { .. } => "name a larger one, or a smaller --size",
    };
    Failure::usage(error.to_string(), remedy)
}

fn refused(error: &RunError) -> Failure {
    let remedy = match error {
        RunError::Thread(_) => "raise the limit on threads (ulimit -u)",
        RunError::Pin { .. } => "name other CPUs with --cpus",
        RunError::Realtime { .. } => {
            "run it as root, raise the limit (ulimit -r), or leave out --realtime"
        }
        RunError::NoRead { .. } => "look at the kernel's log (dmesg)",
    };
    Failure::runtime(error.to_string(), remedy)
}

impl Results {
    /// Makes the files, so that a run of hours is not lost to a typing mistake. A drive is no place for a result.
    fn check(&self, drives: &[PathBuf]) -> Result<(), Failure> {
        for path in [&self.out, &self.plot].into_iter().flatten() {
            let whole = path.canonicalize();
            let is_drive = whole.is_ok_and(|whole| {
                let is_device =
                    whole.metadata().is_ok_and(|data| data.file_type().is_block_device());
                is_device
                    || drives
                        .iter()
                        .any(|drive| drive.canonicalize().is_ok_and(|drive| drive == whole))
            });
            if is_drive {
                let what =
                    format!("{} is a drive: a result would destroy what it holds", path.display());
                return Err(Failure::usage(what, "name another file with --out or --plot"));
            }
            let made = std::fs::OpenOptions::new().create(true).append(true).open(path);
            made.map_err(|error| unwritten(path, &error))?;
        }
        Ok(())
    }

    fn give(&self, profile: &Profile) -> Result<(), Failure> {
        self.save(profile)?;
        output::print("give the result somewhere to go", |out| match self.json {
            true => writeln!(out, "{:#}", show::json(profile)),
            false => write!(out, "{}", show::text(profile)),
        })
    }

    fn save(&self, profile: &Profile) -> Result<(), Failure> {
        if let Some(path) = &self.out {
            save_as(path, profile)?;
        }
        if let Some(path) = &self.plot {
            match show::plot(profile) {
                Ok(svg) => std::fs::write(path, svg).map_err(|error| unwritten(path, &error))?,
                Err(error) => note(&format!("no plot was made: {error}")),
            }
        }
        Ok(())
    }
}

fn save_as(path: &Path, profile: &Profile) -> Result<(), Failure> {
    let text = serde_json::to_string(profile).expect("a profile is JSON");
    std::fs::write(path, text + "\n").map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    let what = format!("{} cannot be written: {error}", path.display());
    Failure::runtime(what, "name a file that can be written")
}

fn read(path: &Path) -> Result<Profile, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let what = format!("{} cannot be read: {error}", path.display());
        Failure::usage(what, "name a file that `farflash profile --out` wrote")
    })?;
    Profile::from_json(&text).map_err(|error| {
        let what = format!("{}: {error}", path.display());
        Failure::usage(what, "name a file that `farflash profile --out` of this version wrote")
    })
}

impl Merge {
    fn run(self) -> Result<(), Failure> {
        self.results.check(&[])?;
        let (first, others) = self.files.split_first().expect("two at least");
        let mut merged = read(first)?;
        for path in others {
            merged.merge(&read(path)?).map_err(|error| {
                let what = format!("{}: {error}", path.display());
                Failure::usage(what, "name each run once")
            })?;
        }
        self.results.give(&merged)
    }
}

impl Compare {
    fn run(self) -> Result<(), Failure> {
        let compared = profile::compare(&read(&self.before)?, &read(&self.after)?);
        output::print("give the result somewhere to go", |out| match self.json {
            true => {
                let mut value = serde_json::json!(compared);
                value["verdict"] = show::verdict(&compared).into();
                writeln!(out, "{value:#}")
            }
            false => write!(out, "{}", show::comparison(&compared)),
        })
    }
}
