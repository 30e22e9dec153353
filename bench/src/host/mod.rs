//! `bench host`: a Flash server beside tasks that take all CPUs, before and after `farflash tune`, as `farflash profile` sees
//! it; and the profiler itself, with 64 modelled drives on all CPUs, beside threads that do no more than wait for such drives.

mod hogs;
mod modelled;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use profile::{Latencies, NINES, Nines, Profile};
use report::{Align, Spread, Table, duration_ns, rate};
use serde::Serialize;

use self::hogs::Hogs;
use crate::cpus;
use crate::machine::{Facts, machine};
use crate::page::Area;
use crate::process::{Server, run};
use crate::run_args::RunArgs;
use crate::verdict::{Bound, Unit, Verdict};

const FULL: usize = 5;
const QUICK: usize = 1;
/// Reads of a measurement of the server: the fewest that carry 99.99 %.
const REQUESTS: u64 = 110_000;
const VOLUME_SIZE: &str = "256MiB";
/// The profiler's own thread is to be disturbed by nothing, before as after.
const PRIORITY: &str = "20";
/// Drives at once, and the time of each measurement, of which there are two of each kind in a round.
const DRIVES: u64 = 64;
const SECONDS: f64 = 4.0;
/// Drives so slow that their reads leave the CPUs idle for most of the time.
const DRIVE: &str = "m2-960,scale=0.02";
/// Three, four nines.
const SHOWN: [Nines; 2] = [NINES[1], NINES[2]];

/// Place of the server's figures.
const SERVED: &str = "mem, TCP";

/// A way of measuring.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    /// The server by itself.
    Alone,
    /// The server beside the tasks.
    Beside,
    /// The same with a real-time priority by `farflash tune`.
    Tuned,
    /// The same with the tasks kept from its CPU.
    Isolated,
    /// The profiler on modelled drives.
    Profiler,
    /// Threads that only wait for such drives.
    Waiting,
}

const WAYS: [Way; 6] =
    [Way::Alone, Way::Beside, Way::Tuned, Way::Isolated, Way::Profiler, Way::Waiting];

impl Way {
    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "server, no tasks beside it",
            Self::Beside => "server, tasks on both CPUs",
            Self::Tuned => "the same, `tune apply --only realtime-priority`",
            Self::Isolated => "the same, tasks kept from the server's CPU",
            Self::Profiler => "64 modelled drives, profiler",
            Self::Waiting => "64 modelled drives, threads that only wait",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Measured {
    rate: f64,
    mean_ns: f64,
    nines_ns: [f64; SHOWN.len()],
    max_ns: f64,
    /// The profiler's own time for a request; 0 where none was measured.
    own_ns: f64,
}

impl Measured {
    fn of(latencies: &Latencies, seconds: f64) -> Result<Self> {
        let too_few = "too few requests were made for 99.99 %";
        let nines = |nines| latencies.nines(nines).map(|ns| ns as f64);
        Ok(Self {
            rate: latencies.count() as f64 / seconds,
            mean_ns: latencies.mean_ns().context(too_few)?,
            nines_ns: [nines(SHOWN[0]).context(too_few)?, nines(SHOWN[1]).context(too_few)?],
            max_ns: latencies.max_ns().context(too_few)? as f64,
            own_ns: 0.0,
        })
    }
}

/// By way.
type Round = [Measured; WAYS.len()];

#[derive(Serialize)]
struct Results {
    facts: Facts,
    requests: u64,
    seconds: f64,
    ways: [Way; WAYS.len()],
    /// `samples[round][way]`.
    samples: Vec<Round>,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn host(args: &RunArgs) -> Result<()> {
    let rounds = args.rounds(None, if args.quick { QUICK } else { FULL })?;
    let (facts, bed) = (machine(), Bed::prepare(args)?);
    let mut samples = Vec::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        samples.push(bed.round(round)?);
    }
    let verdicts = judge(&samples);
    let results =
        Results { facts, requests: REQUESTS, seconds: SECONDS, ways: WAYS, samples, verdicts };
    let length = format!(
        "{rounds} rounds, {REQUESTS} reads of the server and twice {SECONDS} s of the drives in each; median (lowest–highest)."
    );
    let area = Area {
        name: "host",
        subject: "the host",
        length,
        tables: vec![results.table()],
        verdicts: &results.verdicts,
        facts: &results.facts,
    };
    area.write(&results, &bed.out, args.report.as_deref())
}

/// A server with a volume that is written, and places for results.
struct Bed {
    farflash: PathBuf,
    out: PathBuf,
    _server: Server,
    target: String,
}

impl Bed {
    fn prepare(args: &RunArgs) -> Result<Self> {
        let (farflash, out) = (args.farflash()?, args.out()?);
        let server = Server::start(&farflash, "mem:1GiB", cpus::server(), &out.join("host.log"))?;
        let target = server.create_volume("profiled", VOLUME_SIZE)?.target();
        let driver =
            crate::driver::Driver { farflash: farflash.clone(), seconds: 1.0, token: None };
        driver.fill(&target, VOLUME_SIZE)?;
        Ok(Self { farflash, out, _server: server, target })
    }

