//! A goal, what was reached, and how both are shown.

use report::{Align, Spread, Table, percent, rate};
use serde::Serialize;

/// Limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bound {
    AtLeast(f64),
    Above(f64),
    AtMost(f64),
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unit {
    Share,
    Times,
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
    Mebibytes,
    PerSecond,
}

/// A goal and what was reached.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) place: &'static str,
    /// `None`: not measured.
    pub(crate) reached: Option<Spread>,
    pub(crate) unit: Unit,
    /// `None`: reported without a bound.
    pub(crate) bound: Option<Bound>,
}

impl Verdict {
    pub(crate) fn is_met(&self) -> Option<bool> {
        let reached = self.reached?.median;
        Some(match self.bound? {
            Bound::AtLeast(bound) => reached >= bound,
            Bound::Above(bound) => reached > bound,
            Bound::AtMost(bound) => reached <= bound,
        })
    }
}

/// All verdicts, those without a bound included.
pub(crate) fn table(verdicts: &[Verdict]) -> Table {
    rows(verdicts.iter())
}

/// The verdicts that have a bound.
pub(crate) fn goals(verdicts: &[Verdict]) -> Table {
    rows(verdicts.iter().filter(|verdict| verdict.bound.is_some()))
}

fn rows<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Table {
    let columns = [
        ("goal", Align::Left),
        ("on", Align::Left),
        ("reached", Align::Right),
        ("wanted", Align::Right),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for verdict in verdicts {
        let show = |value: f64| match verdict.unit {
            Unit::Share => percent(value),
            Unit::Times => format!("{value:.2}"),
            Unit::Seconds => format!("{value:.3} s"),
            Unit::Milliseconds => format!("{value:.1} ms"),
            Unit::Microseconds => format!("{value:.0} µs"),
            Unit::Nanoseconds => format!("{value:.0} ns"),
            Unit::Mebibytes => format!("{value:.0} MiB"),
            Unit::PerSecond => format!("{} /s", rate(value)),
        };
        let wanted = verdict.bound.map_or(String::new(), |bound| match bound {
            Bound::AtLeast(bound) => format!("≥ {}", show(bound)),
            Bound::Above(bound) => format!("> {}", show(bound)),
            Bound::AtMost(bound) => format!("≤ {}", show(bound)),
        });
        let met = match (verdict.reached, verdict.is_met()) {
            (None, _) => "not measured",
            (_, Some(true)) => "met",
            (_, Some(false)) => "missed",
            (_, None) => "",
        };
        table.row([
            verdict.what.clone(),
            verdict.place.to_owned(),
            verdict.reached.map_or("–".to_owned(), |reached| reached.show(show)),
            wanted,
            met.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_from_their_own_side() {
        let verdict = |bound, median| Verdict {
            what: String::new(),
            place: "mem",
            reached: Spread::of(&[median]),
            unit: Unit::Times,
            bound: Some(bound),
        };
        assert_eq!(verdict(Bound::AtLeast(1.0), 1.0).is_met(), Some(true));
        assert_eq!(verdict(Bound::Above(1.0), 1.0).is_met(), Some(false));
        assert_eq!(verdict(Bound::AtMost(1.0), 1.1).is_met(), Some(false));
    }
}
