//! Figures 4a, 4b and 5: one datastore with local and remote Flash.

use report::{Align, Level, LineChart, Marker, Panel, Series, Table};

use super::{
    Case, GETS, MEAN_LIMIT_US, PAPER_TAIL_PERCENT, Point, TAIL_LIMIT_US, curves, curves_table,
    drop_percent, mean_and_tail, near, remote, tuned,
};
use crate::tiers::costs::{CpuCosts, Step, iscsi};
use crate::tiers::{Flash, Load, Setup, run};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// Queries of a datastore without load: each comes alone.
const UNLOADED_PER_SECOND: f64 = 500.0;
const UNLOADED_SECONDS: f64 = 40.0;
const UNLOADED_SECONDS_MIN: f64 = 8.0;
/// Added by iSCSI to the 95th percentile.
const PAPER_ADDED_US: f64 = 260.0;
/// Quantiles of a distribution that are drawn.
const STEPS: u32 = 200;

fn cases(costs: CpuCosts) -> [Case; 3] {
    [
        Case::new("local", Flash::Local, costs),
        Case::new("iSCSI, tuned", tuned(), costs),
        Case::new("farflash", remote(costs.farflash()), costs),
    ]
}

/// Runs `eurosys-4a`.
pub(crate) fn figure_4a(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let mut table = Table::new(&[
        ("flash", Align::Left),
        ("quantile", Align::Right),
        ("latency µs", Align::Right),
    ]);
    let (mut series, mut p95) = (Vec::new(), Vec::new());
    for (index, case) in cases(options.costs).iter().enumerate() {
        let load = Load::Queries { per_second: UNLOADED_PER_SECOND, gets: GETS, busy_ns: 0 };
        let seconds = (UNLOADED_SECONDS * options.time).max(UNLOADED_SECONDS_MIN);
        let setup = Setup {
            tenants: vec![load],
            flash: case.flash,
            costs: case.costs,
            seconds,
            seed: options.seed,
        };
        let measured = run(&setup)?;
        let points = (0..=STEPS).map(|step| {
            let quantile = f64::from(step) / f64::from(STEPS);
            (measured.quantile_us(quantile), quantile)
        });
        // The last part in a thousand would make all else narrow.
        let points: Vec<_> = points.filter(|(_, quantile)| *quantile <= 0.99).collect();
        for (latency, quantile) in &points {
            let cells = [case.name.to_owned(), quantile.to_string(), format!("{latency:.1}")];
            table.row(cells);
        }
        series.push(Series { name: case.name.into(), points });
        p95.push(measured.quantile_us(0.95));
        progress((index + 1) as f64 / 3.0);
    }
    let panel = Panel::Line(LineChart {
        caption: "distribution of the latency of gets, one at a time".into(),
        x_label: "latency, µs".into(),
        y_label: "share of gets that take no longer".into(),
        series,
        markers: vec![Marker { x: p95[0] + PAPER_ADDED_US, name: "paper: local + 260 µs".into() }],
        levels: vec![Level { y: 0.95, name: "95 %".into() }],
        is_logarithmic: false,
        y_format: |value| format!("{value:.1}"),
    });
    let (iscsi, farflash) = (p95[1] - p95[0], p95[2] - p95[0]);
    let findings = vec![
        Finding {
            what: "added to the 95th percentile by iSCSI".into(),
            paper: format!("{PAPER_ADDED_US} µs"),
            here: format!("{iscsi:.0} µs ({:.0} µs local)", p95[0]),
            agrees: (130.0..390.0).contains(&iscsi),
        },
        Finding {
            what: "added to the 95th percentile by farflash".into(),
            paper: "goal: at most 100 µs".into(),
            here: format!("{farflash:.0} µs"),
            agrees: farflash <= 100.0,
        },
    ];
    let title = "EuroSys'16, figure 4a: latency of an unloaded datastore";
    let why = "About 80 µs of what farflash adds are the network: at each of two hops the interrupt of a \
        NIC waits up to 60 µs, the driver's default. iSCSI adds less than in the paper, since the \
        model has no scheduler of the kernel and no idle states.";
    Ok(Outcome::new(title, &[panel], table, findings)?.because(why))
}

