//! "Flash Storage Disaggregation" (EuroSys'16): datastores with local and with remote Flash.
//!
//! A figure of the paper is a picture without numbers; its findings compare what the text says. Flash is modelled P3600 drives,
//! software is times of CPUs: those of `tiers/costs.rs`, which has where each comes from.

mod fleet;
mod latency;
pub mod real_time;
mod sensitivity;
mod sharing;
mod table;
mod tuning;

use report::{Align, Level, LineChart, Marker, Panel, Series, Table};

pub(crate) use fleet::run as figure_1;
pub(crate) use latency::{figure_4a, figure_4b, figure_5};
pub(crate) use sensitivity::{figure_6a, figure_6b};
pub(crate) use sharing::{figure_7a, figure_7b, tenants_per_core};
pub(crate) use table::run as table_1;
pub(crate) use tuning::run as figure_3;

use crate::tiers::costs::{
    BYTES_PER_SET, CORES, CpuCosts, HITS, READ_BLOCKS, Stack, Step, WRITE_BLOCKS, iscsi,
};
use crate::tiers::{Flash, Load, Setup, run};
use crate::{Options, ReproduceError};

/// Mean latency up to which the paper counts throughput.
const MEAN_LIMIT_US: f64 = 1_500.0;
/// The same for the 95th percentile: where its plots of one server end.
const TAIL_LIMIT_US: f64 = 2_000.0;
/// Queries/s at the mean's limit that the paper's iSCSI is below local Flash, and one datastore of it at the tail's limit.
const PAPER_MEAN_PERCENT: f64 = 20.0;
const PAPER_TAIL_PERCENT: f64 = 10.0;
/// Share of gets unless it is the subject.
const GETS: f64 = 0.9;
/// Parts of what the slowest stage can serve, at which curves are measured; beyond it latency grows without end.
const PARTS: [f64; 11] = [0.1, 0.3, 0.5, 0.65, 0.75, 0.83, 0.9, 0.95, 1.0, 1.05, 1.15];
/// The same between which a peak is searched.
const PEAK_PARTS: [f64; 2] = [0.5, 1.2];
/// Halvings of the distance between two points of a curve, to find where it crosses a limit.
const HALVINGS: u32 = 3;
/// The same for a peak of which no curve is known.
const PEAK_HALVINGS: u32 = 5;
/// Multiple of the time added to each query that the limit of the mean leaves room for.
const BUSY_ROOM: f64 = 3.0;
/// Measured time of a point, and the least: some periods of writes.
const POINT_SECONDS: f64 = 4.0;
const POINT_SECONDS_MIN: f64 = 2.0;

/// Datastores that are alike.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    servers: usize,
    gets: f64,
    busy_ns: u64,
    flash: Flash,
    costs: CpuCosts,
}

/// A measured rate, of all servers together.
#[derive(Clone, Copy, Debug)]
struct Point {
    per_second: f64,
    mean_us: f64,
    p95_us: f64,
    flash_cpu: f64,
}

fn remote(stack: Stack) -> Flash {
    Flash::Remote { stack, cores: CORES, drive_each: false }
}

/// Tuned iSCSI.
fn tuned() -> Flash {
    remote(iscsi(Step::Affinity))
}

fn seconds(options: &Options) -> f64 {
    (POINT_SECONDS * options.time).max(POINT_SECONDS_MIN)
}

impl Case {
    const fn new(name: &'static str, flash: Flash, costs: CpuCosts) -> Self {
        Self { name, servers: 1, gets: GETS, busy_ns: 0, flash, costs }
    }

