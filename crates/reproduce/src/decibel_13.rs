//! Decibel, figure 13: three clients of 70/30 reads and writes, each with 30 requests outstanding and
//! three tenths of one drive; the second has 90 for the middle third of nine minutes.

use report::{Align, LineChart, Marker, Panel, Series, Table};
use schedule::{Ceiling, PolicyKind, Slo};
use ssd_model::Preset;
use units::{Duration, Instant};

use crate::bench::{Bench, Client, Depth, Device};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// A third of the run: before, during and after the burst.
const PHASE: Duration = Duration::from_secs(180);
/// Points of each client in the plot: a second each, in the paper's time.
const POINTS: u32 = 540;
/// Requests that each keeps outstanding.
pub const DEPTH: u32 = 30;
/// Requests that the second client keeps outstanding in the burst.
pub const BURST: u32 = 90;
/// Rate of the modelled drive for 70/30 with a hundred requests under way: 190 000 a second. It needs more of them
/// for the 200 000 of the data sheet, and an operator sets a ceiling to bound latency.
const CEILING: Ceiling = Ceiling { reads_per_second: 133_000, writes_per_second: 57_000 };
/// Each client's part of it.
pub const PART: f64 = 0.3;
/// The operator's latency goal for the drive at its ceiling: a hundred requests under way.
const LATENCY: Duration = Duration::from_micros(500);
/// 800 GB.
const BLOCKS: u64 = 800_000_000_000 / 4096;
/// The drive and the clients settle before the first point.
const WARM_UP: Duration = Duration::from_secs(2);

/// Rates of the three clients under one policy.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The policy.
    pub policy: PolicyKind,
    /// Requests a second of each client at each point; a third of the points before, while and after
    /// the second client bursts.
    pub rates: Vec<[f64; 3]>,
    /// 99th percentile of the read latency of each client, for each phase.
    pub read_p99_us: [[f64; 3]; 3],
}

/// The parameters of the curves.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Above the plot.
    pub title: String,
    /// The ceiling of the drive.
    pub ceiling: Ceiling,
    /// Length of the whole, in seconds.
    pub seconds: f64,
    /// By how much a neighbour may miss its share, in percent.
    pub tolerance_percent: f64,
    /// By how much the total in the burst may miss the ceiling, in percent.
    pub idle_percent: f64,
}

/// The figure from three curves, of whatever drive.
///
/// # Errors
/// The plot could not be drawn.
pub fn outcome(curves: &[Curve], setting: &Setting) -> Result<Outcome, ReproduceError> {
    let panels: Vec<Panel> = curves.iter().map(|curve| panel(curve, setting.seconds)).collect();
    let table = table(curves, setting.seconds);
    Outcome::new(&setting.title, &panels, table, findings(curves, setting))
}

pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let mut curves = Vec::new();
    let order = ["fcfs", "sts", "drr"];
    for (done, name) in order.iter().enumerate() {
        let policy: PolicyKind = name.parse().expect("a known policy");
        let mut tell = |part: f64| progress((done as f64 + part) / order.len() as f64);
        curves.push(measure(options, policy, &mut tell)?);
    }
    let setting = Setting {
        title: "Decibel, figure 13: isolation of three volumes on a modelled P3700".into(),
        ceiling: CEILING,
        seconds: PHASE.as_secs_f64() * 3.0 * options.time,
        tolerance_percent: 2.0,
        idle_percent: 2.0,
    };
    outcome(&curves, &setting)
}

fn measure(
    options: &Options,
    policy: PolicyKind,
    progress: Progress<'_>,
) -> Result<Curve, ReproduceError> {
    let rate = |ceiling: u64| (ceiling as f64 * PART) as u64;
    let slo = Slo::Rate {
        reads_per_second: rate(CEILING.reads_per_second),
        writes_per_second: rate(CEILING.writes_per_second),
    };
    let depth = |requests| Depth::Mixed { requests, reads_percent: 70 };
    let client = Client { slo, depth: depth(DEPTH), blocks: [1, 1] };
    let device = Device {
        params: Preset::P3700.params(),
        blocks: BLOCKS,
        ceiling: CEILING,
        latency: LATENCY,
    };
    let mut bench = Bench::new(&device, policy, &[client; 3], options.seed)?;
    bench.run_until(Instant(0) + WARM_UP);
    (0..3).for_each(|client| drop(bench.take_got(client)));
    let step = PHASE.mul_f64(options.time * 3.0 / f64::from(POINTS));
    let mut curve = Curve { policy, rates: Vec::new(), read_p99_us: [[0.0; 3]; 3] };
    for phase in 0..3 {
        bench.set_depth(1, depth(if phase == 1 { BURST } else { DEPTH }));
        let mut latencies = [None, None, None];
        for _ in 0..POINTS / 3 {
            let end = bench.now() + step;
            bench.run_until(end);
            let mut rates = [0.0; 3];
            for (client, (rate, latency)) in rates.iter_mut().zip(&mut latencies).enumerate() {
                let got = bench.take_got(client);
                *rate = got.total() as f64 / step.as_secs_f64();
                let [reads, _] = got.latencies;
                match latency {
                    None => *latency = Some(reads),
                    Some(sum) => sum.add(&reads).expect("equal bounds"),
                }
            }
            curve.rates.push(rates);
            progress(curve.rates.len() as f64 / f64::from(POINTS));
        }
        curve.read_p99_us[phase] =
            latencies.map(|all| all.map_or(0.0, |all| all.value_at_quantile(0.99) as f64 / 1e3));
    }
    Ok(curve)
}

