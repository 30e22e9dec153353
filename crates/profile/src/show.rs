//! A profile as text and as a plot.

use std::fmt::Write as _;

use report::{Align, HeatMap, LatencyChart, LatencySeries, Panel, PlotError, Table, duration_ns};
use serde_json::{Map, Value, json};

use crate::cause::{Seen, advise};
use crate::compare::{Basis, Comparison, Verdict};
use crate::figures::{FIGURES, OverDrives, outliers, over_drives};
use crate::latencies::{Latencies, NINES};
use crate::result::{DriveProfile, Profile};
use crate::run::counted;
use crate::timeline::Timeline;

/// Latency distributions of more drives are no longer told apart.
const LINES_MAX: usize = 8;
/// Names below the columns of a heat map at most.
const COLUMN_NAMES: usize = 10;
/// Causes that are shown.
const CAUSES_MAX: usize = 12;
const WIDTH: u32 = 1000;

fn shown(ns: Option<f64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration_ns)
}

/// The whole report.
#[must_use]
pub fn text(profile: &Profile) -> String {
    let mut text = table(profile).to_text();
    for part in
        [missing(profile), far_off(profile), causes(profile), advice(profile), runs(profile)]
    {
        if !part.is_empty() {
            text.push('\n');
            text += &part;
        }
    }
    text
}

