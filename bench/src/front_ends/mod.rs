//! `bench front-ends`: random reads of 4 KiB of one volume by NVMe/TCP, iSCSI and NBD, by turns, and of servers of others.
//!
//! Each is driven by a client for its protocol, so rates of two protocols compare the clients, too. What a request costs the
//! server does not depend on the client.

mod null_nbd;
mod targets;

use std::path::Path;

use anyhow::{Context, Result};
use report::{Align, Spread, Table, duration_ns, rate};
use serde::Serialize;

use self::targets::{Bed, Measured, Way};
use crate::compare::in_turn;
use crate::machine::{Facts, machine};
use crate::page::Area;
use crate::run_args::RunArgs;
use crate::verdict::{Bound, Unit, Verdict};

/// Rounds of a full and of a quick run.
const FULL: usize = 15;
const QUICK: usize = 2;

/// A rate that is to be a multiple of another.
struct Goal {
    what: &'static str,
    measured: Way,
    against: Way,
    times_min: Option<f64>,
    /// The null server that is measured beside it, against the same.
    null: Option<Way>,
}

const GOALS: [Goal; 8] = [
    Goal {
        what: "iSCSI, in multiples of tgt",
        measured: Way::Iscsi,
        against: Way::Tgt,
        times_min: Some(3.0),
        null: None,
    },
    Goal {
        what: "NBD, in multiples of nbdkit",
        measured: Way::Nbd,
        against: Way::Nbdkit,
        times_min: Some(2.0),
        null: Some(Way::NullNbd),
    },
    Goal {
        what: "NBD, in multiples of a null server with the same client",
        measured: Way::Nbd,
        against: Way::NullNbd,
        times_min: None,
        null: None,
    },
    Goal {
        what: "4 NBD connections of depth 32, in multiples of one",
        measured: Way::NbdByFour,
        against: Way::Nbd,
        times_min: Some(1.0),
        null: None,
    },
    Goal {
        what: "4 NBD connections to nbdkit, in multiples of one",
        measured: Way::NbdkitByFour,
        against: Way::Nbdkit,
        times_min: None,
        null: None,
    },
    Goal {
        what: "4 NBD connections to the null server, in multiples of one",
        measured: Way::NullNbdByFour,
        against: Way::NullNbd,
        times_min: None,
        null: None,
    },
    Goal {
        what: "iSCSI, in multiples of NVMe/TCP",
        measured: Way::Iscsi,
        against: Way::Nvme,
        times_min: None,
        null: None,
    },
    Goal {
        what: "NBD, in multiples of NVMe/TCP",
        measured: Way::Nbd,
        against: Way::Nvme,
        times_min: None,
        null: None,
    },
];

#[derive(Serialize)]
struct Results {
    facts: Facts,
    seconds: f64,
    ways: Vec<Way>,
    /// `samples[round][way]`; `None` where a measurement failed.
    samples: Vec<Vec<Option<Measured>>>,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn front_ends(args: &RunArgs) -> Result<()> {
    let rounds = args.rounds(None, if args.quick { QUICK } else { FULL })?;
    let (facts, out) = (machine(), args.out()?);
    eprintln!("preparing");
    let bed = Bed::prepare(&args.farflash()?, &out)?;
    let ways = bed.ways();
    let mut samples = Vec::new();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let mut row = vec![None; ways.len()];
        for (at, way) in in_turn(&ways, round) {
            let measured = bed.measure(*way).with_context(|| way.name().to_owned())?;
            eprintln!("  {:34} {:>9} IOPS", way.name(), rate(measured.iops));
            row[at] = Some(measured);
        }
        samples.push(row);
    }
    let verdicts = judge(&ways, &samples);
    let results = Results { facts, seconds: targets::SECONDS, ways, samples, verdicts };
    write(&results, &out, args.report.as_deref())
}

fn judge(ways: &[Way], samples: &[Vec<Option<Measured>>]) -> Vec<Verdict> {
    let iops = |row: &[Option<Measured>], way: Way| {
        let at = ways.iter().position(|other| *other == way)?;
        Some(row[at]?.iops)
    };
    let verdict = |goal: &Goal| {
        let times = |of: Way| {
            let times =
                samples.iter().filter_map(|row| Some(iops(row, of)? / iops(row, goal.against)?));
            Spread::of(&times.collect::<Vec<f64>>())
        };
        Verdict {
            what: goal.what.to_owned(),
            place: "mem",
            reached: times(goal.measured),
            unit: Unit::Times,
            bound: goal.times_min.map(Bound::AtLeast),
            limit: goal.null.and_then(times),
        }
    };
    GOALS.iter().map(verdict).collect()
}

impl Results {
    fn table(&self) -> Table {
        let columns = [
            ("random read 4 KiB, depth 32", Align::Left),
            ("client", Align::Left),
            ("requests/s", Align::Right),
            ("server CPU/request", Align::Right),
            ("in its own code", Align::Right),
            ("in the kernel", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (at, way) in self.ways.iter().enumerate() {
            let shown = |of: &dyn Fn(&Measured) -> Option<f64>, show: fn(f64) -> String| {
                let column = self.samples.iter().filter_map(|row| of(row[at].as_ref()?));
                Spread::shown(&column.collect::<Vec<f64>>(), show)
            };
            let [user, kernel] = [0, 1].map(|part| {
                let ns = move |measured: &Measured| Some(measured.cpu_us_per_request?[part] * 1e3);
                shown(&ns, duration_ns)
            });
            let all =
                |measured: &Measured| Some(measured.cpu_us_per_request?.iter().sum::<f64>() * 1e3);
            table.row([
                way.name().to_owned(),
                way.client().to_owned(),
                shown(&|measured| Some(measured.iops), rate),
                shown(&all, duration_ns),
                user,
                kernel,
            ]);
        }
        table
    }
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let length = format!(
        "{} rounds, {} s each measurement; median (lowest–highest).",
        results.samples.len(),
        results.seconds,
    );
    let area = Area {
        name: "front-ends",
        subject: "front ends",
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

    /// Multiples are taken within a round, where noise hits both sides; without a peer they are not measured.
    #[test]
    fn goals_compare_measurements_of_one_round() {
        let ways = [Way::Nvme, Way::Iscsi, Way::Tgt, Way::Nbd];
        let row = |noise: f64| {
            let measured = |iops: f64| {
                Some(Measured { iops: iops * noise, cpu_us_per_request: Some([1.0, 1.0]) })
            };
            vec![measured(500e3), measured(90e3), measured(30e3), measured(100e3)]
        };
        let verdicts = judge(&ways, &[row(1.0), row(0.5), row(2.0)]);
        let reached = verdicts[0].reached.expect("measured");
        assert!((reached.low - 3.0).abs() < 1e-9 && (reached.high - 3.0).abs() < 1e-9);
        assert_eq!(verdicts.len(), GOALS.len());
        assert!(verdicts[1].reached.is_none(), "there is no nbdkit");
    }
}
