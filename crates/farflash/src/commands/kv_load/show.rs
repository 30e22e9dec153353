//! Results of the load, for people and for programs.

use std::time::Duration;

use kv_load::{Outcome, Summary};
use report::{Align, Table, duration_ns, json_line, percent, rate};
use serde::Serialize;
use user_messages::Failure;
use user_messages::output::{self, note};

use super::arguments::Judge;

const REMEDY: &str = "the run is done; give its result somewhere to go";

#[derive(Serialize)]
struct Peak {
    peak_qps: Option<f64>,
    judge: &'static str,
    target_ns: u64,
}

pub(super) fn filled(outcome: &Outcome) {
    let count = outcome.writes.count;
    note(&format!(
        "filled: {count} keys in {:.1} s, {} a second",
        outcome.seconds,
        rate(count as f64 / outcome.seconds.max(1e-9))
    ));
}

/// Prints the result of a run.
pub(super) fn outcome(outcome: &Outcome, json: bool) -> Result<(), Failure> {
    let text = if json { line(outcome)? } else { text(outcome) };
    output::print(REMEDY, |out| out.write_all(text.as_bytes()))
}

fn line(value: &impl Serialize) -> Result<String, Failure> {
    json_line(value).map_err(|error| Failure::runtime(error.to_string(), "run it without --json"))
}

fn text(outcome: &Outcome) -> String {
    let target = outcome
        .target_qps
        .map_or_else(|| "as fast as answered".to_owned(), |qps| format!("{} asked for", rate(qps)));
    let mut text = format!(
        "{} requests a second ({target}), {:.1} s, generator busy {}\n",
        rate(outcome.qps),
        outcome.seconds,
        percent(outcome.busiest_thread),
    );
    let mut columns = vec![("latency", Align::Left)];
    columns.extend(
        ["count", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"]
            .map(|name| (name, Align::Right)),
    );
    let mut table = Table::new(&columns);
    let probe = outcome.probe.unwrap_or_default();
    let rows = [
        ("reads", outcome.reads),
        ("writes", outcome.writes),
        ("probe", probe),
        ("sent late", outcome.lateness),
    ];
    for (name, summary) in rows.iter().filter(|(_, summary)| summary.count > 0) {
        table.row(cells(name, summary));
    }
    text += &table.to_text();
    let counts = [
        (outcome.missing, "reads of keys that do not exist"),
        (outcome.errors, "errors"),
        (outcome.unanswered, "requests without an answer"),
    ];
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        text += &format!("{count} {what}\n");
    }
    if let Some(error) = &outcome.first_error {
        text += &format!("first error: {error}\n");
    }
    for part in &outcome.agents {
        text += &format!(
            "agent {}: {} requests, busy {}, started within {}\n",
            part.agent,
            part.requests,
            percent(part.busiest_thread),
            duration_ns(part.start_error_ns as f64),
        );
    }
    if outcome.overloaded {
        text += "ended early: the server fell too far behind\n";
    }
    text + "\n"
}

fn cells(name: &str, summary: &Summary) -> Vec<String> {
    let Summary { count, mean_ns, p50_ns, p90_ns, p95_ns, p99_ns, p999_ns, max_ns, .. } = *summary;
    let times =
        [mean_ns, p50_ns, p90_ns, p95_ns, p99_ns, p999_ns, max_ns].map(|ns| duration_ns(ns as f64));
    [name.to_owned(), count.to_string()].into_iter().chain(times).collect()
}

/// Says how a step of a search went.
pub(super) fn step(qps: f64, outcome: &Outcome, latency: Duration, keeps: bool) {
    let verdict = if keeps { "kept" } else { "missed" };
    let latency = duration_ns(latency.as_nanos() as f64);
    note(&format!(
        "{} a second: {latency}, {} errors, target {verdict}",
        rate(qps),
        outcome.errors
    ));
}

/// Prints the result of a search.
pub(super) fn peak(
    peak: Option<f64>,
    target: Duration,
    judge: Judge,
    json: bool,
) -> Result<(), Failure> {
    let target_ns = target.as_nanos() as u64;
    let Some(qps) = peak else {
        let target = duration_ns(target_ns as f64);
        let what = format!("the server keeps {} {target} at no rate", judge.name());
        return Err(Failure::runtime(what, "allow more time, or see what the server waits for"));
    };
    let text = if json {
        line(&Peak { peak_qps: peak, judge: judge.name(), target_ns })?
    } else {
        format!(
            "peak: {} requests a second with {} at most {}\n",
            rate(qps),
            judge.name(),
            duration_ns(target_ns as f64)
        )
    };
    output::print(REMEDY, |out| out.write_all(text.as_bytes()))
}
