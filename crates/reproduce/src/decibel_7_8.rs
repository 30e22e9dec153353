//! Decibel, figures 7 and 8: throughput against latency of a local drive, over the queue depth.

use report::{Align, LineChart, Panel, Series, Table};
use ssd_model::{Load, Measured, Model, Pattern, Preset, closed_loop};
use units::{Duration, Instant};

use crate::{Finding, Options, Outcome, Progress, ReproduceError};

const DEPTHS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// 800 GB.
const BLOCKS: u64 = 800_000_000_000 / 4096;
/// Time for each depth.
const TIME: Duration = Duration::from_secs(10);

struct Kind {
    title: &'static str,
    read_share: f64,
    /// Best rate of the drive (Decibel, section 4).
    paper_rate: f64,
}

pub(crate) fn reads(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let kind = Kind {
        title: "Decibel, figure 7: random reads of 4 KiB from a modelled P3700",
        read_share: 1.0,
        paper_rate: 460_000.0,
    };
    run(&kind, options, progress)
}

pub(crate) fn writes(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let kind = Kind {
        title: "Decibel, figure 8: random writes of 4 KiB to a modelled P3700",
        read_share: 0.0,
        paper_rate: 100_000.0,
    };
    run(&kind, options, progress)
}

struct Point {
    depth: u32,
    rate: f64,
    mean_us: f64,
    p95_us: f64,
    p999_us: f64,
}

fn run(kind: &Kind, options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let mut points = Vec::new();
    for (n, depth) in DEPTHS.into_iter().enumerate() {
        points.push(measure(kind, depth, options)?);
        progress((n + 1) as f64 / DEPTHS.len() as f64);
    }
    let series = |name: &str, value: fn(&Point) -> f64| Series {
        name: name.into(),
        points: points.iter().map(|point| (point.rate / 1e3, value(point))).collect(),
    };
    let panel = Panel::Line(LineChart {
        caption: "latency over throughput, queue depths 1 to 256".into(),
        x_label: "thousand requests/s".into(),
        y_label: "µs".into(),
        series: vec![
            series("mean", |point| point.mean_us),
            series("95 %", |point| point.p95_us),
            series("99.9 %", |point| point.p999_us),
        ],
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: kind.read_share < 1.0,
        y_format: |value| format!("{value:.0}"),
    });
    Outcome::new(kind.title, &[panel], table(&points), findings(kind, &points))
}

fn measure(kind: &Kind, depth: u32, options: &Options) -> Result<Point, ReproduceError> {
    let mut model = Model::new(&Preset::P3700.params(), BLOCKS, options.seed)?;
    let load = Load {
        depth,
        read_share: kind.read_share,
        request_blocks: 1,
        blocks: BLOCKS,
        pattern: Pattern::Random,
        seed: options.seed,
    };
    let time = TIME.mul_f64(options.time);
    let measured: Measured = closed_loop(&mut model, load, Instant(0), time / 4, time);
    let all = measured.all();
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    Ok(Point {
        depth,
        rate: measured.rate(),
        mean_us: us(all.mean()),
        p95_us: us(all.quantile(0.95)),
        p999_us: us(all.quantile(0.999)),
    })
}

fn table(points: &[Point]) -> Table {
    let columns = ["depth", "requests/s", "mean µs", "95 % µs", "99.9 % µs"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    for point in points {
        let latencies = [point.mean_us, point.p95_us, point.p999_us].map(|us| format!("{us:.1}"));
        let head = [point.depth.to_string(), format!("{:.0}", point.rate)];
        table.row(head.into_iter().chain(latencies));
    }
    table
}

fn findings(kind: &Kind, points: &[Point]) -> Vec<Finding> {
    let best = points.iter().map(|point| point.rate).fold(0.0, f64::max);
    let deepest = points.last().expect("depths");
    let lightest = points.first().expect("depths");
    // Of the lighter half of the depths.
    let light = &points[..points.len() / 2];
    let jitter = light.iter().map(|point| point.p999_us / point.mean_us).fold(0.0, f64::max);
    vec![
        Finding {
            what: "throughput at its best".into(),
            paper: format!("{:.0} requests/s", kind.paper_rate),
            here: format!("{best:.0} requests/s"),
            agrees: (best / kind.paper_rate - 1.0).abs() <= 0.1,
        },
        Finding {
            what: "latency as the load grows".into(),
            paper: "rises steeply near the ceiling".into(),
            here: format!(
                "mean {:.0} µs at depth 1, {:.0} µs at 256",
                lightest.mean_us, deepest.mean_us
            ),
            agrees: deepest.mean_us > 3.0 * lightest.mean_us,
        },
        Finding {
            what: "jitter at light load".into(),
            paper: "the tail lies far above the mean even at low utilisation".into(),
            here: format!("99.9 % takes up to {jitter:.1} times the mean below depth 16"),
            agrees: jitter > 2.0,
        },
    ]
}
