//! "Flash Storage Disaggregation", figure 7, at the level of blocks: tenants that read steadily and
//! write in bursts (flushes and compactions) share one drive, and wait behind each other's writes.
//!
//! Reads come by themselves, at a rate: were each to wait for the one before, those that a burst holds
//! up would be few, and missing from the tail.

use report::{Align, LineChart, Panel, Series, Table};
use schedule::{Ceiling, PolicyKind, Slo};
use ssd_model::Preset;
use units::{Duration, Instant};

use crate::bench::{Bench, Client, Depth, Device, Got, UNBOUNDED};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// 400 GB.
const BLOCKS: u64 = 400_000_000_000 / 4096;
const CEILING: Ceiling = Ceiling { reads_per_second: 90_000, writes_per_second: 20_000 };
const LATENCY: Duration = Duration::from_micros(600);
/// Reads of each tenant.
const READS_PER_SECOND: u32 = 20_000;
/// Writes that it has outstanding while it flushes or compacts, and their blocks: 128 KiB.
const WRITES: u32 = 8;
const WRITE_BLOCKS: u32 = 32;
/// A tenant writes for so long in each period; the tenants are out of step.
const PERIOD: Duration = Duration::from_secs(2);
const BURST: Duration = Duration::from_millis(400);
const TIME: Duration = Duration::from_secs(60);
const TENANTS: usize = 3;

/// Ways to share: a name, a policy, and the latency that its windows follow from.
const WAYS: [(&str, &str, Duration); 3] =
    [("no scheduler", "fcfs", UNBOUNDED), ("fcfs", "fcfs", LATENCY), ("drr", "drr", LATENCY)];

struct Point {
    tenants: usize,
    way: &'static str,
    reads_per_second: f64,
    written_mb_per_second: f64,
    mean_us: f64,
    p95_us: f64,
    p99_us: f64,
}

pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let mut points = Vec::new();
    for way in WAYS {
        for tenants in 1..=TENANTS {
            points.push(measure(options, way, tenants)?);
            progress(points.len() as f64 / (WAYS.len() * TENANTS) as f64);
        }
    }
    let title = "EuroSys'16, figure 7: reads beside bursts of writes on a modelled P3600";
    let panels = [
        panel("95 % of reads", &points, |point| point.p95_us),
        panel("99 % of reads", &points, |point| point.p99_us),
    ];
    Outcome::new(title, &panels, table(&points), findings(&points))
}