    fn round(&self, number: usize) -> Result<Round> {
        let alone = self.server(Way::Alone)?;
        let mut hogs = Hogs::start(&[cpus::server(), cpus::client()])?;
        let beside = self.server(Way::Beside)?;
        self.tune("apply", &["--cores", &cpus::server().to_string()])?;
        let tuned = self.server(Way::Tuned);
        let isolated = tuned.and_then(|tuned| {
            hogs.leave(cpus::server(), cpus::client())?;
            Ok([tuned, self.server(Way::Isolated)?])
        });
        // Taken back whatever happened.
        self.tune("undo", &[])?;
        drop(hogs);
        let [tuned, isolated] = isolated?;
        let [profiler, waiting] = self.drives(number)?;
        Ok([alone, beside, tuned, isolated, profiler, waiting])
    }

    /// Measures the profiler and the threads that only wait, each twice: one of the two first and last, the other in between.
    /// They change places in each round, so that slow changes of the machine, and the end of the tasks before, fall on both alike.
    fn drives(&self, round: usize) -> Result<[Measured; 2]> {
        let [outer, inner] = match round % 2 {
            0 => [Way::Waiting, Way::Profiler],
            _ => [Way::Profiler, Way::Waiting],
        };
        let mut own_ns = 0.0;
        let [mut profiler, mut waiting] = [(); 2].map(|()| Latencies::default());
        let mut seconds = 0.0;
        for way in [outer, inner, inner, outer] {
            if way == Way::Waiting {
                waiting.merge(&modelled::wait(DRIVE, DRIVES, SECONDS)?);
            } else {
                let (latencies, profile) = self.profiler()?;
                profiler.merge(&latencies);
                seconds += profile.runs[0].seconds;
                own_ns = profile.runs[0].overhead_ns.max(own_ns);
            }
        }
        let profiler = Measured { own_ns, ..Measured::of(&profiler, seconds)? };
        let waiting = Measured::of(&waiting, 2.0 * SECONDS)?;
        Ok([told(Way::Profiler, profiler), told(Way::Waiting, waiting)])
    }

    fn tune(&self, what: &str, more: &[&str]) -> Result<()> {
        let record = self.out.join("host-tune.jsonl");
        let mut command = Command::new(&self.farflash);
        command.args(["tune", what, "--only", "realtime-priority"]).args(more);
        command.arg("--record").arg(record);
        run(&mut command).map(drop)
    }

    fn server(&self, way: Way) -> Result<Measured> {
        let (cpu, requests) = (cpus::client().to_string(), REQUESTS.to_string());
        let arguments = ["--cpus", &cpu, "--realtime", PRIORITY, "--requests", &requests];
        let (latencies, profile) = self.profile(std::slice::from_ref(&self.target), &arguments)?;
        Ok(told(way, Measured::of(&latencies, profile.runs[0].seconds)?))
    }

    fn profiler(&self) -> Result<(Latencies, Profile)> {
        let drives: Vec<String> =
            (1..=DRIVES).map(|seed| format!("model:{DRIVE},seed={seed}")).collect();
        let (seconds, cpus) = (SECONDS.to_string(), modelled::cpus_list());
        let arguments = ["--seconds", &seconds, "--cpus", &cpus];
        self.profile(&drives, &arguments)
    }

