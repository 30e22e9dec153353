//! `farflash kv-load`: puts load on a key-value server and measures it.

mod agents;
mod arguments;
mod plot;
mod show;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use kv_load::{
    Arrivals, Latencies, Loop, Outcome, PeakSearch, Popularity, Setup, Sizes, TargetTls, Workload,
};
use user_messages::Failure;
use user_messages::output::note;

use self::agents::{AgentArgs, CoordinatorArgs, Maker};
pub(super) use self::arguments::Target;
use self::arguments::{ArrivalsArg, Judge, ProfileArg, Share, Span, WriteArg};
use self::plot::Plot;

pub(super) const EXAMPLES: &str = "\
Examples:
  Write two million keys of 17 to 21 bytes with values up to 10 kB, then read and append at three rates:
    farflash kv-load --keys 2000000 --fill --value-size uniform:100,10000 --qps none
    farflash kv-load --keys 2000000 --value-size 100 --get-set 9:1 --qps 1000,5000,20000

  Search the highest rate at which 95 % of reads take at most 1.5 ms:
    farflash kv-load --keys 2000000 --get-set 9:1 --find-peak 1.5ms --judge p95

  Workload B of stores on Flash, at a datastore with `--set append --append-max 50kB`:
    farflash kv-load --workload b --keys 500000 --fill --qps 2000

  As fast as the server answers, as redis-benchmark does:
    farflash kv-load --keys 100000 --closed --connections 50

  From two other machines, on which `farflash kv-load agent` runs:
    farflash kv-load --agent load-1:7430 --agent load-2:7430 --agent-ca agents.pem --agent-token-file agents-token \
      --target 192.0.2.10:6379 --keys 2000000 --find-peak 1.5ms

A run whose figures are those of the generator's own CPU is refused with exit code 1.";

/// A search ends when the highest rate that keeps the target is known to this share.
const PEAK_TOLERANCE: f64 = 0.03;

#[derive(Debug, Subcommand)]
pub(crate) enum KvLoadCommand {
    /// Make load for a coordinator, which is `farflash kv-load --agent`
    #[command(after_help = agents::EXAMPLES)]
    Agent(AgentArgs),
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct KvLoad {
    #[command(subcommand)]
    command: Option<KvLoadCommand>,
    /// Server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    target: Target,
    /// Speak TLS with the server
    #[arg(long)]
    tls: bool,
    /// Certificates by which the server is believed, in PEM: its own, or an authority's
    /// [default: those that this machine trusts]
    #[arg(long, value_name = "FILE", requires = "tls")]
    tls_ca: Option<PathBuf>,
    /// Directory of certificate.pem and key.pem, which the server is shown
    #[arg(long, value_name = "DIRECTORY", requires = "tls", conflicts_with = "agent")]
    tls_identity: Option<PathBuf>,
    /// File with the server's password in its first line
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Requests a second, at their intended times; several rates are measured one after the other
    #[arg(long, value_name = "RATE", value_delimiter = ',', value_parser = arguments::rate)]
    qps: Vec<Option<f64>>,
    /// Send the next request when the one before is answered, instead
    #[arg(long, conflicts_with_all = ["qps", "find_peak"])]
    closed: bool,
    /// Search the highest rate at which reads keep this latency
    #[arg(long, value_name = "TIME", conflicts_with = "qps")]
    find_peak: Option<Span>,
    /// Latency that --find-peak judges
    #[arg(long, value_enum, default_value_t, requires = "find_peak")]
    judge: Judge,
    /// First rate of --find-peak
    #[arg(long, value_name = "RATE", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    first_qps: u32,
    /// Distances between requests
    #[arg(long, value_enum, default_value_t)]
    arrivals: ArrivalsArg,
    /// Write each key once before anything else
    #[arg(long)]
    fill: bool,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Sizes of keys and values and the ratio of reads to writes of a store on Flash; --fill then writes values that have
    /// grown for some time
    #[arg(
        long, value_name = "a|b|c|d", value_enum,
        conflicts_with_all = ["key_size", "value_size", "get_set", "write"]
    )]
    workload: Option<ProfileArg>,
    /// Sizes of keys: SIZE, uniform:MIN,MAX, normal:MEAN,DEVIATION or pareto:LOCATION,SCALE,SHAPE
    #[arg(long, value_name = "SIZES", default_value = "uniform:17,21")]
    key_size: Sizes,
    /// Sizes of what is written, in the same way
    #[arg(long, value_name = "SIZES", default_value = "100")]
    value_size: Sizes,
    /// Popularity of keys: uniform or zipf:EXPONENT
    #[arg(long, value_name = "POPULARITY", default_value = "uniform")]
    popularity: Popularity,
    /// Reads to writes
    #[arg(long, value_name = "GETS:SETS", default_value = "1:0")]
    get_set: Share,
    /// Command of writes
    #[arg(long, value_enum, default_value_t)]
    write: WriteArg,
    /// Threads of the generator; of each agent
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Connections; of each agent
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Requests outstanding on a connection at most; 1 with --closed, else 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    depth: Option<u16>,
    /// Reads a second of the probe, a connection of its own with one request at a time; 0: none
    #[arg(long, value_name = "RATE", default_value_t = 100)]
    probe_rate: u32,
    /// Time before the measured time
    #[arg(long, value_name = "TIME", default_value = "2s")]
    warm_up: Span,
    /// Measured time
    #[arg(long, value_name = "TIME", default_value = "10s")]
    time: Span,
    /// Seed of all chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print each run as a line of JSON
    #[arg(long)]
    json: bool,
    /// Draw the runs as SVG: latency at each rate, its distribution, and both over time
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    coordinator: CoordinatorArgs,
}

