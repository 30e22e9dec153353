//! Figure 1: use of CPUs and Flash over half a year, of a fleet that is generated.
//!
//! The paper's is one fleet, shown as a picture. Here each resource has a trend of its own: capacity grows by what users leave
//! behind and falls when old data is deleted; reads follow the users and a trend of their own; CPUs the users, and the software,
//! which becomes slower and faster from release to release.

use cost_model::{Plan, Requirement};
use random::Rng;
use report::{Align, LineChart, Panel, Series, Spread, Table, percent};

use crate::{Finding, Options, Outcome, Progress, ReproduceError};

const DAYS: usize = 182;
/// Samples of a day.
const SAMPLES: usize = 8;
/// Fleets of which the saving is the median: what one saves depends on its chance.
const FLEETS: u64 = 101;
/// Parts of the queries that remote Flash costs.
const LOST_BY_ISCSI: f64 = 0.2;
const LOST_BY_FARFLASH: f64 = 0.05;
/// Use below this part of the maximum is called low.
const LOW: f64 = 0.8;

/// One resource over time, relative to its maximum.
struct Resource {
    name: &'static str,
    use_of: Vec<f64>,
}

impl Resource {
    fn new(name: &'static str, mut use_of: Vec<f64>) -> Self {
        let highest = use_of.iter().copied().fold(0.0, f64::max);
        use_of.iter_mut().for_each(|value| *value /= highest);
        Self { name, use_of }
    }

    fn mean(&self) -> f64 {
        self.use_of.iter().sum::<f64>() / self.use_of.len() as f64
    }

    /// Highest use of each day: what servers are needed for.
    fn peaks(&self) -> Vec<f64> {
        let highest = |day: &[f64]| day.iter().copied().fold(0.0, f64::max);
        self.use_of.chunks(SAMPLES).map(highest).collect()
    }

    fn low_days(&self) -> f64 {
        let peaks = self.peaks();
        peaks.iter().filter(|peak| **peak < LOW).count() as f64 / peaks.len() as f64
    }

    /// Correlation of the changes from week to week.
    fn correlation(&self, other: &Self) -> f64 {
        let weeks = |resource: &Self| -> Vec<f64> {
            let days = resource.peaks();
            let means: Vec<f64> =
                days.chunks_exact(7).map(|week| week.iter().sum::<f64>() / 7.0).collect();
            means.windows(2).map(|pair| pair[1] - pair[0]).collect()
        };
        let (a, b) = (weeks(self), weeks(other));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mean_a, mean_b) = (mean(&a), mean(&b));
        let (mut both, mut own_a, mut own_b) = (0.0, 0.0, 0.0);
        for (a, b) in a.iter().zip(&b) {
            both += (a - mean_a) * (b - mean_b);
            own_a += (a - mean_a).powi(2);
            own_b += (b - mean_b).powi(2);
        }
        both / (own_a * own_b).sqrt()
    }
}