    /// All requests of `drives` together.
    fn profile(&self, drives: &[String], arguments: &[&str]) -> Result<(Latencies, Profile)> {
        let saved = self.out.join("host-profile.json");
        let mut command = Command::new(&self.farflash);
        command.arg("profile").args(drives).args(arguments);
        command.args(["--warm-up", "0.5", "--no-causes", "--json", "--out"]).arg(&saved);
        run(&mut command)?;
        let profile = Profile::from_json(&std::fs::read_to_string(&saved)?)?;
        let mut all = Latencies::default();
        profile.drives.iter().for_each(|drive| all.merge(&drive.latencies));
        Ok((all, profile))
    }
}

fn told(way: Way, measured: Measured) -> Measured {
    let worst = duration_ns(measured.nines_ns[1]);
    eprintln!("  {:48} {:>9} /s, 99.99 % {worst}", way.name(), rate(measured.rate));
    measured
}

/// Ratios are taken within a round, where noise hits both sides.
fn judge(samples: &[Round]) -> Vec<Verdict> {
    let [alone, beside, tuned, isolated, profiler, waiting] = [0, 1, 2, 3, 4, 5];
    let spread =
        |each: &dyn Fn(&Round) -> f64| Spread::of(&samples.iter().map(each).collect::<Vec<f64>>());
    let worst = |row: &Round, way: usize| row[way].nines_ns[1];
    let mut verdicts = Vec::new();
    let mut add = |what: &str, place, [reached, limit]: [Option<Spread>; 2], unit, bound| {
        verdicts.push(Verdict { what: what.to_owned(), place, reached, unit, bound, limit });
    };
    let better_by = |way: usize| spread(&|row| worst(row, beside) / worst(row, way));
    for (way, name) in [(tuned, "a real-time priority"), (isolated, "priority and isolation")] {
        // No setting keeps more of the tasks away than there being none.
        let better = [better_by(way), better_by(alone)];
        let what = format!("99.99 % beside the tasks, in multiples of that with {name}");
        add(&what, SERVED, better, Unit::Times, Some(Bound::AtLeast(10.0)));
        let kept = spread(&|row| row[way].rate / row[beside].rate);
        let what = format!("requests/s with {name}, of those beside the tasks");
        add(&what, SERVED, [kept, None], Unit::Share, Some(Bound::AtLeast(1.0)));
    }
    for (at, nines) in SHOWN.iter().enumerate() {
        let times = spread(&|row| row[profiler].nines_ns[at] / row[waiting].nines_ns[at]);
        let what = format!("{}, in multiples of that of threads that only wait", nines.label());
        add(&what, "64 models", [times, None], Unit::Times, Some(Bound::AtMost(1.1)));
    }
    let own = spread(&|row| row[profiler].own_ns);
    add(
        "the profiler's own time for a request",
        "CPU",
        [own, None],
        Unit::Nanoseconds,
        Some(Bound::AtMost(1000.0)),
    );
    verdicts
}

impl Results {
    fn table(&self) -> Table {
        let columns = [
            ("random read 4 KiB, depth 1", Align::Left),
            ("requests/s", Align::Right),
            ("mean", Align::Right),
            ("99.9 %", Align::Right),
            ("99.99 %", Align::Right),
            ("longest", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (at, way) in self.ways.iter().enumerate() {
            let shown = |of: fn(&Measured) -> f64, show: fn(f64) -> String| {
                let column = self.samples.iter().map(|row| of(&row[at]));
                Spread::shown(&column.collect::<Vec<f64>>(), show)
            };
            table.row([
                way.name().to_owned(),
                shown(|one| one.rate, rate),
                shown(|one| one.mean_ns, duration_ns),
                shown(|one| one.nines_ns[0], duration_ns),
                shown(|one| one.nines_ns[1], duration_ns),
                shown(|one| one.max_ns, duration_ns),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_compare_measurements_of_one_round() {
        let row = |noise: f64| {
            let one = |rate: f64, ns: f64| Measured {
                rate: rate / noise,
                nines_ns: [ns * noise, ns * noise],
                own_ns: 200.0,
                ..Measured::default()
            };
            [
                one(4e4, 1e5),
                one(1e4, 4e7),
                one(3e4, 2e5),
                one(3e4, 1e5),
                one(5e4, 2e6),
                one(5e4, 2e6),
            ]
        };
        let verdicts = judge(&[row(1.0), row(2.0), row(0.5)]);
        assert!(verdicts.iter().all(|verdict| verdict.is_met() == Some(true)), "{verdicts:?}");
        let reached = verdicts[0].reached.expect("measured");
        assert_eq!((reached.low, reached.high), (200.0, 200.0));
    }
}
