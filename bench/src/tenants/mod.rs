//! `bench tenants`: the cost of serving many tenants that do not know each other.
//!
//! - Connections a second, each authenticated: by themselves, and at a fixed rate beside load.
//! - The load's rate beside that, and beside a reader of the metrics: one load, in which slices with and without
//!   them follow each other. It reads; beside metrics there is one that writes, too. The hosts run on the load
//!   generator's thread, so there are slices, too, in which that thread loses as much time, and no host connects.
//! - Reads by a core that counts and times requests, which all do, and by one that does not.
//! - A host of thousands of volumes and connections: lists, metrics, start, memory.
//! - An unauthenticated host that times the answers to requests for volumes that it may not open, and that do not
//!   exist.

mod connects;
mod counting;
mod crowd;
mod discovered;
mod figures;
mod own_time;
mod scraping;
mod slices;
mod stranger;
mod telling_apart;
mod two_samples;

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use self::counting::Counting;
use self::crowd::Crowd;
use self::slices::{LONG_SLICE, SLICE, Slices};
use self::telling_apart::TellingApart;
use crate::machine::{Facts, machine};
use crate::page::{busy_text, machine_text, publish};
use crate::run_args::RunArgs;
use crate::verdict::{self, Verdict};

/// Amount of measuring.
struct Extent {
    /// Runs of the load.
    runs: usize,
    /// Slices of each kind in a run.
    rounds: usize,
    /// Pairs of long slices in a run.
    long_pairs: usize,
    /// Rounds of reads that are counted and that are not.
    counting_rounds: usize,
    volumes: u32,
    connections: u32,
    /// Number of requests of an unauthenticated host for each subsystem.
    attempts: usize,
}

const FULL: Extent = Extent {
    runs: 4,
    rounds: 50,
    long_pairs: 12,
    counting_rounds: 15,
    volumes: 10_000,
    connections: 1000,
    attempts: 8000,
};
const QUICK: Extent = Extent {
    runs: 1,
    rounds: 10,
    long_pairs: 2,
    counting_rounds: 2,
    volumes: 200,
    connections: 100,
    attempts: 1000,
};
/// The generated part of either page lies between these lines.
const BEGIN: &str = "<!-- tenants: begin; written by `make bench` -->";
const END: &str = "<!-- tenants: end -->";

#[derive(Serialize)]
struct Results {
    facts: Facts,
    runs: usize,
    rounds_each: usize,
    long_pairs_each: usize,
    slice_ms: u128,
    long_slice_ms: u128,
    slices: Slices,
    counting: Counting,
    crowd: Crowd,
    telling_apart: TellingApart,
    verdicts: Vec<Verdict>,
}

/// Runs everything and writes what it brought.
pub(crate) fn tenants(args: &RunArgs) -> Result<()> {
    let extent = if args.quick { QUICK } else { FULL };
    let (out, farflash) = (args.out()?, args.farflash()?);
    let mut results = Results {
        facts: machine(),
        runs: extent.runs,
        rounds_each: extent.rounds,
        long_pairs_each: extent.long_pairs,
        slice_ms: SLICE.as_millis(),
        long_slice_ms: LONG_SLICE.as_millis(),
        counting: counting::measure(extent.counting_rounds)?,
        crowd: crowd::measure(&farflash, &out, extent.volumes, extent.connections)?,
        slices: slices::measure(&farflash, &out, &extent)?,
        telling_apart: telling_apart::measure(&farflash, &out, extent.attempts)?,
        verdicts: Vec::new(),
    };
    results.verdicts = figures::judge(&results);
    write(&results, &out, args.report.as_deref())
}

/// Prints the results and writes them to `out`, and to `page` if there is one.
fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let (measured, verdicts) = (figures::table(results), verdict::table(&results.verdicts));
    let told_apart = figures::told_apart(&results.telling_apart);
    let facts = busy_text(&results.facts) + &machine_text(&results.facts);
    println!("{}\n{}\n{}\n{facts}", measured.to_text(), told_apart.to_text(), verdicts.to_text());
    fs::write(out.join("tenants.json"), serde_json::to_string_pretty(results)? + "\n")?;
    let Some(page) = page else { return Ok(()) };
    let length = format!(
        "{} runs of the load, in each {} slices of {} ms of each kind, and {} pairs of {} ms for metrics read once \
         a second; medians of runs (lowest–highest).",
        results.runs,
        results.rounds_each,
        results.slice_ms,
        results.long_pairs_each,
        results.long_slice_ms
    );
    let figures = format!(
        "{length}\n\n{}\n### Response times to unauthenticated hosts\n\n{} attempts for each; medians, and \
         intervals that hold with 95 %.\n\n{}\n### Goals and references of many tenants\n\n{}\n{facts}",
        measured.to_markdown(),
        results.telling_apart.attempts,
        told_apart.to_markdown(),
        verdicts.to_markdown()
    );
    let goals = format!("{length}\n\n{}\n{facts}", verdict::goals(&results.verdicts).to_markdown());
    publish(page, (BEGIN, END), &goals, &figures)
}
