//! The results of many tenants as a table and as goals.

use report::{Align, Spread, Table, duration_ns, percent, rate};

use super::Results;
use super::slices::CONNECTS_PER_SECOND;
use super::telling_apart::TellingApart;
use super::two_samples::Estimate;
use crate::steady::by_run;
use crate::verdict::{Bound, Unit, Verdict};

/// Part of the load that must be left beside hosts that connect, and beside a reader of the metrics.
const BESIDE_CONNECTS_MIN: f64 = 0.95;
const BESIDE_METRICS_MIN: f64 = 0.99;
/// Longest time of a list of all volumes.
const LIST_MAX_MS: f64 = 200.0;

/// Judges each goal.
pub(super) fn judge(results: &Results) -> Vec<Verdict> {
    let verdict = |what: String, place, reached, unit, bound| Verdict {
        what,
        place,
        reached,
        unit,
        bound: Some(bound),
        limit: None,
    };
    let (connects, metrics) = (&results.slices.connects, &results.slices.metrics);
    let mut verdicts = vec![
        verdict(
            "connections with authentication, beside load at depth 32".to_owned(),
            "mem",
            Spread::of(&connects.beside_per_second),
            Unit::PerSecond,
            Bound::AtLeast(CONNECTS_PER_SECOND),
        ),
        verdict(
            "of the load alone, beside these".to_owned(),
            "mem",
            Spread::of(&by_run(&connects.of_load(), results.rounds_each)),
            Unit::Share,
            Bound::AtLeast(BESIDE_CONNECTS_MIN),
        ),
        Verdict {
            what: "the same of a null server, beside as many connections and messages".to_owned(),
            place: "–",
            reached: Spread::of(&by_run(&connects.of_null_load(), results.rounds_each)),
            unit: Unit::Share,
            bound: None,
            limit: None,
        },
        verdict(
            "of the load, with metrics read once a second".to_owned(),
            "mem",
            Spread::of(&by_run(&metrics.each_second.ratios(), results.long_pairs_each)),
            Unit::Share,
            Bound::AtLeast(BESIDE_METRICS_MIN),
        ),
        verdict(
            "the same of random writes, depth 32".to_owned(),
            "mem",
            Spread::of(&by_run(&metrics.each_second_of_writes.ratios(), results.long_pairs_each)),
            Unit::Share,
            Bound::AtLeast(BESIDE_METRICS_MIN),
        ),
        verdict(
            "random reads, depth 32, of their rate in a build that does not count them".to_owned(),
            "mem",
            Spread::of(&results.counting.ratios()),
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
    ];
    verdicts.extend(of_strangers(&results.telling_apart));
    verdicts
}

/// For the answers to an unauthenticated host: the difference of each pair that should not be told apart.
fn of_strangers(told_apart: &TellingApart) -> impl Iterator<Item = Verdict> {
    let pairs = told_apart.pairs.iter().filter(|pair| !pair.is_control);
    pairs.map(|pair| Verdict {
        what: format!("chance to tell by any answer's time: {}, --auth {}", pair.what, pair.auth),
        place: "mem",
        reached: pair
            .worst()
            .map(|worst| worst.chance())
            .and_then(|Estimate { value, low, high }| Spread::of(&[low, value, high])),
        unit: Unit::Share,
        bound: Some(Bound::AtMost(told_apart.chance_max())),
        limit: None,
    })
}

/// The measurements, row by row.
pub(super) fn table(results: &Results) -> Table {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
    of_slices(results, &mut |what, value| {
        table.row([what.to_owned(), value]);
    });
    of_crowd(results, &mut |what, value| {
        table.row([what, value]);
    });
    table
}

/// The answers that an unauthenticated host can tell apart, answer by answer.
pub(super) fn told_apart(measured: &TellingApart) -> Table {
    let mut table = Table::new(&[
        ("asked for", Align::Left),
        ("--auth", Align::Left),
        ("answer", Align::Left),
        ("first", Align::Right),
        ("second", Align::Right),
        ("difference", Align::Right),
        ("chance to tell", Align::Right),
    ]);
    for pair in &measured.pairs {
        for (answer, compared) in &pair.answers {
            table.row([
                pair.what.to_owned(),
                pair.auth.to_owned(),
                (*answer).to_owned(),
                duration_ns(compared.medians[0]),
                duration_ns(compared.medians[1]),
                estimate(&compared.difference, |ns| format!("{ns:.0} ns")),
                estimate(&compared.chance(), percent),
            ]);
        }
    }
    table
}

fn estimate(estimate: &Estimate, show: fn(f64) -> String) -> String {
    let Estimate { value, low, high } = *estimate;
    format!("{} ({}–{})", show(value), show(low), show(high))
}

fn of_slices(results: &Results, row: &mut dyn FnMut(&str, String)) {
    let (connects, metrics) = (&results.slices.connects, &results.slices.metrics);
    let by_round = |values: &[f64], show| shown(&by_run(values, results.rounds_each), show);
    row(
        "connections/s with authentication, nothing else to do",
        by_round(&connects.alone_per_second, rate),
    );
    row("what one takes of the load generator's thread", by_round(&connects.own_us, us));
    row(
        "load with as much of its generator's time gone, of the load alone",
        by_round(&connects.of_load_without_their_time(), percent),
    );
    row(
        "load with metrics read ten times a second, of the load alone",
        by_round(&metrics.tenfold.ratios(), percent),
    );
    row("one reading of the metrics, beside load", shown(&metrics.reading_ms, ms));
}

fn of_crowd(results: &Results, row: &mut dyn FnMut(String, String)) {
    let crowd = &results.crowd;
    let (volumes, connections) = (crowd.volumes, crowd.connections);
    row("volumes created a second, one after the other".to_owned(), rate(crowd.creates_per_second));
    row(format!("start after a kill until {volumes} volumes are listed"), ms(crowd.restart_ms));
    row(format!("list of {volumes} volumes by the API"), shown(&crowd.list_ms, ms));
    row(
        format!("one reading of their metrics, {}", mib(crowd.metrics_bytes)),
        shown(&crowd.metrics_ms, ms),
    );
    row(
        format!("their discovery beside {connections} connections"),
        shown(&crowd.discovery_ms, ms),
    );
    row("memory without volumes".to_owned(), mib(crowd.empty_bytes));
    row(format!("with {volumes} volumes"), mib(crowd.with_volumes_bytes));
    row(format!("and {connections} connections"), mib(crowd.with_connections_bytes));
}

fn shown(values: &[f64], show: fn(f64) -> String) -> String {
    Spread::of(values).map_or("–".to_owned(), |spread| spread.show(show))
}

fn ms(ms: f64) -> String {
    format!("{ms:.1} ms")
}

fn us(us: f64) -> String {
    format!("{us:.0} µs")
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
