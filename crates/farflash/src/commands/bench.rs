//! `farflash bench`: puts load on a volume or a local device and measures it.

mod plan;
mod show;
mod target;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use client::ConnectError;
use load::{
    Access, Arrivals, Distribution, Journal, Limit, OnError, Outcome, Rate, Setup, Target, Trace,
    Verified, VerifyError, Workload, WorkloadError,
};
use reactor::{CoreConfig, Handle};
use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange};
use user_messages::Failure;
use user_messages::output;

pub(super) use self::plan::save as save_recording;
use self::plan::{ProfileArg, Speed};
use self::target::DistributionArg;
pub(super) use self::target::{TargetArg, connect_volume};
use super::interrupt::Interrupt;
use super::tokens::TokenArgs;

pub(super) const EXAMPLES: &str = "\
Examples:
  Random reads of a volume, as `volume create` prints its address and NQN:
    farflash bench --target tcp://127.0.0.1:4420/NQN --rw randread --bs 4KiB --qd 32 --seconds 8

  Write to an empty volume, check every block, print the result as JSON:
    farflash bench --target tcp://127.0.0.1:4420/NQN --rw randrw --verify --range 1GiB --json

  The same engine on a local file or on memory, to compare with:
    farflash bench --target file:/srv/test.img --rw randread --qd 32
    farflash bench --target mem:1GiB --rw randwrite --qd 32

  What users see at 20 000 requests a second, whatever the target does:
    farflash bench --target tcp://127.0.0.1:4420/NQN --rw randread --rate 20000 --qd 128

  Workload C of key-value stores, as on a volume of 400 GB; then its requests again at twice the pace:
    farflash bench --target tcp://127.0.0.1:4420/NQN --workload c --workload-size 400GB --overwrite --record c.txt
    farflash bench --target tcp://127.0.0.1:4420/NQN --replay c.txt --speed 2 --overwrite";

/// Requests outstanding while everything is checked at the end.
const VERIFY_DEPTH: u32 = 32;

/// Length of a run if nothing is said.
const SECONDS_DEFAULT: f64 = 10.0;
/// Share of reads in a mixed load if nothing is said.
const READ_PERCENT_DEFAULT: u8 = 50;

/// Kinds of load, named as fio names them.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Rw {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Sequential reads and writes
    #[value(name = "rw", alias = "readwrite")]
    Readwrite,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random reads and writes
    Randrw,
}

impl Rw {
    /// The name that the option takes.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum ArrivalsArg {
    /// At equal distances
    Fixed,
    /// At random
    Poisson,
}

fn target_help() -> String {
    format!("Target of the load: `tcp://IP:PORT/NQN`, or a device: {}", device::kind::forms(true))
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[arg(long, value_name = "TARGET", help = target_help())]
    target: TargetArg,
    /// Kind of load
    #[arg(long, value_enum, default_value = "randread")]
    rw: Rw,
    /// Share of reads in a mixed load, in percent [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: Option<u8>,
    /// Bytes of a request, a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    bs: ByteLen,
    /// Requests outstanding on each connection
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    qd: u32,
    /// TCP connections, or for a local device groups of requests
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    connections: u16,
    /// Length of the run; Ctrl-C ends it early and shows what was measured, a second one ends at once [default: 10, with
    /// --replay that of the recording]
    #[arg(long, value_name = "S", conflicts_with = "bytes")]
    seconds: Option<f64>,
    /// Bytes to move in the run, instead of a time
    #[arg(long, value_name = "SIZE")]
    bytes: Option<ByteLen>,
    /// Run the same load for so long first, unmeasured, so that memory and connections are warm
    #[arg(long, value_name = "S", default_value_t = 0.0, conflicts_with_all = ["workload", "replay"])]
    warm_up: f64,
    /// Requests a second that arrive whether or not earlier ones are done; latency counts from the
    /// arrival
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Arrival process of the requests of --rate
    #[arg(long, value_enum, default_value = "poisson", requires = "rate")]
    arrivals: ArrivalsArg,
    /// Requests of a key-value store instead: random reads, and large sequential writes in bursts, as they arrive at a volume
    /// of the size that is used; latency counts from the arrival
    #[arg(
        long, value_name = "a|b|c|d", value_enum,
        conflicts_with_all = ["rw", "rwmixread", "bs", "bytes", "rate", "arrivals", "distribution", "verify"]
    )]
    workload: Option<ProfileArg>,
    /// Size of the volume whose requests --workload makes, on whatever part of the target is used
    #[arg(long, value_name = "SIZE", requires = "workload")]
    workload_size: Option<ByteLen>,
    /// Write each request of the run to a file, which --replay takes
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Requests of a recording instead, at the times and places that it has
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = [
            "workload", "rw", "rwmixread", "bs", "bytes", "rate", "arrivals", "distribution", "verify", "range", "offset"
        ]
    )]
    replay: Option<PathBuf>,
    /// Pace of --replay, in multiples of that of the recording
    #[arg(long, value_name = "FACTOR", default_value = "1", requires = "replay")]
    speed: Speed,
    /// The recording of --replay, until the run takes it.
    #[arg(skip)]
    recording: RefCell<Trace>,
    /// Distribution of the places: uniform, zipf or zipf:THETA
    #[arg(long, value_name = "D", default_value = "uniform")]
    distribution: DistributionArg,
    /// Use only the first so many bytes (behind --offset)
    #[arg(long, value_name = "SIZE")]
    range: Option<ByteLen>,
    /// Leave out the first so many bytes
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: ByteLen,
    /// Stamp every block written, and check every block read, during the run and afterwards
    #[arg(long)]
    verify: bool,
    /// Write even though the target holds data; it is lost
    #[arg(long)]
    overwrite: bool,
    /// Header digests on the connections
    #[arg(long)]
    hdgst: bool,
    /// Data digests on the connections
    #[arg(long)]
    ddgst: bool,
    #[command(flatten)]
    tokens: TokenArgs,
    /// CPU to stay on
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// No progress on stderr
    #[arg(long)]
    quiet: bool,
}

