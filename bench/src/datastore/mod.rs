//! `bench datastore`: the load generator by itself beside redis-benchmark, an attached volume beside the same by the library,
//! and a datastore with remote Flash beside one with local Flash.
//!
//! The generators are driven against a server that answers at once, on the server's CPU. Their rates are those of a second
//! of their own CPU time, which does not depend on what that server reaches. The datastores are those of
//! `farflash reproduce --real-time`, which measures them by turns, with a third one on a file that does only what remote Flash
//! cannot do without.

mod attached;
mod bare;
pub(crate) mod echo;
mod generators;
pub(crate) mod null_file;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use report::{Align, Spread, Table, duration_ns, rate};
use serde::Serialize;
use serde_json::Value;

use self::attached::{Rates, RingSwitch};
use self::generators::{DEPTHS, Pair};
use crate::machine::{Facts, machine};
use crate::page::Area;
use crate::process::run;
use crate::run_args::RunArgs;
use crate::verdict::{Bound, Unit, Verdict};

/// Rounds of the generators, and the part of its minute that a datastore is measured, in a full and in a quick run.
const FULL: (usize, f64) = (9, 0.1);
const QUICK: (usize, f64) = (2, 0.01);
/// Requests a second of the load generator on one core, and the same in multiples of redis-benchmark's.
const RATE_MIN: f64 = 500_000.0;
const TIMES_MIN: f64 = 2.0;
/// Added to the 95th percentile of an unloaded datastore, and its rate at 1.5 ms in parts of the local one's.
const ADDED_MAX_US: f64 = 100.0;
const SHARE_MIN: f64 = 0.9;

/// The ways to Flash, as the data of `farflash reproduce --real-time` names them.
const WAYS: [&str; 3] = ["local", "farflash, attached", "beside"];

/// Its figures in each round, by way.
#[derive(Default, Serialize)]
struct Datastores {
    p95_us: [Vec<f64>; 3],
    peaks: [Vec<f64>; 3],
}

#[derive(Serialize)]
struct Results {
    facts: Facts,
    generators: Vec<Pair>,
    attached: Vec<Rates>,
    datastores: Option<Datastores>,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn datastore(args: &RunArgs) -> Result<()> {
    let (rounds, time) = if args.quick { QUICK } else { FULL };
    let (rounds, out, farflash) = (args.rounds(None, rounds)?, args.out()?, args.farflash()?);
    let facts = machine();
    let generators = generators::measure(rounds, &out)?;
    let attached = attached::measure(&farflash, rounds, &out)?;
    // As an operator sets it for speed.
    let _on = RingSwitch::set(true);
    let datastores = if farflash.with_file_name("farflash-datastore").is_file() {
        Some(Datastores::measure(&farflash, &out, time)?)
    } else {
        eprintln!(
            "bench: there is no farflash-datastore beside farflash: `make datastore` builds it"
        );
        None
    };
    let verdicts = judge(&generators, &attached, datastores.as_ref());
    let results = Results { facts, generators, attached, datastores, verdicts };
    write(&results, &out, args.report.as_deref())
}

impl Datastores {
    fn measure(farflash: &Path, out: &Path, time: f64) -> Result<Self> {
        let null = null_file::Mounted::start(out)?;
        let figure = |name: &str| -> Result<Value> {
            eprintln!("{name}, in real time");
            let mut command = Command::new(farflash);
            command.args(["reproduce", name, "--real-time", "--json", "--time", &time.to_string()]);
            command.arg("--out").arg(out).arg("--beside").arg(&null.path).arg("--destroy-data");
            let printed = run(&mut command)?;
            serde_json::from_str(&printed).with_context(|| format!("not understood: {printed}"))
        };
        let (unloaded, peaks) = (figure("eurosys-4a")?, figure("eurosys-4b")?);
        let is_p95 = |row: &Value| row["percentile"].as_f64() == Some(95.0);
        Ok(Self {
            p95_us: by_way(&unloaded, "latency µs", is_p95),
            peaks: by_way(&peaks, "queries/s", |_| true),
        })
    }

    /// The remote way, and the one beside it, held against the local one.
    fn compared(values: &[Vec<f64>; 3], of: impl Fn(f64, f64) -> f64) -> [Option<Spread>; 2] {
        [1, 2].map(|way| Spread::of(&by_round(&values[0], &values[way], &of)))
    }
}

/// Holds the values of two subjects against one another, round by round: noise hits both.
fn by_round(one: &[f64], other: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| of(*one, *other)).collect()
}

/// A column of a figure's data, in the order of rounds, by way.
fn by_way(figure: &Value, column: &str, wanted: impl Fn(&Value) -> bool) -> [Vec<f64>; 3] {
    let rows = figure["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    WAYS.map(|way| {
        let of_way = rows.iter().filter(|row| row["flash"] == way && wanted(row));
        of_way.filter_map(|row| row[column].as_f64()).collect()
    })
}

