//! Throughput against latency: points, a table, a plot, and the ceiling that they allow.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use load::{Latency, Outcome};
use report::{Align, LineChart, Panel, Series, Table};
use serde::Serialize;

/// The measurement of a device at one depth.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) depth: u32,
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) mean_us: f64,
    /// For the slower kind of request, as the other percentiles.
    pub(super) p95_us: f64,
    pub(super) p99_9_us: f64,
}

/// All depths with one share of reads.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Curve {
    pub(super) read_percent: u8,
    pub(super) points: Vec<Point>,
}

/// A ceiling for a latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Proposal {
    pub(super) reads_per_second: u64,
    pub(super) writes_per_second: u64,
    pub(super) latency_target_us: u64,
}

impl Point {
    pub(super) fn new(depth: u32, outcome: &Outcome) -> Self {
        let kinds = [&outcome.read, &outcome.write];
        let most = |figure: fn(&Latency) -> f64| {
            let latencies = kinds.iter().filter_map(|tally| tally.latency.as_ref());
            latencies.map(figure).fold(0.0, f64::max) / 1e3
        };
        let sum_us: f64 = kinds
            .iter()
            .filter_map(|tally| Some(tally.latency.as_ref()?.mean_ns * tally.requests as f64))
            .sum();
        Self {
            depth,
            rate: outcome.iops,
            mean_us: sum_us / outcome.requests.max(1) as f64 / 1e3,
            p95_us: most(|latency| quantile(latency, 0.95)),
            p99_9_us: most(|latency| latency.p99_9_ns as f64),
        }
    }
}

/// Nanoseconds at a quantile, between the points of the distribution's curve.
fn quantile(latency: &Latency, quantile: f64) -> f64 {
    let above = latency.curve.iter().position(|(at, _)| *at >= quantile);
    match above {
        None => latency.max_ns as f64,
        Some(0) => latency.curve[0].1,
        Some(place) => {
            let ((low, low_ns), (high, high_ns)) = (latency.curve[place - 1], latency.curve[place]);
            let part = if high > low { (quantile - low) / (high - low) } else { 1.0 };
            low_ns + part * (high_ns - low_ns)
        }
    }
}

impl Proposal {
    /// The most of a mixed load that keeps the latency; of pure loads half each, where no mix was
    /// measured.
    pub(super) fn of(curves: &[Curve], latency: Duration) -> Option<Self> {
        let target_us = latency.as_secs_f64() * 1e6;
        let best = |curve: &Curve| {
            let kept = curve.points.iter().filter(|point| point.p95_us <= target_us);
            kept.map(|point| point.rate).max_by(f64::total_cmp)
        };
        let mixed = curves.iter().find(|curve| (1..100).contains(&curve.read_percent));
        let (reads, writes) = if let Some(curve) = mixed {
            let (rate, share) = (best(curve)?, f64::from(curve.read_percent) / 100.0);
            (rate * share, rate * (1.0 - share))
        } else {
            let pure = |share: u8| curves.iter().find(|curve| curve.read_percent == share);
            match (pure(100), pure(0)) {
                (Some(reads), Some(writes)) => (best(reads)? / 2.0, best(writes)? / 2.0),
                _ => return None,
            }
        };
        let rounded = |rate: f64| (rate as u64).max(1);
        Some(Self {
            reads_per_second: rounded(reads),
            writes_per_second: rounded(writes),
            latency_target_us: rounded(target_us),
        })
    }
}

impl fmt::Display for Proposal {
    /// As it is written behind a device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads_per_second, writes_per_second, latency_target_us } = self;
        write!(
            f,
            "reads-per-second={reads_per_second},writes-per-second={writes_per_second},\
             latency-target={latency_target_us}us"
        )
    }
}

