//! Figures 6a and 6b: the peak of a datastore, as compute and writes grow.

use report::{Align, LineChart, Panel, Series, Table};

use super::{Case, drop_percent, remote, tuned};
use crate::tiers::Flash;
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// Time that is added to each query.
const BUSY_US: [u64; 6] = [0, 50, 100, 200, 400, 800];
/// Shares of sets.
const SETS: [f64; 6] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5];

const NAMES: [&str; 3] = ["local", "iSCSI, tuned", "farflash"];

/// Peaks of each way to Flash at one place of the axis.
struct Row {
    x: f64,
    peaks: [f64; 3],
}

impl Row {
    fn measure(x: f64, gets: f64, busy_us: u64, options: &Options) -> Result<Self, ReproduceError> {
        let costs = options.costs;
        let flash = [Flash::Local, tuned(), remote(costs.farflash())];
        let mut peaks = [0.0; 3];
        for ((peak, name), flash) in peaks.iter_mut().zip(NAMES).zip(flash) {
            let case = Case { gets, busy_ns: busy_us * 1_000, ..Case::new(name, flash, costs) };
            *peak = case.peak(options)?;
        }
        Ok(Self { x, peaks })
    }

    /// Percent by which the peak with remote Flash is below that with local Flash.
    fn gap(&self, way: usize) -> f64 {
        drop_percent(self.peaks[way], self.peaks[0])
    }
}

fn outcome(
    title: &str,
    x_label: &str,
    rows: &[Row],
    findings: Vec<Finding>,
    why: &str,
) -> Result<Outcome, ReproduceError> {
    let columns = [x_label, NAMES[0], NAMES[1], NAMES[2], "gap of iSCSI %", "gap of farflash %"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    for row in rows {
        let cells = row.peaks.iter().map(|peak| format!("{peak:.0}"));
        let gaps = [1, 2].map(|way| format!("{:.1}", row.gap(way)));
        table.row(std::iter::once(row.x.to_string()).chain(cells).chain(gaps));
    }
    let series = NAMES.iter().enumerate().map(|(way, name)| Series {
        name: (*name).to_owned(),
        points: rows.iter().map(|row| (row.x, row.peaks[way] / 1e3)).collect(),
    });
    let panel = Panel::Line(LineChart {
        caption: "highest rate with a bounded mean latency".into(),
        x_label: x_label.into(),
        y_label: "thousand queries/s".into(),
        series: series.collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: |value| format!("{value:.0}"),
    });
    Ok(Outcome::new(title, &[panel], table, findings)?.because(why))
}

/// Runs `eurosys-6a`.
pub(crate) fn figure_6a(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let mut rows = Vec::new();
    for busy_us in BUSY_US {
        rows.push(Row::measure(busy_us as f64, super::GETS, busy_us, options)?);
        progress(rows.len() as f64 / BUSY_US.len() as f64);
    }
    let (first, last) = (&rows[0], &rows[rows.len() - 1]);
    let findings = vec![Finding {
        what: "gap between local Flash and iSCSI as each query computes more".into(),
        paper: "becomes negligible".into(),
        here: format!("{:.0} % at first, {:.0} % at the end", first.gap(1), last.gap(1)),
        agrees: last.gap(1) < 5.0 && last.gap(1) < first.gap(1) / 2.0,
    }];
    let title = "EuroSys'16, figure 6a: peak of a datastore as queries compute more";
    let why = "The limit of the mean grows with what each query computes, so that peaks stay near what \
        the CPUs serve, of which iSCSI takes a part that falls, but not to nothing.";
    outcome(title, "computing added to each query, µs", &rows, findings, why)
}

/// Runs `eurosys-6b`.
pub(crate) fn figure_6b(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let mut rows = Vec::new();
    for sets in SETS {
        rows.push(Row::measure(sets * 100.0, 1.0 - sets, 0, options)?);
        progress(rows.len() as f64 / SETS.len() as f64);
    }
    let (first, last) = (&rows[0], &rows[rows.len() - 1]);
    let gaps: Vec<f64> = rows.iter().map(|row| row.gap(1)).collect();
    let low = gaps.iter().copied().fold(f64::INFINITY, f64::min);
    let high = gaps.iter().copied().fold(0.0, f64::max);
    let findings = vec![
        Finding {
            what: "peak as the share of writes grows".into(),
            paper: "grows".into(),
            here: format!(
                "{:.0} queries/s without, {:.0} with {:.0} %, local Flash",
                first.peaks[0], last.peaks[0], last.x
            ),
            agrees: last.peaks[0] > first.peaks[0],
        },
        Finding {
            what: "gap between local Flash and iSCSI meanwhile".into(),
            paper: "roughly the same".into(),
            here: format!("{low:.0} to {high:.0} %"),
            agrees: high - low < 10.0,
        },
    ];
    let title = "EuroSys'16, figure 6b: peak of a datastore as the share of writes grows";
    let why = "Each write of 128 KiB holds one of the target's six processes for the time of many reads, so \
        that iSCSI gains nothing from sets, which are cheaper for the datastore than gets.";
    outcome(title, "share of sets, %", &rows, findings, why)
}
