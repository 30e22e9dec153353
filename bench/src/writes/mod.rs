//! `bench writes`: writes, mixed loads and large requests of one volume in memory, by turns with another build of farflash, if
//! one is given, and with null servers that do only what cannot be left out.
//!
//! - A write, for a null server: its data is received, each block is summed and copied to its place, and it is answered. It has
//!   no map and no journal, and does not ask for the data of large writes.
//! - A read: each block is summed where it lies, all over 1 GiB, and sent.

mod load;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use report::{Align, Spread, Table, duration_ns, rate};
use serde::Serialize;

use self::load::{Bed, LOADS, Length, Load, Measured, TURN_SECONDS};
use crate::compare::in_turn;
use crate::machine::{Facts, machine};
use crate::page::Area;
use crate::run_args::{RunArgs, program};
use crate::verdict::{Bound, Unit, Verdict};

/// Rounds of a full and of a quick run.
const FULL: usize = 60;
const QUICK: usize = 2;
/// In one of so many rounds first writes, tails and processor time are measured, too.
const LONG_EVERY: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct WritesArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Another build of the program, to be measured beside it
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Rounds: at least five for a page
    #[arg(long)]
    rounds: Option<usize>,
    /// Only loads whose name contains this
    #[arg(long, conflicts_with = "report")]
    only: Option<String>,
}

/// A server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Subject {
    Farflash,
    Base,
    Null,
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Farflash => "farflash",
            Self::Base => "other build",
            Self::Null => "null server",
        }
    }
}

/// One load of one server.
#[derive(Clone, Copy, Debug, Serialize)]
struct Case {
    load: Load,
    subject: Subject,
}

#[derive(Serialize)]
struct Results {
    facts: Facts,
    seconds: f64,
    cases: Vec<Case>,
    /// `samples[round][case]`.
    samples: Vec<Vec<Measured>>,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn writes(args: &WritesArgs) -> Result<()> {
    let rounds = args.run.rounds(args.rounds, if args.run.quick { QUICK } else { FULL })?;
    let (facts, out) = (machine(), args.run.out()?);
    let base = args.base.as_deref().map(program).transpose()?;
    let is_wanted = |load: &&Load| args.only.as_ref().is_none_or(|only| load.name.contains(only));
    let cases = cases(LOADS.iter().filter(is_wanted), base.is_some());
    eprintln!("preparing");
    let mut bed = Bed::prepare(&args.run.farflash()?, base.as_deref(), &out)?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut row = vec![Measured::default(); cases.len()];
        for (at, case) in in_turn(&cases, round) {
            if !case.load.is_first {
                row[at].iops = case.measure(&mut bed, Length::Turn)?.iops;
                case.tell(&row[at]);
            }
        }
        if round.is_multiple_of(LONG_EVERY) {
            let mut before = None;
            for (at, case) in in_turn(&cases, round / LONG_EVERY) {
                if before.replace(case.load.name).is_some_and(|load| load != case.load.name) {
                    bed.clear()?;
                }
                let measured = case.measure(&mut bed, Length::Long)?;
                row[at] = Measured { iops: row[at].iops.or(measured.iops), ..measured };
                case.tell(&measured);
                if !case.load.is_first {
                    row[at].p999_us = case.measure(&mut bed, Length::Tail)?.p999_us;
                }
            }
            bed.clear()?;
        }
        samples.push(row);
    }
    let verdicts = judge(&cases, &samples);
    let results = Results { facts, seconds: TURN_SECONDS, cases, samples, verdicts };
    write(&results, &out, args.run.report.as_deref())
}

impl Case {
    fn measure(&self, bed: &mut Bed, length: Length) -> Result<Measured> {
        let Self { load, subject } = self;
        let measured = match subject {
            Subject::Farflash => bed.farflash(load, length),
            Subject::Base => bed.base(load, length),
            Subject::Null => load.null(length),
        };
        measured.with_context(|| format!("{}, {}", load.name, subject.name()))
    }

    fn tell(&self, measured: &Measured) {
        let (load, subject) = (self.load.name, self.subject.name());
        eprintln!("  {load:34} {subject:12} {:>9} /s", rate(measured.iops.unwrap_or_default()));
    }
}

/// All subjects of each load, one behind the other.
fn cases<'a>(loads: impl Iterator<Item = &'a Load>, has_base: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for load in loads {
        let subjects = [
            Some(Subject::Farflash),
            has_base.then_some(Subject::Base),
            load.blocks.map(|_| Subject::Null),
        ];
        cases.extend(subjects.into_iter().flatten().map(|subject| Case { load: *load, subject }));
    }
    cases
}

