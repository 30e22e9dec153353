//! `bench sharing`: what it costs that volumes share a device and a core fairly.
//!
//! - The rate of one volume on a `mem:` device under deficit round robin, beside the same server without
//!   a ceiling: one load, in which the ceiling comes and goes from slice to slice. The ceiling is beyond
//!   what a core can do: what is measured is the scheduler, not its limit.
//! - The scheduler's own time for a request, from one volume to a thousand, without a server.

mod cost;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use control::{ApiClient, ChangeDevice};
use report::{Align, Spread, Table, rate};
use serde::Serialize;

use self::cost::Cost;
use crate::case::Shape;
use crate::cpus;
use crate::driver::Driver;
use crate::machine::{Facts, machine};
use crate::page::Area;
use crate::process::Server;
use crate::run_args::RunArgs;
use crate::steady::{Steady, by_run};
use crate::verdict::{Bound, Unit, Verdict};

/// Runs of a load, and pairs of slices in each, in a full and in a quick run.
const FULL: (usize, usize) = (5, 200);
const QUICK: (usize, usize) = (2, 20);
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(40);
/// Part of the rate without a scheduler that must be left.
const RATE_SHARE_MIN: f64 = 0.98;
/// Most that a request may cost in the scheduler, with a thousand volumes.
const COST_MAX_NS: f64 = 150.0;
/// The device that is shared.
const DEVICE: &str = "mem:2GiB";

/// Requests a second of one shape of load, by round.
#[derive(Debug, Serialize)]
struct Pairs {
    shape: Shape,
    without: Vec<f64>,
    with: Vec<f64>,
}

/// A ceiling that no core reaches, with a window wider than any queue here; or none.
fn ceiling(is_shared: bool) -> ChangeDevice {
    let beyond_reach = is_shared.then_some(5_000_000);
    ChangeDevice {
        reads_per_second: beyond_reach,
        writes_per_second: beyond_reach,
        latency_target_us: is_shared.then_some(1000),
        policy: is_shared.then(|| "drr".to_owned()),
        no_ceiling: !is_shared,
        ..ChangeDevice::default()
    }
}

#[derive(Serialize)]
struct Results {
    facts: Facts,
    runs: usize,
    pairs_each: usize,
    slice_ms: u128,
    pairs: Vec<Pairs>,
    costs: Vec<Cost>,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn sharing(args: &RunArgs) -> Result<()> {
    let (runs, pairs_each) = if args.quick { QUICK } else { FULL };
    let out = args.out()?;
    let facts = machine();
    let pairs = measure_pairs(args, runs, pairs_each)?;
    eprintln!("the scheduler by itself");
    let costs = cost::measure(args.quick);
    let verdicts = judge(&pairs, pairs_each, &costs);
    let slice_ms = SLICE.as_millis();
    let results = Results { facts, runs, pairs_each, slice_ms, pairs, costs, verdicts };
    write(&results, &out, args.report.as_deref())
}

fn measure_pairs(args: &RunArgs, runs: usize, pairs_each: usize) -> Result<Vec<Pairs>> {
    let (farflash, log) = (args.farflash()?, args.out()?.join("sharing.log"));
    let server = Server::start(&farflash, DEVICE, cpus::server(), &log)?;
    let volume = server.create_volume("bench", "1GiB")?;
    Driver { farflash, seconds: 0.0, token: None }.fill(&volume.target(), "1GiB")?;
    let api = ApiClient::new(&format!("http://{}", server.api))?;
    let mut all = Vec::new();
    for shape in [Shape::READ_32, Shape::WRITE_32] {
        let mut pairs = Pairs { shape, without: Vec::new(), with: Vec::new() };
        for run in 0..runs {
            let load = Steady::start(&volume, None, shape)?;
            for pair in 0..pairs_each {
                for half in 0..2 {
                    let is_shared = (pair + half) % 2 == 1;
                    api.change_device(DEVICE, &ceiling(is_shared))?;
                    let iops = load.rate(SLICE);
                    if is_shared { pairs.with.push(iops) } else { pairs.without.push(iops) }
                }
            }
            load.stop()?;
            let ratio = Spread::of(&pairs.ratios()).map_or(f64::NAN, |spread| spread.median);
            eprintln!("run {} of {runs}, {}: {ratio:.3} so far", run + 1, shape.name());
        }
        all.push(pairs);
    }
    server.program.terminate()?;
    Ok(all)
}

impl Pairs {
    fn ratios(&self) -> Vec<f64> {
        self.with.iter().zip(&self.without).map(|(with, without)| with / without).collect()
    }
}

fn judge(pairs: &[Pairs], pairs_each: usize, costs: &[Cost]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for pair in pairs {
        verdicts.push(Verdict {
            what: format!(
                "{}, one volume, DRR, of the rate without a scheduler",
                pair.shape.name()
            ),
            place: "mem",
            reached: Spread::of(&by_run(&pair.ratios(), pairs_each)),
            unit: Unit::Share,
            bound: Some(Bound::AtLeast(RATE_SHARE_MIN)),
            limit: None,
        });
    }
    for cost in costs.iter().filter(|cost| cost.flows == cost::FLOWS_MAX) {
        verdicts.push(Verdict {
            what: format!("a request in the scheduler, {}, {} volumes", cost.policy, cost.flows),
            place: "CPU",
            reached: Spread::of(&cost.request_ns),
            unit: Unit::Nanoseconds,
            bound: Some(Bound::AtMost(COST_MAX_NS)),
            limit: None,
        });
    }
    verdicts
}

fn rates(pairs: &[Pairs], pairs_each: usize) -> Table {
    let columns = [
        ("load, mem: device", Align::Left),
        ("no scheduler, requests/s", Align::Right),
        ("DRR, requests/s", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let shown = |values: &[f64]| {
        Spread::of(&by_run(values, pairs_each)).map_or("–".to_owned(), |spread| spread.show(rate))
    };
    for pair in pairs {
        table.row([pair.shape.name(), shown(&pair.without), shown(&pair.with)]);
    }
    table
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let length = format!(
        "{} runs of the load, in each {} pairs of slices of {} ms; medians of runs (lowest–highest).",
        results.runs, results.pairs_each, results.slice_ms,
    );
    let area = Area {
        name: "sharing",
        subject: "sharing",
        length,
        tables: vec![rates(&results.pairs, results.pairs_each), cost::table(&results.costs)],
        verdicts: &results.verdicts,
        facts: &results.facts,
    };
    area.write(results, out, page)
}
