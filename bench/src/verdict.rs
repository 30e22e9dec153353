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
    /// The same figure of what does only what cannot be left out, such as a null server, measured beside it.
    pub(crate) limit: Option<Spread>,
}

impl Bound {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(bound) => figure >= bound,
            Self::Above(bound) => figure > bound,
            Self::AtMost(bound) => figure <= bound,
        }
    }
}

impl Verdict {
    pub(crate) fn is_met(&self) -> Option<bool> {
        Some(self.bound?.is_met(self.reached?.median))
    }

    /// Returns whether the limit, too, misses the bound: in three of four rounds, since one whose rounds lie on both sides
    /// of the bound shows nothing.
    fn is_out_of_reach(&self) -> bool {
        let Some((bound, limit)) = self.bound.zip(self.limit) else { return false };
        !bound.is_met(match bound {
            Bound::AtLeast(_) | Bound::Above(_) => limit.upper_quartile,
            Bound::AtMost(_) => limit.lower_quartile,
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

/// Place of the limits among the columns.
const LIMIT_COLUMN: usize = 3;

fn rows<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Table {
    let verdicts: Vec<&Verdict> = verdicts.collect();
    let has_limit = verdicts.iter().any(|verdict| verdict.limit.is_some());
    let mut columns = vec![
        ("goal", Align::Left),
        ("on", Align::Left),
        ("reached", Align::Right),
        ("wanted", Align::Right),
        ("", Align::Left),
    ];
    if has_limit {
        columns.insert(LIMIT_COLUMN, ("limit", Align::Right));
    }
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
            (_, Some(false)) if verdict.is_out_of_reach() => "out of reach",
            (_, Some(false)) => "missed",
            (_, None) => "",
        };
        let shown =
            |figure: Option<Spread>| figure.map_or("–".to_owned(), |figure| figure.show(show));
        let mut cells = vec![
            verdict.what.clone(),
            verdict.place.to_owned(),
            shown(verdict.reached),
            wanted,
            met.to_owned(),
        ];
        if has_limit {
            cells.insert(LIMIT_COLUMN, shown(verdict.limit));
        }
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_from_their_own_side() {
        assert_eq!(verdict(Bound::AtLeast(1.0), 1.0).is_met(), Some(true));
        assert_eq!(verdict(Bound::Above(1.0), 1.0).is_met(), Some(false));
        assert_eq!(verdict(Bound::AtMost(1.0), 1.1).is_met(), Some(false));
    }

    fn verdict(bound: Bound, median: f64) -> Verdict {
        Verdict {
            what: "a figure".to_owned(),
            place: "mem",
            reached: Spread::of(&[median]),
            unit: Unit::Times,
            bound: Some(bound),
            limit: None,
        }
    }

    /// A goal that is missed is out of reach if the limit misses it, too, and only then.
    #[test]
    fn a_goal_is_out_of_reach_where_the_limit_misses_it() {
        let said = |reached: f64, limit: &[f64]| {
            let verdict =
                Verdict { limit: Spread::of(limit), ..verdict(Bound::AtLeast(2.0), reached) };
            let text = table(&[verdict]).to_text();
            text.lines().last().expect("a row").trim_end().to_owned()
        };
        for (reached, limit, ends) in [
            (1.5, &[1.9] as &[f64], "(1.90–1.90)  ≥ 2.00  out of reach"),
            (1.5, &[1.9, 1.8, 1.8, 1.8, 2.1], "(1.80–2.10)  ≥ 2.00  out of reach"),
            (1.5, &[1.9, 1.8, 1.8, 2.0, 2.1], "(1.80–2.10)  ≥ 2.00  missed"),
            (1.5, &[2.0], "(2.00–2.00)  ≥ 2.00  missed"),
            (2.0, &[1.9], "(1.90–1.90)  ≥ 2.00  met"),
        ] {
            let said = said(reached, limit);
            assert!(said.ends_with(ends), "{said}");
        }
        let without = table(&[verdict(Bound::AtLeast(2.0), 1.5)]).to_text();
        assert!(!without.contains("limit"), "{without}");
    }
}
