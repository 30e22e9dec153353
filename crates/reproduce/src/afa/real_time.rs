//! The steps of figure 12 in real time, in small: measured by the caller, shown here.

use array_model::Column;
use report::{Align, CategoryChart, CategorySeries, Panel, Table};

use crate::{Finding, Outcome, ReproduceError};

/// Figures of one step on a real machine.
#[derive(Clone, Debug)]
pub struct Measured {
    /// `default`, `chrt` or `isolcpus`.
    pub step: &'static str,
    /// Means over drives in µs, in the order of [`Column::ALL`]; none where the sample does not carry the figure.
    pub us: [Option<f64>; 7],
}

/// Indices of 99.9 % and of the longest read among the figures.
const THREE_NINES: usize = 2;
const LONGEST: usize = Column::ALL.len() - 1;
/// Longest reads of two short runs are compared with this tolerance.
const TOLERANCE: f64 = 1.5;

/// The outcome of figure 12 in real time. `missing`: each step of the paper that has no part on this machine, with the
/// reason.
///
/// # Errors
/// The plot could not be drawn.
pub fn real_time_outcome(
    measured: &[Measured],
    missing: &[(&'static str, String)],
) -> Result<Outcome, ReproduceError> {
    let names: Vec<String> = Column::ALL.into_iter().map(Column::name).collect();
    let columns: Vec<(String, Align)> =
        names.iter().map(|name| (format!("{name} µs"), Align::Right)).collect();
    let mut head = vec![("step", Align::Left)];
    head.extend(columns.iter().map(|(name, align)| (name.as_str(), *align)));
    let mut data = Table::new(&head);
    for step in measured {
        let values = step.us.map(|us| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}")));
        data.row(std::iter::once(step.step.to_owned()).chain(values));
    }
    let series = measured.iter().map(|step| CategorySeries {
        name: step.step.to_owned(),
        values: step.us.iter().map(|us| us.map_or(f64::NAN, |us| us * 1e3)).collect(),
    });
    let chart = CategoryChart {
        caption: "mean over drives, beside tasks that take all CPUs".into(),
        y_label: "latency".into(),
        categories: names,
        series: series.collect(),
        marks: Vec::new(),
        y_format: report::duration_ns,
    };
    let mut findings = compare(measured);
    findings.extend(missing.iter().map(|(step, reason)| Finding {
        what: format!("{step} on this machine"),
        paper: "a step of figure 12 (IV-F)".into(),
        here: format!("not measured: {reason}"),
        agrees: true,
    }));
    let title = "AFA, figure 12, in real time on this machine";
    Outcome::new(title, &[Panel::Category(chart)], data, findings)
}

fn compare(measured: &[Measured]) -> Vec<Finding> {
    let figure = |step: &str, index: usize| {
        measured.iter().find(|measured| measured.step == step).and_then(|step| step.us[index])
    };
    let longest = |step| figure(step, LONGEST);
    let default = longest("default");
    let mut findings = Vec::new();
    if let (Some(was), Some(is)) = (figure("default", THREE_NINES), figure("chrt", THREE_NINES)) {
        findings.push(Finding {
            what: "99.9 % by real-time priority".into(),
            paper: "more converged (IV-B, figure 7)".into(),
            here: format!("{was:.0} to {is:.0} µs"),
            agrees: is < was,
        });
    }
    if let (Some(was), Some(is)) = (default, longest("chrt")) {
        findings.push(Finding {
            what: "longest read by real-time priority".into(),
            paper: "5 ms to 600 µs (IV-B, figure 7)".into(),
            here: format!("{was:.0} to {is:.0} µs"),
            agrees: is < was,
        });
    }
    if let (Some(was), Some(chrt), Some(is)) = (default, longest("chrt"), longest("isolcpus")) {
        findings.push(Finding {
            what: "longest read by CPUs without other tasks besides".into(),
            paper: "improves further (IV-C, figure 8)".into(),
            here: format!("{chrt:.0} to {is:.0} µs"),
            agrees: is < was && is < chrt * TOLERANCE,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_compared_and_what_is_missing_is_named() {
        let step = |step, longest| {
            let mut us = [Some(80.0); 7];
            (us[5], us[THREE_NINES], us[LONGEST]) = (None, Some(longest / 10.0), Some(longest));
            Measured { step, us }
        };
        let missing = [("irq", "its drive has no interrupt".to_owned())];
        let better = [step("default", 5_000.0), step("chrt", 700.0), step("isolcpus", 600.0)];
        let outcome = real_time_outcome(&better, &missing).expect("a plot");
        assert!(outcome.agrees() && outcome.findings.len() == 4, "{:#?}", outcome.findings);
        assert!(outcome.findings[3].here.contains("no interrupt"));
        assert!(outcome.data.to_csv().contains("chrt,80.0"), "{}", outcome.data.to_csv());
        let worse = [step("default", 700.0), step("chrt", 5_000.0)];
        assert!(!real_time_outcome(&worse, &[]).expect("a plot").agrees());
    }
}
