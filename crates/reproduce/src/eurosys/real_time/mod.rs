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
pub type Latencies = [[f64; 4]; 2];

/// The outcome of figure 4a: `rounds` were measured by turns.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn unloaded(rounds: &[Latencies]) -> Result<Outcome, ReproduceError> {
    let mut data = Table::new(&[
        ("flash", Align::Left),
        ("round", Align::Right),
        ("percentile", Align::Right),
        ("latency µs", Align::Right),
    ]);
    for (round, ways) in rounds.iter().enumerate() {
        for (name, latencies) in WAYS.iter().zip(ways) {
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
    let series = WAYS.iter().enumerate().map(|(way, name)| CategorySeries {
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
    let added: Vec<f64> = rounds.iter().map(|[local, remote]| remote[P95] - local[P95]).collect();
    let us = |value: f64| format!("{value:.0} µs");
    let spread = Spread::of(&added);
    let findings = vec![Finding {
        what: "added to the 95th percentile of gets, one at a time".into(),
        paper: "goal: at most 100 µs; the paper's iSCSI adds 260 µs".into(),
        here: format!(
            "{} ({} local)",
            spread.map_or_else(|| "none".to_owned(), |spread| spread.show(us)),
            us(median(0, P95))
        ),
        agrees: spread.is_some_and(|spread| spread.median <= 100.0),
    }];
    let title = "EuroSys'16, figure 4a, in real time: an unloaded datastore on this machine";
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

/// The outcome of figure 4b: queries/s at a 95th percentile of 1.5 ms, by way; `rounds` were measured by turns.
///
/// # Errors
/// There are no rounds, or the plot could not be drawn.
pub fn peaks(rounds: &[[f64; 2]]) -> Result<Outcome, ReproduceError> {
    let mut data =
        Table::new(&[("flash", Align::Left), ("round", Align::Right), ("queries/s", Align::Right)]);
    for (round, ways) in rounds.iter().enumerate() {
        for (name, rate) in WAYS.iter().zip(ways) {
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
        groups: WAYS.map(String::from).into(),
        series: vec![BarSeries {
            name: "95 % of gets within 1.5 ms".into(),
            bars: vec![of(0), of(1)],
        }],
        y_format: |value| format!("{value:.1}"),
    });
    let shares: Vec<f64> = rounds.iter().map(|[local, remote]| remote / local * 100.0).collect();
    let share = Spread::of(&shares);
    let percent = |value: f64| format!("{value:.0} %");
    let findings = vec![Finding {
        what: "queries/s at a 95th percentile of 1.5 ms, remote of local".into(),
        paper: "goal: at least 90 %; the paper's iSCSI keeps 80 %".into(),
        here: share.map_or_else(|| "none".to_owned(), |spread| spread.show(percent)),
        agrees: share.is_some_and(|spread| spread.median >= 90.0),
    }];
    let title = "EuroSys'16, figure 4b, in real time: peak of a datastore on this machine";
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
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
}