impl Curve {
    /// Mean rates of a phase; the first tenth, in which depths change over, is left out.
    fn phase(&self, phase: usize) -> [f64; 3] {
        let len = self.rates.len() / 3;
        let part = &self.rates[phase * len + len / 10..(phase + 1) * len];
        let mut mean = [0.0; 3];
        for rates in part {
            for (mean, rate) in mean.iter_mut().zip(rates) {
                *mean += rate / part.len() as f64;
            }
        }
        mean
    }

    /// The least of a client in any second of a phase, or in any point if these are longer. `seconds`
    /// is the length of the whole.
    fn least(&self, phase: usize, client: usize, seconds: f64) -> f64 {
        let len = self.rates.len() / 3;
        let points = (self.rates.len() as f64 / seconds).ceil() as usize;
        let second = |part: &[[f64; 3]]| {
            part.iter().map(|rates| rates[client]).sum::<f64>() / part.len() as f64
        };
        let part = &self.rates[phase * len..(phase + 1) * len];
        part.windows(points.clamp(1, len)).map(second).fold(f64::INFINITY, f64::min)
    }
}

fn panel(curve: &Curve, seconds: f64) -> Panel {
    let points = curve.rates.len() as f64;
    let minutes = |point: usize| (point as f64 + 0.5) * seconds / 60.0 / points;
    let series = (0..3).map(|client| Series {
        name: format!("client {}", client + 1),
        points: curve.rates.iter().enumerate().map(|(n, r)| (minutes(n), r[client])).collect(),
    });
    let marker = |third: f64, name: &str| Marker { x: third * seconds / 180.0, name: name.into() };
    Panel::Line(LineChart {
        caption: curve.policy.to_string(),
        x_label: "minutes".into(),
        y_label: "requests/s".into(),
        series: series.collect(),
        markers: vec![marker(1.0, "client 2: 90"), marker(2.0, "30")],
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: report::rate,
    })
}

fn table(curves: &[Curve], seconds: f64) -> Table {
    let mut table = Table::new(&[
        ("policy", Align::Left),
        ("seconds", Align::Right),
        ("client 1", Align::Right),
        ("client 2", Align::Right),
        ("client 3", Align::Right),
    ]);
    for curve in curves {
        for (n, rates) in curve.rates.iter().enumerate() {
            let at = (n as f64 + 0.5) * seconds / curve.rates.len() as f64;
            let cells = rates.map(|rate| format!("{rate:.0}"));
            let head = [curve.policy.to_string(), format!("{at:.3}")];
            table.row(head.into_iter().chain(cells));
        }
    }
    table
}

fn findings(curves: &[Curve], setting: &Setting) -> Vec<Finding> {
    let mut findings = Vec::new();
    for curve in curves {
        let (before, during) = (curve.phase(0), curve.phase(1));
        let of = |got: f64, whole: f64| (got / whole - 1.0) * 100.0;
        let change = |client: usize| of(during[client], before[client]);
        let total: f64 = during.iter().sum();
        let ceiling = setting.ceiling;
        let ceiling = (ceiling.reads_per_second + ceiling.writes_per_second) as f64;
        let off = setting.tolerance_percent;
        let used_up = (1.0 - setting.idle_percent / 100.0) * ceiling;
        // Then all three had more than their share before, and the burst has nothing to take.
        let nothing_was_left = before.iter().sum::<f64>() >= used_up;
        let share = ceiling * PART;
        let is_shared = curve.policy.name != "fcfs";
        let of_share = |client: usize| of(during[client], share);
        let neighbours =
            [0, 2].map(|client| if is_shared { of_share(client) } else { change(client) });
        // A client of so many requests of mixed kinds may not ask for all of its share: while all of them
        // wait as reads, its writes' part goes by. What it got before the burst is what it asks for.
        let due = [0, 2].map(|client| (client, share.min(before[client])));
        let phases = (0..3).flat_map(|phase| due.map(|(client, due)| (phase, client, due)));
        let least =
            phases.map(|(phase, client, due)| curve.least(phase, client, setting.seconds) / due);
        let at_worst = (least.fold(f64::INFINITY, f64::min) - 1.0) * 100.0;
        let here = format!(
            "neighbours {:+.1} % and {:+.1} % of {}, at worst {at_worst:+.1} % of what they have of their share without \
             the burst in any second, client 2 {:+.1} % of what it had, {:.1} % of the ceiling in all; 99 % of the neighbours' reads {:.0} µs, before {:.0} µs",
            neighbours[0],
            neighbours[1],
            if is_shared { "their share" } else { "what they had" },
            change(1),
            total / ceiling * 100.0,
            curve.read_p99_us[1][0],
            curve.read_p99_us[0][0],
        );
        let kept = at_worst >= -off && due.iter().all(|(_, due)| of(*due, share) >= -off);
        let (paper, agrees) = match curve.policy.name {
            "fcfs" => {
                ("the burst costs the others about 25 %", neighbours.iter().all(|c| *c < -10.0))
            }
            "sts" => {
                ("the others keep theirs, the burst gains nothing", kept && change(1).abs() <= off)
            }
            _ => (
                "the others keep theirs, the burst takes what is left up to the ceiling",
                kept && total >= used_up && (change(1) > 5.0 || nothing_was_left),
            ),
        };
        let what = format!("burst under {}", curve.policy);
        findings.push(Finding { what, paper: paper.into(), here, agrees });
    }
    findings
}