/// The fleet of a seed: capacity, reads, CPUs.
fn fleet(seed: u64) -> [Resource; 3] {
    let mut rng = Rng::of_stream(seed, 0xF1EE7);
    let (mut capacity, mut reads, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    let (mut stored, mut read_trend, mut cpu_trend) = (0.55_f64, 1.0_f64, 0.8_f64);
    for day in 0..DAYS {
        stored *= 1.0 + 0.006 * rng.unit();
        // Old data goes every seven weeks or so.
        if rng.below(49) == 0 {
            stored *= 0.75;
        }
        read_trend = (read_trend + 0.02 * rng.normal()).clamp(0.5, 1.5);
        // A release a week.
        if day % 7 == 3 {
            cpu_trend = (cpu_trend * (1.0 + 0.08 * rng.normal())).clamp(0.5, 1.2);
        }
        let weekend = if day % 7 >= 5 { 0.85 } else { 1.0 };
        for sample in 0..SAMPLES {
            let hour = sample as f64 / SAMPLES as f64 * std::f64::consts::TAU;
            let users = weekend * (1.0 + 0.3 * hour.sin()) * (1.0 + 0.03 * rng.normal());
            capacity.push(stored * (1.0 + 0.002 * rng.normal()));
            reads.push(users * read_trend * (1.0 + 0.05 * rng.normal()));
            cpu.push((0.35 + 0.65 * users) * cpu_trend);
        }
    }
    [
        Resource::new("Flash capacity", capacity),
        Resource::new("Flash reads", reads),
        Resource::new("CPU", cpu),
    ]
}

/// Saving by disaggregation, of the cost of direct-attached Flash, if what is not used on a day serves others: by the prices of
/// a plan, and with the most of each resource what its servers have.
fn saving([capacity, reads, cpu]: &[Resource; 3], plan: &Plan) -> f64 {
    let model = plan.model();
    let servers = plan.requirement.qps / plan.server.qps_direct;
    let [capacity, reads, cpu] = [capacity, reads, cpu].map(Resource::peaks);
    let (mut direct, mut disaggregated) = (0.0, 0.0);
    for day in 0..DAYS {
        let compared = model.compare(&Requirement {
            capacity_gb: capacity[day] * servers * plan.server.flash_gb,
            iops: reads[day] * servers * plan.server.flash_iops,
            qps: cpu[day] * plan.requirement.qps,
        });
        direct += compared.direct;
        disaggregated += compared.disaggregated;
    }
    1.0 - disaggregated / direct
}

/// Savings of fleets that are generated alike.
fn savings(seed: u64, plan: &Plan) -> Spread {
    let one = |more| saving(&fleet(seed.wrapping_add(more)), plan);
    Spread::of(&(0..FLEETS).map(one).collect::<Vec<f64>>()).expect("some fleets")
}

/// Runs `eurosys-1`.
pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let fleet = fleet(options.seed);
    progress(1.0);
    let mut table = Table::new(&[
        ("day", Align::Right),
        ("Flash capacity", Align::Right),
        ("Flash reads", Align::Right),
        ("CPU", Align::Right),
    ]);
    for sample in 0..DAYS * SAMPLES {
        let day = sample as f64 / SAMPLES as f64;
        let values = fleet.iter().map(|resource| format!("{:.4}", resource.use_of[sample]));
        table.row(std::iter::once(format!("{day:.3}")).chain(values));
    }
    let series = fleet.iter().map(|resource| Series {
        name: resource.name.into(),
        points: (resource.peaks().iter().enumerate())
            .map(|(day, value)| (day as f64, value * 100.0))
            .collect(),
    });
    let panel = Panel::Line(LineChart {
        caption: "highest use of each day; a generated fleet".into(),
        x_label: "day".into(),
        y_label: "% of its maximum".into(),
        series: series.collect(),
        markers: Vec::new(),
        levels: Vec::new(),
        is_logarithmic: false,
        y_format: |value| format!("{value:.0}"),
    });
    let findings = findings(&fleet, options.seed);
    let title = "EuroSys'16, figure 1: use of CPUs and Flash over half a year";
    let why = "The fleet is generated, since the paper's is shown as a picture alone. In most such fleets a fifth \
        of the queries costs more servers than each day's sharing saves; the paper does not claim that for \
        this figure.";
    Ok(Outcome::new(title, &[panel], table, findings)?.because(why))
}

fn findings(fleet: &[Resource; 3], seed: u64) -> Vec<Finding> {
    let [capacity, reads, cpu] = fleet;
    let pairs = [(capacity, reads), (capacity, cpu), (reads, cpu)];
    let correlations = pairs.map(|(a, b)| a.correlation(b));
    let lost = |part: f64| {
        let mut plan = Plan::paper();
        plan.server.qps_remote = plan.server.qps_direct * (1.0 - part);
        savings(seed, &plan)
    };
    let said = |spread: Spread| {
        format!(
            "{} of the cost with direct-attached Flash, median of {FLEETS} fleets ({} to {})",
            percent(spread.median),
            percent(spread.low),
            percent(spread.high)
        )
    };
    let (iscsi, farflash) = (lost(LOST_BY_ISCSI), lost(LOST_BY_FARFLASH));
    let each = |of: fn(&Resource) -> f64| {
        fleet.iter().map(|resource| percent(of(resource))).collect::<Vec<_>>().join(", ")
    };
    vec![
        Finding {
            what: "capacity, reads and CPU over time".into(),
            paper: "vary, and follow separate trends".into(),
            here: format!(
                "correlation of weekly changes: capacity and reads {:.2}, capacity and CPU {:.2}, \
                 reads and CPU {:.2} (generated so)",
                correlations[0], correlations[1], correlations[2]
            ),
            agrees: correlations.iter().all(|correlation| correlation.abs() < 0.6),
        },
        Finding {
            what: "use of capacity, reads and CPU".into(),
            paper: "low for long periods".into(),
            here: format!(
                "mean {}; below 80 % of the maximum on {} of days (generated so)",
                each(Resource::mean),
                each(Resource::low_days)
            ),
            agrees: fleet.iter().all(|resource| resource.low_days() > 0.25),
        },
        Finding {
            what: "saving for such a fleet, if others use what it leaves on a day, with iSCSI"
                .into(),
            paper: "goal: above zero, in spite of 20 % fewer queries and the tax".into(),
            here: said(iscsi),
            agrees: iscsi.median > 0.0,
        },
        Finding {
            what: "the same with farflash".into(),
            paper: "goal: above zero, with 5 % fewer queries (eurosys-4b)".into(),
            here: said(farflash),
            agrees: farflash.median > 0.0,
        },
    ]
}
