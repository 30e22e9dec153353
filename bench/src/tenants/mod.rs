//! `bench tenants`: what it costs to serve many who do not know each other.
//!
//! - Connections a second, each authenticated: by themselves, and at a fixed rate beside load.
//! - The load's rate beside that, and beside somebody who reads the metrics: one load, in which slices with
//!   and without them follow each other.
//! - A host of thousands of volumes and connections: lists, start, memory.

mod connects;
mod crowd;
mod scraping;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use report::{Align, Spread, Table, percent, rate};
use serde::Serialize;

use self::connects::Connecting;
use self::crowd::Crowd;
use self::scraping::Scraping;
use crate::case::Shape;
use crate::compare::{Facts, machine};
use crate::cpus;
use crate::driver::Driver;
use crate::page::{busy_text, machine_text, publish};
use crate::process::{Doors, Server, VolumeAddress};
use crate::steady::{Steady, by_run};
use crate::verdict::{self, Bound, Unit, Verdict};

/// How much is measured.
struct Extent {
    /// Runs of the load, and pairs of slices in each.
    runs: usize,
    pairs: usize,
    volumes: u32,
    connections: u32,
}

const FULL: Extent = Extent { runs: 4, pairs: 25, volumes: 10_000, connections: 1000 };
const QUICK: Extent = Extent { runs: 1, pairs: 5, volumes: 200, connections: 100 };
/// Length of a slice.
const SLICE: Duration = Duration::from_millis(200);
/// The generated part of the page lies between these lines.
const BEGIN: &str = "<!-- tenants: begin; written by `make bench` -->";
const END: &str = "<!-- tenants: end -->";
/// Authenticated connections a second, beside full load.
const CONNECTS_MIN: f64 = 500.0;
/// Part of the load that must be left beside them, and beside the metrics.
const BESIDE_CONNECTS_MIN: f64 = 0.95;
const BESIDE_METRICS_MIN: f64 = 0.99;
/// Longest time of a list of all volumes.
const LIST_MAX_MS: f64 = 200.0;

#[derive(Debug, clap::Args)]
pub(crate) struct TenantsArgs {
    /// The farflash program to measure
    #[arg(long)]
    farflash: PathBuf,
    /// Page whose results are replaced
    #[arg(long, conflicts_with = "quick")]
    report: Option<PathBuf>,
    /// Directory for results
    #[arg(long, default_value = "bench-out")]
    out: PathBuf,
    /// Few pairs, volumes and connections, to try things out
    #[arg(long)]
    quick: bool,
}

/// The load with something beside it and without, in requests a second, by round.
#[derive(Debug, Default, Serialize)]
struct Beside {
    alone: Vec<f64>,
    beside: Vec<f64>,
}

impl Beside {
    fn ratios(&self) -> Vec<f64> {
        self.beside.iter().zip(&self.alone).map(|(beside, alone)| beside / alone).collect()
    }
}

