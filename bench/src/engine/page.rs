//! The output of a run: tables on the terminal, JSON, and parts of two pages.

use std::fs;
use std::path::Path;

use anyhow::Result;
use report::{Align, Spread, Table, rate};

use super::Results;
use super::checkpoints::Tail;
use super::samples::{Row, Written};
use crate::page::{busy_text, machine_text, publish};
use crate::verdict;

/// The generated part of either page lies between these lines.
const BEGIN: &str = "<!-- engine: begin; written by `make bench` -->";
const END: &str = "<!-- engine: end -->";

/// Prints the results and writes them to `out`, and to `page` if there is one.
pub(super) fn write(results: &Results, out: &Path, page: Option<&Path>) -> Result<()> {
    let tables = [
        rates(results),
        tails(results),
        written(results),
        recoveries(results),
        verdict::table(&results.verdicts),
    ];
    let [rates, tails, written, recoveries, verdicts] = &tables;
    for table in &tables {
        println!("{}", table.to_text());
    }
    let facts = busy_text(&results.facts) + &machine_text(&results.facts);
    println!("{facts}");
    fs::write(out.join("engine.json"), serde_json::to_string_pretty(results)? + "\n")?;
    let Some(page) = page else { return Ok(()) };
    let (rounds, seconds) = results.length;
    let length = format!("{rounds} rounds, {seconds} s each measurement; median (lowest–highest).");
    let figures = format!(
        "{length}\n\n{}\n{}\n{}\n{}\n### Goals and references of the engine\n\n{}\n{facts}",
        rates.to_markdown(),
        tails.to_markdown(),
        written.to_markdown(),
        recoveries.to_markdown(),
        verdicts.to_markdown(),
    );
    let goals = format!("{length}\n\n{}\n{facts}", verdict::goals(&results.verdicts).to_markdown());
    publish(page, (BEGIN, END), &goals, &figures)
}

fn rates(results: &Results) -> Table {
    let mut table = Table::new(&[
        ("load", Align::Left),
        ("on", Align::Left),
        ("", Align::Left),
        ("requests/s", Align::Right),
        ("mean", Align::Right),
        ("99 %", Align::Right),
        ("device reads/request", Align::Right),
    ]);
    let mut last = None;
    for row in &results.samples.rows {
        let key = (row.key.load, row.key.place);
        let load = if last == Some(key) { "" } else { row.key.load };
        last = Some(key);
        table.row([
            load.to_owned(),
            row.key.place.to_owned(),
            row.key.subject.name().to_owned(),
            shown(row, |sample| Some(sample.requests_per_second), |spread| spread.show(rate)),
            shown(row, |sample| Some(sample.mean_us), microseconds),
            shown(row, |sample| Some(sample.p99_us), microseconds),
            shown(row, |sample| sample.device_reads_per_request, |spread| two_digits(&spread)),
        ]);
    }
    table
}

fn shown(
    row: &Row,
    of: impl Fn(&super::bed::Sample) -> Option<f64>,
    show: impl Fn(Spread) -> String,
) -> String {
    row.spread(of).map_or("–".to_owned(), show)
}

fn microseconds(spread: Spread) -> String {
    report::duration_ns(spread.median * 1e3)
}

fn two_digits(spread: &Spread) -> String {
    format!("{:.2}", spread.median)
}

fn tails(results: &Results) -> Table {
    let mut table = Table::new(&[
        ("random overwrites 4 KiB, depth 32", Align::Left),
        ("on", Align::Left),
        ("checkpoints/window", Align::Right),
        ("50 %", Align::Right),
        ("99 %", Align::Right),
        ("99.9 %", Align::Right),
    ]);
    for tails in &results.samples.tails {
        let kinds =
            [("without checkpoints", &tails.without), ("while they are taken", &tails.with)];
        for (kind, windows) in kinds {
            let spread =
                |of: fn(&Tail) -> f64| Spread::of(&windows.iter().map(of).collect::<Vec<f64>>());
            let time = |of: fn(&Tail) -> f64| {
                spread(of).map_or("–".to_owned(), |spread| {
                    spread.show(|us| report::duration_ns(us * 1e3))
                })
            };
            table.row([
                kind.to_owned(),
                tails.place.to_owned(),
                spread(|tail| tail.checkpoints as f64)
                    .map_or("–".to_owned(), |spread| spread.show(|count| format!("{count:.0}"))),
                time(|tail| tail.p50_us),
                time(|tail| tail.p99_us),
                time(|tail| tail.p99_9_us),
            ]);
        }
    }
    table
}

fn written(results: &Results) -> Table {
    let mut table = Table::new(&[
        ("writes to a full volume of 1 GiB", Align::Left),
        ("on", Align::Left),
        ("bytes to the device for each byte", Align::Right),
        ("flushes/request", Align::Right),
    ]);
    for row in &results.samples.written {
        let spread = |of: fn(&Written) -> f64| row.spread(of);
        table.row([
            row.pattern.to_owned(),
            row.place.to_owned(),
            spread(|written| written.per_byte)
                .map_or("–".to_owned(), |spread| spread.show(|value| format!("{value:.3}"))),
            spread(|written| written.flushes_per_request)
                .map_or("–".to_owned(), |spread| format!("{:.3}", spread.median)),
        ]);
    }
    table
}

fn recoveries(results: &Results) -> Table {
    let mut table = Table::new(&[
        ("recovery after a kill", Align::Left),
        ("on", Align::Left),
        ("writes in the journal", Align::Right),
        ("time", Align::Right),
        ("read", Align::Right),
        ("memory before", Align::Right),
    ]);
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
    for recovery in &results.recoveries {
        let seconds: Vec<f64> = recovery.samples.iter().map(|sample| sample.seconds).collect();
        let read = recovery.samples.first().map_or(0, |sample| sample.bytes_read);
        table.row([
            recovery.what.to_owned(),
            recovery.place.to_owned(),
            recovery.writes_in_journal.to_string(),
            Spread::shown(&seconds, |value| format!("{value:.3} s")),
            mib(read as f64),
            recovery.memory_bytes.map_or("–".to_owned(), |bytes| mib(bytes as f64)),
        ]);
    }
    table
}