    /// Queries a second of one server that its slowest stage can serve.
    fn nominal(&self) -> f64 {
        let misses = self.gets * (1.0 - HITS);
        let own = self.gets * self.costs.get_ns as f64;
        let own = own + (1.0 - self.gets) * self.costs.set_ns as f64;
        let own = own + self.busy_ns as f64;
        let Flash::Remote { stack, .. } = self.flash else { return f64::from(CORES) * 1e9 / own };
        let bytes = |blocks: u64| ((blocks - 1) * 4096) as f64 * stack.ns_per_byte;
        let read = stack.initiator_ns as f64 + bytes(READ_BLOCKS);
        let write = stack.initiator_ns as f64 + bytes(WRITE_BLOCKS);
        let writes = (1.0 - self.gets) * BYTES_PER_SET / (WRITE_BLOCKS * 4096) as f64;
        let cpus = f64::from(CORES) * 1e9 / (own + misses * read + writes * write);
        // A process waits for the drive, about 0.1 ms.
        let held = (stack.target_ns - stack.serial_ns) as f64 + bytes(READ_BLOCKS) + 100e3;
        let processes = stack.processes.map_or(f64::INFINITY, |n| f64::from(n) * 1e9 / held);
        let connection = 1e9 / stack.serial_ns as f64;
        cpus.min(processes.min(connection) / misses.max(1e-9))
    }

    fn measure(&self, per_server: f64, options: &Options) -> Result<Point, ReproduceError> {
        let load = Load::Queries { per_second: per_server, gets: self.gets, busy_ns: self.busy_ns };
        let measured = run(&Setup {
            tenants: vec![load; self.servers],
            flash: self.flash,
            costs: self.costs,
            seconds: seconds(options),
            seed: options.seed,
        })?;
        Ok(Point {
            per_second: per_server * self.servers as f64,
            mean_us: measured.mean_us(),
            p95_us: measured.quantile_us(0.95),
            flash_cpu: measured.flash_cpu,
        })
    }

    fn curve(&self, options: &Options) -> Result<Vec<Point>, ReproduceError> {
        let highest = self.nominal();
        PARTS.iter().map(|part| self.measure(highest * part, options)).collect()
    }

    /// Returns the rate of all servers at which `value` comes to `limit`; `points` is a curve.
    fn crossing(
        &self,
        points: &[Point],
        value: fn(&Point) -> f64,
        limit: f64,
        options: &Options,
    ) -> Result<f64, ReproduceError> {
        self.crossing_in(HALVINGS, points, value, limit, options)
    }

    fn crossing_in(
        &self,
        halvings: u32,
        points: &[Point],
        value: fn(&Point) -> f64,
        limit: f64,
        options: &Options,
    ) -> Result<f64, ReproduceError> {
        let servers = self.servers as f64;
        let beyond = points.iter().position(|point| value(point) > limit);
        let Some(beyond) = beyond else {
            return Ok(points.last().map_or(0.0, |point| point.per_second));
        };
        let mut high = points[beyond].per_second;
        let mut low = beyond.checked_sub(1).map_or(0.0, |before| points[before].per_second);
        for _ in 0..halvings {
            let middle = (low + high) / 2.0;
            let point = self.measure(middle / servers, options)?;
            if value(&point) > limit { high = middle } else { low = middle }
        }
        Ok((low + high) / 2.0)
    }

    /// Returns the rate of all servers up to which the mean latency is bounded: by the paper's limit, and more where each
    /// query takes longer by itself.
    fn peak(&self, options: &Options) -> Result<f64, ReproduceError> {
        let nominal = self.nominal();
        let ends = PEAK_PARTS.map(|part| self.measure(nominal * part, options));
        let [low, high] = ends;
        let limit_us = MEAN_LIMIT_US + BUSY_ROOM * self.busy_ns as f64 / 1e3;
        let mean = |point: &Point| point.mean_us;
        self.crossing_in(PEAK_HALVINGS, &[low?, high?], mean, limit_us, options)
    }
}

