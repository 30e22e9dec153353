//! "Performance Analysis of NVMe SSD-based All-flash Array Systems", figures 6 to 14 and table II: what spoils the tail of
//! 64 drives, and which setting takes it away, on a modelled host (`array-model`).
//!
//! `paper.rs` has what the paper states, this file what is measured and shown, `findings.rs` the comparison. No result of
//! the paper goes into a result here; it is drawn as a cross and named in the findings.

mod findings;
mod paper;
mod real_time;

use std::cell::RefCell;

use array_model::{
    Column, DRIVES, Density, DriveLatencies, Layout, OverDrives, Params, Tuning, World,
};
use report::{
    Align, Bar, BarChart, BarSeries, CategoryChart, CategorySeries, Mark, Panel, ScatterChart,
    Table,
};
use units::Duration;

use crate::{Finding, Options, Outcome, Progress, ReproduceError};
use paper::Stated;
pub use real_time::{Measured, real_time_outcome};

/// Time of each of the study's runs (III-C).
const SECONDS: f64 = 120.0;
/// Fewer drives are no array.
const DRIVES_MIN: f64 = 8.0;
/// Progress is told so often in a run.
const PARTS: u32 = 50;
/// Reads that are longer are shown one by one in figure 10, and of the others one in so many.
const SINGLE_NS: u64 = 60_000;
const ONE_IN: u64 = 50_000;

/// The reason that the layouts have the same percentile of six nines.
const SAME_LONGEST: &str = "Two minutes have under four million reads of a drive, so that 99.9999 % is its fourth \
    longest read. In the model that one falls into a pause of the drive itself, whatever the layout.";

/// A step of the study: all settings of the one before, and one more.
struct Step {
    name: &'static str,
    tuning: Tuning,
    longest: Option<Stated>,
}

const DEFAULT: Step =
    Step { name: "default", tuning: Tuning::DEFAULT, longest: Some(paper::LONGEST_DEFAULT) };
const CHRT: Step = Step { name: "chrt", tuning: Tuning::CHRT, longest: Some(paper::LONGEST_CHRT) };
const ISOLCPUS: Step = Step { name: "isolcpus", tuning: Tuning::ISOLCPUS, longest: None };
const IRQ: Step = Step { name: "irq", tuning: Tuning::IRQ, longest: Some(paper::LONGEST_IRQ) };
const FIRMWARE: Step =
    Step { name: "firmware", tuning: Tuning::FIRMWARE, longest: Some(paper::LONGEST_FIRMWARE) };

/// Layouts of figures 13 and 14 and of table II.
const DENSITIES: [(&str, Density); 4] = [
    ("(a) 4 drives per core", Density::Four),
    ("(b) 2 drives per core", Density::Two),
    ("(c) 1 drive per core", Density::One),
    ("(d) 1 drive on the host", Density::Alone),
];

/// A row of table II.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Configuration {
    drives_per_core: usize,
    interrupts_per_cpu: usize,
    threads_per_cpu: usize,
    threads: usize,
    runs: usize,
}

/// The part of the array that is read, and the time.
struct Extent {
    drives: usize,
    seconds: f64,
}

impl Extent {
    fn of(options: &Options) -> Self {
        let drives = (DRIVES as f64 * options.time).max(DRIVES_MIN);
        let seconds = SECONDS * (options.time * DRIVES as f64 / DRIVES_MIN).min(1.0);
        Self { drives: (drives / 4.0).round() as usize * 4, seconds }
    }
}

/// Progress of a figure that takes several measurements.
struct Told<'a, 'b> {
    progress: &'a mut (dyn FnMut(f64) + 'b),
    done: f64,
    all: f64,
}

impl Told<'_, '_> {
    fn more(&mut self, part: f64) {
        self.done += part;
        (self.progress)((self.done / self.all).min(1.0));
    }
}

/// All that a measurement follows from.
#[derive(Clone, Copy, PartialEq)]
struct Subject {
    options: Options,
    tuning: Tuning,
    density: Density,
}