fn measure(
    options: &Options,
    (way, policy, latency): (&'static str, &str, Duration),
    tenants: usize,
) -> Result<Point, ReproduceError> {
    let depth = |writes| Depth::Open { reads_per_second: READS_PER_SECOND, writes };
    let client = Client { slo: Slo::default(), depth: depth(0), blocks: [1, WRITE_BLOCKS] };
    let params = Preset::P3600.params();
    let device = Device { params, blocks: BLOCKS, ceiling: CEILING, latency };
    let policy: PolicyKind = policy.parse().expect("a known policy");
    let mut bench = Bench::new(&device, policy, &vec![client; tenants], options.seed)?;
    // A step for each tenant's turn: bursts begin and end on steps only.
    let step = BURST / 4;
    let time = TIME.mul_f64(options.time).max(PERIOD * 3);
    let mut all: Vec<Option<Got>> = vec![None; tenants];
    while bench.now() < Instant(0) + PERIOD + time {
        if bench.now() < Instant(0) + PERIOD {
            (0..tenants).for_each(|tenant| drop(bench.take_got(tenant)));
        }
        for tenant in 0..tenants {
            let shift = PERIOD.mul_f64(0.37 * tenant as f64);
            let at_ns = (bench.now() + shift).0 % PERIOD.as_nanos() as u64;
            let writes = if u128::from(at_ns) < BURST.as_nanos() { WRITES } else { 0 };
            bench.set_depth(tenant, depth(writes));
        }
        let end = bench.now() + step;
        bench.run_until(end);
        if bench.now() > Instant(0) + PERIOD {
            for (tenant, sum) in all.iter_mut().enumerate() {
                let got = bench.take_got(tenant);
                match sum {
                    None => *sum = Some(got),
                    Some(sum) => sum.add(&got),
                }
            }
        }
    }
    let mut all = all.into_iter().flatten();
    let mut sum = all.next().expect("a tenant");
    all.for_each(|got| sum.add(&got));
    let us = |quantile: f64| sum.latencies[0].value_at_quantile(quantile) as f64 / 1e3;
    Ok(Point {
        tenants,
        way,
        reads_per_second: sum.requests[0] as f64 / time.as_secs_f64() / tenants as f64,
        written_mb_per_second: sum.requests[1] as f64 * f64::from(WRITE_BLOCKS) * 4096.0
            / 1e6
            / time.as_secs_f64(),
        mean_us: sum.latencies[0].mean() / 1e3,
        p95_us: us(0.95),
        p99_us: us(0.99),
    })
}

fn panel(caption: &str, points: &[Point], value: fn(&Point) -> f64) -> Panel {
    let series = WAYS.iter().map(|(name, ..)| Series {
        name: (*name).to_owned(),
        points: points
            .iter()
            .filter(|point| point.way == *name)
            .map(|point| (point.tenants as f64, value(point)))
            .collect(),
    });
    Panel::Line(LineChart {
        caption: caption.into(),
        x_label: "tenants".into(),
        y_label: "µs".into(),
        series: series.collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: |value| format!("{value:.0}"),
    })
}

fn table(points: &[Point]) -> Table {
    let numbers = ["tenants", "reads/s of each", "written MB/s", "mean µs", "95 % µs", "99 % µs"];
    let columns: Vec<_> = std::iter::once(("sharing", Align::Left))
        .chain(numbers.map(|name| (name, Align::Right)))
        .collect();
    let mut table = Table::new(&columns);
    for point in points {
        let head = [point.way.to_owned(), point.tenants.to_string()];
        let values = [
            point.reads_per_second,
            point.written_mb_per_second,
            point.mean_us,
            point.p95_us,
            point.p99_us,
        ];
        table.row(head.into_iter().chain(values.map(|value| format!("{value:.1}"))));
    }
    table
}

fn findings(points: &[Point]) -> Vec<Finding> {
    let of = |way: &str, tenants: usize| {
        let found = points.iter().find(|point| (point.way, point.tenants) == (way, tenants));
        found.expect("all were measured")
    };
    let growth = |way: &str| [2, 3].map(|n| (of(way, n).p95_us / of(way, 1).p95_us - 1.0) * 100.0);
    let none = growth("no scheduler");
    let last = |way: &str| of(way, TENANTS);
    let (drr, free) = (last("drr"), last("no scheduler"));
    vec![
        Finding {
            what: "tail of reads as tenants share a drive".into(),
            paper: "two tenants cost the 95th percentile 25 %, three 55 %".into(),
            here: format!("two {:+.0} %, three {:+.0} %, without a scheduler", none[0], none[1]),
            agrees: none[0] > 5.0 && none[1] > none[0],
        },
        Finding {
            what: "the same with ceilings, three tenants, 95 and 99 % of reads".into(),
            paper: "goal: no longer than without a scheduler, under drr, for half of the writes at most"
                .into(),
            here: format!(
                "{:.0} and {:.0} µs under drr, {:.0} and {:.0} µs under fcfs, {:.0} and {:.0} µs \
                 without; {:.0} MB/s written under drr, {:.0} MB/s without",
                drr.p95_us,
                drr.p99_us,
                last("fcfs").p95_us,
                last("fcfs").p99_us,
                free.p95_us,
                free.p99_us,
                drr.written_mb_per_second,
                free.written_mb_per_second
            ),
            agrees: drr.p95_us <= free.p95_us
                && drr.p99_us <= free.p99_us
                && drr.written_mb_per_second >= free.written_mb_per_second / 2.0,
        },
    ]
}