pub(super) fn table(curves: &[Curve]) -> Table {
    let columns = ["reads %", "depth", "requests/s", "mean µs", "95 % µs", "99.9 % µs"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    for curve in curves {
        for point in &curve.points {
            let latencies = [point.mean_us, point.p95_us, point.p99_9_us];
            let head = [
                curve.read_percent.to_string(),
                point.depth.to_string(),
                format!("{:.0}", point.rate),
            ];
            table.row(head.into_iter().chain(latencies.map(|us| format!("{us:.1}"))));
        }
    }
    table
}

fn panel(curve: &Curve, latency: Duration) -> Panel {
    let series = |name: &str, figure: fn(&Point) -> f64| Series {
        name: name.to_owned(),
        points: curve.points.iter().map(|point| (point.rate / 1e3, figure(point))).collect(),
    };
    let last = curve.points.iter().map(|point| point.rate / 1e3).fold(0.0, f64::max);
    let target_us = latency.as_secs_f64() * 1e6;
    let longest_us = curve.points.iter().map(|point| point.p99_9_us).fold(0.0, f64::max);
    // Beside a target far above, nothing would be seen of what was measured.
    let is_far = target_us > TARGET_DRAWN_TIMES * longest_us;
    let note = if is_far { format!(", target {target_us:.0} µs") } else { String::new() };
    let points = vec![(0.0, target_us), (last, target_us)];
    let target = (!is_far).then(|| Series { name: "target".to_owned(), points });
    let figures = [
        series("mean", |point| point.mean_us),
        series("95 %", |point| point.p95_us),
        series("99.9 %", |point| point.p99_9_us),
    ];
    Panel::Line(LineChart {
        caption: format!("{} % reads{note}", curve.read_percent),
        x_label: "thousand requests/s".to_owned(),
        y_label: "µs".to_owned(),
        series: figures.into_iter().chain(target).collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: |value| format!("{}", (value * 100.0).round() / 100.0),
    })
}

/// A target is drawn if it is at most so many times the longest latency that was measured.
const TARGET_DRAWN_TIMES: f64 = 10.0;

/// Writes the curves as CSV and SVG.
pub(super) fn save(out: &Path, curves: &[Curve], latency: Duration) -> std::io::Result<()> {
    const WIDTH: u32 = 900;
    const PANEL_HEIGHT: u32 = 300;
    let panels: Vec<Panel> = curves.iter().map(|curve| panel(curve, latency)).collect();
    let svg = report::figure("Throughput against latency", &panels, WIDTH, PANEL_HEIGHT)
        .map_err(std::io::Error::other)?;
    std::fs::write(out.join("calibration.csv"), table(curves).to_csv())?;
    std::fs::write(out.join("calibration.svg"), svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(read_percent: u8, points: &[(f64, f64)]) -> Curve {
        let point = |&(rate, p95_us): &(f64, f64)| Point {
            depth: 1,
            rate,
            mean_us: p95_us,
            p95_us,
            p99_9_us: p95_us,
        };
        Curve { read_percent, points: points.iter().map(point).collect() }
    }

    /// The measured points are shown, however far above them the target is.
    #[test]
    fn a_target_far_above_is_told_and_not_drawn() {
        let drawn = |p95_us| match panel(&curve(100, &[(1e5, p95_us)]), Duration::from_micros(500))
        {
            Panel::Line(chart) => (chart.caption, chart.series.len()),
            _ => unreachable!("it is one of lines"),
        };
        assert_eq!(drawn(1.0), ("100 % reads, target 500 µs".to_owned(), 3));
        assert_eq!(drawn(100.0), ("100 % reads".to_owned(), 4));
    }

    #[test]
    fn the_ceiling_is_the_most_that_keeps_the_latency() {
        let mixed = curve(70, &[(1e4, 100.0), (1e5, 400.0), (1.2e5, 900.0)]);
        let reads = curve(100, &[(4e5, 100.0)]);
        let proposal = Proposal::of(&[reads.clone(), mixed], Duration::from_micros(500));
        let text = proposal.expect("kept at two depths").to_string();
        assert!(text.starts_with("reads-per-second=70000,writes-per-second=3"), "{text}");
        assert!(text.ends_with("latency-target=500us"), "{text}");
        let writes = curve(0, &[(1e5, 600.0)]);
        assert_eq!(Proposal::of(&[reads, writes], Duration::from_micros(500)), None);
    }
}
