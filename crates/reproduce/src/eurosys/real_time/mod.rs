//! Figures of EuroSys in real time, in small: measured by the caller with real servers and datastores, shown here. The same
//! measurements give the CPU costs with which figures in simulated time are those of the paper's scale.

pub mod costs;
pub mod sharing;
pub mod steps;
pub mod sweep;
pub mod table;

use report::{
    Align, Bar, BarChart, BarSeries, CategoryChart, CategorySeries, Panel, Spread, Table,
};

use crate::{Finding, Outcome, ReproduceError};

/// Names of the two ways to Flash, in the order of all measurements here.
const WAYS: [&str; 2] = ["local", "farflash, attached"];
/// These, and another one beside them.
const ALL_WAYS: [&str; 3] = [WAYS[0], WAYS[1], "beside"];
/// Percentiles of an unloaded datastore's latencies.
pub const PERCENTILES: [f64; 4] = [50.0, 90.0, 95.0, 99.0];
/// Index of the 95th.
const P95: usize = 2;
/// The reason for differences, whichever there are.
const WHY: &str = "The datastore, the Flash server, the process of the attached file and the load generator share the \
    CPUs of this one machine, so that the datastore also loses the CPU time that remote Flash takes; the paper \
    has a machine for each.";

/// A measured load: its rate, and latencies of gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Queries a second.
    pub per_second: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
}

impl Rate {
    /// Several datastores together: the sum of their rates, and the mean of their latencies.
    #[must_use]
    pub fn together(rates: &[Self]) -> Self {
        let sum = |value: fn(&Self) -> f64| rates.iter().map(value).sum::<f64>();
        let count = rates.len().max(1) as f64;
        Self {
            per_second: sum(|rate| rate.per_second),
            mean_us: sum(|rate| rate.mean_us) / count,
            p95_us: sum(|rate| rate.p95_us) / count,
        }
    }
}

/// Latencies of one round, µs at each of [`PERCENTILES`], by way.
pub type Latencies<const N: usize> = [[f64; 4]; N];

/// The outcome of figure 4a: `rounds` were measured by turns, of two ways, or of three with the one beside them.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn unloaded<const N: usize>(rounds: &[Latencies<N>]) -> Result<Outcome, ReproduceError> {
    let mut data = Table::new(&[
        ("flash", Align::Left),
        ("round", Align::Right),
        ("percentile", Align::Right),
        ("latency µs", Align::Right),
    ]);
    for (round, ways) in rounds.iter().enumerate() {
        for (name, latencies) in ALL_WAYS.iter().zip(ways) {
            for (percentile, us) in PERCENTILES.iter().zip(latencies) {
                let cells = [round.to_string(), percentile.to_string(), format!("{us:.1}")];
                data.row(std::iter::once((*name).to_owned()).chain(cells));
            }
        }
    }
    let median = |way: usize, at: usize| {
        let values: Vec<f64> = rounds.iter().map(|round| round[way][at]).collect();
        Spread::of(&values).map_or(f64::NAN, |spread| spread.median)
    };
    let series = ALL_WAYS[..N].iter().enumerate().map(|(way, name)| CategorySeries {
        name: (*name).to_owned(),
        values: (0..PERCENTILES.len()).map(|at| median(way, at) * 1e3).collect(),
    });
    let panel = Panel::Category(CategoryChart {
        caption: format!("gets one at a time, median of {} rounds", rounds.len()),
        y_label: "latency of gets".into(),
        categories: PERCENTILES.iter().map(|percentile| format!("{percentile} %")).collect(),
        series: series.collect(),
        marks: Vec::new(),
        y_format: report::duration_ns,
    });
    let us = |value: f64| format!("{value:.0} µs");
    let added = |way: usize| {
        let of_round = |round: &Latencies<N>| round[way][P95] - round[0][P95];
        Spread::of(&rounds.iter().map(of_round).collect::<Vec<f64>>())
    };
    let what = "added to the 95th percentile of gets, one at a time";
    let mut findings = vec![Finding {
        what: what.into(),
        paper: "goal: at most 100 µs; the paper's iSCSI adds 260 µs".into(),
        here: format!("{} ({} local)", shown(added(1), us), us(median(0, P95))),
        agrees: added(1).is_some_and(|spread| spread.median <= 100.0),
    }];
    findings.extend((2..N).map(|way| Finding::beside(what, &shown(added(way), us))));
    let title = "EuroSys'16, figure 4a, in real time: an unloaded datastore on this machine";
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