#[derive(Serialize)]
struct Results {
    facts: Facts,
    runs: usize,
    pairs_each: usize,
    slice_ms: u128,
    /// Connections a second: nothing else to do, and beside load.
    connects_alone: Vec<f64>,
    connects_beside: Vec<f64>,
    /// Share of the load generator's CPU that those who connect take there.
    connecting_cpu: Vec<f64>,
    load_beside_connects: Beside,
    load_beside_metrics: Beside,
    scrape_ms: Vec<f64>,
    crowd: Crowd,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn tenants(args: &TenantsArgs) -> Result<()> {
    let extent = if args.quick { QUICK } else { FULL };
    fs::create_dir_all(&args.out)?;
    let farflash = args.farflash.canonicalize().context("there is no such farflash program")?;
    let mut results = Results {
        facts: machine(),
        runs: extent.runs,
        pairs_each: extent.pairs,
        slice_ms: SLICE.as_millis(),
        connects_alone: Vec::new(),
        connects_beside: Vec::new(),
        connecting_cpu: Vec::new(),
        load_beside_connects: Beside::default(),
        load_beside_metrics: Beside::default(),
        scrape_ms: Vec::new(),
        crowd: crowd::measure(&farflash, &args.out, extent.volumes, extent.connections)?,
        verdicts: Vec::new(),
    };
    measure_pairs(&farflash, &args.out, &extent, &mut results)?;
    results.verdicts = judge(&results);
    write(&results, &args.out, args.report.as_deref())
}

fn measure_pairs(
    farflash: &Path,
    out: &Path,
    extent: &Extent,
    results: &mut Results,
) -> Result<()> {
    let log = out.join("tenants.log");
    let server = Server::start_with(farflash, "mem:2GiB", Doors::Guarded, cpus::server(), &log)?;
    let volume = server.create_volume("load", "1GiB")?;
    let door = server.create_volume("door", "1GiB")?;
    let token = Some(volume.token.clone());
    Driver { farflash: farflash.to_owned(), seconds: 0.0, token }.fill(&volume.target(), "1GiB")?;
    for run in 0..extent.runs {
        for _ in 0..extent.pairs {
            let connecting = Connecting::start(&door, None)?;
            std::thread::sleep(SLICE);
            results.connects_alone.push(connecting.stop()?.per_second);
        }
        let load = Steady::start(&volume, Some(volume.credentials()?), Shape::READ_32)?;
        for pair in 0..extent.pairs {
            for half in 0..2 {
                if (pair + half) % 2 == 1 {
                    beside(&load, &door, &server, results)?;
                } else {
                    results.load_beside_connects.alone.push(load.rate(SLICE));
                    results.load_beside_metrics.alone.push(load.rate(SLICE));
                }
            }
        }
        load.stop()?;
        let median =
            |pairs: &Beside| Spread::of(&pairs.ratios()).map_or(f64::NAN, |spread| spread.median);
        eprintln!(
            "run {} of {}: beside connects {:.3}, beside metrics {:.3} so far",
            run + 1,
            extent.runs,
            median(&results.load_beside_connects),
            median(&results.load_beside_metrics)
        );
    }
    server.program.terminate()
}

/// The load beside those who connect, and then beside somebody who reads the metrics.
fn beside(
    load: &Steady,
    door: &VolumeAddress,
    server: &Server,
    results: &mut Results,
) -> Result<()> {
    let connecting = Connecting::start(door, Some(CONNECTS_MIN))?;
    results.load_beside_connects.beside.push(load.rate(SLICE));
    let made = connecting.stop()?;
    results.connects_beside.push(made.per_second);
    results.connecting_cpu.push(made.cpu_share);
    let scraping = Scraping::start(server.api);
    results.load_beside_metrics.beside.push(load.rate(SLICE));
    results.scrape_ms.extend(scraping.stop()?);
    Ok(())
}

fn judge(results: &Results) -> Vec<Verdict> {
    let verdict = |what: String, place, reached, unit, bound| Verdict {
        what,
        place,
        reached,
        unit,
        bound: Some(bound),
    };
    // The load generator had so much less of a CPU.
    let beside_connects = results.load_beside_connects.ratios();
    let left: Vec<f64> = beside_connects
        .iter()
        .zip(&results.connecting_cpu)
        .map(|(ratio, taken)| ratio / (1.0 - taken))
        .collect();
    let connects = Spread::of(&results.connects_beside);
    vec![
        verdict(
            "connections with authentication, beside load at depth 32".to_owned(),
            "mem",
            connects,
            Unit::PerSecond,
            // What is asked for is the bound itself: the pace loses a little at both ends.
            Bound::AtLeast(CONNECTS_MIN * 0.95),
        ),
        verdict(
            "of the load for which the client's CPU has time, beside these".to_owned(),
            "mem",
            Spread::of(&by_run(&left, results.pairs_each)),
            Unit::Share,
            Bound::AtLeast(BESIDE_CONNECTS_MIN),
        ),
        verdict(
            "of the load, with metrics read ten times a second".to_owned(),
            "mem",
            Spread::of(&by_run(&results.load_beside_metrics.ratios(), results.pairs_each)),
            Unit::Share,
            Bound::AtLeast(BESIDE_METRICS_MIN),
        ),
        verdict(
            format!("list of {} volumes by the API", results.crowd.volumes),
            "file",
            Spread::of(&results.crowd.list_ms),
            Unit::Milliseconds,
            Bound::AtMost(LIST_MAX_MS),
        ),
    ]
}

fn figures(results: &Results) -> Table {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
    let shown = |values: &[f64], show: fn(f64) -> String| {
        Spread::of(values).map_or("–".to_owned(), |spread| spread.show(show))
    };
    let ms: fn(f64) -> String = |ms| format!("{ms:.1} ms");
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let crowd = &results.crowd;
    let (volumes, connections) = (crowd.volumes, crowd.connections);
    let mut row = |what: String, value: String| {
        table.row([what, value]);
    };
    row(
        "connections/s with authentication, nothing else to do".to_owned(),
        shown(&by_run(&results.connects_alone, results.pairs_each), rate),
    );
    row(
        "load at depth 32 beside 500 of them a second, of the load alone".to_owned(),
        shown(&by_run(&results.load_beside_connects.ratios(), results.pairs_each), percent),
    );
    row(
        "of the load generator's CPU, taken by those who connect".to_owned(),
        shown(&by_run(&results.connecting_cpu, results.pairs_each), percent),
    );
    row("one reading of the metrics".to_owned(), shown(&results.scrape_ms, ms));
    row("volumes created a second, one after the other".to_owned(), rate(crowd.creates_per_second));
    row(format!("start after a kill until {volumes} volumes are listed"), ms(crowd.restart_ms));
    row(format!("list of {volumes} volumes by the API"), shown(&crowd.list_ms, ms));
    row(
        format!("their discovery beside {connections} connections"),
        shown(&crowd.discovery_ms, ms),
    );
    row("memory without volumes".to_owned(), mib(crowd.empty_bytes));
    row(format!("with {volumes} volumes"), mib(crowd.with_volumes_bytes));
    row(format!("and {connections} connections"), mib(crowd.with_connections_bytes));
    table
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let (figures, goals) = (figures(results), verdict::table(&results.verdicts));
    let facts = busy_text(&results.facts) + &machine_text(&results.facts);
    println!("{}\n{}\n{facts}", figures.to_text(), goals.to_text());
    fs::write(out.join("tenants.json"), serde_json::to_string_pretty(results)? + "\n")?;
    let Some(page) = page else { return Ok(()) };
    let generated = format!(
        "{} runs of the load, in each {} pairs of slices of {} ms; medians of runs (lowest–highest).\n\n{}\n\
         ### Goals of many tenants\n\n{}\n{facts}",
        results.runs,
        results.pairs_each,
        results.slice_ms,
        figures.to_markdown(),
        goals.to_markdown()
    );
    publish(page, (BEGIN, END), &generated)
}