impl KvLoad {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        if let Some(KvLoadCommand::Agent(agent)) = self.command.take() {
            return agent.run();
        }
        let setup = self.setup()?;
        let maker = self.coordinator.maker()?;
        setup
            .check()
            .map_err(|error| Failure::usage(error.to_string(), "see `farflash kv-load --help`"))?;
        let plot = Plot::begin(self.plot.as_ref())?;
        if self.fill {
            let grown = self.workload.map(|arg| arg.profile().grown_sizes());
            let value_sizes = grown.unwrap_or(setup.workload.value_sizes);
            let filling = Setup {
                workload: Workload { value_sizes, ..setup.workload.clone() },
                ..setup.clone()
            };
            let filled = maker.fill(&filling)?;
            if let Some(error) = &filled.first_error {
                let what =
                    format!("{} of {} writes of --fill failed: {error}", filled.errors, self.keys);
                return Err(Failure::runtime(what, "mend what the server says, and fill again"));
            }
            show::filled(&filled);
        }
        let mut done = Vec::new();
        let ended = match &self.find_peak {
            Some(target) => self.find_peak(&maker, &setup, target.0, &mut done),
            None => self.runs(&maker, &setup, &mut done),
        };
        // Runs that were measured are drawn whatever became of the last.
        if let Some(plot) = plot.filter(|_| !done.is_empty()) {
            plot.save(&done)?;
        }
        ended
    }

    fn setup(&self) -> Result<Setup, Failure> {
        let password = self.password_file.as_deref().map(|path| {
            super::token_file::read_password(path).map_err(|error| {
                let what = format!("{}: {error}", path.display());
                Failure::usage(what, "name a readable file that holds the password")
            })
        });
        let password = password.transpose()?;
        let depth = self.depth.map_or(if self.closed { 1 } else { 64 }, usize::from);
        Ok(Setup {
            address: self.target.address,
            tls: self.tls()?,
            password,
            threads: usize::from(self.threads),
            connections: usize::from(self.connections),
            depth,
            pace: Loop::Closed,
            warm_up: self.warm_up.0,
            duration: self.time.0,
            drain: Duration::from_secs(10),
            probe_rate: f64::from(self.probe_rate),
            workload: self.workload(),
        })
    }

    fn workload(&self) -> Workload {
        let stated = Workload {
            keys: self.keys,
            key_sizes: self.key_size,
            value_sizes: self.value_size,
            popularity: self.popularity,
            read_share: self.get_set.0,
            write: self.write.into(),
            seed: self.seed,
        };
        let Some(profile) = self.workload.map(ProfileArg::profile) else { return stated };
        Workload {
            key_sizes: profile.key_sizes(),
            value_sizes: profile.value_sizes(),
            read_share: profile.read_share,
            ..stated
        }
    }

    fn tls(&self) -> Result<Option<TargetTls>, Failure> {
        if !self.tls {
            return Ok(None);
        }
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| {
                let what = format!("{}: {error}", path.display());
                Failure::usage(what, "name a file of certificates in PEM with --tls-ca")
            })
        };
        Ok(Some(TargetTls {
            name: self.target.host.clone(),
            authorities: self.tls_ca.as_ref().map(read).transpose()?,
            identity: self.tls_identity.clone(),
        }))
    }

    fn at(&self, setup: &Setup, rate: f64) -> Setup {
        let arrivals: Arrivals = self.arrivals.into();
        Setup { pace: Loop::Open { rate, arrivals }, ..setup.clone() }
    }

    fn runs(&self, maker: &Maker, setup: &Setup, done: &mut Vec<Outcome>) -> Result<(), Failure> {
        let setups: Vec<Setup> = match () {
            () if self.closed => vec![setup.clone()],
            () if self.qps.is_empty() && !self.fill => {
                vec![self.at(setup, f64::from(self.first_qps))]
            }
            () => self.qps.iter().flatten().map(|rate| self.at(setup, *rate)).collect(),
        };
        for setup in &setups {
            let outcome = maker.run(setup)?;
            refuse_if_limited(&outcome)?;
            show::outcome(&outcome, self.json)?;
            done.push(outcome);
        }
        Ok(())
    }

    fn find_peak(
        &self,
        maker: &Maker,
        setup: &Setup,
        target: Duration,
        done: &mut Vec<Outcome>,
    ) -> Result<(), Failure> {
        let latency = |latencies: &Latencies| self.judge.of(latencies);
        let mut search = PeakSearch::new(f64::from(self.first_qps), PEAK_TOLERANCE);
        while let Some(rate) = search.next() {
            let outcome = maker.run(&self.at(setup, rate))?;
            let keeps = outcome.keeps(target, latency);
            // A target that is kept in spite of a busy generator is kept; one that is missed may be its fault.
            if !keeps {
                refuse_if_limited(&outcome)?;
            }
            show::step(rate, &outcome, latency(outcome.judged()), keeps);
            search.on_result(keeps);
            done.push(outcome);
        }
        show::peak(search.peak(), target, self.judge, self.json)
    }
}

/// The figures of such a run would be the generator's, not the server's.
fn refuse_if_limited(outcome: &Outcome) -> Result<(), Failure> {
    if !outcome.limited_by_generator {
        return Ok(());
    }
    let stalled = outcome.stalled_seconds;
    if stalled > 0.0 {
        let what = format!(
            "the generator, or its machine, did not run for {stalled:.1} s of this run: requests that were outstanding then, or \
             fell due, are not the server's to answer for"
        );
        let remedy = "run it again, where nothing stops or starves the generator";
        return Err(Failure::runtime(what, remedy));
    }
    let share = report::percent(outcome.busiest_thread);
    let limit = match outcome.busiest_agent() {
        Some(part) => format!("the own CPU of agent {}", part.agent),
        None => "the generator's own CPU".to_owned(),
    };
    let what =
        format!("{limit} limited this run: one of its threads wanted it for {share} of the time");
    note(&format!(
        "measured all the same, and not to be used: {} requests a second",
        report::rate(outcome.qps)
    ));
    Err(Failure::runtime(
        what,
        "use more --threads on idle CPUs, more machines (--agent), or a lower rate",
    ))
}