fn judge(generators: &[Pair], attached: &[Rates], datastores: Option<&Datastores>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for (pair, (depth, is_goal)) in generators.iter().zip(DEPTHS) {
        let goal = |bound: f64| is_goal.then_some(Bound::AtLeast(bound));
        let verdict = |what: String, [reached, limit]: [Option<Spread>; 2], unit, bound| Verdict {
            what,
            place: "CPU",
            reached,
            unit,
            bound,
            limit,
        };
        let rates = [&pair.own, &pair.bare].map(|rates| Spread::of(rates));
        let what = format!("kv-load, requests/s of a core, {depth} outstanding on a connection");
        verdicts.push(verdict(what, rates, Unit::PerSecond, goal(RATE_MIN)));
        let what = format!("the same in multiples of redis-benchmark's, {depth} outstanding");
        verdicts.push(verdict(
            what,
            pair.times().map(|times| Spread::of(&times)),
            Unit::Times,
            goal(TIMES_MIN),
        ));
    }
    for (rates, shape) in attached.iter().zip(attached::SHAPES) {
        for (file, how) in [(&rates.device, ""), (&rates.ring, " by io_uring")] {
            let (what, values, unit) = match shape.depth {
                1 => ("added by an attached file", rates.added_us(file, 1), Unit::Microseconds),
                _ => ("an attached file's rate, of the library's", rates.shares(file), Unit::Share),
            };
            let what = format!("{what}{how}, {}", shape.name());
            let reached = Spread::of(&values);
            verdicts.push(Verdict { what, place: "mem", reached, unit, bound: None, limit: None });
        }
    }
    if let Some(Datastores { p95_us, peaks }) = datastores {
        let [reached, limit] = Datastores::compared(peaks, |local, way| way / local);
        verdicts.push(Verdict {
            what: "queries/s at a 95th percentile of 1.5 ms, remote of local Flash".to_owned(),
            place: "file",
            reached,
            unit: Unit::Share,
            bound: Some(Bound::AtLeast(SHARE_MIN)),
            limit,
        });
        let [reached, limit] = Datastores::compared(p95_us, |local, way| way - local);
        verdicts.push(Verdict {
            what: "added to the 95th percentile of gets by remote Flash, without load".to_owned(),
            place: "file",
            reached,
            unit: Unit::Microseconds,
            bound: Some(Bound::AtMost(ADDED_MAX_US)),
            limit,
        });
    }
    verdicts
}

impl Results {
    fn tables(&self) -> Vec<Table> {
        let mut generators = Table::new(&[
            ("outstanding on each of 16 connections", Align::Right),
            ("kv-load, requests/s of a core", Align::Right),
            ("redis-benchmark", Align::Right),
            ("a generator that only sends and counts", Align::Right),
        ]);
        for (pair, (depth, _)) in self.generators.iter().zip(DEPTHS) {
            generators.row([
                depth.to_string(),
                Spread::shown(&pair.own, rate),
                Spread::shown(&pair.redis, rate),
                Spread::shown(&pair.bare, rate),
            ]);
        }
        let mut attached = Table::new(&[
            ("load", Align::Left),
            ("by the library, requests/s", Align::Right),
            ("through an attached file", Align::Right),
            ("the same by io_uring", Align::Right),
        ]);
        for (rates, shape) in self.attached.iter().zip(attached::SHAPES) {
            let shown =
                [&rates.library, &rates.device, &rates.ring].map(|of| Spread::shown(of, rate));
            let [library, device, ring] = shown;
            attached.row([shape.name(), library, device, ring]);
        }
        let mut tables = vec![generators, attached];
        if let Some(datastores) = &self.datastores {
            let mut table = Table::new(&[
                ("datastore", Align::Left),
                ("95 % of gets, one at a time", Align::Right),
                ("queries/s, 95 % of gets within 1.5 ms", Align::Right),
            ]);
            let names = ["local Flash", "an attached volume", "a file on a null server"];
            for (way, name) in names.into_iter().enumerate() {
                let ns: Vec<f64> = datastores.p95_us[way].iter().map(|us| us * 1e3).collect();
                let peaks = Spread::shown(&datastores.peaks[way], rate);
                table.row([name.to_owned(), Spread::shown(&ns, duration_ns), peaks]);
            }
            tables.push(table);
        }
        tables
    }
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let rounds = results.generators.first().map_or(0, |pair| pair.own.len());
    let length = format!(
        "{rounds} rounds of the generators, {} s each; median (lowest–highest).",
        generators::SECONDS
    );
    let area = Area {
        name: "datastore",
        subject: "the datastore",
        length,
        tables: results.tables(),
        verdicts: &results.verdicts,
        facts: &results.facts,
    };
    area.write(results, out, page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Ways are compared within a round, where noise hits both.
    #[test]
    fn rounds_of_a_figure_are_compared_each_by_itself() {
        let row = |flash, round, percentile, us| json!({ "flash": flash, "round": round, "percentile": percentile, "latency µs": us });
        let figure = json!({ "data": [
            row("local", 0, 50, 10.0), row("local", 0, 95, 100.0), row("farflash, attached", 0, 95, 150.0),
            row("local", 1, 95, 400.0), row("farflash, attached", 1, 95, 490.0),
            row("beside", 0, 95, 140.0), row("beside", 1, 95, 420.0),
        ]});
        let p95_us = by_way(&figure, "latency µs", |row| row["percentile"].as_f64() == Some(95.0));
        assert_eq!(p95_us, [vec![100.0, 400.0], vec![150.0, 490.0], vec![140.0, 420.0]]);
        let datastores = Datastores { p95_us, peaks: [vec![1_000.0], vec![800.0], vec![850.0]] };
        let pair = Pair { own: vec![6e5, 9e5], redis: vec![2e5, 6e5], bare: vec![8e5, 3e5] };
        let verdicts = judge(&[pair], &[], Some(&datastores));
        let reached: Vec<f64> =
            verdicts.iter().map(|v| v.reached.expect("measured").median).collect();
        assert_eq!(reached, [7.5e5, 2.25, 0.8, 70.0]);
        let met: Vec<_> = verdicts.iter().map(Verdict::is_met).collect();
        assert_eq!(met[2..], [Some(false), Some(true)]);
        let limits: Vec<_> = verdicts.iter().map(|v| v.limit.map(|limit| limit.median)).collect();
        assert_eq!(limits, [Some(5.5e5), Some(2.25), Some(0.85), Some(30.0)]);
    }
}