/// Ratios are taken within a round, where noise hits both sides.
fn judge(cases: &[Case], samples: &[Vec<Measured>]) -> Vec<Verdict> {
    let of = |row: &[Measured], load: &str, subject: Subject| {
        let is_it = |case: &Case| case.load.name == load && case.subject == subject;
        Some(row[cases.iter().position(is_it)?])
    };
    let spread = |each: &dyn Fn(&[Measured]) -> Option<f64>| {
        Spread::of(&samples.iter().filter_map(|row| each(row)).collect::<Vec<f64>>())
    };
    let times = |load: &'static str, subject, against| {
        spread(&move |row| Some(of(row, load, subject)?.iops? / of(row, load, against)?.iops?))
    };
    let mut verdicts = Vec::new();
    let mut add = |what: String, [reached, limit]: [Option<Spread>; 2], unit, bound| {
        verdicts.push(Verdict { what, place: "mem", reached, unit, bound, limit });
    };
    for load in &LOADS {
        for (against, bound) in
            [(Subject::Null, None), (Subject::Base, load.times_min.map(Bound::AtLeast))]
        {
            let reached = times(load.name, Subject::Farflash, against);
            let limit = bound.and_then(|_| times(load.name, Subject::Null, against));
            let what = format!("{}, in multiples of the {}", load.name, against.name());
            if reached.is_some() {
                add(what, [reached, limit], Unit::Times, bound);
            }
        }
    }
    // The same figure of this build and of the null server.
    let of_both = |figure: &dyn Fn(&[Measured], Subject) -> Option<f64>| {
        [Subject::Farflash, Subject::Null].map(|subject| spread(&|row| figure(row, subject)))
    };
    let iops = |row: &[Measured], load, subject| of(row, load, subject)?.iops;
    for load in [load::WRITE_32, load::LARGE_WRITE] {
        let p999 = of_both(&|row, subject| Some(of(row, load, subject)?.p999_us? / 1e3));
        let what = format!("{load}, 99.9 %");
        add(what, p999, Unit::Milliseconds, at_most(1.0));
    }
    let beyond = of_both(&|row, subject| {
        let [write, read] = [load::WRITE_1, load::READ_1].map(|load| iops(row, load, subject));
        Some((1e6 / write?) - (1e6 / read?))
    });
    add("write, depth 1, beyond a read".into(), beyond, Unit::Microseconds, at_most(2.0));
    let parts = of_both(&|row, subject| {
        let [read, write] = [load::READ_32, load::WRITE_32].map(|load| iops(row, load, subject));
        Some(iops(row, load::MIXED, subject)? * (0.7 / read? + 0.3 / write?))
    });
    add("mixed, of what its parts would make".into(), parts, Unit::Share, at_least(0.95));
    let fresh = of_both(&|row, subject| {
        Some(iops(row, load::FIRST_32, subject)? / iops(row, load::WRITE_32, subject)?)
    });
    add("first writes, of overwrites".into(), fresh, Unit::Share, at_least(0.9));
    verdicts
}

fn at_least(bound: f64) -> Option<Bound> {
    Some(Bound::AtLeast(bound))
}

fn at_most(bound: f64) -> Option<Bound> {
    Some(Bound::AtMost(bound))
}

impl Results {
    fn table(&self) -> Table {
        let columns = [
            ("load", Align::Left),
            ("server", Align::Left),
            ("requests/s", Align::Right),
            ("mean latency", Align::Right),
            ("99.9 %", Align::Right),
            ("server CPU/request", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (at, case) in self.cases.iter().enumerate() {
            let shown = |of: &dyn Fn(&Measured) -> Option<f64>, show: fn(f64) -> String| {
                let column = self.samples.iter().filter_map(|row| of(&row[at]));
                Spread::shown(&column.collect::<Vec<f64>>(), show)
            };
            let mean_ns = |measured: &Measured| Some(case.load.depth as f64 / measured.iops? * 1e9);
            table.row([
                case.load.name.to_owned(),
                case.subject.name().to_owned(),
                shown(&|measured| measured.iops, rate),
                shown(&mean_ns, duration_ns),
                shown(&|measured| Some(measured.p999_us? * 1e3), duration_ns),
                shown(&|measured| Some(measured.cpu_us_per_request? * 1e3), duration_ns),
            ]);
        }
        table
    }
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let length = format!(
        "{} rounds, {} s for each rate; first writes, tails and processor time in one of {LONG_EVERY} rounds; median\n\
         (lowest–highest).",
        results.samples.len(),
        results.seconds,
    );
    let area = Area {
        name: "writes",
        subject: "writes",
        length,
        tables: vec![results.table()],
        verdicts: &results.verdicts,
        facts: &results.facts,
    };
    area.write(results, out, page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios and sums are taken within a round.
    #[test]
    fn goals_compare_measurements_of_one_round() {
        let cases = cases(LOADS.iter(), true);
        let row = |noise: f64| -> Vec<Measured> {
            let iops = |case: &Case| match (case.subject, case.load.name) {
                (Subject::Base, _) => 200e3,
                (Subject::Null, _) => 800e3,
                (Subject::Farflash, _) => 400e3,
            };
            let measured =
                |case| Measured { iops: Some(iops(case) * noise), ..Measured::default() };
            cases.iter().map(measured).collect()
        };
        let verdicts = judge(&cases, &[row(1.0), row(0.5), row(2.0)]);
        let reached = |what: &str| {
            let found = verdicts.iter().find(|verdict| verdict.what.contains(what));
            found.expect("it is judged").reached.expect("measured")
        };
        for (what, expected) in [
            ("4 KiB random write, depth 32, in multiples of the other build", 2.0),
            ("4 KiB random write, depth 32, in multiples of the null server", 0.5),
            ("mixed, of what its parts would make", 1.0),
            ("first writes, of overwrites", 1.0),
        ] {
            let reached = reached(what);
            assert!((reached.low - expected).abs() < 1e-9, "{what}: {reached:?}");
            assert!((reached.high - expected).abs() < 1e-9, "{what}: {reached:?}");
        }
    }
}