/// A row for each drive, and mean and standard deviation over drives.
#[must_use]
pub fn table(profile: &Profile) -> Table {
    let labels = FIGURES.map(|figure| figure.label());
    let mut columns = vec![("drive", Align::Left), ("requests", Align::Right)];
    columns.extend(labels.iter().map(|label| (label.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for drive in &profile.drives {
        let figures = FIGURES.map(|figure| shown(figure.of(&drive.latencies)));
        let head = [profile.name(drive), drive.latencies.count().to_string()];
        table.row(head.into_iter().chain(figures));
    }
    let all = FIGURES.map(|figure| over_drives(profile, figure));
    let mut over = |name: &str, value: fn(OverDrives) -> f64| {
        let figures = all.map(|all| shown(all.map(value)));
        table.row([name.to_owned(), String::new()].into_iter().chain(figures));
    };
    over("mean over drives", |all| all.mean_ns);
    if profile.drives.len() > 1 {
        over("standard deviation", |all| all.deviation_ns);
    }
    table
}

/// Says why percentiles are not shown, and how many requests are missing.
fn missing(profile: &Profile) -> String {
    let mut text = String::new();
    for nines in NINES {
        let least = profile.drives.iter().min_by_key(|drive| drive.latencies.count());
        let Some(drive) = least.filter(|drive| drive.latencies.missing(nines) > 0) else {
            continue;
        };
        let _ = writeln!(
            text,
            "-: {} needs {} requests of a drive; {} are missing at {}",
            nines.label(),
            nines.requests_min(),
            drive.latencies.missing(nines),
            profile.name(drive)
        );
    }
    text
}

fn far_off(profile: &Profile) -> String {
    let mut text = String::new();
    for outlier in outliers(profile) {
        let (drive, figure) = (outlier.drive, outlier.figure);
        let (ns, median) = (duration_ns(outlier.ns), duration_ns(outlier.median_ns));
        let _ = writeln!(
            text,
            "far off: {drive} has {ns} at {figure}, the median of all drives is {median}"
        );
    }
    text
}

fn causes(profile: &Profile) -> String {
    let causes = profile.causes();
    let total: u64 = causes.iter().map(|count| count.count).sum();
    if total == 0 {
        return String::new();
    }
    let columns = [
        ("requests", Align::Right),
        ("share", Align::Right),
        ("beyond usual", Align::Right),
        ("worst", Align::Right),
    ];
    let mut table =
        Table::new(&[&[("cause of slow requests", Align::Left)], &columns[..]].concat());
    for count in causes.iter().take(CAUSES_MAX) {
        table.row([
            count.cause.to_string(),
            count.count.to_string(),
            report::percent(count.count as f64 / total as f64),
            duration_ns(count.excess_ns as f64 / count.count.max(1) as f64),
            duration_ns(count.worst_ns as f64),
        ]);
    }
    let mut text = table.to_text();
    let others = causes.len().saturating_sub(CAUSES_MAX);
    if others > 0 {
        let rest: u64 = causes[CAUSES_MAX..].iter().map(|count| count.count).sum();
        let _ = writeln!(text, "and {others} more causes of {rest} requests");
    }
    for drive in &profile.drives {
        let Some(known) = &drive.causes else { continue };
        if let Some(period) = known.period {
            let (name, seconds, spikes) = (profile.name(drive), period.seconds, period.spikes);
            let _ = writeln!(
                text,
                "housekeeping: {name} is slow every {seconds:.2} s ({spikes} times)"
            );
        }
        if known.not_examined > 0 {
            let (name, count) = (profile.name(drive), known.not_examined);
            let _ = writeln!(
                text,
                "not examined: {count} slow requests of {name}, which came too fast"
            );
        }
    }
    text
}

fn proposals(profile: &Profile) -> Vec<crate::cause::Advice> {
    let causes: Vec<_> =
        profile.causes().into_iter().map(|count| (count.cause, count.count)).collect();
    let mut known = profile.drives.iter().filter_map(|drive| drive.causes.as_ref());
    let seen = Seen {
        periodic: known.any(|causes| causes.period.is_some()),
        realtime: profile.runs.iter().all(|run| run.realtime.is_some()),
    };
    advise(&causes, seen)
}

/// Settings of `farflash tune` that act on the causes of slow requests, those of the most frequent cause first.
#[must_use]
pub fn proposed_settings(profile: &Profile) -> Vec<&'static str> {
    let mut settings = Vec::new();
    for setting in proposals(profile).into_iter().flat_map(|advice| advice.settings) {
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    settings
}

fn advice(profile: &Profile) -> String {
    let mut text = String::new();
    for advice in proposals(profile) {
        let settings = advice.settings.join(",");
        let _ = writeln!(text, "{}:\n    farflash tune plan --only {settings}", advice.because);
        if let Some(beside) = advice.beside {
            let _ = writeln!(text, "    or {beside}");
        }
    }
    text
}

fn runs(profile: &Profile) -> String {
    let mut text = String::new();
    for run in &profile.runs {
        let cpus: host_tune::CpuSet = run.cpus.iter().copied().collect();
        let threads = counted(run.threads, "thread");
        let realtime =
            run.realtime.map_or(String::new(), |priority| format!(", real time {priority}"));
        let _ = writeln!(
            text,
            "{}, Linux {}: {} on CPUs {cpus}{realtime}, {:.1} s, {:.0} ns of its own for a request",
            run.host, run.kernel, threads, run.seconds, run.overhead_ns
        );
        for note in &run.notes {
            let _ = writeln!(text, "note: {note}");
        }
    }
    text
}

/// Figures and conclusions as JSON, for programs that do not need the histograms.
#[must_use]
pub fn json(profile: &Profile) -> Value {
    let figures = |latencies: &Latencies| -> Map<String, Value> {
        FIGURES.iter().map(|figure| (figure.field(), json!(figure.of(latencies)))).collect()
    };
    let drive = |drive: &DriveProfile| {
        let missing = NINES.iter().filter(|nines| drive.latencies.missing(**nines) > 0);
        let missing: Map<String, Value> =
            missing.map(|nines| (nines.field(), json!(drive.latencies.missing(*nines)))).collect();
        json!({
            "host": drive.host,
            "path": drive.path,
            "model": drive.model,
            "bytes": drive.bytes,
            "cpus": drive.cpus,
            "runs": drive.runs,
            "requests": drive.latencies.count(),
            "errors": drive.errors,
            "median_ns": drive.latencies.median(),
            "figures": figures(&drive.latencies),
            "missing_requests": missing,
            "slow": drive.slow,
            "causes": drive.causes,
        })
    };
    let over: Map<String, Value> = FIGURES
        .iter()
        .map(|figure| (figure.field(), json!(over_drives(profile, *figure))))
        .collect();
    json!({
        "runs": profile.runs,
        "drives": profile.drives.iter().map(drive).collect::<Vec<Value>>(),
        "over_drives": over,
        "outliers": outliers(profile),
        "causes": profile.causes(),
        "proposals": proposals(profile),
    })
}

/// Both sides of a comparison, and the verdict.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    let columns = ["", "before", "after", "difference", "chance"];
    let mut table = Table::new(
        &[&columns.map(|name| (name, Align::Right))[..], &[("verdict", Align::Left)]].concat(),
    );
    for change in &comparison.changes {
        let side = |side: Option<OverDrives>| match side {
            Some(side) => {
                format!("{} ± {}", duration_ns(side.mean_ns), duration_ns(side.deviation_ns))
            }
            None => "-".to_owned(),
        };
        let difference = change.before.zip(change.after).map(|(before, after)| {
            let share = (after.mean_ns / before.mean_ns - 1.0) * 100.0;
            format!("{share:+.1} %")
        });
        let verdict = match change.verdict {
            Verdict::Worse => "worse",
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Unknown => "the samples do not carry it",
        };
        table.row([
            change.figure.clone(),
            side(change.before),
            side(change.after),
            difference.unwrap_or_else(|| "-".to_owned()),
            shown(change.allowed_ns),
            verdict.to_owned(),
        ]);
    }
    let basis = match comparison.basis {
        Basis::Runs => "the spread is that between runs",
        Basis::Drives => {
            "the spread is that between drives; a host also differs from run to run: merge three runs of each side"
        }
        Basis::Sample => {
            "the spread is that of one drive's sample; a host also differs from run to run: merge three runs of each side"
        }
    };
    format!("{}\n{}\n{basis}\n", table.to_text(), verdict(comparison))
}

/// The verdict in a line.
#[must_use]
pub fn verdict(comparison: &Comparison) -> String {
    let part = |name: &str, verdict| {
        let figures = comparison.with(verdict);
        (!figures.is_empty()).then(|| format!("{name}: {}", figures.join(", ")))
    };
    let parts: Vec<String> = [part("worse", Verdict::Worse), part("better", Verdict::Better)]
        .into_iter()
        .flatten()
        .collect();
    match (parts.is_empty(), comparison.with(Verdict::Same).is_empty()) {
        (false, _) => parts.join("; "),
        (true, false) => "no change beyond the spread".to_owned(),
        (true, true) => "nothing can be compared: measure for longer".to_owned(),
    }
}

/// Latency over time of all drives, and their distributions, as SVG.
pub fn plot(profile: &Profile) -> Result<String, PlotError> {
    let mut panels = vec![heat(profile)];
    if profile.drives.len() <= LINES_MAX {
        panels.push(distributions(profile));
    }
    report::figure("Latency of random 4 KiB reads", &panels, WIDTH, height(profile.drives.len()))
}

fn height(drives: usize) -> u32 {
    const LEAST: u32 = 320;
    const OF_A_DRIVE: u32 = 16;
    LEAST.max(120 + OF_A_DRIVE * drives as u32)
}

/// Rows are drives, columns are times, colours the largest latency, each tenfold alike.
fn heat(profile: &Profile) -> Panel {
    let slice_ns = profile.drives.iter().map(|drive| drive.timeline.slice_ns()).max().unwrap_or(1);
    let timelines: Vec<Timeline> =
        profile.drives.iter().map(|drive| drive.timeline.coarser(slice_ns)).collect();
    let width = timelines.iter().map(|timeline| timeline.slices().len()).max().unwrap_or(0);
    let slices = timelines.iter().flat_map(Timeline::slices).filter(|slice| slice.count > 0);
    let low = slices.clone().map(|slice| slice.max_ns).min().unwrap_or(0);
    let high = slices.map(|slice| slice.max_ns).max().unwrap_or(0);
    let every = width.div_ceil(COLUMN_NAMES).max(1);
    let column = |index: usize| match index % every {
        0 => format!("{:.1}", index as f64 * slice_ns as f64 / 1e9),
        _ => String::new(),
    };
    let cells = timelines.iter().map(|timeline| {
        let cell = |index: usize| match timeline.slices().get(index) {
            Some(slice) if slice.count > 0 => (slice.max_ns as f64).max(1.0).log10(),
            _ => f64::NAN,
        };
        (0..width).map(cell).collect()
    });
    Panel::Heat(HeatMap {
        caption: format!(
            "largest latency in {}: white {}, blue {}",
            duration_ns(slice_ns as f64),
            duration_ns(low as f64),
            duration_ns(high as f64)
        ),
        x_label: "seconds".to_owned(),
        y_label: String::new(),
        columns: (0..width).map(column).collect(),
        rows: profile.drives.iter().map(|drive| short(&drive.path)).collect(),
        cells: cells.collect(),
        format: |log| duration_ns(10f64.powf(log)),
    })
}

/// The last part of a path.
fn short(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

fn distributions(profile: &Profile) -> Panel {
    let series = profile.drives.iter().map(|drive| {
        let median = drive.latencies.median().map(|ns| (0.5, ns as f64));
        let nines = NINES.iter().filter_map(|nines| {
            let share = 1.0 - 10f64.powi(-(nines.count() as i32));
            Some((share, drive.latencies.nines(*nines)? as f64))
        });
        LatencySeries {
            name: profile.name(drive),
            quantiles: median.into_iter().chain(nines).collect(),
        }
    });
    Panel::Latency(LatencyChart {
        caption: "latency at each percentile that the samples carry".to_owned(),
        series: series.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::result::tests::profile;

    #[test]
    fn the_report_has_figures_what_is_missing_causes_and_proposals() {
        let text = text(&profile("a", 1, &[80_000, 90_000]));
        for part in [
            "/dev/nvme0n1",
            "mean over drives",
            "standard deviation",
            "-: 99.99 % needs 100000 requests of a drive; 80000 are missing",
            "task `hog`",
            "farflash tune plan --only boot-isolcpus,boot-nohz-full",
            "2 threads on CPUs 0-1",
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
        assert!(!text.contains("far off"), "{text}");
    }

    #[test]
    fn json_has_null_for_what_the_sample_does_not_carry() {
        let json = json(&profile("a", 1, &[80_000]));
        let figures = &json["drives"][0]["figures"];
        assert!(figures["p99_9_ns"].is_number() && figures["p99_9999_ns"].is_null(), "{figures}");
        assert_eq!(json["drives"][0]["missing_requests"]["p99_9999_ns"], 9_980_000);
        assert_eq!(json["over_drives"]["mean_ns"]["drives"], 1);
        assert_eq!(json["causes"][0]["cause"]["name"], "hog");
        assert_eq!(json["proposals"][0]["settings"][0], "boot-isolcpus");
    }

    #[test]
    fn a_comparison_ends_in_a_verdict() {
        let (before, after) = (profile("a", 1, &[80_000]), profile("a", 2, &[90_000]));
        let text = comparison(&compare(&before, &after));
        assert!(text.contains("\nworse: 99 %, 99.9 %\n"), "{text}");
        assert_eq!(verdict(&compare(&before, &before)), "no change beyond the spread");
    }

    #[test]
    fn the_plot_names_drives_and_extremes() {
        let svg = plot(&profile("a", 1, &[80_000, 90_000])).unwrap();
        for part in ["nvme1n1", "white", "latency at each percentile"] {
            assert!(svg.contains(part), "{part}");
        }
    }
}