/// Runs `eurosys-4b`.
pub(crate) fn figure_4b(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let cases = cases(options.costs);
    let (mut all, mut peaks): (Vec<Vec<Point>>, Vec<[f64; 2]>) = (Vec::new(), Vec::new());
    for case in &cases {
        let points = case.curve(options)?;
        let mean = case.crossing(&points, |point| point.mean_us, MEAN_LIMIT_US, options)?;
        let tail = case.crossing(&points, |point| point.p95_us, TAIL_LIMIT_US, options)?;
        all.push(points);
        peaks.push([mean, tail]);
        progress(all.len() as f64 / cases.len() as f64);
    }
    let named: Vec<(&str, &[Point])> =
        cases.iter().zip(&all).map(|(case, points)| (case.name, points.as_slice())).collect();
    let caption = "mean over the rate of one datastore";
    let panels = mean_and_tail(caption, &named, peaks[0], PAPER_TAIL_PERCENT);
    let drop = |case: usize, kind: usize| drop_percent(peaks[case][kind], peaks[0][kind]);
    let findings = vec![
        Finding {
            what: "queries/s at a mean of 1.5 ms, iSCSI below local".into(),
            paper: "20 %".into(),
            here: format!(
                "{:.0} %: {:.0} and {:.0} queries/s",
                drop(1, 0),
                peaks[1][0],
                peaks[0][0]
            ),
            agrees: near(drop(1, 0), 20.0, 8.0),
        },
        Finding {
            what: "queries/s at a 95th percentile of 2 ms, iSCSI below local".into(),
            paper: "10 %, less than of the mean".into(),
            here: format!("{:.0} %", drop(1, 1)),
            agrees: drop(1, 1) > 0.0 && drop(1, 1) < drop(1, 0) - 2.0,
        },
        Finding {
            what: "queries/s at a mean of 1.5 ms, farflash of local".into(),
            paper: "goal: at least 90 %".into(),
            here: format!("{:.0} %", 100.0 - drop(2, 0)),
            agrees: drop(2, 0) <= 10.0,
        },
    ];
    let title = "EuroSys'16, figure 4b: latency of one datastore over its load";
    let why = "CPU time of the datastore's server limits mean and tail alike in the model, and nothing \
        else of one server does, so that the tail loses as much as the mean.";
    Ok(Outcome::new(title, &panels, curves_table(&named), findings)?.because(why))
}

/// Runs `eurosys-5`.
pub(crate) fn figure_5(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let costs = options.costs;
    let case = |step: Step| Case::new(step.name(), remote(iscsi(step)), costs);
    let steps = Step::ALL.map(case);
    let cases: Vec<Case> = [Case::new("local", Flash::Local, costs), case(Step::EightProcesses)]
        .into_iter()
        .chain(steps)
        .collect();
    let (mut all, mut peaks): (Vec<Vec<Point>>, Vec<f64>) = (Vec::new(), Vec::new());
    for case in &cases {
        let points = case.curve(options)?;
        peaks.push(case.crossing(&points, |point| point.mean_us, MEAN_LIMIT_US, options)?);
        all.push(points);
        progress(all.len() as f64 / cases.len() as f64);
    }
    let named: Vec<(&str, &[Point])> =
        cases.iter().zip(&all).map(|(case, points)| (case.name, points.as_slice())).collect();
    let panel = curves(
        "mean over the rate of one datastore",
        &named,
        |point| point.mean_us,
        MEAN_LIMIT_US,
        &[(0.55 * peaks[0], "paper: default, 45 % below local")],
    );
    let title = "EuroSys'16, figure 5: a datastore with remote Flash, by steps of tuning";
    let why = "Only the initiator's CPU time limits a single server in the model, and each step saves \
        little of it. The paper does not say for what its server waits.";
    let findings = findings_5(&peaks);
    Ok(Outcome::new(title, &[panel], curves_table(&named), findings)?.because(why))
}

/// `peaks` are those of local Flash, the default, and each step of tuning.
fn findings_5(peaks: &[f64]) -> Vec<Finding> {
    let [local, default, one, six, offload, jumbo, affinity] = peaks[..] else {
        unreachable!("a peak for each case")
    };
    let gain = |value: f64, of: f64| (value / of - 1.0) * 100.0;
    let steps = [gain(offload, six), gain(jumbo, offload), gain(affinity, jumbo)];
    vec![
        Finding {
            what: "six processes beside one, at a mean of 1.5 ms".into(),
            paper: "over 3 times the queries/s".into(),
            here: format!("{:.1} times", six / one),
            agrees: six / one > 2.5,
        },
        Finding {
            what: "six processes beside the default of eight".into(),
            paper: "14 % more (12 % on the slides)".into(),
            here: format!("{:.0} % more", gain(six, default)),
            agrees: (7.0..20.0).contains(&gain(six, default)),
        },
        Finding {
            what: "offload, jumbo frames and affinity, each beside the step before".into(),
            paper: "7, 13 and 4 %; together 24 %".into(),
            here: format!(
                "{:.0}, {:.0} and {:.0} %; together {:.0} %",
                steps[0],
                steps[1],
                steps[2],
                gain(affinity, six)
            ),
            agrees: steps.iter().all(|step| *step > -1.0) && gain(affinity, six) >= 12.0,
        },
        Finding {
            what: "default beside local".into(),
            paper: "45 % fewer queries/s (slides)".into(),
            here: format!("{:.0} % fewer", drop_percent(default, local)),
            agrees: near(drop_percent(default, local), 45.0, 15.0),
        },
    ]
}
