//! Figures 6a and 6b in real time: the peak of two datastores as queries compute more, and as the share of sets grows.

use report::{Align, LineChart, Panel, Series, Spread, Table};

use super::super::drop_percent;
use super::{WAYS, WHY};
use crate::{Finding, Outcome, ReproduceError};

/// Turns of the datastore's empty loop before each request.
pub const BUSY_TURNS: [u64; 4] = [0, 50_000, 200_000, 800_000];
/// Shares of sets.
pub const SETS: [f64; 4] = [0.0, 0.1, 0.3, 0.5];
/// Percent between gaps that count as roughly the same, on a machine that does other things, too.
const GAPS_APART: f64 = 15.0;
/// A gap that is negligible.
const NEGLIGIBLE_PERCENT: f64 = 5.0;

/// Queries a second at one place of the axis, by way; rounds were measured by turns.
#[derive(Clone, Debug)]
pub struct Place {
    /// Location on the axis.
    pub x: f64,
    /// The rounds.
    pub rounds: Vec<[f64; 2]>,
}

impl Place {
    fn median(&self, way: usize) -> f64 {
        let rates: Vec<f64> = self.rounds.iter().map(|round| round[way]).collect();
        Spread::of(&rates).map_or(f64::NAN, |spread| spread.median)
    }

    /// Percent by which the remote datastore is below the local one, each round by itself.
    fn gap(&self) -> f64 {
        let gaps = self.rounds.iter().map(|[local, remote]| drop_percent(*remote, *local));
        Spread::of(&gaps.collect::<Vec<_>>()).map_or(f64::NAN, |spread| spread.median)
    }
}

fn outcome(
    title: &str,
    x_label: &str,
    places: &[Place],
    findings: Vec<Finding>,
) -> Result<Outcome, ReproduceError> {
    let mut data = Table::new(&[
        (x_label, Align::Right),
        ("flash", Align::Left),
        ("round", Align::Right),
        ("queries/s", Align::Right),
    ]);
    for place in places {
        for (round, rates) in place.rounds.iter().enumerate() {
            for (way, rate) in WAYS.iter().zip(rates) {
                let cells = [place.x.to_string(), (*way).to_owned(), round.to_string()];
                data.row(cells.into_iter().chain([format!("{rate:.0}")]));
            }
        }
    }
    let series = WAYS.iter().enumerate().map(|(way, name)| Series {
        name: (*name).to_owned(),
        points: places.iter().map(|place| (place.x, place.median(way) / 1e3)).collect(),
    });
    let rounds = places.first().map_or(0, |place| place.rounds.len());
    let panel = Panel::Line(LineChart {
        caption: format!("16 clients, each with one query at a time; median of {rounds} rounds"),
        x_label: x_label.into(),
        y_label: "thousand queries/s".into(),
        series: series.collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: |value| format!("{value:.1}"),
    });
    Ok(Outcome::new(title, &[panel], data, findings)?.because(WHY))
}

/// The outcome of figure 6a: `places` by turns of the loop, in their order.
///
/// # Errors
/// There are no places, or the plot could not be drawn.
pub fn busy(places: &[Place]) -> Result<Outcome, ReproduceError> {
    let gap = |place: Option<&Place>| place.map_or(f64::NAN, Place::gap);
    let (first, last) = (gap(places.first()), gap(places.last()));
    let findings = vec![Finding {
        what: "gap between local and remote Flash as each query computes more".into(),
        paper: "becomes negligible".into(),
        here: format!("{first:.0} % at first, {last:.0} % at the end"),
        agrees: last.abs() < NEGLIGIBLE_PERCENT.max(first / 2.0),
    }];
    let title = "EuroSys'16, figure 6a, in real time: peak of a datastore as queries compute more";
    outcome(title, "turns of a loop before each query", places, findings)
}

/// The outcome of figure 6b: `places` by percent of sets, in their order.
///
/// # Errors
/// There are no places, or the plot could not be drawn.
pub fn sets(places: &[Place]) -> Result<Outcome, ReproduceError> {
    let peak = |place: Option<&Place>| place.map_or(f64::NAN, |place| place.median(0));
    let (first, last) = (peak(places.first()), peak(places.last()));
    let gaps: Vec<f64> = places.iter().map(Place::gap).collect();
    let (low, high) =
        Spread::of(&gaps).map_or((f64::NAN, f64::NAN), |spread| (spread.low, spread.high));
    let findings = vec![
        Finding {
            what: "peak as the share of sets grows".into(),
            paper: "grows".into(),
            here: format!(
                "{first:.0} queries/s without, {last:.0} with {:.0} %, local Flash",
                places.last().map_or(f64::NAN, |place| place.x)
            ),
            agrees: last > first,
        },
        Finding {
            what: "gap between local and remote Flash meanwhile".into(),
            paper: "roughly the same".into(),
            here: format!("{low:.0} to {high:.0} %"),
            agrees: high - low < GAPS_APART,
        },
    ];
    let title =
        "EuroSys'16, figure 6b, in real time: peak of a datastore as the share of sets grows";
    outcome(title, "share of sets, %", places, findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rounds: &[(f64, &[[f64; 2]])]) -> Vec<Place> {
        rounds.iter().map(|(x, rounds)| Place { x: *x, rounds: rounds.to_vec() }).collect()
    }

    /// The gap is the median of the rounds' own, so that a round in which the machine was slow does not make one.
    #[test]
    fn a_gap_that_closes_agrees() {
        let closing = places(&[
            (0.0, &[[1_000.0, 800.0], [500.0, 400.0], [900.0, 700.0]]),
            (9.0, &[[100.0, 99.0], [50.0, 49.0], [80.0, 20.0]]),
        ]);
        let outcome = busy(&closing).expect("a plot");
        assert!(outcome.agrees(), "{:?}", outcome.findings);
        assert_eq!(outcome.findings[0].here, "20 % at first, 2 % at the end");
        assert_eq!(outcome.data.to_csv().lines().count(), 1 + 2 * 3 * 2);
        let lasting = places(&[(0.0, &[[100.0, 80.0]]), (9.0, &[[100.0, 80.0]])]);
        let outcome = busy(&lasting).expect("a plot");
        assert!(!outcome.agrees() && outcome.why.is_some());
    }

    #[test]
    fn equal_gaps_under_a_growing_peak_agree() {
        let growing = places(&[(0.0, &[[100.0, 80.0]]), (50.0, &[[150.0, 110.0]])]);
        let outcome = sets(&growing).expect("a plot");
        assert!(outcome.agrees(), "{:?}", outcome.findings);
        assert_eq!(outcome.findings[1].here, "20 to 27 %");
        let apart = places(&[(0.0, &[[100.0, 95.0]]), (50.0, &[[90.0, 45.0]])]);
        let agreeing: Vec<bool> =
            sets(&apart).expect("a plot").findings.iter().map(|finding| finding.agrees).collect();
        assert_eq!(agreeing, [false, false]);
    }
}
