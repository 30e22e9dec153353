//! `farflash-power-cut`: cuts the power below the real server, again and again.
//!
//! The server runs on small disks with volatile caches, which forget at a cut what no flush covered
//! (`cache`, `disk`). Workers ask it for all kinds of changes (`data_load`, `control_load`), a model
//! says what may be there after the next start (`model`), and everything is compared (`verify`).

mod boot;
mod cache;
mod contents;
mod control_load;
mod data_load;
mod disk;
mod life;
mod loop_device;
mod model;
mod random;
mod server;
mod supply;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Parser;

use crate::disk::Lie;
use crate::life::{Wanted, live};

/// Set where every test has to run.
const SKIP_NOTHING: &str = "FARFLASH_SKIP_NOTHING";

#[derive(Parser)]
#[command(about = "Cuts the power below the real server, and looks at what is left")]
struct Cli {
    /// The server's program
    #[arg(long, value_name = "FILE", default_value = "target/debug/farflash")]
    farflash: PathBuf,
    /// Ends after so many cuts
    #[arg(long, value_name = "N", default_value_t = 50)]
    cuts: u64,
    /// Ends after so many minutes instead
    #[arg(long, value_name = "N", conflicts_with = "cuts")]
    minutes: Option<u64>,
    /// The first seed; each life has the next one [default: with --minutes the time, else 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only the life of --seed, so many times
    #[arg(long, value_name = "N", requires = "seed")]
    repeat: Option<u64>,
    /// Directory of logs, and of the disks of a life in which something was found
    #[arg(long, value_name = "DIRECTORY", default_value = "target/power-cut")]
    out: PathBuf,
    /// Has the disks lie about flushes, and demands that this is found
    #[arg(long, value_enum, default_value_t)]
    lie: Lie,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(why) = why_not() {
        if std::env::var_os(SKIP_NOTHING).is_some() {
            eprintln!("power-cut: not run: {why}; {SKIP_NOTHING} is set");
            return ExitCode::FAILURE;
        }
        eprintln!("NOT RUN (power-cut): {why}");
        return ExitCode::SUCCESS;
    }
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("power-cut: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Why nothing can be tested here.
fn why_not() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a disk takes root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("there is no /dev/fuse")
}

/// Lives until there is enough; whether what was found is what was wanted.
fn run(cli: &Cli) -> std::io::Result<bool> {
    let begin = Instant::now();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let first = cli.seed.unwrap_or(if cli.minutes.is_some() { now.as_secs() << 20 } else { 1 });
    std::fs::create_dir_all(&cli.out)?;
    let wanted = Wanted {
        program: cli.farflash.canonicalize()?,
        work: cli.out.canonicalize()?,
        lie: cli.lie,
        cores: std::thread::available_parallelism()?.get(),
    };
    let limit = cli.minutes.map(|minutes| Duration::from_secs(minutes * 60));
    let (mut cuts, mut lives) = (0, 0);
    let is_enough = |cuts, lives| match (cli.repeat, limit) {
        (Some(repeat), _) => lives >= repeat,
        (None, Some(limit)) => begin.elapsed() >= limit,
        (None, None) => cuts >= cli.cuts,
    };
    while !is_enough(cuts, lives) {
        let seed = if cli.repeat.is_some() { first } else { first + lives };
        let report = live(seed, &wanted)?;
        (cuts, lives) = (cuts + report.cuts, lives + 1);
        println!("{:4} s, {cuts:4} cuts: {}", begin.elapsed().as_secs(), report.summary);
        let Some(kept) = report.kept else { continue };
        report.findings.iter().for_each(|finding| println!("FOUND in life {seed}: {finding}"));
        let farflash = cli.farflash.display();
        println!("log and disks are in {}; the like of it again, by chance:", kept.display());
        println!("  farflash-power-cut --farflash {farflash} --seed {seed} --repeat 20");
        // What is wrong before the first cut is no lie's doing.
        let is_wanted = cli.lie != Lie::None && report.cuts > 0;
        if is_wanted {
            println!("found, as it has to be ({:?}), by cut {cuts}", cli.lie);
        }
        return Ok(is_wanted);
    }
    if cli.lie != Lie::None {
        println!("NOT found within {cuts} cuts: {:?}", cli.lie);
    }
    Ok(cli.lie == Lie::None)
}
