//! The paper beside the model, figure by figure.

use array_model::{Column, DRIVES, DriveLatencies, OverDrives, Request};

use super::paper::{self, Stated};
use super::{Configuration, DENSITIES};
use crate::Finding;

/// Figures that wander little with the sample: the mean and the percentiles up to 99.999 %.
const STEADY: [Column; 5] =
    [Column::Mean, Column::Nines(2), Column::Nines(3), Column::Nines(4), Column::Nines(5)];
const SIX_NINES: Column = Column::Nines(6);
/// Reads that only a pause of the drive explains.
const SPIKE_NS: u64 = 300_000;
/// Spikes that are closer than this many reads belong to one housekeeping.
const APART: u64 = 200_000;
/// The paper's "similar" and "almost the same", as parts.
const SIMILAR: f64 = 0.15;
const ALMOST_SAME: f64 = 0.03;

fn over(drives: &[DriveLatencies], column: Column) -> OverDrives {
    OverDrives::of(drives, column)
}

fn mean_us(drives: &[DriveLatencies], column: Column) -> f64 {
    over(drives, column).mean_us
}

fn deviation_us(drives: &[DriveLatencies], column: Column) -> f64 {
    over(drives, column).deviation_us
}

fn deviations(drives: &[DriveLatencies]) -> String {
    let values = Column::ALL.map(|column| format!("{:.1}", deviation_us(drives, column)));
    format!("{} µs", values.join(", "))
}

/// The longest read of the drives beside the paper's, which may be off by the given factor.
fn longest(drives: &[DriveLatencies], stated: Stated, factor: f64) -> Finding {
    let values = || drives.iter().map(|drive| drive.us(Column::Max));
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let mean = mean_us(drives, Column::Max);
    Finding {
        what: "longest read".into(),
        paper: format!("about {:.0} µs ({})", stated.value, stated.source),
        here: format!("{mean:.0} µs in the mean, {least:.0} to {most:.0} µs"),
        agrees: (stated.value / factor..=stated.value * factor).contains(&mean),
    }
}

/// The spread over drives after a step beside that before it.
fn converged(
    before: &[DriveLatencies],
    after: &[DriveLatencies],
    paper: &str,
    agrees: bool,
) -> Finding {
    Finding {
        what: "standard deviation over drives, from the mean to the longest read".into(),
        paper: paper.into(),
        here: format!("{} before, {} after", deviations(before), deviations(after)),
        agrees,
    }
}

pub(super) fn default(drives: &[DriveLatencies]) -> Vec<Finding> {
    let deviation = |column| deviation_us(drives, column);
    let below = STEADY[..4].iter().map(|column| deviation(*column)).fold(0.0, f64::max);
    let (five, six) = (deviation(Column::Nines(5)), deviation(SIX_NINES));
    vec![
        longest(drives, paper::LONGEST_DEFAULT, 2.0),
        Finding {
            what: "standard deviation over drives, from the mean to the longest read".into(),
            paper: "relatively wide from 99.999 % on (IV-A, figure 6)".into(),
            here: deviations(drives),
            agrees: five > 2.0 * below && six > 20.0 * below,
        },
    ]
}

pub(super) fn chrt(before: &[DriveLatencies], after: &[DriveLatencies]) -> Vec<Finding> {
    let less = |column| deviation_us(after, column) < deviation_us(before, column) / 2.0;
    let agrees = [Column::Nines(5), SIX_NINES, Column::Max].into_iter().all(less);
    vec![
        longest(after, paper::LONGEST_CHRT, 1.25),
        converged(before, after, "more converged than by default (IV-B, figure 7)", agrees),
    ]
}

pub(super) fn isolcpus(before: &[DriveLatencies], after: &[DriveLatencies]) -> Vec<Finding> {
    let sum = |drives| STEADY.iter().map(|column| deviation_us(drives, *column)).sum::<f64>();
    let agrees = sum(after) < sum(before);
    let pair = |column| [mean_us(before, column), mean_us(after, column)];
    let [was, is] = pair(Column::Max);
    // Not 99.9999 %: a handful of reads, which the drives' pauses decide.
    let is_less = |column| {
        let [was, is] = pair(column);
        is < was
    };
    let all_less = STEADY.into_iter().chain([Column::Max]).all(is_less);
    vec![
        converged(before, after, "more converged than with chrt alone (IV-C, figure 8)", agrees),
        Finding {
            what: "percentiles up to 99.999 %, and the longest read".into(),
            paper: "improves the distributions and the worst case (IV-C, figure 8)".into(),
            here: format!(
                "{} lower; the longest {is:.1} µs after {was:.1} µs",
                if all_less { "all are" } else { "not all are" }
            ),
            agrees: all_less,
        },
    ]
}