/// The result of a run.
struct Finished {
    outcome: Outcome,
    /// The result of the check at the end, if there was one.
    at_end: Option<Verified>,
    /// Requests that were kept outstanding on each connection.
    depth: u32,
    enters: u64,
    /// Requests that were recorded.
    recorded: Option<Rc<RefCell<Trace>>>,
    /// Times that the connections to a volume were lost and made again, and why that failed in the end.
    reconnects: Option<u64>,
    not_connected: Option<ConnectError>,
}

impl Bench {
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        self.check()?;
        if let Some(path) = &self.replay {
            self.recording = RefCell::new(plan::read(path)?);
        }
        let config =
            CoreConfig { cpu: self.cpu, name: "bench".to_owned(), ..CoreConfig::default() };
        let bench = Rc::new(self);
        let main = {
            let bench = bench.clone();
            |handle: Handle| async move { target::drive(&bench, handle).await }
        };
        let finished = reactor::run_on_current_thread(&config, main).map_err(|error| {
            Failure::runtime(error.to_string(), "choose another CPU, or look at `dmesg`")
        })??;
        show::result(&bench, &finished)?;
        if let (Some(path), Some(recorded)) = (&bench.record, &finished.recorded) {
            let remedy = "the run is done; name a file with some room with --record";
            plan::save(path, &mut recorded.borrow_mut(), remedy)?;
        }
        finished.judge()
    }

    fn check(&self) -> Result<(), Failure> {
        if self.bs.whole_blocks().is_none_or(|blocks| blocks == 0 || blocks > 65_536) {
            let what = format!("--bs {} bytes is no multiple of 4 KiB up to 256 MiB", self.bs.0);
            return Err(Failure::usage(what, "try --bs 4KiB"));
        }
        for (name, len) in [("offset", Some(self.offset)), ("range", self.range)] {
            if len.is_some_and(|len| len.whole_blocks().is_none()) {
                let what = format!("--{name} is no multiple of 4 KiB");
                return Err(Failure::usage(what, "use a size such as 1GiB"));
            }
        }
        if self.seconds.is_some_and(|seconds| !(1e-3..1e9).contains(&seconds)) {
            let what = "--seconds is no length for a run";
            return Err(Failure::usage(what, "try --seconds 10"));
        }
        if !(0.0..1e9).contains(&self.warm_up) {
            let what = "--warm-up is no length";
            return Err(Failure::usage(what, "try --warm-up 1"));
        }
        if self.bytes == Some(ByteLen(0)) {
            return Err(Failure::usage("--bytes 0 moves nothing", "try --bytes 1GiB"));
        }
        if self.rate.is_some_and(|rate| !(1e-3..1e9).contains(&rate)) {
            return Err(Failure::usage("--rate is no rate", "try --rate 1000"));
        }
        self.check_fit()
    }

    /// Checks that the options fit the load and the target.
    fn check_fit(&self) -> Result<(), Failure> {
        if self.verify && self.read_percent() == 100 {
            let remedy = "use --verify with a load that writes";
            return Err(Failure::usage("there is nothing to check reads against", remedy));
        }
        if self.rwmixread.is_some() && !matches!(self.rw, Rw::Readwrite | Rw::Randrw) {
            let what = "--rwmixread is for a load that both reads and writes";
            return Err(Failure::usage(what, "leave it out, or use --rw rw or --rw randrw"));
        }
        if matches!(self.target, TargetArg::Device(_)) && (self.hdgst || self.ddgst) {
            let what = "digests are taken on connections, and a local device has none";
            return Err(Failure::usage(what, "leave --hdgst and --ddgst out"));
        }
        Ok(())
    }

    /// Returns true if the run writes.
    fn writes(&self) -> bool {
        match (self.workload, &self.replay) {
            (Some(_), _) => true,
            (None, Some(_)) => self.recording.borrow().writes(),
            (None, None) => self.read_percent() < 100,
        }
    }

    fn read_percent(&self) -> u8 {
        match self.rw {
            Rw::Read | Rw::Randread => 100,
            Rw::Write | Rw::Randwrite => 0,
            Rw::Readwrite | Rw::Randrw => self.rwmixread.unwrap_or(READ_PERCENT_DEFAULT),
        }
    }

    /// The part of a target of `target_blocks` that is used. It is all there.
    fn range(&self, target_blocks: u64) -> Result<LbaRange, Failure> {
        if self.replay.is_some() {
            return plan::range(&self.recording.borrow(), target_blocks);
        }
        let blocks = |len: ByteLen| len.whole_blocks().expect("checked");
        let size = ByteLen(target_blocks * BLOCK_SIZE as u64);
        let offset = blocks(self.offset);
        let left = target_blocks.checked_sub(offset).filter(|left| *left > 0).ok_or_else(|| {
            let what =
                format!("--offset {} is not within the target, which has {size}", self.offset);
            Failure::usage(what, "give a smaller --offset")
        })?;
        let wanted = self.range.map_or(left, blocks);
        if wanted > left {
            let what = format!("--range ends beyond the target, which has {size}");
            let left = ByteLen(left * BLOCK_SIZE as u64);
            return Err(Failure::usage(what, format!("give --range {left} or less")));
        }
        if let Some(profile) = self.workload {
            plan::check_fit(profile, wanted)?;
        }
        if wanted < blocks(self.bs) {
            let wanted = ByteLen(wanted * BLOCK_SIZE as u64);
            let what = format!("a request of --bs {} does not fit into {wanted}", self.bs);
            let flag = if self.range.is_some() { "larger --range" } else { "smaller --bs" };
            return Err(Failure::usage(what, format!("give a {flag}")));
        }
        Ok(LbaRange::new(Lba(offset), wanted))
    }

    fn drawn(&self, range: LbaRange, depth: u32) -> Workload {
        let blocks = |len: ByteLen| len.whole_blocks().expect("checked");
        let access = match (self.rw, self.distribution) {
            (Rw::Read | Rw::Write | Rw::Readwrite, _) => Access::Sequential,
            (_, DistributionArg::Uniform) => Access::Random(Distribution::Uniform),
            (_, DistributionArg::Zipf(theta)) => Access::Random(Distribution::Zipf { theta }),
        };
        let arrivals = match self.arrivals {
            ArrivalsArg::Fixed => Arrivals::Fixed,
            ArrivalsArg::Poisson => Arrivals::Poisson,
        };
        let limit = match self.bytes {
            Some(bytes) => Limit::Bytes(bytes.0),
            None => Limit::Time(Duration::from_secs_f64(self.seconds.unwrap_or(SECONDS_DEFAULT))),
        };
        Workload {
            read_percent: self.read_percent(),
            access,
            blocks_per_request: u32::try_from(blocks(self.bs)).expect("checked"),
            depth,
            limit,
            rate: self.rate.map(|per_second| Rate { per_second, arrivals }),
            range,
            seed: self.seed,
            interval: show::INTERVAL,
            on_error: OnError::Stop,
        }
    }

    /// The load before the run. Random requests are to other places than those that are measured first.
    fn warm_up(&self, drawn: &Workload) -> Option<Workload> {
        if self.warm_up == 0.0 {
            return None;
        }
        if !self.quiet {
            output::note(&format!("warming up for {} s", self.warm_up));
        }
        let limit = Limit::Time(Duration::from_secs_f64(self.warm_up));
        Some(Workload { limit, seed: !self.seed, ..drawn.clone() })
    }

    /// Returns true if the run must be refused where it could lose data.
    fn must_not_lose(&self) -> bool {
        self.writes() && !self.overwrite
    }

    /// Runs the load on `targets`, one for each connection, with `depth` requests on each.
    async fn drive<T: Target>(
        &self,
        handle: &Handle,
        targets: Vec<T>,
        depth: u32,
    ) -> Result<Finished, Failure> {
        let target = targets[0].clone();
        let range = self.range(target.blocks())?;
        let journal = self.journal(range)?;
        let recorded = self.record.is_some().then(Rc::default);
        let precise = handle.clone();
        let interrupt = Rc::new(Interrupt::catch(!self.quiet)?);
        let setup = |recorder, observer| {
            let (precise, interrupt) = (precise.clone(), interrupt.clone());
            Setup {
                world: handle.clone(),
                now: move || precise.precise_now(),
                targets: targets.clone(),
                journal: journal.clone(),
                recorder,
                observer,
                stop: Some(Box::new(move || interrupt.came())),
            }
        };
        let drawn = self.drawn(range, depth);
        if let Some(workload) = self.warm_up(&drawn) {
            let outcome = load::run(setup(None, None), workload).await;
            let outcome = outcome.map_err(|error| not_runnable(&error))?;
            if outcome.cut_short {
                let what = "ended by Ctrl-C in the warm-up";
                return Err(Failure::runtime(what, "run it again for its figures"));
            }
            Finished::unmeasured(outcome, depth).judge()?;
        }
        let enters_before = handle.ring_counters().enters;
        let setup = setup(recorded.clone(), (!self.quiet).then(show::progress));
        let outcome = match self.planned(range, depth) {
            Some((requests, terms)) => load::play(setup, requests, &terms).await,
            None => load::run(setup, drawn).await,
        };
        let outcome = outcome.map_err(|error| not_runnable(&error))?;
        let enters = handle.ring_counters().enters - enters_before;
        let at_end = match &journal {
            Some(journal) => {
                let mut watcher: Option<load::Watcher> = None;
                if !self.quiet {
                    watcher = Some(Box::new(output::progress("checking what was written")));
                }
                let checked = load::verify(handle, &target, journal, VERIFY_DEPTH, watcher).await;
                Some(checked.map_err(|error| not_checked(&error))?)
            }
            None => None,
        };
        let (reconnects, not_connected) = (None, None);
        Ok(Finished { outcome, at_end, depth, enters, recorded, reconnects, not_connected })
    }

    fn journal(&self, range: LbaRange) -> Result<Option<Rc<RefCell<Journal>>>, Failure> {
        if !self.verify {
            return Ok(None);
        }
        // Blocks of an earlier run must not pass for blocks of this one.
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = clock.map_or(self.seed, |since| self.seed ^ since.as_nanos() as u64);
        let journal = Journal::new(range, seed)
            .map_err(|error| Failure::usage(error.to_string(), "add --range 16GiB"))?;
        Ok(Some(Rc::new(RefCell::new(journal))))
    }
}

