//! Figures 7a and 7b, and how many datastores a core of a Flash server supports.

use report::{Align, Level, LineChart, Marker, Panel, Series, Table};

use super::{
    Case, MEAN_LIMIT_US, Point, TAIL_LIMIT_US, curves_table, cut, drop_percent, mean_and_tail,
    near, remote, tuned,
};
use crate::tiers::Flash;
use crate::tiers::costs::{Stack, Step, iscsi};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// Runs `eurosys-7a`.
pub(crate) fn figure_7a(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    shared(2, 25.0, options, progress)
}

/// Runs `eurosys-7b`.
pub(crate) fn figure_7b(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    shared(3, 55.0, options, progress)
}

/// Datastores with a drive each, and with one drive of a Flash server.
fn shared(
    servers: usize,
    paper_tail: f64,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let costs = options.costs;
    let one = [Flash::Local, tuned()].map(|flash| Case::new("alone", flash, costs));
    let farflash = remote(costs.farflash());
    let all = [("local", Flash::Local), ("iSCSI, tuned", tuned()), ("farflash", farflash)];
    let cases = all.map(|(name, flash)| Case { servers, ..Case::new(name, flash, costs) });
    let (mut curves_of, mut peaks): (Vec<Vec<Point>>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    for case in cases.iter().chain(&one) {
        let points = case.curve(options)?;
        let mean = case.crossing(&points, |point| point.mean_us, MEAN_LIMIT_US, options)?;
        let tail = case.crossing(&points, |point| point.p95_us, TAIL_LIMIT_US, options)?;
        curves_of.push(points);
        peaks.push([mean, tail]);
        progress(peaks.len() as f64 / (cases.len() + one.len()) as f64);
    }
    let named: Vec<(&str, &[Point])> =
        cases.iter().zip(&curves_of).map(|(case, points)| (case.name, points.as_slice())).collect();
    let caption = "mean over the rate of all datastores together";
    let panels = mean_and_tail(caption, &named, peaks[0], paper_tail);
    let drop = |case: usize, local: usize, kind: usize| {
        drop_percent(peaks[case][kind], peaks[local][kind])
    };
    let (mean, tail, alone) = (drop(1, 0, 0), drop(1, 0, 1), drop(4, 3, 1));
    let findings = vec![
        Finding {
            what: format!("queries/s at a mean of 1.5 ms, {servers} datastores, iSCSI below local"),
            paper: "20 %, as for one".into(),
            here: format!("{mean:.0} %, and {:.0} % for one", drop(4, 3, 0)),
            agrees: near(mean, 20.0, 8.0) && near(mean, drop(4, 3, 0), 5.0),
        },
        Finding {
            what: "queries/s at a 95th percentile of 2 ms".into(),
            paper: format!("{paper_tail} %, by the writes of others; 10 % for one"),
            here: format!(
                "{tail:.0} %, {alone:.0} % for one; farflash, without a ceiling, {:.0} %",
                drop(2, 0, 1)
            ),
            agrees: tail > alone + 5.0,
        },
    ];
    let figure = if servers == 2 { "7a" } else { "7b" };
    let title = format!(
        "EuroSys'16, figure {figure}: latency of {servers} datastores that share one drive"
    );
    let why = "Writes of others delay reads less on the modelled drive than in the paper, at the rate of \
        writes that is assumed. That tail of one datastore already loses more than the paper's; with \
        three, the target's six processes are used up, which the mean feels.";
    Ok(Outcome::new(&title, &panels, curves_table(&named), findings)?.because(why))
}

/// Datastores on a core, at most.
const TENANTS: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Tenants that one core supports with iSCSI.
const PAPER_TENANTS: usize = 3;
/// Part of its own peak that each datastore asks for: peak load, with what chance makes of it.
const AT_PEAK: f64 = 0.9;

/// Mean latencies by number of tenants.
struct Supported {
    name: &'static str,
    means_us: Vec<f64>,
    cpu: Vec<f64>,
}

impl Supported {
    fn measure(
        name: &'static str,
        stack: Stack,
        cores: u32,
        options: &Options,
    ) -> Result<Self, ReproduceError> {
        let alone = Case::new(name, remote(stack), options.costs);
        let per_server = AT_PEAK * alone.peak(options)?;
        let (mut means_us, mut cpu) = (Vec::new(), Vec::new());
        for servers in TENANTS {
            // Each has a drive, so that CPUs alone are shared.
            let flash = Flash::Remote { stack, cores, drive_each: true };
            let point = Case { servers, flash, ..alone }.measure(per_server, options)?;
            means_us.push(point.mean_us);
            cpu.push(point.flash_cpu);
        }
        Ok(Self { name, means_us, cpu })
    }

    /// Tenants up to which the mean is bounded.
    fn tenants(&self) -> usize {
        self.means_us.iter().take_while(|mean| **mean <= MEAN_LIMIT_US).count()
    }
}

/// Runs `tenants-per-core`.
pub(crate) fn tenants_per_core(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let stack = iscsi(Step::Affinity);
    let ways = [
        ("iSCSI, one core", stack, 1),
        ("iSCSI, two cores", stack, 2),
        ("farflash, one core", options.costs.farflash(), 1),
    ];
    let mut all = Vec::new();
    for (name, stack, cores) in ways {
        all.push(Supported::measure(name, stack, cores, options)?);
        progress(all.len() as f64 / ways.len() as f64);
    }
    let mut table = Table::new(&[
        ("flash", Align::Left),
        ("tenants", Align::Right),
        ("mean µs", Align::Right),
        ("CPU of the Flash server", Align::Right),
    ]);
    for way in &all {
        for ((tenants, mean_us), cpu) in TENANTS.iter().zip(&way.means_us).zip(&way.cpu) {
            let numbers = [tenants.to_string(), format!("{mean_us:.1}"), format!("{cpu:.3}")];
            table.row(std::iter::once(way.name.to_owned()).chain(numbers));
        }
    }
    let limit_ms = MEAN_LIMIT_US / 1e3;
    let series = all.iter().map(|way| {
        let points = TENANTS.iter().zip(&way.means_us);
        let points = points.map(|(tenants, mean_us)| (*tenants as f64, mean_us / 1e3));
        Series {
            name: format!("{}: {} supported", way.name, way.tenants()),
            points: cut(points, 2.0 * limit_ms),
        }
    });
    let panel = Panel::Line(LineChart {
        caption: "mean; each datastore asks for 90 % of its own peak".into(),
        x_label: "datastores".into(),
        y_label: "latency of gets, ms".into(),
        series: series.collect(),
        markers: vec![Marker { x: PAPER_TENANTS as f64, name: "paper: iSCSI, one core".into() }],
        levels: vec![Level { y: limit_ms, name: format!("limit of {limit_ms} ms") }],
        is_logarithmic: false,
        y_format: |value| format!("{value:.1}"),
    });
    let title = "EuroSys'16, section 4.2: datastores that a core of a Flash server supports";
    let why = "By the paper's own figure 3 a read of 4 kB costs the target 28 µs of CPU, with which three \
        datastores of 40 000 queries/s want two to three cores.";
    Ok(Outcome::new(title, &[panel], table, findings_per_core(&all))?.because(why))
}

/// `all` are iSCSI on one and on two cores, and farflash.
fn findings_per_core(all: &[Supported]) -> Vec<Finding> {
    let [one, two, farflash] = [0, 1, 2].map(|way| all[way].tenants());
    vec![
        Finding {
            what: "datastores at peak load that one core of an iSCSI server supports".into(),
            paper: PAPER_TENANTS.to_string(),
            here: one.to_string(),
            agrees: one == PAPER_TENANTS,
        },
        Finding {
            what: "one more core when that is too little".into(),
            paper: "performance recovers".into(),
            here: format!("{two} with two cores"),
            agrees: two > one,
        },
        Finding {
            what: "datastores that one core of farflash supports".into(),
            paper: "goal: at least 3".into(),
            here: if farflash == TENANTS.len() {
                format!("{farflash} and more")
            } else {
                farflash.to_string()
            },
            agrees: farflash >= 3,
        },
    ]
}