/// The outcome of figure 4b: queries/s at a 95th percentile of 1.5 ms, by way; `rounds` were measured by turns.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn peaks<const N: usize>(rounds: &[[f64; N]]) -> Result<Outcome, ReproduceError> {
    let mut data =
        Table::new(&[("flash", Align::Left), ("round", Align::Right), ("queries/s", Align::Right)]);
    for (round, ways) in rounds.iter().enumerate() {
        for (name, rate) in ALL_WAYS.iter().zip(ways) {
            data.row([(*name).to_owned(), round.to_string(), format!("{rate:.0}")]);
        }
    }
    let of = |way: usize| {
        let rates: Vec<f64> = rounds.iter().map(|round| round[way] / 1e3).collect();
        Spread::of(&rates).map(Bar::from)
    };
    let panel = Panel::Bars(BarChart {
        caption: format!("median of {} rounds, lowest and highest", rounds.len()),
        y_label: "thousand queries/s".into(),
        groups: ALL_WAYS[..N].iter().map(|name| (*name).to_owned()).collect(),
        series: vec![BarSeries {
            name: "95 % of gets within 1.5 ms".into(),
            bars: (0..N).map(of).collect(),
        }],
        y_format: |value| format!("{value:.1}"),
    });
    let percent = |value: f64| format!("{value:.0} %");
    let share = |way: usize| {
        let of_round = |round: &[f64; N]| round[way] / round[0] * 100.0;
        Spread::of(&rounds.iter().map(of_round).collect::<Vec<f64>>())
    };
    let what = "queries/s at a 95th percentile of 1.5 ms, remote of local";
    let mut findings = vec![Finding {
        what: what.into(),
        paper: "goal: at least 90 %; the paper's iSCSI keeps 80 %".into(),
        here: shown(share(1), percent),
        agrees: share(1).is_some_and(|spread| spread.median >= 90.0),
    }];
    findings.extend((2..N).map(|way| Finding::beside(what, &shown(share(way), percent))));
    let title = "EuroSys'16, figure 4b, in real time: peak of a datastore on this machine";
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

fn shown(spread: Option<Spread>, unit: impl Fn(f64) -> String) -> String {
    spread.map_or_else(|| "none".to_owned(), |spread| spread.show(unit))
}

impl Finding {
    /// That of the way beside, of which no paper says anything.
    fn beside(what: &str, here: &str) -> Self {
        let (what, paper) = (format!("--beside: {what}"), "–".to_owned());
        Self { what, paper, here: here.to_owned(), agrees: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datastores_together_have_the_sum_of_rates_and_the_mean_of_latencies() {
        let rate = |per_second, us: f64| Rate { per_second, mean_us: us, p95_us: 2.0 * us };
        let both = Rate::together(&[rate(100.0, 30.0), rate(300.0, 50.0)]);
        assert_eq!(both, rate(400.0, 40.0));
    }

    /// The spread is that of the differences of each round, not the difference of medians.
    #[test]
    fn rounds_are_compared_each_by_itself() {
        let round = |local: f64, remote: f64| [[local; 4], [remote; 4]];
        let noisy = [round(100.0, 190.0), round(300.0, 380.0), round(120.0, 500.0)];
        let outcome = unloaded(&noisy).expect("a plot");
        assert!(outcome.agrees() && outcome.why.is_none(), "{:?}", outcome.findings);
        assert_eq!(outcome.findings[0].here, "90 µs (80 µs–380 µs) (120 µs local)");
        let slow = unloaded(&[round(100.0, 201.0)]).expect("a plot");
        assert!(!slow.agrees() && slow.why.is_some());

        let outcome = peaks(&[[1_000.0, 950.0], [2_000.0, 1_700.0], [500.0, 455.0]]);
        let outcome = outcome.expect("a plot");
        assert!(outcome.agrees(), "{:?}", outcome.findings);
        assert_eq!(outcome.findings[0].here, "91 % (85 %–95 %)");
        assert!(!peaks(&[[1_000.0, 899.0]]).expect("a plot").agrees());
        assert!(outcome.data.to_csv().contains("local,2,500"), "{}", outcome.data.to_csv());
    }

    #[test]
    fn another_way_is_held_against_the_local_one_too() {
        let outcome = unloaded(&[[[100.0; 4], [190.0; 4], [140.0; 4]]]).expect("a plot");
        assert_eq!(outcome.findings[1].here, "40 µs (40 µs–40 µs)");
        assert!(outcome.data.to_csv().contains("beside,0,95,140.0"), "{}", outcome.data.to_csv());
        let outcome = peaks(&[[1_000.0, 950.0, 600.0]]).expect("a plot");
        assert_eq!(outcome.findings[1].here, "60 % (60 %–60 %)");
    }
}