impl Finished {
    /// The end of a warm-up.
    fn unmeasured(outcome: Outcome, depth: u32) -> Self {
        let (at_end, recorded, reconnects, not_connected) = (None, None, None, None);
        Self { outcome, at_end, depth, enters: 0, recorded, reconnects, not_connected }
    }

    /// A run with errors or wrong data is a failure, after its results were shown.
    fn judge(&self) -> Result<(), Failure> {
        let wrong = self.outcome.mismatches + self.at_end.unwrap_or_default().wrong;
        if wrong > 0 {
            let first =
                self.outcome.first_mismatch.as_deref().unwrap_or("see the check at the end");
            let what = format!("{wrong} blocks do not hold what was written; first {first}");
            return Err(Failure::runtime(what, "keep the device as it is, and report this"));
        }
        if let Some(error) = &self.outcome.first_error {
            let what = format!("{} requests failed; the first: {error}", self.outcome.errors);
            return Err(match &self.not_connected {
                Some(error) => Failure::runtime(
                    format!("{what}; the last attempt to connect: {error}"),
                    "see whether `farflash volume list` still shows the volume",
                ),
                None => Failure::runtime(what, "look at the target's log"),
            });
        }
        Ok(())
    }
}

fn failed_read(error: &dyn std::error::Error) -> Failure {
    Failure::runtime(format!("a read failed: {error}"), "look at the target's log")
}

fn not_checked<E: std::error::Error>(error: &VerifyError<E>) -> Failure {
    let what = format!("what was written could not be checked: {error}");
    Failure::runtime(what, "look at the target's log, and do not count on this run")
}

/// Refuses a workload for reasons that `Bench::check` and `Bench::range` do not cover.
fn not_runnable(error: &WorkloadError) -> Failure {
    let remedy = match error {
        WorkloadError::Zero => "give --rate a number above zero",
        WorkloadError::RangeTooSmall { .. } => "give a smaller --bs",
        WorkloadError::BeyondTarget { .. } | WorkloadError::OtherRange { .. } => {
            "give a smaller --range"
        }
        WorkloadError::Percent(_) => "give --rwmixread from 0 to 100",
        WorkloadError::TooBusyToCheck { .. } => "give a smaller --qd, or a larger --range",
    };
    Failure::usage(error.to_string(), remedy)
}