pub(super) fn irq(before: &[DriveLatencies], after: &[DriveLatencies]) -> Vec<Finding> {
    let agrees = narrower_by_pinning(before, after);
    vec![
        longest(after, paper::LONGEST_IRQ, 1.25),
        converged(before, after, "more converged (IV-D, figure 9)", agrees),
    ]
}

/// Up to 99.99 % a third at most, and less at 99.999 %, of which a run has few dozen reads.
fn narrower_by_pinning(before: &[DriveLatencies], after: &[DriveLatencies]) -> bool {
    let ratio = |column| deviation_us(after, column) / deviation_us(before, column);
    STEADY[..4].iter().all(|column| ratio(*column) < 1.0 / 3.0) && ratio(STEADY[4]) < 1.0
}

pub(super) fn firmware(before: &[DriveLatencies], after: &[DriveLatencies]) -> Vec<Finding> {
    let part = |drives: &[DriveLatencies]| {
        let values = || drives.iter().map(|drive| drive.us(Column::Max));
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        (most - least) / mean_us(drives, Column::Max)
    };
    vec![
        longest(after, paper::LONGEST_FIRMWARE, 1.25),
        Finding {
            what: "range of the longest read over drives".into(),
            paper: "still wide (IV-E, figure 11)".into(),
            here: format!(
                "{:.0} % of the mean; {:.0} % with housekeeping",
                part(after) * 100.0,
                part(before) * 100.0
            ),
            agrees: part(after) > 0.2,
        },
    ]
}

pub(super) fn housekeeping(long: &[Request]) -> Vec<Finding> {
    let spikes: Vec<&Request> = long.iter().filter(|request| request.ns >= SPIKE_NS).collect();
    let drives = spikes.iter().map(|request| request.drive + 1).max().unwrap_or(0);
    let mut distances = Vec::new();
    for drive in 0..drives {
        let mut last = None;
        for index in spikes.iter().filter(|spike| spike.drive == drive).map(|spike| spike.index) {
            if let Some(last) = last.replace(index)
                && index - last > APART
            {
                distances.push((index - last) as f64);
            }
        }
    }
    let mean = distances.iter().sum::<f64>() / distances.len().max(1) as f64;
    let longest_us = spikes.iter().map(|spike| spike.ns).max().unwrap_or(0) as f64 / 1e3;
    let others = long.iter().filter(|request| request.ns < SPIKE_NS).map(|request| request.ns);
    let others_us = others.max().unwrap_or(0) as f64 / 1e3;
    let stated = paper::READS_BETWEEN_SPIKES;
    vec![
        Finding {
            what: "reads of a drive from one group of spikes to the next".into(),
            paper: format!("about {:.1} million ({})", stated.value / 1e6, stated.source),
            here: match distances.is_empty() {
                true => format!("{} spikes, and no second group in this time", spikes.len()),
                false => format!("{:.2} million, {} spikes", mean / 1e6, spikes.len()),
            },
            agrees: (stated.value / 1.2..stated.value * 1.2).contains(&mean),
        },
        Finding {
            what: "length of the spikes, and the longest other read".into(),
            paper: "the spikes alone reach the worst case of about 600 µs (IV-E)".into(),
            here: format!("{longest_us:.0} µs, {others_us:.0} µs"),
            agrees: (500.0..700.0).contains(&longest_us) && others_us < 150.0,
        },
    ]
}