thread_local! {
    /// Measurements so far: figures show the same steps, and each takes a minute.
    static MEASURED: RefCell<Vec<(Subject, Vec<DriveLatencies>)>> = const { RefCell::new(Vec::new()) };
}

/// Latencies of the array's drives, each read once.
fn read(
    options: &Options,
    tuning: Tuning,
    density: Density,
    told: &mut Told<'_, '_>,
) -> Result<Vec<DriveLatencies>, ReproduceError> {
    let subject = Subject { options: *options, tuning, density };
    let known = MEASURED.with_borrow(|all| {
        all.iter().find(|(other, _)| *other == subject).map(|(_, drives)| drives.clone())
    });
    if let Some(drives) = known {
        told.more(1.0);
        return Ok(drives);
    }
    let drives = measure(&subject, told)?;
    MEASURED.with_borrow_mut(|all| all.push((subject, drives.clone())));
    Ok(drives)
}

fn measure(
    Subject { options, tuning, density }: &Subject,
    told: &mut Told<'_, '_>,
) -> Result<Vec<DriveLatencies>, ReproduceError> {
    let extent = Extent::of(options);
    let layout = Layout::new(*density, extent.drives);
    let mut all = Vec::new();
    for run in 0..layout.runs() {
        let mut world = World::new(&Params::default(), *tuning, &layout, run, options.seed)?;
        let parts = PARTS.div_ceil(layout.runs() as u32);
        for part in 1..=parts {
            let end = extent.seconds * f64::from(part) / f64::from(parts);
            world.run_until(Duration::from_secs_f64(end), &mut |_| ());
            told.more(1.0 / f64::from(parts) / layout.runs() as f64);
        }
        all.extend_from_slice(world.latencies());
    }
    Ok(all)
}

fn read_steps<const N: usize>(
    options: &Options,
    steps: [&Step; N],
    progress: Progress<'_>,
) -> Result<[Vec<DriveLatencies>; N], ReproduceError> {
    let mut told = Told { progress, done: 0.0, all: N as f64 };
    let mut all = steps.map(|_| Vec::new());
    for (drives, step) in all.iter_mut().zip(steps) {
        *drives = read(options, step.tuning, Density::Four, &mut told)?;
    }
    Ok(all)
}

fn read_densities(
    options: &Options,
    progress: Progress<'_>,
) -> Result<[Vec<DriveLatencies>; 4], ReproduceError> {
    let mut told = Told { progress, done: 0.0, all: DENSITIES.len() as f64 };
    let mut all = DENSITIES.map(|_| Vec::new());
    for (drives, (_, density)) in all.iter_mut().zip(DENSITIES) {
        *drives = read(options, IRQ.tuning, density, &mut told)?;
    }
    Ok(all)
}

pub(crate) fn figure_6(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let [drives] = read_steps(options, [&DEFAULT], progress)?;
    step_figure("figure 6: default configuration", &DEFAULT, &drives, findings::default(&drives))
}

pub(crate) fn figure_7(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let [before, drives] = read_steps(options, [&DEFAULT, &CHRT], progress)?;
    let found = findings::chrt(&before, &drives);
    step_figure("figure 7: real-time priority", &CHRT, &drives, found)
}

pub(crate) fn figure_8(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let [before, drives] = read_steps(options, [&CHRT, &ISOLCPUS], progress)?;
    let found = findings::isolcpus(&before, &drives);
    step_figure("figure 8: isolated CPUs", &ISOLCPUS, &drives, found)
}

pub(crate) fn figure_9(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let [before, drives] = read_steps(options, [&ISOLCPUS, &IRQ], progress)?;
    let found = findings::irq(&before, &drives);
    step_figure("figure 9: pinned interrupts", &IRQ, &drives, found)
}

pub(crate) fn figure_11(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let [before, drives] = read_steps(options, [&IRQ, &FIRMWARE], progress)?;
    let found = findings::firmware(&before, &drives);
    step_figure("figure 11: drives without housekeeping", &FIRMWARE, &drives, found)
}