/// A panel of latencies over rates, up to twice `limit_us`, at which rates are compared. `paper` are the rates at that
/// limit by the paper's drops, with their names.
fn curves(
    caption: &str,
    all: &[(&str, &[Point])],
    value: fn(&Point) -> f64,
    limit_us: f64,
    paper: &[(f64, &str)],
) -> Panel {
    let limit = limit_us / 1e3;
    let series = all.iter().map(|(name, points)| Series {
        name: (*name).to_owned(),
        points: cut(
            points.iter().map(|point| (point.per_second / 1e3, value(point) / 1e3)),
            limit * 2.0,
        ),
    });
    let marker = |(rate, name): &(f64, &str)| Marker { x: rate / 1e3, name: (*name).to_owned() };
    Panel::Line(LineChart {
        caption: caption.into(),
        x_label: "thousand queries/s".into(),
        y_label: "latency of gets, ms".into(),
        series: series.collect(),
        markers: paper.iter().map(marker).collect(),
        levels: vec![Level { y: limit, name: format!("limit of {limit} ms") }],
        is_logarithmic: false,
        y_format: |value| format!("{value:.1}"),
    })
}

/// Panels of the mean and of the 95th percentile of gets, with the rates at which the paper's iSCSI reaches the limits: 20 % and
/// `paper_tail_percent` below `local`, which are those of local Flash.
fn mean_and_tail(
    caption: &str,
    all: &[(&str, &[Point])],
    local: [f64; 2],
    paper_tail_percent: f64,
) -> [Panel; 2] {
    let panel = |caption, value, limit_us, local: f64, percent: f64| {
        let name = format!("paper: iSCSI, {percent} % below local");
        curves(caption, all, value, limit_us, &[((1.0 - percent / 100.0) * local, &name)])
    };
    let [mean, tail] = local;
    [
        panel(caption, |point| point.mean_us, MEAN_LIMIT_US, mean, PAPER_MEAN_PERCENT),
        panel("95th percentile", |point| point.p95_us, TAIL_LIMIT_US, tail, paper_tail_percent),
    ]
}

/// The points up to `highest`, and where a line from the last of them to the next comes to it.
fn cut(points: impl Iterator<Item = (f64, f64)>, highest: f64) -> Vec<(f64, f64)> {
    let mut shown: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        if y <= highest {
            shown.push((x, y));
            continue;
        }
        if let Some((before_x, before_y)) = shown.last().copied() {
            // To what is infinite it rises at once.
            let part = if y.is_finite() { (highest - before_y) / (y - before_y) } else { 0.0 };
            shown.push((before_x + (x - before_x) * part, highest));
        }
        break;
    }
    shown
}

fn curves_table(all: &[(&str, &[Point])]) -> Table {
    let mut table = Table::new(&[
        ("flash", Align::Left),
        ("queries/s", Align::Right),
        ("mean µs", Align::Right),
        ("95 % µs", Align::Right),
        ("CPU of the Flash server", Align::Right),
    ]);
    for (name, points) in all {
        for point in *points {
            table.row([
                (*name).to_owned(),
                format!("{:.0}", point.per_second),
                format!("{:.1}", point.mean_us),
                format!("{:.1}", point.p95_us),
                format!("{:.3}", point.flash_cpu),
            ]);
        }
    }
    table
}

/// Share by which `value` is below `of`, in percent.
fn drop_percent(value: f64, of: f64) -> f64 {
    (1.0 - value / of) * 100.0
}

fn near(value: f64, wanted: f64, off: f64) -> bool {
    (value - wanted).abs() <= off
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Curves end at the frame, not at the last point below it.
    #[test]
    fn a_curve_is_drawn_up_to_the_frame() {
        let rising = [(10.0, 1.0), (20.0, 2.0), (30.0, 4.0), (40.0, 5.0)];
        assert_eq!(cut(rising.into_iter(), 3.0), [(10.0, 1.0), (20.0, 2.0), (25.0, 3.0)]);
        assert_eq!(cut(rising.into_iter(), 9.0), rising);
        let overloaded = [(10.0, 1.0), (20.0, f64::INFINITY)];
        assert_eq!(cut(overloaded.into_iter(), 3.0), [(10.0, 1.0), (10.0, 3.0)]);
        assert_eq!(cut([(10.0, 9.0)].into_iter(), 3.0), []);
    }
}