/// Figure 12, in the order default, chrt, isolcpus, irq.
pub(super) fn steps(all: &[Vec<DriveLatencies>; 4]) -> Vec<Finding> {
    let longest = all.each_ref().map(|drives| over(drives, Column::Max));
    let [first, .., last] = longest;
    let mean = first.mean_us / last.mean_us;
    let deviation = first.deviation_us / last.deviation_us;
    let within = |value: f64, stated: Stated, factor: f64| {
        (stated.value / factor..=stated.value * factor).contains(&value)
    };
    let gains: Vec<f64> =
        longest.windows(2).map(|pair| pair[0].mean_us - pair[1].mean_us).collect();
    vec![
        Finding {
            what: "mean of the longest read, default beside all steps".into(),
            paper: format!(
                "{} times as long ({})",
                paper::FACTOR_MEAN.value,
                paper::FACTOR_MEAN.source
            ),
            here: format!("{mean:.1} times: {:.0} and {:.0} µs", first.mean_us, last.mean_us),
            agrees: within(mean, paper::FACTOR_MEAN, 1.6),
        },
        Finding {
            what: "deviation of the longest read, default beside all steps".into(),
            paper: format!(
                "{} times ({}): {} and {} µs ({})",
                paper::FACTOR_DEVIATION.value,
                paper::FACTOR_DEVIATION.source,
                paper::DEVIATION_DEFAULT.value,
                paper::DEVIATION_IRQ.value,
                paper::DEVIATION_IRQ.source
            ),
            here: format!(
                "{deviation:.0} times: {:.0} and {:.1} µs",
                first.deviation_us, last.deviation_us
            ),
            agrees: deviation > 100.0 && within(last.deviation_us, paper::DEVIATION_IRQ, 2.0),
        },
        Finding {
            what: "step that lowers the longest read most".into(),
            paper: "the priority (IV-F, figure 12)".into(),
            here: format!(
                "chrt by {:.0} µs, isolcpus by {:.1} µs, irq by {:.1} µs",
                gains[0], gains[1], gains[2]
            ),
            agrees: gains[0] > gains[1].max(gains[2]),
        },
        Finding {
            what: "deviation of the mean and of 99 to 99.999 %, by pinned interrupts".into(),
            paper: "drastically reduced (IV-F, figure 12)".into(),
            here: format!("{} before, {} after", deviations(&all[2]), deviations(&all[3])),
            agrees: narrower_by_pinning(&all[2], &all[3]),
        },
    ]
}

/// Figures 13 and 14, in the order of [`DENSITIES`].
pub(super) fn densities(all: &[Vec<DriveLatencies>; 4], seconds: f64) -> Vec<Finding> {
    let means = |column| all.each_ref().map(|drives| mean_us(drives, column));
    let apart = |values: &[f64]| {
        let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
            (least.min(*value), most.max(*value))
        });
        most / least - 1.0
    };
    let widest = STEADY.map(|column| apart(&means(column))).into_iter().fold(0.0, f64::max);
    let alone = STEADY.map(|column| apart(&means(column)[2..])).into_iter().fold(0.0, f64::max);
    let six = means(SIX_NINES);
    let [mean_four, .., mean_alone] = means(Column::Mean);
    let reads: u64 = all[0].iter().map(DriveLatencies::count).sum();
    let throughput = reads as f64 * 4096.0 / 1e9 / seconds * DRIVES as f64 / all[0].len() as f64;
    let stated = paper::THROUGHPUT;
    vec![
        Finding {
            what: "mean and percentiles up to 99.999 %, four layouts".into(),
            paper: "quite similar (IV-G, figure 13)".into(),
            here: format!("up to {:.1} % apart", widest * 100.0),
            agrees: widest < SIMILAR,
        },
        Finding {
            what: "one drive per core beside one on the whole host".into(),
            paper: "almost the same (IV-G, figure 13)".into(),
            here: format!("up to {:.1} % apart", alone * 100.0),
            agrees: alone < ALMOST_SAME,
        },
        Finding {
            what: "99.9999 % with four drives per core".into(),
            paper: "higher than with fewer (IV-G, figure 13)".into(),
            here: six
                .iter()
                .zip(DENSITIES)
                .map(|(us, (name, _))| format!("{name}: {us:.0} µs"))
                .collect::<Vec<_>>()
                .join(", "),
            agrees: six[1..].iter().all(|other| six[0] > other * 1.02),
        },
        Finding {
            what: "mean read".into(),
            paper: format!("{} µs ({})", paper::MEAN_READ.value, paper::MEAN_READ.source),
            here: format!("{mean_alone:.1} µs alone, {mean_four:.1} µs with all drives"),
            agrees: (mean_alone / paper::MEAN_READ.value - 1.0).abs() < 0.1,
        },
        Finding {
            what: "throughput of 64 threads".into(),
            paper: format!("{} GB/s ({})", stated.value, stated.source),
            here: format!("{throughput:.2} GB/s"),
            agrees: (throughput / stated.value - 1.0).abs() < 0.1,
        },
    ]
}

pub(super) fn table_2(rows: &[Configuration]) -> Vec<Finding> {
    let text = |row: &Configuration| {
        format!(
            "drives/core: {}, interrupts/CPU: {}, threads/CPU: {}, threads: {}, runs: {}",
            row.drives_per_core, row.interrupts_per_cpu, row.threads_per_cpu, row.threads, row.runs
        )
    };
    let all = rows.iter().zip(paper::TABLE_2).zip(DENSITIES);
    all.map(|((row, stated), (name, _))| Finding {
        what: format!("{name} (table II)"),
        paper: text(&stated),
        here: text(row),
        agrees: *row == stated,
    })
    .collect()
}