pub(crate) fn figure_12(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let steps = [&DEFAULT, &CHRT, &ISOLCPUS, &IRQ];
    let all = read_steps(options, steps, progress)?;
    let marks = |stated: &[(&Step, Stated)]| {
        stated.iter().map(|(step, stated)| mark(*stated, step.name)).collect()
    };
    let means = [(&DEFAULT, paper::LONGEST_DEFAULT), (&IRQ, paper::LONGEST_IRQ)];
    let deviations = [(&DEFAULT, paper::DEVIATION_DEFAULT), (&IRQ, paper::DEVIATION_IRQ)];
    let names = steps.map(|step| step.name);
    let panels = over_drives_panels(&names, &all, [marks(&means), marks(&deviations)]);
    let title = "AFA, figure 12: latency of 4 KiB reads, step by step of tuning";
    Outcome::new(title, &panels, over_drives_table(&names, &all), findings::steps(&all))
}

pub(crate) fn figure_13(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let all = read_densities(options, progress)?;
    let panels: Vec<Panel> = DENSITIES
        .iter()
        .zip(&all)
        .map(|((name, _), drives)| drives_panel(name, drives, Vec::new()))
        .collect();
    let mut data = drives_table();
    for ((name, _), drives) in DENSITIES.iter().zip(&all) {
        drives_rows(&mut data, name, drives);
    }
    let found = findings::densities(&all, Extent::of(options).seconds);
    let title = "AFA, figure 13: latency of 4 KiB reads by drives that share a core";
    Ok(Outcome::new(title, &panels, data, found)?.because(SAME_LONGEST))
}

pub(crate) fn figure_14(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let all = read_densities(options, progress)?;
    let names = DENSITIES.map(|(name, _)| name);
    let panels = over_drives_panels(&names, &all, [Vec::new(), Vec::new()]);
    let data = over_drives_table(&names, &all);
    let found = findings::densities(&all, Extent::of(options).seconds);
    let title = "AFA, figure 14: mean and deviation over drives, by drives that share a core";
    Ok(Outcome::new(title, &panels, data, found)?.because(SAME_LONGEST))
}

/// Single reads of one run with half of the drives, as in the study.
pub(crate) fn figure_10(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let extent = Extent::of(options);
    let layout = Layout::new(Density::Two, extent.drives);
    let mut world = World::new(&Params::default(), IRQ.tuning, &layout, 0, options.seed)?;
    let mut data = Table::new(&["drive", "read", "latency µs"].map(|name| (name, Align::Right)));
    let (mut points, mut long) = (Vec::new(), Vec::new());
    for part in 1..=PARTS {
        let end = extent.seconds * f64::from(part) / f64::from(PARTS);
        world.run_until(Duration::from_secs_f64(end), &mut |request| {
            let is_long = request.ns >= SINGLE_NS;
            if is_long {
                long.push(request);
            }
            if is_long || request.index % ONE_IN == 0 {
                points.push((request.index as f64, request.ns as f64));
                let numbers =
                    [request.drive as u64, request.index].map(|number| number.to_string());
                data.row(numbers.into_iter().chain([format!("{:.1}", request.ns as f64 / 1e3)]));
            }
        });
        progress(f64::from(part) / f64::from(PARTS));
    }
    let chart = ScatterChart {
        caption: format!(
            "{} drives: all reads above 60 µs, and one of 50 000 others",
            layout.cpus().len()
        ),
        x_label: "number of the read on its drive".into(),
        y_label: "latency".into(),
        points,
        x_format: report::rate,
        y_format: report::duration_ns,
    };
    let title = "AFA, figure 10: single 4 KiB reads on the tuned host";
    Outcome::new(title, &[Panel::Scatter(chart)], data, findings::housekeeping(&long))
}

