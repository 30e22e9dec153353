//! The output of `bench`.

use std::time::Duration;

use load::{Interval, Latency, Observer, Outcome, Tally};
use report::{Align, Table, duration_ns, json_line, rate, rate_bytes};
use serde::Serialize;
use user_messages::Failure;
use user_messages::output::{self, counted};

use super::{Bench, Finished};

#[derive(Serialize)]
struct Json<'a> {
    target: String,
    /// The kind of load and the bytes of its requests, unless they are those of a workload or of a recording.
    rw: Option<String>,
    bs: Option<u64>,
    workload: Option<&'static str>,
    replay: Option<String>,
    qd: u32,
    connections: u16,
    hdgst: bool,
    ddgst: bool,
    rate: Option<f64>,
    system_calls_per_request: f64,
    blocks_checked_at_end: Option<u64>,
    wrong_at_end: Option<u64>,
    /// Times that the connections to a volume were lost and made again.
    reconnects: Option<u64>,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Interval at which a run prints its figures.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// Writes a line to stderr for every interval.
pub(super) fn progress() -> Observer {
    Box::new(|interval: &Interval| {
        if let Some(line) = line(interval) {
            output::note(&line);
        }
    })
}

/// The line for an interval, if it is long enough. The rest at the end may be a few requests within
/// microseconds, from which no rate follows; the result counts them.
fn line(interval: &Interval) -> Option<String> {
    if interval.seconds < INTERVAL.as_secs_f64() / 2.0 {
        return None;
    }
    Some(format!(
        "{:>6.1} s  {:>8} IOPS  {:>10}  p50 {:>8}  p99 {:>8}  max {:>8}",
        interval.end_seconds,
        rate(interval.iops()),
        rate_bytes(interval.bytes as f64 / interval.seconds),
        duration_ns(interval.p50_ns as f64),
        duration_ns(interval.p99_ns as f64),
        duration_ns(interval.max_ns as f64),
    ))
}

/// Prints the result, for people or for programs.
pub(super) fn result(bench: &Bench, finished: &Finished) -> Result<(), Failure> {
    const REMEDY: &str = "the run is done; give its result somewhere to go";
    if !bench.json {
        return output::print(REMEDY, |out| out.write_all(text(bench, finished).as_bytes()));
    }
    let drawn = bench.workload.is_none() && bench.replay.is_none();
    let json = Json {
        target: bench.target.to_string(),
        rw: drawn.then(|| bench.rw.name()),
        bs: drawn.then_some(bench.bs.0),
        workload: bench.workload.map(|profile| profile.profile().name),
        replay: bench.replay.as_ref().map(|path| path.display().to_string()),
        qd: finished.depth,
        connections: bench.connections,
        hdgst: bench.hdgst,
        ddgst: bench.ddgst,
        rate: bench.rate,
        system_calls_per_request: per_request(finished),
        blocks_checked_at_end: finished.at_end.map(|at_end| at_end.blocks),
        wrong_at_end: finished.at_end.map(|at_end| at_end.wrong),
        reconnects: finished.reconnects,
        outcome: &finished.outcome,
    };
    let line = json_line(&json)
        .map_err(|error| Failure::runtime(error.to_string(), "run it without --json"))?;
    output::print(REMEDY, |out| out.write_all(line.as_bytes()))
}

fn per_request(finished: &Finished) -> f64 {
    finished.enters as f64 / finished.outcome.requests.max(1) as f64
}

/// Figures of the successful requests of each kind.
fn figures(read: &Tally, write: &Tally) -> String {
    let mut columns = vec![("", Align::Left)];
    let lanes: Vec<(&str, &Tally, &Latency)> = [("read", read), ("write", write)]
        .into_iter()
        .filter_map(|(name, tally)| Some((name, tally, tally.latency.as_ref()?)))
        .collect();
    if lanes.is_empty() {
        return "no request succeeded\n".to_owned();
    }
    columns.extend(lanes.iter().map(|(name, _, _)| (*name, Align::Right)));
    let mut table = Table::new(&columns);
    let mut row = |name: &str, cell: &dyn Fn(&Tally, &Latency) -> String| {
        let cells = lanes.iter().map(|(_, tally, latency)| cell(tally, latency));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    };
    row("requests", &|tally, _| tally.requests.to_string());
    row("IOPS", &|tally, _| rate(tally.iops));
    row("bandwidth", &|tally, _| rate_bytes(tally.bytes_per_second));
    row("mean", &|_, latency| duration_ns(latency.mean_ns));
    type Percentile = (&'static str, fn(&Latency) -> u64);
    let percentiles: [Percentile; 9] = [
        ("min", |latency| latency.min_ns),
        ("50 %", |latency| latency.p50_ns),
        ("90 %", |latency| latency.p90_ns),
        ("99 %", |latency| latency.p99_ns),
        ("99.9 %", |latency| latency.p99_9_ns),
        ("99.99 %", |latency| latency.p99_99_ns),
        ("99.999 %", |latency| latency.p99_999_ns),
        ("99.9999 %", |latency| latency.p99_9999_ns),
        ("max", |latency| latency.max_ns),
    ];
    for (name, of) in percentiles {
        row(name, &|_, latency| duration_ns(of(latency) as f64));
    }
    table.to_text()
}

fn text(bench: &Bench, finished: &Finished) -> String {
    let outcome = &finished.outcome;
    let load = match (bench.workload, &bench.replay) {
        (Some(arg), _) => format!("workload {} on ", arg.profile().name),
        (None, Some(path)) => format!("{} on ", path.display()),
        (None, None) => String::new(),
    };
    let mut text = format!(
        "{load}{}, depth {}, {}, {:.2} s{}\n\n{}",
        bench.target,
        finished.depth,
        counted(bench.connections.into(), "connection"),
        outcome.seconds,
        if outcome.cut_short { ", cut short by Ctrl-C" } else { "" },
        figures(&outcome.read, &outcome.write)
    );
    if let Some(at_end) = finished.at_end {
        text += &format!(
            "\nchecked {} blocks during the run, {} wrong; {} blocks at the end, {} wrong\n",
            outcome.blocks_checked, outcome.mismatches, at_end.blocks, at_end.wrong
        );
    }
    if let Some(reconnects) = finished.reconnects.filter(|reconnects| *reconnects > 0) {
        text += &format!(
            "\nthe connections were lost and made again {}; latencies include that\n",
            counted(reconnects, "time")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(seconds: f64) -> Interval {
        Interval {
            end_seconds: 2.0,
            seconds,
            reads: 32,
            writes: 0,
            bytes: 131_072,
            errors: 0,
            p50_ns: 700_000,
            p99_ns: 800_000,
            max_ns: 900_000,
        }
    }

    #[test]
    fn a_run_of_which_nothing_succeeded_has_no_figures() {
        let nothing = Tally::default();
        assert_eq!(figures(&nothing, &nothing), "no request succeeded\n");
    }

    #[test]
    fn no_rate_is_made_of_what_is_left_over() {
        assert_eq!(line(&interval(0.000_12)), None);
        let whole = line(&interval(1.0)).expect("an interval");
        assert!(whole.contains("   32.0 IOPS") && whole.contains("131 kB/s"), "{whole}");
    }
}
