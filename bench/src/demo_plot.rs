//! The demo's picture: local file beside remote volumes.

use load::Outcome;
use report::{LatencyChart, LatencySeries, LineChart, Marker, Panel, PlotError, Series, figure};

use crate::demo::Remote;

/// Throughput over time and latency, as SVG.
pub(crate) fn plot(local: &Outcome, remote: &Remote) -> Result<String, PlotError> {
    let line = |name: &str, outcomes: &[Outcome]| Series {
        name: name.to_owned(),
        points: sum_of_rates(outcomes),
    };
    let throughput = LineChart {
        caption: "Throughput".to_owned(),
        x_label: "time (s)".to_owned(),
        y_label: "requests/s".to_owned(),
        series: vec![
            line("local file", std::slice::from_ref(local)),
            line("two remote volumes", &remote.outcomes),
        ],
        markers: vec![
            Marker { x: remote.killed_at, name: "killed".to_owned() },
            Marker { x: remote.back_at, name: "back".to_owned() },
        ],
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: report::rate,
    };
    let mut series = Vec::new();
    for (name, outcome) in [("local file", Some(local)), ("remote", remote.outcomes.first())] {
        let Some(outcome) = outcome else { continue };
        for (kind, tally) in [("read", &outcome.read), ("write", &outcome.write)] {
            if let Some(latency) = &tally.latency {
                let name = format!("{name}, {kind}");
                series.push(LatencySeries { name, quantiles: latency.curve.clone() });
            }
        }
    }
    let latency = LatencyChart { caption: "Latency".to_owned(), series };
    let panels = [Panel::Line(throughput), Panel::Latency(latency)];
    figure("farflash: local file beside remote volumes", &panels, 1000, 340)
}

/// The loads take their steps at the same times.
fn sum_of_rates(outcomes: &[Outcome]) -> Vec<(f64, f64)> {
    let steps = outcomes.iter().map(|outcome| outcome.intervals.len()).min().unwrap_or(0);
    // The last step is what is left over, and may be too short for a rate.
    (0..steps.saturating_sub(1))
        .map(|step| {
            let rate = outcomes.iter().map(|outcome| outcome.intervals[step].iops()).sum();
            (outcomes[0].intervals[step].end_seconds, rate)
        })
        .collect()
}