pub(crate) fn table_2(
    options: &Options,
    progress: Progress<'_>,
) -> Result<Outcome, ReproduceError> {
    let mut rows = Vec::new();
    for (_, density) in DENSITIES {
        let layout = Layout::new(density, DRIVES);
        let world = World::new(&Params::default(), IRQ.tuning, &layout, 0, options.seed)?;
        rows.push(Configuration {
            drives_per_core: layout.drives_per_core(),
            interrupts_per_cpu: world.interrupts_per_cpu(),
            threads_per_cpu: layout.threads_per_cpu(),
            threads: layout.cpus().len(),
            runs: layout.runs(),
        });
        progress(rows.len() as f64 / DENSITIES.len() as f64);
    }
    let names = ["drives/core", "interrupts/CPU", "threads/CPU", "threads", "runs"];
    let columns = std::iter::once(("layout", Align::Left))
        .chain(names.map(|name| (name, Align::Right)))
        .collect::<Vec<_>>();
    let mut data = Table::new(&columns);
    for ((name, _), row) in DENSITIES.iter().zip(&rows) {
        let numbers = row.numbers().map(|number| number.to_string());
        data.row(std::iter::once((*name).to_owned()).chain(numbers));
    }
    let series = |(index, name): (usize, &str)| BarSeries {
        name: name.to_owned(),
        bars: rows.iter().map(|row| bar(row.numbers()[index] as f64)).collect(),
    };
    let chart = BarChart {
        caption: "threads and interrupts".into(),
        y_label: "number".into(),
        groups: DENSITIES.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: names.into_iter().enumerate().take(3).map(series).collect(),
        y_format: |number| format!("{number:.0}"),
    };
    let title = "AFA, table II: threads and interrupts by drives that share a core";
    Outcome::new(title, &[Panel::Bars(chart)], data, findings::table_2(&rows))
}

impl Configuration {
    fn numbers(&self) -> [usize; 5] {
        [
            self.drives_per_core,
            self.interrupts_per_cpu,
            self.threads_per_cpu,
            self.threads,
            self.runs,
        ]
    }
}

fn bar(value: f64) -> Option<Bar> {
    Some(Bar { value, low: value, high: value })
}

/// A figure with one line for each drive.
fn step_figure(
    title: &str,
    step: &Step,
    drives: &[DriveLatencies],
    found: Vec<Finding>,
) -> Result<Outcome, ReproduceError> {
    let marks = step.longest.map(|stated| mark(stated, "paper")).into_iter().collect();
    let caption = format!("one line for each of {} drives", drives.len());
    let mut data = drives_table();
    drives_rows(&mut data, step.name, drives);
    let panel = drives_panel(&caption, drives, marks);
    Outcome::new(&format!("AFA, {title}, latency of 4 KiB reads"), &[panel], data, found)
}

/// A number of the paper at the longest read.
fn mark(stated: Stated, name: &str) -> Mark {
    let name = match name {
        "paper" => format!("paper: {}", report::duration_ns(stated.value * 1e3)),
        name => format!("paper, {name}: {}", report::duration_ns(stated.value * 1e3)),
    };
    Mark { name, category: Column::ALL.len() - 1, value: stated.value * 1e3 }
}

fn column_names() -> Vec<String> {
    Column::ALL.into_iter().map(Column::name).collect()
}

fn drives_panel(caption: &str, drives: &[DriveLatencies], marks: Vec<Mark>) -> Panel {
    let series = |(number, drive): (usize, &DriveLatencies)| CategorySeries {
        name: format!("drive {number}"),
        values: Column::ALL.into_iter().map(|column| drive.us(column) * 1e3).collect(),
    };
    Panel::Category(CategoryChart {
        caption: caption.to_owned(),
        y_label: "latency".into(),
        categories: column_names(),
        series: drives.iter().enumerate().map(series).collect(),
        marks,
        y_format: report::duration_ns,
    })
}

/// Means and deviations over drives, for each of several measurements.
fn over_drives_panels<const N: usize>(
    names: &[&str; N],
    all: &[Vec<DriveLatencies>; N],
    marks: [Vec<Mark>; 2],
) -> [Panel; 2] {
    let panel = |caption: &str, marks: Vec<Mark>, value: fn(OverDrives) -> f64| {
        let series = names.iter().zip(all).map(|(name, drives)| CategorySeries {
            name: (*name).to_owned(),
            values: Column::ALL
                .into_iter()
                .map(|column| value(OverDrives::of(drives, column)) * 1e3)
                .collect(),
        });
        Panel::Category(CategoryChart {
            caption: caption.to_owned(),
            y_label: "latency".into(),
            categories: column_names(),
            series: series.collect(),
            marks,
            y_format: report::duration_ns,
        })
    };
    let [means, deviations] = marks;
    [
        panel("mean over drives of each percentile", means, |over| over.mean_us),
        panel("standard deviation over drives of each percentile", deviations, |over| {
            over.deviation_us
        }),
    ]
}

