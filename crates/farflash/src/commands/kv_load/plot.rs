//! Results of the load as a picture: latency at each rate, distributions, and the runs over time.

use std::path::{Path, PathBuf};

use kv_load::{Latencies, Outcome, Point};
use report::{LatencyChart, LatencySeries, LineChart, Panel, PlotError, Series, rate};
use user_messages::Failure;
use user_messages::output::note;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 300;
/// Runs that are drawn one by one; more could not be told apart.
const RUNS_MAX: usize = 7;
const PERCENTS: [f64; 10] = [1.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// The file of `--plot`.
pub(super) struct Plot<'a>(pub(super) &'a Path);

impl<'a> Plot<'a> {
    /// Makes the file, so that a long run is not lost to a typing mistake.
    pub(super) fn begin(path: Option<&'a PathBuf>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let plot = Self(path);
        let made = std::fs::OpenOptions::new().create(true).append(true).open(path);
        made.map_err(|error| plot.unwritten(&error))?;
        Ok(Some(plot))
    }

    /// Draws runs, in the order in which they were made.
    pub(super) fn save(&self, outcomes: &[Outcome]) -> Result<(), Failure> {
        match figure(outcomes) {
            Ok(svg) => std::fs::write(self.0, svg).map_err(|error| self.unwritten(&error)),
            Err(error) => {
                note(&format!("no plot was made: {error}"));
                Ok(())
            }
        }
    }

    fn unwritten(&self, error: &std::io::Error) -> Failure {
        let what = format!("{} cannot be written: {error}", self.0.display());
        Failure::runtime(what, "name a file that can be written with --plot")
    }
}

fn figure(outcomes: &[Outcome]) -> Result<String, PlotError> {
    let single = &outcomes[outcomes.len().saturating_sub(RUNS_MAX)..];
    let mut panels = Vec::new();
    panels.extend(sweep(outcomes));
    panels.push(distributions(single));
    panels.push(over_time(single, "Requests answered", "requests/s", |point| point.qps));
    panels
        .push(over_time(single, "99th percentile over time", "µs", |point| micros(point.p99_ns)));
    report::figure("Load of a key-value server", &panels, WIDTH, PANEL_HEIGHT)
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn number(value: f64) -> String {
    format!("{}", (value * 100.0).round() / 100.0)
}

/// Latency at each rate, of several.
fn sweep(outcomes: &[Outcome]) -> Option<Panel> {
    let mut runs: Vec<(f64, &Latencies)> =
        outcomes.iter().filter_map(|run| Some((run.target_qps?, run.judged()))).collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    if runs.len() < 2 {
        return None;
    }
    let series = |name: &str, percent: f64| Series {
        name: name.to_owned(),
        points: runs
            .iter()
            .map(|(qps, latencies)| (*qps, latencies.percentile(percent).as_secs_f64() * 1e6))
            .collect(),
    };
    Some(Panel::Line(LineChart {
        caption: "Latency at each rate".to_owned(),
        x_label: "requests/s asked for".to_owned(),
        y_label: "µs".to_owned(),
        series: vec![series("50 %", 50.0), series("95 %", 95.0), series("99 %", 99.0)],
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: number,
    }))
}

fn name(outcome: &Outcome) -> String {
    outcome
        .target_qps
        .map_or_else(|| "as fast as answered".to_owned(), |qps| format!("{}/s", rate(qps)))
}

fn distributions(outcomes: &[Outcome]) -> Panel {
    let series = |what: &str, outcome: &Outcome, latencies: &Latencies| {
        let at = |percent: f64| (percent / 100.0, latencies.percentile(percent).as_nanos() as f64);
        (latencies.count() > 0).then(|| LatencySeries {
            name: format!("{what}, {}", name(outcome)),
            quantiles: PERCENTS.map(at).to_vec(),
        })
    };
    let of = |outcome: &Outcome| {
        [
            series("reads", outcome, &outcome.read_latencies),
            series("writes", outcome, &outcome.write_latencies),
        ]
    };
    Panel::Latency(LatencyChart {
        caption: "Latency from the intended start".to_owned(),
        series: outcomes.iter().flat_map(of).flatten().collect(),
    })
}

fn over_time(
    outcomes: &[Outcome],
    caption: &str,
    y_label: &str,
    figure: fn(&Point) -> f64,
) -> Panel {
    let series = |outcome: &Outcome| Series {
        name: name(outcome),
        points: outcome.series.iter().map(|point| (point.second, figure(point))).collect(),
    };
    Panel::Line(LineChart {
        caption: caption.to_owned(),
        x_label: "s".to_owned(),
        y_label: y_label.to_owned(),
        series: outcomes.iter().map(series).collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: number,
    })
}