fn drives_table() -> Table {
    let names = column_names();
    let numbers: Vec<String> = names.iter().map(|name| format!("{name} µs")).collect();
    let columns = [("run", Align::Left), ("drive", Align::Right)]
        .into_iter()
        .chain(numbers.iter().map(|name| (name.as_str(), Align::Right)));
    Table::new(&columns.collect::<Vec<_>>())
}

fn drives_rows(data: &mut Table, run: &str, drives: &[DriveLatencies]) {
    for (number, drive) in drives.iter().enumerate() {
        let head = [run.to_owned(), number.to_string()];
        let values = Column::ALL.map(|column| format!("{:.1}", drive.us(column)));
        data.row(head.into_iter().chain(values));
    }
}

fn over_drives_table<const N: usize>(names: &[&str; N], all: &[Vec<DriveLatencies>; N]) -> Table {
    let columns = [("run", Align::Left), ("latency", Align::Left)]
        .into_iter()
        .chain(["mean µs", "deviation µs"].map(|name| (name, Align::Right)));
    let mut data = Table::new(&columns.collect::<Vec<_>>());
    for (name, drives) in names.iter().zip(all) {
        for column in Column::ALL {
            let OverDrives { mean_us, deviation_us } = OverDrives::of(drives, column);
            let values = [mean_us, deviation_us].map(|us| format!("{us:.2}"));
            data.row([(*name).to_owned(), column.name()].into_iter().chain(values));
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An eighth of the array, for one minute: drives have their housekeeping once or twice.
    const OPTIONS: Options = Options { time: 0.0625, seed: 7, costs: crate::CpuCosts::STATED };

    fn differing(findings: &[Finding]) -> Vec<&str> {
        let differ = findings.iter().filter(|finding| !finding.agrees);
        differ.map(|finding| finding.what.as_str()).collect()
    }

    /// Each step changes what the paper says that it changes. The steps are measured once for all figures.
    #[test]
    fn every_step_has_the_shape_of_the_paper() {
        let steps = [&DEFAULT, &CHRT, &ISOLCPUS, &IRQ, &FIRMWARE];
        let all = read_steps(&OPTIONS, steps, &mut |_| ()).expect("runs");
        let [default, chrt, isolcpus, irq, firmware] = all.each_ref();
        let four = [default, chrt, isolcpus, irq].map(Clone::clone);
        for (figure, found) in [
            ("figure 6", findings::default(default)),
            ("figure 7", findings::chrt(default, chrt)),
            ("figure 8", findings::isolcpus(chrt, isolcpus)),
            ("figure 9", findings::irq(isolcpus, irq)),
            ("figure 11", findings::firmware(irq, firmware)),
            ("figure 12", findings::steps(&four)),
        ] {
            assert!(differing(&found).is_empty(), "{figure}: {found:#?}");
        }
    }

    /// One statement is not met, and `docs/reproduce.md` says why.
    #[test]
    fn layouts_are_alike_and_one_difference_is_missing() {
        let all = read_densities(&OPTIONS, &mut |_| ()).expect("runs");
        let found = findings::densities(&all, Extent::of(&OPTIONS).seconds);
        assert_eq!(differing(&found), ["99.9999 % with four drives per core"], "{found:#?}");
    }

    /// The whole array for the whole time is the default; small parts shorten the time, too.
    #[test]
    fn a_part_of_the_time_is_a_part_of_the_array_first() {
        for (time, drives, seconds) in
            [(1.0, 64, 120.0), (0.5, 32, 120.0), (0.125, 8, 120.0), (0.0125, 8, 12.0)]
        {
            let extent = Extent::of(&Options { time, ..Options::default() });
            assert_eq!((extent.drives, extent.seconds), (drives, seconds), "{time}");
        }
    }
}
